"""Reads a form with files (multipart/form-data, RFC 7578) from a body that is whole, without copying it, and writes
one."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from umaserve.core.errors import Fault, RequestError
from umaserve.wire.http_head import shown

MULTIPART = "multipart/form-data"
MAX_PARTS = 64
MAX_PART_HEADERS = 8
MAX_HEAD_BYTES = 4096
MAX_BOUNDARY_BYTES = 70
"""Bytes of a boundary by RFC 2046, section 5.1.1."""

# It would log a warning about each malformed body; the client gets an error.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


_DISPOSITION, _TYPE = b"content-disposition", b"content-type"
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
    of parts and the sizes of their heads are bounded. 128 MiB take some 50 ms; with a boundary that is made for it,
    half a second."""
    boundary = _boundary(content_type)
    spans = list(_spans(body, boundary))
    return tuple(_part(body, start, end, i) for i, (start, end) in enumerate(spans))


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


def _spans(body: bytes, boundary: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of each part, with its head, between the lines of the boundary. The parser is given heads only: of
    a file's data it looks at each CR and LF."""
    at = 2 if body.startswith(b"\r\n") else 0
    line = b"--" + boundary
    if not body.startswith(line, at):
        raise _malformed("it does not begin with its boundary")
    at += len(line)
    line = b"\r\n" + line
    for _ in range(MAX_PARTS + 1):
        if body.startswith(b"--", at):
            return
        if not body.startswith(b"\r\n", at):
            raise _malformed("a line continues after the boundary")
        start = at + 2
        end = body.find(line, start)
        if end < 0:
            raise _malformed("it ends before its last boundary")
        yield start, end
        at = end + len(line)
    raise _malformed(f"it has more than {MAX_PARTS} parts")


def _part(body: bytes, start: int, end: int, index: int) -> Part:
    # A head without fields ends with its first line.
    head_end = start if body.startswith(b"\r\n", start) else body.find(b"\r\n\r\n", start, end) + 2
    if head_end < start or head_end - start > MAX_HEAD_BYTES:
        raise _malformed(f"part {index + 1} has no head of at most {MAX_HEAD_BYTES} bytes")
    fields = _read_head(body[start:head_end])
    name, filename = _names(fields.get(_DISPOSITION, b""), index)
    kind = fields.get(_TYPE, b"")
    if not _CONTENT_TYPE.fullmatch(kind):
        raise _malformed(f"part {index + 1} has a Content-Type that is not one line of ASCII")
    return Part(name, memoryview(body)[head_end + 2 : end], filename, kind.decode())


def _read_head(head: bytes) -> Mapping[bytes, bytes]:
    """A part's header fields, by their names in lower case."""
    fields: dict[bytes, bytes] = {}
    name = b""

    def take_name(data: bytes, start: int, end: int) -> None:
        nonlocal name
        name = data[start:end].lower()
        if name in fields and name in (_DISPOSITION, _TYPE):
            raise _malformed(f"a part has two fields {name.decode()}")

    def take_value(data: bytes, start: int, end: int) -> None:
        fields[name] = data[start:end]

    parser = MultipartParser(
        b"head",
        {"on_header_field": take_name, "on_header_value": take_value},
        max_header_count=MAX_PART_HEADERS,
        max_header_size=MAX_HEAD_BYTES,
    )
    try:
        parser.write(b"--head\r\n%b\r\n\r\n--head--" % head)
    except FormParserError as error:
        raise _malformed(str(error)) from None
    return fields


def _boundary(content_type: str) -> bytes:
    boundary = _options(content_type.encode("latin-1", "replace"))[1].get(b"boundary", b"")
    if not 1 <= len(boundary) <= MAX_BOUNDARY_BYTES or any(byte < 32 or byte > 126 for byte in boundary):
        expected = f"expected multipart/form-data with a boundary of 1 to {MAX_BOUNDARY_BYTES} ASCII characters"
        raise RequestError(Fault.BAD_REQUEST, "Content-Type", f"{expected}, got {shown(content_type)}")
    return boundary


def _names(disposition: bytes, index: int) -> tuple[str, str | None]:
    """The name of a part, and that of its file."""
    kind, options = _options(disposition)
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
