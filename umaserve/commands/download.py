"""The program that downloads a model for a daemon, which reads what it says: a line of JSON whenever more has come, and
a last one that says that all is there, or what is wrong.

Arguments: the descriptor to say it by; the model; the folder of models; how many bytes that may have with it.
"""

from __future__ import annotations

import os
import re
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from umaserve.commands.hub import Offer, RemoteFile, Repository, keep_to_hub, named, offers, opened
from umaserve.commands.pull import check_disk, chosen, download, shown
from umaserve.core.errors import ConfigError
from umaserve.settings.model_files import staging_of
from umaserve.system import program

NICENESS = 10
SAY_EVERY_S = 0.2
_NOBODYS = re.compile(r"\.[0-9a-f]{8}\.incomplete")
"""End of the name of a file that belonged to one process alone, and so is never resumed."""


class _Progress:
    """Says how much of each file is there."""

    def __init__(self, out: BinaryIO, repository: Repository, offer: Offer) -> None:
        self._out = out
        self._name = offer.name
        self._addresses = {file: repository.address(file) for file in offer.files}
        self._files = {self._addresses[file]: (0, file.size_bytes) for file in offer.files}
        self._said_at = 0.0

    def __call__(self, file: RemoteFile, n_bytes: int) -> None:
        self._files[self._addresses[file]] = (n_bytes, file.size_bytes)
        if time.monotonic() - self._said_at >= SAY_EVERY_S or n_bytes == file.size_bytes:
            self.say()

    def say(self) -> None:
        self._said_at = time.monotonic()
        _say(self._out, {"model": self._name, "files": self._files})


def main(arguments: Sequence[str]) -> None:
    program.begin(nice=NICENESS)
    out_fd, model, folder, max_bytes = arguments
    out = open(int(out_fd), "wb", buffering=0)  # noqa: SIM115 - the daemon takes its end for that of the process
    try:
        _download(out, model, Path(folder), int(max_bytes))
        _say(out, {"finished": True})
    except ConfigError as error:
        _say(out, {"error": str(error)})


def _download(out: BinaryIO, model: str, folder: Path, max_bytes: int) -> None:
    """Raises ConfigError."""
    name, quantization = named(model)
    keep_to_hub()
    repository = opened(name)
    found = offers(repository)
    if not found:
        raise ConfigError(f"{name}: it has no GGUF files: look for a repository of the same model with GGUF")
    offer = chosen(found, quantization)
    staging, place = Path(staging_of(str(folder), name, offer.name)), folder / offer.name
    for path in [path for path in staging.rglob("*.incomplete") if _NOBODYS.search(path.name)]:
        path.unlink()
    _check_place(offer, place)
    held = _bytes_below(folder) - _bytes_below(staging) - _bytes_below(place)
    if held + offer.size_bytes > max_bytes:
        has = f"{offer.name} has {shown(offer.size_bytes)}, and the folder of models {shown(held)} already"
        raise ConfigError(f"{has}: --model-downloads allows {shown(max_bytes)} together: delete a model first")
    check_disk(offer, folder)
    progress = _Progress(out, repository, offer)
    progress.say()
    download(repository, offer, folder, lambda remark: print(remark, file=sys.stderr), progress)


def _check_place(offer: Offer, place: Path) -> None:
    """Raise ConfigError where other files have these names: they may be served, and their owner didn't ask for others
    in their place."""
    for file in offer.files:
        target = place / os.path.basename(file.path)
        if target.exists() and target.stat().st_size != file.size_bytes:
            raise ConfigError(f"{offer.name}: the folder of models has another {target.name}: delete that model first")


def _bytes_below(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _say(out: BinaryIO, words: dict[str, Any]) -> None:
    out.write(orjson.dumps(words) + b"\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
        status = 0
    except BaseException:
        traceback.print_exc()
        status = 1
    # Skips the libraries' cleanup at exit, which the daemon would wait for.
    os._exit(status)
