"""The two codecs of the Unix socket: length-prefixed frames, and lines. Sans-IO.

``receive_data`` takes bytes in any split. ``next_payload`` returns one whole payload per call, so that the caller can
limit how many it handles in one turn. ``send`` frames a payload.
"""

from __future__ import annotations

import struct

from umaserve.core.errors import Fault, RequestError

_HEADER = struct.Struct("<I")


class FrameCodec:
    """``uint32 little-endian length | payload`` (contract: uds-framed-json, Transport & Framing).

    A length over ``max_frame_bytes`` raises ``RequestError`` on the header alone, before any of the payload is stored,
    and again on every later call.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self._max = max_frame_bytes
        self._buffer = bytearray()
        self._length: int | None = None

    @property
    def buffered(self) -> int:
        """Bytes received and not yet given out."""
        return len(self._buffer)

    def receive_data(self, data: bytes) -> None:
        self._buffer += data

    def receive_eof(self) -> None:
        """End of the peer's input; an incomplete frame stays incomplete."""

    def next_payload(self) -> bytes | None:
        """The next whole payload, or ``None`` until more bytes arrive."""
        if self._length is None:
            if len(self._buffer) < _HEADER.size:
                return None
            (self._length,) = _HEADER.unpack_from(self._buffer)
        if self._length > self._max:
            raise RequestError(
                Fault.FRAME_TOO_LARGE,
                "frame",
                f"expected at most {self._max} bytes, got {self._length}",
            )
        end = _HEADER.size + self._length
        if len(self._buffer) < end:
            return None
        payload = bytes(memoryview(self._buffer)[_HEADER.size : end])
        del self._buffer[:end]
        self._length = None
        return payload

    @staticmethod
    def send(payload: bytes) -> bytes:
        return _HEADER.pack(len(payload)) + payload


class LineCodec:
    """Lines ended by ``\\n``, for ``--protocol newline``; a ``\\r`` before it is dropped but counts towards the limit.

    A line longer than ``max_line_bytes`` raises ``RequestError`` as soon as that many bytes have arrived.
    """

    def __init__(self, max_line_bytes: int) -> None:
        self._max = max_line_bytes
        self._buffer = bytearray()
        self._searched = 0

    @property
    def buffered(self) -> int:
        """Bytes received and not yet given out."""
        return len(self._buffer)

    def receive_data(self, data: bytes) -> None:
        self._buffer += data

    def receive_eof(self) -> None:
        """End of the peer's input, which also ends the last line."""
        if self._buffer and not self._buffer.endswith(b"\n"):
            self._buffer += b"\n"

    def next_payload(self) -> bytes | None:
        """The next whole line without its line ending, or ``None`` until more bytes arrive."""
        end = self._buffer.find(b"\n", self._searched)
        length = end if end >= 0 else len(self._buffer)
        if length > self._max:
            raise RequestError(Fault.FRAME_TOO_LARGE, "line", f"expected at most {self._max} bytes, got more")
        if end < 0:
            self._searched = len(self._buffer)
            return None
        line = bytes(memoryview(self._buffer)[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line.removesuffix(b"\r")

    @staticmethod
    def send(payload: bytes) -> bytes:
        return payload
