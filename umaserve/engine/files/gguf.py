"""Checks from its header that a file is a GGUF model that llama.cpp can load, before llama.cpp reads it.

The format is that of the GGUF specification (ggml, docs/gguf.md). Where llama.cpp's reader is stricter, so is this one:
no nested arrays, and tensors one after another without gaps. llama.cpp reports errors only in its log, and aborts the
process on some damaged files.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import stat
import struct
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from llama_cpp import GGML_TYPE_COUNT
from llama_cpp._ggml import libggml

from umaserve.core.errors import ModelError

# Prototypes declared here: a ``restype`` set on the library's attributes would change them for llama_cpp too.
_block_elements = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int)(("ggml_blck_size", libggml))
_block_bytes = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)(("ggml_type_size", libggml))
# (elements, bytes) of a block by tensor type, without removed types. A table, because ggml checks no bounds: its
# functions must not be called with a type from a file.
_BLOCKS: dict[int, tuple[int, int]] = {
    kind: (_block_elements(kind), _block_bytes(kind)) for kind in range(GGML_TYPE_COUNT) if _block_elements(kind) > 0
}

_VERSIONS = (2, 3)
_UINT16, _UINT32, _FLOAT32, _STRING, _ARRAY = 2, 4, 6, 8, 9
_SCALAR_BYTES = {0: 1, 1: 1, _UINT16: 2, 3: 2, _UINT32: 4, 5: 4, _FLOAT32: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_LENGTH = struct.Struct("<Q")

# llama.cpp aborts the process where split.no or split.count has another type.
_LAYOUT_KEYS = {"general.alignment": _UINT32, "split.no": _UINT16, "split.count": _UINT16}
_DEFAULT_ALIGNMENT = 32
_TOKENS_KEY = "tokenizer.ggml.tokens"
_KIND_KEY = "general.type"
_EPSILON = "epsilon"
"""End of the keys whose numbers must not be below 0: llama.cpp would end the process when it computes."""

_MAX_KEY_BYTES = 65535
_MAX_TENSOR_NAME_BYTES = 63
_MAX_DIMS = 4
_MAX_ELEMENTS = 2**63 - 1
# Far above any real model (260k tokens take some 16 MiB); a hostile file costs at most seconds.
_MAX_HEADER_BYTES = 128 * 2**20
_MAX_ENTRIES = 2**18
_MAX_TOKENS = 2**20


class Contents(NamedTuple):
    """Contents of a file. ``number`` and ``parts``: which one of a model's files it is, from 0, and of how many;
    ``elements``: the number of weights of each tensor type; ``kind``: ``general.type``, empty for none."""

    number: int
    parts: int
    elements: Mapping[int, int]
    kind: str = ""


def check(path: str) -> Contents:
    """Raise ``ModelError``, one line for the operator, unless ``path`` is a complete GGUF model, version 2 or 3.

    Reads the header and the file's length, no weights. For a model in parts, ``NAME-00001-of-00003.gguf`` and so on,
    ``path`` must be the first, whose contents are returned; the others are checked too.
    """
    contents = _check_file(path)
    number, count = contents.number, contents.parts
    if count < 2:
        return contents
    suffix = _part_suffix(number, count)
    stem = path.removesuffix(suffix)
    if stem in ("", path):
        raise _error(path, f"part of a split model; rename it to NAME{suffix}, beside the other parts")
    if number != 0:
        raise _error(path, f"part {number + 1} of {count}; give the first, {stem + _part_suffix(0, count)!r}")
    for later in range(1, count):
        part = stem + _part_suffix(later, count)
        if _check_file(part)[:2] != (later, count):
            raise _error(part, f"not part {later + 1} of {count}, as its name says; download it again")
    return contents


def files(path: str) -> list[str]:
    """All files of the checked model whose first is at ``path``."""
    count = _check_file(path).parts
    if count < 2:
        return [path]
    stem = path.removesuffix(_part_suffix(0, count))
    return [stem + _part_suffix(number, count) for number in range(count)]


def tensor_bytes(kind: int, elements: int) -> int:
    """Bytes of so many weights of tensor type ``kind``, which a checked file has."""
    of_block, size = _BLOCKS[kind]
    return elements // of_block * size


def _part_suffix(number: int, count: int) -> str:
    return f"-{number + 1:05d}-of-{count:05d}.gguf"


def _error(path: str, problem: str) -> ModelError:
    return ModelError(f"model file {path!r}: {problem}")


def _check_file(path: str) -> Contents:
    data, size = _map_header(path)
    with data:
        return _check_layout(_Header(path, data), size)


def _map_header(path: str) -> tuple[mmap.mmap, int]:
    """The first bytes of the file, at most ``_MAX_HEADER_BYTES``, and the length of the whole file."""
    try:
        # Before open(), which would block on a pipe without a writer.
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise _error(path, "not a regular file; give the path of a .gguf file")
        if status.st_size == 0:
            raise _error(path, "empty; download it again")
        with open(path, "rb") as file:
            length = min(status.st_size, _MAX_HEADER_BYTES)
            return mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ), status.st_size
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise _error(path, f"{reason}; check the path and who may read it") from error


class _Header:
    """A cursor over the first bytes of a file; raises ``ModelError`` instead of passing their end."""

    def __init__(self, path: str, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self.position = 0

    def error(self, problem: str) -> ModelError:
        return _error(self._path, f"{problem}; download or convert it again")

    def past_end(self) -> ModelError:
        return self.error(f"truncated or damaged, its header continues past byte {len(self._data)}")

    def skip(self, size: int) -> None:
        if size > len(self._data) - self.position:
            raise self.past_end()
        self.position += size

    def skip_strings(self, count: int) -> None:
        # A vocabulary has hundreds of thousands of strings: no method call for each.
        data, length_at, last = self._data, _LENGTH.unpack_from, len(self._data) - _LENGTH.size
        position = self.position
        for _ in range(count):
            if position > last:
                raise self.past_end()
            position += _LENGTH.size + length_at(data, position)[0]
        self.skip(position - self.position)

    def check_tokens(self, count: int) -> None:
        """Skip the strings of a vocabulary, and check that they are distinct: llama.cpp aborts the process otherwise.

        It reads them as C strings, and names an empty one "[EMPTY_…]".
        """
        data, length_at, last = self._data, _LENGTH.unpack_from, len(self._data) - _LENGTH.size
        seen: dict[bytes, int] = {}
        position = self.position
        for number in range(count):
            if position > last:
                raise self.past_end()
            start = position + _LENGTH.size
            position = start + length_at(data, position)[0]
            if position > len(data):
                raise self.past_end()
            token = data[start:position].partition(b"\0")[0] or b"[EMPTY_%d]" % number
            if (first := seen.setdefault(token, number)) != number:
                raise self.error(f"damaged, its tokens {first} and {number} are both {token[:64]!r}")
        self.position = position

    def read(self, size: int) -> bytes:
        self.skip(size)
        return self._data[self.position - size : self.position]

    def integer(self, size: int) -> int:
        return int.from_bytes(self.read(size), "little")

    def new_name(self, max_bytes: int, seen: set[str]) -> str:
        """Read a key or tensor name, decoded as Latin-1, and add it to ``seen``."""
        size = self.integer(8)
        if not 0 < size <= max_bytes:
            raise self.error(f"damaged, a name has {size} bytes, expected 1 to {max_bytes}")
        name = self.read(size).decode("latin-1")
        # llama.cpp looks names up as C strings, which end at a NUL.
        if "\0" in name or name in seen:
            raise self.error(f"damaged, the name {name[:64]!r} is there twice or has a NUL")
        seen.add(name)
        return name


def _check_layout(header: _Header, size: int) -> Contents:
    """Check the layout of a file of ``size`` bytes."""
    if (magic := header.read(4)) != b"GGUF":
        raise header.error(f"not a GGUF file, it begins with {magic!r}")
    version = header.integer(4)
    if version not in _VERSIONS:
        # llama.cpp's own test: a byte-swapped small number has no low bits.
        found = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
        raise header.error(f"GGUF, but {found}, expected little-endian version 2 or 3")
    tensors, pairs = header.integer(8), header.integer(8)
    if max(tensors, pairs) > _MAX_ENTRIES:
        raise header.error(f"damaged, {tensors} tensors and {pairs} keys, expected {_MAX_ENTRIES} at most")
    layout, kind = _layout_values(header, pairs)
    alignment = layout.get("general.alignment", _DEFAULT_ALIGNMENT)
    if alignment.bit_count() != 1:
        raise header.error(f"damaged, general.alignment is {alignment}, expected a power of two")
    needed, elements = _check_tensors(header, tensors, alignment)
    if needed > size:
        raise header.error(f"truncated, it has {size} bytes and needs {needed}")
    return Contents(layout.get("split.no", 0), layout.get("split.count", 1), elements, kind)


def _layout_values(header: _Header, pairs: int) -> tuple[dict[str, int], str]:
    """Skip all key-value pairs; returns the values of ``_LAYOUT_KEYS`` and of ``_KIND_KEY``."""
    values: dict[str, int] = {}
    what = ""
    seen: set[str] = set()
    for _ in range(pairs):
        key = header.new_name(_MAX_KEY_BYTES, seen)
        kind = header.integer(4)
        expected = _LAYOUT_KEYS.get(key, kind)
        if kind != expected:
            raise header.error(f"damaged, {key!r} has type {kind}, expected {expected}")
        if key in _LAYOUT_KEYS:
            values[key] = header.integer(_SCALAR_BYTES[kind])
        elif key == _TOKENS_KEY:
            _check_vocabulary(header, kind)
        elif key.endswith(_EPSILON) and kind == _FLOAT32:
            (epsilon,) = struct.unpack("<f", header.read(4))
            if not epsilon >= 0:
                raise header.error(f"damaged, {key!r} is {epsilon}, expected 0 or more")
        elif key == _KIND_KEY and kind == _STRING:
            what = header.read(header.integer(8)).decode("latin-1")
        else:
            _skip_value(header, key, kind)
    return values, what


def _check_vocabulary(header: _Header, kind: int) -> None:
    of, count = (header.integer(4), header.integer(8)) if kind == _ARRAY else (kind, 0)
    if (kind, of) != (_ARRAY, _STRING):
        raise header.error(f"damaged, {_TOKENS_KEY!r} has type {kind} of {of}, expected an array of strings")
    if count > _MAX_TOKENS:
        raise header.error(f"damaged, it has {count} tokens, expected {_MAX_TOKENS} at most")
    header.check_tokens(count)


def _skip_value(header: _Header, key: str, kind: int) -> None:
    count = 1
    if kind == _ARRAY:
        kind, count = header.integer(4), header.integer(8)
    if kind == _STRING:
        header.skip_strings(count)
    elif kind in _SCALAR_BYTES:
        header.skip(count * _SCALAR_BYTES[kind])
    else:
        raise header.error(f"damaged, {key[:64]!r} holds values of type {kind}, which llama.cpp can't read")


def _check_tensors(header: _Header, tensors: int, alignment: int) -> tuple[int, Counter[int]]:
    """Number of bytes from the file's start to the end of its last tensor, and of weights by tensor type."""
    seen: set[str] = set()
    found: Counter[int] = Counter()
    end = 0
    for _ in range(tensors):
        name = header.new_name(_MAX_TENSOR_NAME_BYTES, seen)
        kind, elements = _check_shape(header, name)
        found[kind] += elements
        offset, expected = header.integer(8), _padded(end, alignment)
        if offset != expected:
            raise header.error(f"damaged, tensor {name!r} is at offset {offset}, expected {expected}")
        end = offset + tensor_bytes(kind, elements)
    return _padded(header.position, alignment) + end if tensors else header.position, found


def _check_shape(header: _Header, name: str) -> tuple[int, int]:
    """Read a tensor's shape and type; returns the type and the number of weights."""
    dims = header.integer(4)
    if dims > _MAX_DIMS:
        raise header.error(f"damaged, tensor {name!r} has {dims} dimensions, expected at most {_MAX_DIMS}")
    shape = [header.integer(8) for _ in range(dims)]
    kind = header.integer(4)
    if kind not in _BLOCKS:
        raise header.error(f"tensor {name!r} has type {kind}, which this llama.cpp doesn't know")
    of_block, _ = _BLOCKS[kind]
    # A dimension of 0 counts as 1 here, so that it doesn't hide an impossible one.
    if math.prod(dim or 1 for dim in shape) > _MAX_ELEMENTS or math.prod(shape[:1]) % of_block:
        raise header.error(f"damaged, tensor {name!r} of type {kind} can't have the shape {shape}")
    return kind, math.prod(shape)


def _padded(position: int, alignment: int) -> int:
    return position + -position % alignment
