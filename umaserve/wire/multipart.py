"""Reads a form with files (multipart/form-data, RFC 7578) from a body that is whole, without copying it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from umaserve.errors import Fault, RequestError
from umaserve.wire.http_head import shown

MAX_PARTS = 64
MAX_PART_HEADERS = 8
MAX_HEADER_BYTES = 4096
MAX_BOUNDARY_BYTES = 70
"""By RFC 2046, section 5.1.1."""

# It would log a warning about each malformed body; the client gets an error.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class Part:
    """One field of a form. ``data`` is a view into the body, where it begins at ``start``."""

    name: str
    data: memoryview
    start: int


@dataclass(frozen=True, slots=True)
class Form:
    """A body's fields, in order; several may have the same name."""

    body: bytes
    boundary: bytes
    parts: tuple[Part, ...]

    def with_field(self, name: str, value: str) -> bytes:
        """The form with ``value`` in the field ``name``, which isn't empty; if there is none, it is put first."""
        new = value.encode()
        for part in self.parts:
            if part.name == name:
                return b"".join([self.body[: part.start], new, self.body[part.start + len(part.data) :]])
        head = b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n' % (self.boundary, name.encode())
        return b"".join([head, new, b"\r\n", self.body])


def read_form(body: bytes, content_type: str) -> Form:
    """The form in ``body``; raises ``RequestError``. The number of parts and the sizes of their heads are bounded. 128
    MiB take some 50 ms; with a boundary that is made for it, a second."""
    boundary = _boundary(content_type)
    _check_lines(body, boundary)
    reader = _Reader(body)
    try:
        reader.read(boundary)
    except FormParserError as error:
        raise _malformed(str(error)) from None
    return Form(body, boundary, tuple(reader.parts))


class _Reader:
    """Collects the parts that python-multipart finds. It gets the whole body at once, so each part's data comes in one
    piece, as a place in the body."""

    def __init__(self, body: bytes) -> None:
        self.parts: list[Part] = []
        self._body = body
        self._header = b""
        self._disposition: bytes | None = None
        self._data = (0, 0)
        self._ended = False

    def read(self, boundary: bytes) -> None:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._field,
                "on_header_value": self._value,
                "on_part_data": self._found,
                "on_part_end": self._end,
                "on_end": self._finish,
            },
            max_header_count=MAX_PART_HEADERS,
            max_header_size=MAX_HEADER_BYTES,
        )
        parser.write(self._body)
        parser.finalize()
        if not self._ended:
            raise _malformed("it ends before its last boundary")

    def _begin(self) -> None:
        self._disposition = None
        self._data = (0, 0)

    def _field(self, data: bytes, start: int, end: int) -> None:
        self._header = data[start:end].lower()

    def _value(self, data: bytes, start: int, end: int) -> None:
        if self._header == b"content-disposition":
            if self._disposition is not None:
                raise _malformed("a part has two Content-Dispositions")
            self._disposition = data[start:end]

    def _found(self, _data: bytes, start: int, end: int) -> None:
        self._data = start, end

    def _end(self) -> None:
        start, end = self._data
        name = _name(self._disposition, len(self.parts))
        self.parts.append(Part(name, memoryview(self._body)[start:end], start))

    def _finish(self) -> None:
        self._ended = True


def _boundary(content_type: str) -> bytes:
    boundary = _options(content_type.encode("latin-1", "replace"))[1].get(b"boundary", b"")
    if not 1 <= len(boundary) <= MAX_BOUNDARY_BYTES or any(byte < 32 or byte > 126 for byte in boundary):
        expected = f"expected multipart/form-data with a boundary of 1 to {MAX_BOUNDARY_BYTES} ASCII characters"
        raise RequestError(Fault.BAD_REQUEST, "Content-Type", f"{expected}, got {shown(content_type)}")
    return boundary


def _check_lines(body: bytes, boundary: bytes) -> None:
    """Bound the lines that begin with the boundary before they are parsed: the parser takes a microsecond for each that
    goes on as none may, and for each byte of white space behind one."""
    line, at = b"\r\n--" + boundary, 0
    for _ in range(MAX_PARTS + 1):
        at = body.find(line, at)
        if at < 0:
            return
        at += len(line)
        if body[at : at + 2] not in (b"\r\n", b"--"):
            raise _malformed("a line goes on after the boundary")
    raise _malformed(f"it has more than {MAX_PARTS} parts")


def _name(disposition: bytes | None, index: int) -> str:
    kind, options = _options(disposition or b"")
    try:
        name = options.get(b"name", b"").decode()
    except UnicodeDecodeError:
        name = ""
    if kind != b"form-data" or not name:
        raise _malformed(f'part {index + 1} has no Content-Disposition: form-data; name="…"')
    return name


def _options(header: bytes) -> tuple[bytes, Mapping[bytes, bytes]]:
    return parse_options_header(header.decode("latin-1"))


def _malformed(problem: str) -> RequestError:
    return RequestError(Fault.BAD_REQUEST, "body", f"expected a form (multipart/form-data): {problem[:200]}")
