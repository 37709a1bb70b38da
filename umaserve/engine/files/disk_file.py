"""The file of one saved sequence: a head, the tokens, and the data in pieces, each with a checksum.

llama.cpp ends the process on some malformed states, so a file is taken only if every byte of it is as it was written.
The checksum of a piece goes on from the one before it, so that pieces can't be exchanged, neither within a file nor
between two.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from umaserve.sessions.engine_api import SavedBytes

_HEAD = struct.Struct("<8s16s16sQI")
"""Head of a file: magic, model, scope, bytes of data, tokens."""
_CHECKSUM = struct.Struct("<I")
MAGIC = b"umakv002"
"""Magic of a file, with the version of this format, and of ``saved_form``."""
KEY_BYTES = 16
"""Bytes in a key: of a model, a scope or a sequence."""
PIECE_BYTES = 1 << 20
"""Bytes that are read or written at once. Copying them holds Python's lock for some 0.2 ms."""
MAX_TOKENS = 1 << 24


class Damaged(Exception):
    """Raised for a file that is not what its name says."""


class Kind(NamedTuple):
    """Kind of the sequences that are read: whose they are, and what they must be like."""

    model: bytes
    """The key of all that a saved sequence's bytes depend on."""
    vocabulary: int
    saved_bytes: SavedBytes


class Head(NamedTuple):
    """Contents of a file, up to its data."""

    scope: bytes
    tokens: Sequence[int]
    data_at: int
    """Offset of the data in the file, in bytes."""
    checksum: int
    """Checksum of all before the data."""


def key_of(*parts: bytes) -> bytes:
    """Key of ``parts``, which have fixed lengths, except the last one."""
    return hashlib.blake2b(b"".join(parts), digest_size=KEY_BYTES).digest()


def name_of(kind: Kind, scope: bytes, tokens: Sequence[int]) -> str:
    """The name of a sequence's file: two daemons give the same one to the same."""
    return f"{kind.model.hex()}.{key_of(scope, _packed(tokens)).hex()}.kv"


def file_bytes(tokens: int, size: int) -> int:
    """The length of a file with ``size`` bytes of data."""
    pieces = -(-size // PIECE_BYTES)
    return _HEAD.size + 4 * tokens + _CHECKSUM.size + size + _CHECKSUM.size * pieces


def write(
    descriptor: int, kind: Kind, scope: bytes, tokens: Sequence[int], data: memoryview, wanted: Callable[[], bool]
) -> bool:
    """Write a whole file; asks before each piece, and after the last, whether it is still ``wanted``, and returns
    whether it was. Raises ``OSError``."""
    head = _HEAD.pack(MAGIC, kind.model, scope, len(data), len(tokens)) + _packed(tokens)
    checksum = zlib.crc32(head)
    _write_all(descriptor, head + _CHECKSUM.pack(checksum))
    for piece in _pieces(data):
        if not wanted():
            return False
        # One copy, of which both are made: the host memory may be written to meanwhile.
        copy = bytes(piece)
        checksum = zlib.crc32(copy, checksum)
        _write_all(descriptor, copy + _CHECKSUM.pack(checksum))
    return wanted()


def read_head(descriptor: int, name: str | None, kind: Kind) -> Head:
    """Check all of a file but its data. ``None``: its name says nothing of what is in it. Raises ``Damaged`` and
    ``OSError``."""
    length = os.fstat(descriptor).st_size
    head = _read(descriptor, _HEAD.size, 0)
    magic, model, scope, size, n_tokens = _HEAD.unpack(head)
    if magic != MAGIC:
        raise Damaged("it has an unknown format")
    if model != kind.model:
        raise Damaged("it belongs to another model")
    if n_tokens > MAX_TOKENS or size != kind.saved_bytes.of(n_tokens) or length != file_bytes(n_tokens, size):
        raise Damaged(f"{length} bytes can't be {n_tokens} tokens with {size} bytes of data")
    packed = _read(descriptor, 4 * n_tokens, len(head))
    checksum = zlib.crc32(packed, zlib.crc32(head))
    if _read(descriptor, _CHECKSUM.size, len(head) + len(packed)) != _CHECKSUM.pack(checksum):
        raise Damaged("the checksum of its tokens is wrong")
    tokens = _unpacked(packed)
    if not tokens or min(tokens) < 0 or max(tokens) >= kind.vocabulary:
        raise Damaged("it has tokens that the model does not have")
    if name is not None and name != name_of(kind, scope, tokens):
        raise Damaged("it belongs to another sequence")
    return Head(scope, tokens, len(head) + len(packed) + _CHECKSUM.size, checksum)


def read_data(descriptor: int, head: Head, target: memoryview, wanted: Callable[[], bool]) -> bool:
    """Fill ``target`` with the data; asks before each piece whether it is still ``wanted``, and returns whether it was.
    Raises ``Damaged``, then ``target`` holds nonsense, and ``OSError``."""
    at, checksum = head.data_at, head.checksum
    for piece in _pieces(target):
        if not wanted():
            return False
        found = bytearray(_CHECKSUM.size)
        if os.preadv(descriptor, [piece, found], at) != len(piece) + len(found):
            raise Damaged("it ends too early")
        checksum = zlib.crc32(piece, checksum)
        if found != _CHECKSUM.pack(checksum):
            raise Damaged("the checksum of its data is wrong")
        at += len(piece) + len(found)
    return True


def _pieces(data: memoryview) -> Iterator[memoryview]:
    for at in range(0, len(data), PIECE_BYTES):
        yield data[at : at + PIECE_BYTES]


def _packed(tokens: Sequence[int]) -> bytes:
    """Tokens as signed 32-bit numbers, the lowest byte first."""
    packed = array("i", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpacked(data: bytes) -> Sequence[int]:
    tokens = array("i")
    tokens.frombytes(data)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tolist()


def _read(descriptor: int, length: int, offset: int) -> bytes:
    data = os.pread(descriptor, length, offset)
    if len(data) != length:
        raise Damaged("it ends too early")
    return data


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
