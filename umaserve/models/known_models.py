"""What models took in memory when they were loaded, and what their ticks take, from one run of the daemon to the next:
a small file of JSON.

A model is known by its files and settings, and by what loads it. One that is has been measured and tried out before,
with this result, so neither is done again; and its first ticks are planned by what the last ones took.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import orjson

from umaserve import __version__
from umaserve.core.model_names import MAX_NAME
from umaserve.sessions.cost_model import MAX_S, Cost
from umaserve.settings.daemon import Config
from umaserve.settings.model_files import default_model, parts
from umaserve.settings.models import PER_MODEL, VOICE
from umaserve.system import folders
from umaserve.system.cores import processor, usable_cores

log = logging.getLogger(__name__)

VERSION = 1
MAX_MODELS = 256
"""The most models that are known: those that were loaded longest ago are forgotten."""
MAX_FILE_BYTES = 1 << 20
MAX_NEEDED_BYTES = 1 << 50
MAX_CELLS = (1 << 31) - 1
_FILE = "memory.json"
_SECONDS = tuple(field.name for field in fields(Cost))
_KEY = re.compile(r"[0-9a-f]{64}")
# No pipe is waited for, no link followed.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


@dataclass(frozen=True, slots=True)
class Known:
    """One model, once loaded."""

    name: str
    """Name of the model, for people who read the file."""
    needed_bytes: int
    cost: Cost | None = None
    """Cost of the model's ticks with all threads; ``None`` where it ran too few."""
    cells: int = 0
    """KV cells that it had; 0 where an earlier version has written the file."""


def file_of(environ: Mapping[str, str]) -> Path | None:
    """Path of the file: in the service manager's state folder, or in the user's; ``None`` where there is neither."""
    try:
        return folders.state(environ) / _FILE
    except FileNotFoundError as error:
        log.info("the models' measured memory and speed can't be stored: %s", error)
        return None


def files_of(config: Config) -> list[str]:
    """The GGUF files that are loaded by ``config``, without adapters."""
    named = (config.mmproj, config.draft_model, config.tts_model, config.tts_mmproj)
    return [*parts(config.model or default_model()), *filter(None, named)]


def read(data: bytes) -> dict[str, Known]:
    """The models of a file by their keys, in its order. Raises ``ValueError`` with what is wrong, and where."""
    top = orjson.loads(data)
    if not isinstance(top, dict):
        raise ValueError(f"expected an object, got {_kind(top)}")
    if top.get("version") != VERSION:
        raise ValueError(f"version: expected {VERSION}, got {top.get('version')!r:.40}")
    models = top.get("models")
    if not isinstance(models, list) or len(models) > MAX_MODELS:
        raise ValueError(f"models: expected an array of at most {MAX_MODELS} objects, got {_kind(models)}")
    return dict(_known(model, f"models[{index}]") for index, model in enumerate(models))


def _known(model: object, place: str) -> tuple[str, Known]:
    match model:
        case {"key": str(key), "name": str(name), "needed_bytes": int(needed), **more} if (
            _KEY.fullmatch(key) and 0 < len(name) <= MAX_NAME and not isinstance(needed, bool)
        ):
            if 0 < needed <= MAX_NEEDED_BYTES:
                cells = _cells(more.get("cells", 0), f"{place}.cells")
                return key, Known(name, needed, _cost(more.get("cost"), f"{place}.cost"), cells)
            raise ValueError(f"{place}.needed_bytes: expected a number from 1 to {MAX_NEEDED_BYTES}, got {needed}")
    raise ValueError(f"{place}: expected an object of a key, a name and needed_bytes, got {_kind(model)}")


def _cells(value: object, place: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_CELLS:
        raise ValueError(f"{place}: expected a whole number from 0 to {MAX_CELLS}, got {_kind(value)}")
    return value


def _cost(value: object, place: str) -> Cost | None:
    if value is None:
        return None
    if not isinstance(value, dict) or value.keys() != set(_SECONDS):
        raise ValueError(f"{place}: expected an object of {', '.join(_SECONDS)}, got {_kind(value)}")
    for name, seconds in value.items():
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_S:
            raise ValueError(f"{place}.{name}: expected a number from 0 to {MAX_S:g}, got {_kind(seconds)}")
    cost = Cost(**value)
    if not cost.makes_sense:
        raise ValueError(f"{place}.prefill_row_s: expected more than 0, got {cost.prefill_row_s}")
    return cost


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r:.40}"


def written(models: Mapping[str, Known]) -> bytes:
    """The file of the last ``MAX_MODELS`` of them."""
    kept = list(models.items())[-MAX_MODELS:]
    # Dataclasses are objects of their fields.
    entries: list[dict[str, object]] = [
        {"key": key, "name": one.name, "needed_bytes": one.needed_bytes, "cells": one.cells, "cost": one.cost}
        for key, one in kept
    ]
    return orjson.dumps({"version": VERSION, "models": entries}, option=orjson.OPT_INDENT_2)


class KnownModels:
    """Known models, in the order in which they were loaded. The daemons of a user share the file; where two write it at
    once, one of them measures a model again. What can't be read or written is logged, and costs no more."""

    def __init__(self, file: Path | None) -> None:
        """``file``: as of ``file_of``; ``None``: they are forgotten at the end."""
        self._file = file
        self._build = _build()
        self._complained: set[str] = set()
        self._models: dict[str, Known] = {}
        self._look()

    def key(self, config: Config) -> str | None:
        """Key of the model that is loaded by ``config``; ``None`` where a file of it can't be read, as loading it
        says."""
        try:
            files = [_state(path) for path in files_of(config)]
        except OSError:
            return None
        settings = {name: getattr(config, name) for name in (*PER_MODEL, *VOICE)}
        # Unlike JSON, it has a form for all names that a file may have.
        facts = repr((self._build, files, settings))
        return hashlib.sha256(facts.encode()).hexdigest()

    def needed_bytes(self, key: str | None) -> int:
        """Memory that the model took, in bytes; 0 where it is not known."""
        known = self._models.get(key or "")
        return 0 if known is None else known.needed_bytes

    def cells(self, key: str | None) -> int:
        """KV cells that the model had; 0 where they are not known."""
        known = self._models.get(key or "")
        return 0 if known is None else known.cells

    def cost(self, key: str | None) -> Cost | None:
        """Cost of the model's ticks; ``None`` where it is not known."""
        known = self._models.get(key or "")
        return None if known is None else known.cost

    def learn(self, key: str | None, name: str, needed_bytes: int, cost: Cost | None = None, *, cells: int = 0) -> None:
        """Keep how much memory a loaded model took, with so many KV ``cells``; ``cost``: of its ticks, where it is
        known."""
        if key is not None and 0 < needed_bytes <= MAX_NEEDED_BYTES:
            self._look()
            self._models.pop(key, None)
            sensible = cost if cost is not None and cost.makes_sense else None
            self._models[key] = Known(name, needed_bytes, sensible, min(cells, MAX_CELLS))
            self._write()

    def forget(self, key: str | None) -> None:
        """Forget a model that could not be loaded, or whose engine was lost: the next time it is measured and tried out
        again."""
        self._look()
        if self._models.pop(key or "", None) is not None:
            self._write()

    def _look(self) -> None:
        """Read the file, with what other daemons have written."""
        if self._file is None:
            return
        try:
            self._models = read(_content(self._file))
        except FileNotFoundError:
            self._models = {}
        except (OSError, ValueError) as error:
            self._models = {}
            self._complain("%s is ignored, and the models' memory and speed are measured again: %s", self._file, error)

    def _write(self) -> None:
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(self._file, written(self._models))
        except OSError as error:
            self._complain("the models' measured memory and speed can't be stored: %s", error)

    def _complain(self, message: str, *arguments: object) -> None:
        if message not in self._complained:
            log.warning(message, *arguments)
        self._complained.add(message)


def _content(file: Path) -> bytes:
    """Raises ``OSError`` also for what is no file of this user alone, and ``ValueError`` for a larger one."""
    descriptor = os.open(file, _FLAGS)
    with open(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        ours = stat.S_ISREG(status.st_mode) and status.st_uid in (0, os.geteuid())
        if not ours or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError("it is not a file, belongs to another user, or others may write to it")
        data = opened.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
    return data


def _replace(file: Path, data: bytes) -> None:
    # Not synced to the disk: what a power failure damages is learned anew.
    descriptor, new = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with open(descriptor, "wb") as opened:
            opened.write(data)
        os.replace(new, file)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _state(path: str) -> tuple[str, int, int]:
    """State of a file: one that is written again has another."""
    real = os.path.realpath(path)
    status = os.stat(real)
    return real, status.st_size, status.st_mtime_ns


def _build() -> tuple[Any, ...]:
    """State of this program, of llama.cpp, which is not loaded for that, and of the processor and its cores that may be
    used: a home folder may be that of several boxes."""
    found = importlib.util.find_spec("llama_cpp")
    folder = Path(found.origin).parent / "lib" if found is not None and found.origin else None
    libraries = sorted(folder.iterdir()) if folder is not None and folder.is_dir() else []
    return (__version__, processor(), usable_cores(), *(_state(str(path)) for path in libraries))
