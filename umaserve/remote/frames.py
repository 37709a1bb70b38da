"""Frames between the daemon and the engine's process: ``<u32 head bytes><u32 tail bytes>``, a JSON list, raw bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from umaserve.remote.values import Malformed

_LENGTHS = struct.Struct("<II")
MAX_BYTES = 1 << 30
"""Most bytes of a head, and of a tail: more than any request that the settings allow. Memory is taken as the bytes
come."""
_CHUNK = 1 << 16


class TooLarge(Exception):
    """Raised for a frame that would be larger than what is read."""


class Frame(NamedTuple):
    """A frame. ``head``: a JSON list whose first element, a text, is the frame's kind."""

    head: list[Any]
    tail: memoryview


def encode(head: Sequence[object], tail: Sequence[bytes | memoryview] = ()) -> bytes:
    """The bytes of a frame; raises ``TooLarge``."""
    text = orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
    length = sum(map(len, tail))
    if len(text) > MAX_BYTES or length > MAX_BYTES:
        raise TooLarge(f"a frame of {len(text)} + {length} bytes")
    return b"".join((_LENGTHS.pack(len(text), length), text, *tail))


class Incoming:
    """Frames that come in pieces."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._length: int | None = None

    @property
    def wanted(self) -> int:
        """How many bytes to read next at most."""
        return _CHUNK if self._length is None else max(_CHUNK, min(self._length - len(self._data), 1 << 20))

    @property
    def more(self) -> bool:
        """Whether bytes of another frame have come."""
        return bool(self._data)

    def add(self, data: bytes) -> Frame | None:
        """The first frame, if it is complete; raises ``Malformed``."""
        self._data += data
        if len(self._data) < _LENGTHS.size:
            return None
        head, tail = _LENGTHS.unpack_from(self._data)
        if max(head, tail) > MAX_BYTES:
            raise Malformed(f"a frame of {head} + {tail} bytes")
        self._length = _LENGTHS.size + head + tail
        if len(self._data) < self._length:
            return None
        # Mostly nothing is behind it, and a large one is not copied.
        rest = self._data[self._length :]
        view = memoryview(self._data)[_LENGTHS.size : self._length]
        self._data, self._length = rest, None
        try:
            parsed = orjson.loads(view[:head])
        except orjson.JSONDecodeError as error:
            raise Malformed(str(error)) from None
        match parsed:
            case [str(), *_]:
                return Frame(parsed, view[head:])
        raise Malformed("expected a list that begins with its kind")
