"""Offers of a repository of the Hugging Face Hub, and its files."""

from __future__ import annotations

import hashlib
import re
import sys
import urllib.parse
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from umaserve.core.errors import ConfigError
from umaserve.settings.model_files import grouped, parts, quantization
from umaserve.settings.sources import printable

_PLACE = re.compile(
    r"(?:(?:https?://)?(?:huggingface|hf)\.co/)?+"
    r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})"
    r"(?:/?|/tree/main/?|/(?:blob|resolve)/main/(?:[^:?]+/)?([^/:?]+)\.gguf(?:\?download=true)?)"
    r"(?::(.+))?"
)
"""A repository, also as a browser shows its address or that of one of its files."""
_STAYS_BELOW = re.compile(r"(?:(?!\.{0,2}/)[^/\\]+/)*[^/\\]+")
_SHA256 = re.compile("[0-9a-f]{64}")
_PROJECTOR = "mmproj"
MAX_FILES = 4096
"""GGUF files of one repository."""
MAX_BYTES = 1 << 50
"""Largest size of one file, in bytes."""
HUBS = ("huggingface.co", "hf.co")
"""Where the hub keeps files, in domains below, and where its mirrors send their clients."""
TIMEOUT_S = 60.0


Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """File of a repository. ``sha256``: in hexadecimal; empty where the hub has none."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that can be had: its files, the projector's first."""

    name: str
    quantization: str
    files: tuple[RemoteFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Repository:
    """One revision of a repository."""

    name: str
    revision: str
    files: tuple[RemoteFile, ...]

    def address(self, file: RemoteFile) -> str:
        """The URL of a file."""
        address: str = _library().hf_hub_url(self.name, file.path, revision=self.revision)
        return address

    def fetched(self, file: RemoteFile, folder: Path, progress: Progress | None = None) -> Path:
        """Download a file into ``folder``, going on where an earlier download ended, and check it. ``progress`` gets
        how many bytes have come; without it a bar is drawn. Raises ConfigError."""
        library = _library()
        bar = {} if progress is None else {"tqdm_class": _counter(file, progress)}
        try:
            path = Path(library.hf_hub_download(self.name, file.path, revision=self.revision, local_dir=folder, **bar))
        # ValueError: the file is too large for plain HTTP.
        except (library.errors.HfHubHTTPError, library.errors.HTTPError, OSError, ValueError) as error:
            advice = "try again: files that are whole stay"
            raise ConfigError(f"{self.name}: {file.path}: {_one_line(error)}: {advice}") from None
        if file.sha256:
            with path.open("rb") as content:
                found = hashlib.file_digest(content, "sha256").hexdigest()
            if found != file.sha256:
                path.unlink()
                raise ConfigError(f"{self.name}: {file.path}: damaged during the download: try again")
        return path


def _counter(file: RemoteFile, progress: Progress) -> type:
    """What the library takes for a progress bar, and which counts the bytes of one file."""

    class Counter:
        def __init__(self, *, initial: int = 0, **_look: object) -> None:
            self._bytes = initial

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def update(self, n_bytes: int) -> None:
            self._bytes += n_bytes
            if self._bytes > file.size_bytes:
                raise ConfigError(f"{file.path}: expected {file.size_bytes} bytes, and more came")
            progress(self._bytes)

    return Counter


def keep_to_hub() -> None:
    """Have requests, also those that the hub redirects, go to the hub's address and to ``HUBS`` only; others raise
    ConfigError."""
    library = _library()
    hub = urllib.parse.urlsplit(library.constants.ENDPOINT)
    session = library.get_session()

    def check(request: Any) -> None:
        host = request.url.host
        if host != hub.hostname and not any(f".{host}".endswith(f".{one}") for one in HUBS):
            raise ConfigError(f"the hub redirects to another host, {printable(host[:64])}: nothing was sent there")
        if request.url.scheme != "https" and hub.scheme == "https":
            raise ConfigError(f"the hub redirects to {printable(host[:64])} without TLS: nothing was sent there")

    hooks = {"request": [check, *session.event_hooks["request"]]}
    library.set_client_factory(lambda: type(session)(event_hooks=hooks, follow_redirects=True, timeout=TIMEOUT_S))


def named(text: str) -> tuple[str, str]:
    """The repository, ORG/NAME, and the quantization or file that a user means; the latter is empty where none is
    named. Raises ConfigError."""
    found = _PLACE.fullmatch(text)
    if not found:
        raise ConfigError(f"{printable(text)}: expected hf.co/ORG/REPOSITORY, such as hf.co/Qwen/Qwen3-8B-GGUF")
    repository, file, quantization = found.groups()
    return repository, quantization or file or ""


def opened(name: str) -> Repository:
    """The newest revision of ORG/NAME. Raises ConfigError."""
    library = _library()
    if not sys.stderr.isatty():
        library.utils.disable_progress_bars()
    try:
        found = library.HfApi().model_info(name, files_metadata=True)
    except library.errors.GatedRepoError:
        advice = f"accept its terms at https://huggingface.co/{name}, and set HF_TOKEN to your token"
        raise ConfigError(f"{name}: its terms have to be accepted first: {advice}") from None
    except library.errors.RepositoryNotFoundError:
        raise ConfigError(f"{name}: no such repository, or it is private: check the name, or set HF_TOKEN") from None
    except (library.errors.HfHubHTTPError, library.errors.HTTPError, OSError) as error:
        raise ConfigError(f"{name}: the hub can't be reached: {_one_line(error)}: is this machine online?") from None
    # What the library makes of an answer in another form than the hub's.
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{name}: the hub's answer can't be read: {_one_line(error)}") from None
    listed = [one for one in found.siblings or () if str(one.rfilename).endswith(".gguf")]
    if len(listed) > MAX_FILES:
        raise ConfigError(f"{name}: expected at most {MAX_FILES} GGUF files, got {len(listed)}")
    return Repository(name, str(found.sha or "main"), tuple(_remote_file(name, one) for one in listed))


def _remote_file(repository: str, one: Any) -> RemoteFile:
    """Read what the hub tells of a file, checked; raises ConfigError."""
    path, sha256 = str(one.rfilename), one.lfs.sha256 if one.lfs else ""
    place = f"{repository}: {printable(path[:256])}"
    if type(one.size) is not int or not 0 < one.size <= MAX_BYTES:
        raise ConfigError(f"{place}: expected a size from 1 to {MAX_BYTES} bytes, got {printable(str(one.size)[:64])}")
    if sha256 and not (isinstance(sha256, str) and _SHA256.fullmatch(sha256)):
        raise ConfigError(f"{place}: expected a SHA-256 of 64 hexadecimal digits, got {printable(str(sha256)[:64])}")
    return RemoteFile(path, one.size, sha256)


def offers(repository: Repository) -> list[Offer]:
    """The models in a repository, each with the projector that goes with it, by size. Raises ConfigError where a file
    would not stay within the folder that it is put into."""
    folders: dict[str, dict[str, RemoteFile]] = defaultdict(dict)
    for file in repository.files:
        if file.path.endswith(".gguf") and not (file.path.isprintable() and _STAYS_BELOW.fullmatch(file.path)):
            raise ConfigError(f"{repository.name}: expected the name of a file in it, got {printable(file.path[:256])}")
        folder, _, name = file.path.rpartition("/")
        folders[folder][name] = file
    # A projector at the top is for the models in all folders.
    common = {name: file for name, file in folders[""].items() if _PROJECTOR in name.lower()}
    found = []
    for files in folders.values():
        beside = {**common, **files}
        for model in grouped(sorted(beside))[0]:
            if model.path not in files:
                continue
            projector = model.mmproj or _projector(sorted(beside))
            names = ([projector] if projector else []) + parts(model.path)
            found.append(Offer(model.name, quantization(model.name), tuple(beside[name] for name in names)))
    return sorted(found, key=lambda offer: offer.size_bytes)


def _projector(names: Sequence[str]) -> str:
    """Choose the projector's file: in 16 bits if there is one; empty where the repository has none."""
    projectors = [name for name in names if _PROJECTOR in name.lower() and name.endswith(".gguf")]
    wanted = (name for kind in ("-f16", "bf16", "") for name in projectors if kind in name.lower())
    return next(wanted, "")


def _library() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise ConfigError("pull needs a library: pip install 'umaserve[hub]'") from None
    return huggingface_hub


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
