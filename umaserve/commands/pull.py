"""``umaserve pull``: a model's files from the Hugging Face Hub into the folder of models."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from umaserve.commands.hub import Offer, RemoteFile, Repository, named, offers, opened
from umaserve.commands.parser import Parser
from umaserve.core.errors import ConfigError
from umaserve.settings.daemon import SETTINGS
from umaserve.settings.model_files import SOURCE, staging_of
from umaserve.settings.sources import nearest, printable
from umaserve.system.memory import UNKNOWN_BYTES, available_bytes

USUAL = "Q4_K_M"
"""What is taken where none is named: small, and close to the original."""
DESCRIPTION = f"""\
Downloads a model from the Hugging Face Hub into the folder of models, with its projector if it has one. After an
interruption, files that are whole stay; each is checked against its SHA-256, or a message says that the hub has none.

Most repositories have a model in several quantizations. Name one after a colon; without a name, {USUAL} is used if the
repository has it. --list shows all, and which of them fit into this machine's memory.

examples:
  umaserve pull --list hf.co/bartowski/Qwen2.5-7B-Instruct-GGUF
  umaserve pull hf.co/bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M --models-dir /srv/models
  umaserve --models-dir /srv/models --model Qwen2.5-7B-Instruct-Q4_K_M

For a repository that isn't public, set HF_TOKEN.
"""

Write = Callable[[str], None]


def run(arguments: Sequence[str], write: Write) -> int:
    """Download and return the exit status. Raises ConfigError, also for what can't be had."""
    parser = Parser("umaserve pull", description=DESCRIPTION)
    parser.add_argument("model", metavar="hf.co/ORG/REPOSITORY[:QUANTIZATION]", help="what to download")
    parser.add_argument("--list", action="store_true", help="only list what the repository has")
    parser.add_argument(
        "--models-dir",
        metavar="PATH",
        help="the folder to download into (default: $UMA_MODELS_DIR, else one of this user's)",
    )
    parser.add_argument(
        "--anyway", action="store_true", help="download a model even if it is larger than this machine's memory"
    )
    options = parser.parse_args(arguments)
    name, quantization = named(options.model)
    flags = {} if options.models_dir is None else {"models_dir": options.models_dir}
    folder = Path(SETTINGS.load(flags, os.environ).config.models_dir or _own_folder())
    repository = opened(name)
    found, left = offers(repository), available_bytes()
    if not found:
        raise ConfigError(f"{name}: it has no GGUF files: look for a repository of the same model with GGUF")
    if options.list:
        write(listing(found, left))
        return 0
    offer = chosen(found, quantization)
    _check_memory(offer, left, anyway=options.anyway)
    check_disk(offer, folder)
    fits = "the available memory is unknown"
    if left != UNKNOWN_BYTES:
        fits = f"{shown(left)} of memory are available"
    several = "file" if len(offer.files) == 1 else "files"
    _say(f"{offer.name}: {shown(offer.size_bytes)} in {len(offer.files)} {several}; {fits}")
    download(repository, offer, folder, _say)
    write(f"{offer.name} is in {folder}. To serve it:\n  umaserve --models-dir {folder} --model {offer.name}\n")
    return 0


def listing(found: Sequence[Offer], left: int) -> str:
    """A line for each; ``left``: the bytes of memory that are available."""
    rows = [("QUANTIZATION", "SIZE", "", "NAME"), *(tuple(_cells(offer, left)) for offer in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)


def chosen(found: Sequence[Offer], quantization: str) -> Offer:
    """The one that the user means. Raises ConfigError where that is none or several."""
    wanted = quantization or (USUAL if len(found) > 1 else found[0].quantization)
    matches = [offer for offer in found if wanted.lower() in (offer.quantization.lower(), offer.name.lower())]
    if len(matches) == 1:
        return matches[0]
    known = [offer.quantization or offer.name for offer in found]
    hint = nearest(wanted, known) if quantization else ""
    problem = f"no model has {printable(wanted)}{hint}" if not matches else f"several models have {printable(wanted)}"
    names = ", ".join(sorted(known if not matches else [offer.name for offer in matches]))
    raise ConfigError(f"{problem}: name one after a colon: {names}")


def _cells(offer: Offer, left: int) -> Iterator[str]:
    yield offer.quantization
    yield shown(offer.size_bytes)
    yield "fits" if offer.size_bytes < left else "too large"
    yield offer.name


def shown(size: int) -> str:
    """Show bytes in the unit that leaves one to four digits before the point."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 1024:.1f} KiB"


def _check_memory(offer: Offer, left: int, *, anyway: bool) -> None:
    """Before hours of downloading. Raises ConfigError."""
    if offer.size_bytes >= left and not anyway:
        found = f"{offer.name} has {shown(offer.size_bytes)}, and {shown(left)} of memory are available"
        raise ConfigError(f"{found}: choose a stronger quantization (--list shows all), or give --anyway")


def check_disk(offer: Offer, folder: Path) -> None:
    """Raise ConfigError where a model can't be put into ``folder``, which is made."""
    size = offer.size_bytes
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}: name a folder of yours with --models-dir") from None
    if size >= free:
        raise ConfigError(
            f"{offer.name} has {shown(size)}, and {folder} has {shown(free)} free: delete something there"
        )


def download(
    repository: Repository,
    offer: Offer,
    folder: Path,
    say: Write,
    progress: Callable[[RemoteFile, int], None] | None = None,
) -> None:
    """Download an offer's files into ``folder``. ``say`` gets remarks for the user, ``progress`` how many bytes of a
    file are there; without it bars are drawn. Raises ConfigError."""
    staging, place = Path(staging_of(str(folder), repository.name, offer.name)), folder / offer.name
    whole = []
    for file in offer.files:
        target = place / os.path.basename(file.path)
        if target.exists() and target.stat().st_size == file.size_bytes:
            say(f"{target.name} exists already")
        else:
            if not file.sha256:
                say(f"{target.name}: the hub has no SHA-256 of it, so it is not checked")
            told = None if progress is None else functools.partial(progress, file)
            whole.append((repository.fetched(file, staging, told), target))
        if progress is not None:
            progress(file, file.size_bytes)
    try:
        place.mkdir(exist_ok=True)
        (place / SOURCE).write_text(f"{repository.name}:{offer.quantization or offer.name}\n")
        # The model last: a daemon that sees it sees its projector too.
        for path, target in whole:
            os.replace(path, target)
    except OSError as error:
        advice = f"what was downloaded is in {staging}"
        raise ConfigError(f"{place}: can't be put there: {error.strerror}: {advice}") from None
    shutil.rmtree(staging, ignore_errors=True)


def _say(remark: str) -> None:
    print(remark, file=sys.stderr)


def _own_folder() -> str:
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return os.path.join(data, "umaserve", "models")
