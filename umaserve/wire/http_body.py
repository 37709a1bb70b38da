"""Incremental readers of an HTTP/1.1 request's body: with a known length, or chunked. Sans-IO."""

from __future__ import annotations

import io
import re

from umaserve.wire.http_head import TEXT, Refusal, parse_field, shown

MAX_CHUNK_EXTRAS = 8 * 1024
"""Bytes of a body's chunk extensions and trailers together."""
MAX_CHUNK_DIGITS = 16
STEPS_PER_CALL = 256
"""Lines and chunks that one call reads: a body of one-byte chunks must not block the loop."""

_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,%d})(?:[ \t]*;%b)?" % (MAX_CHUNK_DIGITS, TEXT))


class SizedBody:
    """A body of ``length`` bytes."""

    stopped = False

    def __init__(self, length: int) -> None:
        self._missing = length
        self._data = io.BytesIO()
        """BytesIO, since ``getvalue`` makes no copy."""

    @property
    def held(self) -> int:
        return self._data.tell()

    def take(self, buffer: bytearray) -> bytes | None:
        """The body, taken from the front of ``buffer``, or ``None`` until it is whole."""
        with memoryview(buffer) as view:
            taken = self._data.write(view[: self._missing])
        del buffer[:taken]
        self._missing -= taken
        return None if self._missing else self._data.getvalue()


class ChunkedBody:
    """A chunked body (RFC 9112, section 7.1). Chunk extensions and trailers are checked, capped and dropped."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._data = io.BytesIO()
        self._extras = MAX_CHUNK_EXTRAS
        """Bytes of extensions and trailers still allowed."""
        self._size: int | None = None
        """The next chunk's size, ``None`` until its size line is read; 0: trailers follow."""
        self.stopped = False
        """Whether the last ``take`` stopped at ``STEPS_PER_CALL``."""

    @property
    def held(self) -> int:
        return self._data.tell()

    def take(self, buffer: bytearray) -> bytes | None:
        """The body without its framing, or ``None`` until it is whole; reads at most ``STEPS_PER_CALL`` lines and
        chunks."""
        self.stopped = False
        for _ in range(STEPS_PER_CALL):
            if self._size:
                chunk = _take(buffer, self._size + 2)
                if chunk is None:
                    return None
                if not chunk.endswith(b"\r\n"):
                    raise Refusal(400, f"chunk: expected CR LF after {self._size} bytes, got {shown(chunk[-2:])}")
                self._data.write(memoryview(chunk)[:-2])
                self._size = None
                continue
            line = self._take_line(buffer)
            if line is None:
                return None
            if self._size is None:
                self._begin_chunk(line)
            elif line:
                self._spend(len(line))
                parse_field(line, "trailer")
            else:
                return self._data.getvalue()
        self.stopped = bool(buffer)
        return None

    def _take_line(self, buffer: bytearray) -> bytes | None:
        longest = MAX_CHUNK_DIGITS + self._extras
        end = buffer.find(b"\r\n", 0, longest + 2)
        if end < 0:
            if len(buffer) >= longest + 2:
                self._spend(longest)
            return None
        line = bytes(buffer[:end])
        del buffer[: end + 2]
        return line

    def _begin_chunk(self, line: bytes) -> None:
        match = _CHUNK_LINE.fullmatch(line)
        if match is None:
            raise Refusal(400, f"chunk size: expected 1 to {MAX_CHUNK_DIGITS} hexadecimal digits, got {shown(line)}")
        self._spend(len(line) - len(match[1]))
        self._size = int(match[1], 16)
        if self.held + self._size > self._max:
            raise Refusal(413, f"body: expected at most {self._max} bytes, got more")

    def _spend(self, n_bytes: int) -> None:
        self._extras -= n_bytes
        if self._extras < 0:
            raise Refusal(431, f"chunk extensions and trailers: expected at most {MAX_CHUNK_EXTRAS} bytes, got more")


def _take(buffer: bytearray, n_bytes: int) -> bytes | None:
    if len(buffer) < n_bytes:
        return None
    taken = bytes(memoryview(buffer)[:n_bytes])
    del buffer[:n_bytes]
    return taken
