"""Reads a form with files (multipart/form-data, RFC 7578) from a body that is whole, without copying it, and writes
one."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from umaserve.errors import Fault, RequestError
from umaserve.wire.http_head import shown

MULTIPART = "multipart/form-data"
MAX_PARTS = 64
MAX_PART_HEADERS = 8
MAX_HEADER_BYTES = 4096
MAX_BOUNDARY_BYTES = 70
"""By RFC 2046, section 5.1.1."""

# It would log a warning about each malformed body; the client gets an error.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


_UNQUOTED = re.compile(r'["\\\x00-\x1f\x7f]')
_CONTENT_TYPE = re.compile(rb"[\t\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class Part:
    """One field of a form. ``data`` is a view into the body; a field with a ``filename`` is a file."""

    name: str
    data: memoryview
    filename: str | None = None
    content_type: str = ""


def read_form(body: bytes, content_type: str) -> tuple[Part, ...]:
    """The fields of the form in ``body``, in order; several may have the same name. Raises ``RequestError``. The number
    of parts and the sizes of their heads are bounded. 128 MiB take some 50 ms; with a boundary that is made for it, a
    second."""
    boundary = _boundary(content_type)
    _check_lines(body, boundary)
    reader = _Reader(body)
    try:
        reader.read(boundary)
    except FormParserError as error:
        raise _malformed(str(error)) from None
    return tuple(reader.parts)


def write_form(parts: Iterable[Part]) -> tuple[str, bytes]:
    """The Content-Type and the body of a form with ``parts``, whose boundary nobody can have guessed."""
    boundary = secrets.token_hex(16)
    pieces: list[bytes | memoryview] = []
    for part in parts:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(part.name)}"'
        if part.filename is not None:
            head += f'; filename="{_quoted(part.filename)}"'
        if part.content_type:
            head += f"\r\nContent-Type: {part.content_type}"
        pieces += [f"{head}\r\n\r\n".encode(), part.data, b"\r\n"]
    return f"{MULTIPART}; boundary={boundary}", b"".join([*pieces, f"--{boundary}--\r\n".encode()])


class _Reader:
    """Collects the parts that python-multipart finds. It gets the whole body at once, so each part's data comes in one
    piece, as a place in the body."""

    def __init__(self, body: bytes) -> None:
        self.parts: list[Part] = []
        self._body = body
        self._header = b""
        self._disposition: bytes | None = None
        self._content_type = b""
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
        self._content_type = b""
        self._data = (0, 0)

    def _field(self, data: bytes, start: int, end: int) -> None:
        self._header = data[start:end].lower()

    def _value(self, data: bytes, start: int, end: int) -> None:
        if self._header == b"content-disposition":
            if self._disposition is not None:
                raise _malformed("a part has two Content-Dispositions")
            self._disposition = data[start:end]
        elif self._header == b"content-type":
            self._content_type = data[start:end]

    def _found(self, _data: bytes, start: int, end: int) -> None:
        self._data = start, end

    def _end(self) -> None:
        start, end = self._data
        name, filename = _names(self._disposition, len(self.parts))
        if not _CONTENT_TYPE.fullmatch(self._content_type):
            raise _malformed(f"part {len(self.parts) + 1} has a Content-Type that is no line of ASCII")
        data = memoryview(self._body)[start:end]
        self.parts.append(Part(name, data, filename, self._content_type.decode()))

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


def _names(disposition: bytes | None, index: int) -> tuple[str, str | None]:
    """The name of a part, and that of its file."""
    kind, options = _options(disposition or b"")
    try:
        name = options.get(b"name", b"").decode()
    except UnicodeDecodeError:
        name = ""
    if kind != b"form-data" or not name:
        raise _malformed(f'part {index + 1} has no Content-Disposition: form-data; name="…"')
    filename = options.get(b"filename")
    return name, None if filename is None else filename.decode(errors="replace")


def _quoted(name: str) -> str:
    """A name inside quotes, escaped as the HTML standard says for forms."""
    return _UNQUOTED.sub(lambda found: f"%{ord(found[0]):02X}", name)


def _options(header: bytes) -> tuple[bytes, Mapping[bytes, bytes]]:
    return parse_options_header(header.decode("latin-1"))


def _malformed(problem: str) -> RequestError:
    return RequestError(Fault.BAD_REQUEST, "body", f"expected a form (multipart/form-data): {problem[:200]}")
