"""Events of the Wyoming protocol: a line of JSON, then more JSON, then bytes. Sans-IO.

Source: the README of the package ``wyoming``, Format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.wire.fields import MAX_VALUES, Fields, bad_request, parse_json, string

VERSION = "1.10.0"
"""Version of the package whose events these are."""
MAX_TYPE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Event:
    """An event; ``data`` is JSON, ``payload`` is mostly sound."""

    type: str
    data: Mapping[str, Any] = field(default_factory=dict)
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class _Head:
    """The first line of an event, and where its other parts end in the buffer."""

    type: str
    data: Mapping[str, Any]
    begin: int
    data_end: int
    end: int


class WyomingCodec:
    """Bytes to events. An event, all parts together, has at most ``max_event_bytes``.

    Lengths are checked when the line has come, before the rest is stored. What is wrong raises ``RequestError``, on
    every later call too, since nobody knows where the next event begins.
    """

    def __init__(self, max_event_bytes: int) -> None:
        self._max = max_event_bytes
        self._buffer = bytearray()
        self._searched = 0
        self._head: _Head | None = None
        self._error: RequestError | None = None

    @property
    def buffered(self) -> int:
        """Bytes received and not yet given out."""
        return len(self._buffer)

    def receive_data(self, data: bytes) -> None:
        self._buffer += data

    def next_event(self) -> Event | None:
        """The next whole event, or ``None`` until more bytes arrive."""
        if self._error is not None:
            raise self._error
        try:
            return self._next()
        except RequestError as error:
            self._error = error
            raise

    def _next(self) -> Event | None:
        if self._head is None:
            self._head = self._read_head()
        head = self._head
        if head is None or len(self._buffer) < head.end:
            return None
        data = head.data
        with memoryview(self._buffer) as view:
            more, payload = bytes(view[head.begin : head.data_end]), bytes(view[head.data_end : head.end])
        if more:
            data = {**data, **_object(more, "data").values}
        del self._buffer[: head.end]
        self._head, self._searched = None, 0
        return Event(head.type, data, payload)

    def _read_head(self) -> _Head | None:
        end = self._buffer.find(b"\n", self._searched)
        length = end if end >= 0 else len(self._buffer)
        if length >= self._max:
            raise RequestError(Fault.FRAME_TOO_LARGE, "header", f"expected less than {self._max} bytes, got more")
        if end < 0:
            self._searched = length
            return None
        begin = end + 1
        header = _object(bytes(memoryview(self._buffer)[:end]), "header")
        data = header.object("data")
        data_end = begin + self._length(header, "data_length", begin)
        return _Head(
            string(header.values.get("type"), "type", max_bytes=MAX_TYPE_BYTES),
            {} if data is None else data.values,
            begin,
            data_end,
            data_end + self._length(header, "payload_length", data_end),
        )

    def _length(self, header: Fields, key: str, before: int) -> int:
        """Length of a part that follows ``before`` bytes of its event."""
        length = header.integer(key, 0) or 0
        if before + length > self._max:
            expected = f"expected at most {self._max - before}, so that the event has at most {self._max} bytes"
            raise RequestError(Fault.FRAME_TOO_LARGE, key, f"{expected}, got {length}")
        return length


def encode(event: Event) -> bytes:
    """The bytes of ``event``."""
    data = orjson.dumps(event.data) if event.data else b""
    header: dict[str, Any] = {"type": event.type, "version": VERSION}
    if data:
        header["data_length"] = len(data)
    if event.payload:
        header["payload_length"] = len(event.payload)
    return b"".join((orjson.dumps(header), b"\n", data, event.payload))


def _object(text: bytes, part: str) -> Fields:
    try:
        values = parse_json(text, MAX_VALUES)
    except RequestError as error:
        error.field = part
        raise
    if not isinstance(values, dict):
        raise bad_request(part, "an object", values)
    return Fields(values)
