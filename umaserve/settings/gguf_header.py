"""Reads from the header of a GGUF file of which architecture its model is, and how long a context it was trained for.

The format is that of the GGUF specification (ggml, docs/gguf.md). The engine checks files before they are loaded; here
whatever is wrong with one means that nothing is known.
"""

from __future__ import annotations

import os
import struct
from typing import BinaryIO, NamedTuple

_HEAD = struct.Struct("<4sIQQ")
_VERSIONS = (2, 3)
_KIND, _LENGTH = struct.Struct("<I"), struct.Struct("<Q")
_UINT32, _STRING, _ARRAY = 4, 8, 9
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, _UINT32: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_KEY = b".context_length"
_MAX_PAIRS = 1024
"""Most entries that are looked at: it stands among the first 64 in real files."""
_MAX_KEY_BYTES = 65535
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Trained(NamedTuple):
    """Training of a model: by llama.cpp's name of its architecture, with so many tokens of context."""

    architecture: str = ""
    tokens: int = 0


UNKNOWN = Trained()
"""Training of a model whose file doesn't tell."""


def read(path: str) -> Trained:
    """Training of the model in the file at ``path``. Reads a few KiB, and nothing of a vocabulary."""
    try:
        with open(os.open(path, _FLAGS), "rb") as file:
            return _trained(file)
    except (OSError, ValueError, OverflowError, struct.error):
        return UNKNOWN


def _trained(file: BinaryIO) -> Trained:
    """Raises OverflowError and struct.error for a damaged file, or one that is cut off."""
    if not file.seekable():
        return UNKNOWN
    magic, version, _tensors, pairs = _HEAD.unpack(file.read(_HEAD.size))
    if magic != b"GGUF" or version not in _VERSIONS:
        return UNKNOWN
    for _ in range(min(pairs, _MAX_PAIRS)):
        length = _number(file, _LENGTH)
        if length > _MAX_KEY_BYTES:
            return UNKNOWN
        key, kind = file.read(length), _number(file, _KIND)
        if key.endswith(_KEY) and kind == _UINT32:
            architecture = key.removesuffix(_KEY).decode(errors="replace")
            return Trained(architecture if architecture.isprintable() else "", _number(file, _KIND))
        if not _skip(file, kind):
            break
    return UNKNOWN


def _skip(file: BinaryIO, kind: int) -> bool:
    """Skip a value; returns whether that is possible without reading much."""
    count = 1
    if kind == _ARRAY:
        kind, count = _number(file, _KIND), _number(file, _LENGTH)
    if kind in _SCALAR_BYTES:
        file.seek(count * _SCALAR_BYTES[kind], os.SEEK_CUR)
        return True
    # The arrays of strings are vocabularies, which come last.
    if kind == _STRING and count == 1:
        file.seek(_number(file, _LENGTH), os.SEEK_CUR)
        return True
    return False


def _number(file: BinaryIO, form: struct.Struct) -> int:
    (number,) = form.unpack(file.read(form.size))
    return int(number)
