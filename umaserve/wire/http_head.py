"""Parser of an HTTP/1.1 request's head, stricter than h11. Sans-IO."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

TRACE_HEADER = "traceparent"
"""The trace that a request is part of (W3C Trace Context)."""
MAX_HEADERS = 100
MAX_TARGET_BYTES = 8 * 1024
MAX_PARAMETERS = 64

TEXT = rb"[\t\x20-\x7e\x80-\xff]*"
"""The pattern of a header's value."""
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_METHOD = re.compile(_TOKEN + rb"{1,32}")
_TARGET = re.compile(rb"[\x21-\x7e]+")
_FIELD = re.compile(rb"(" + _TOKEN + rb"+):(" + TEXT + rb")")
MAX_HOST_CHARS = 255
# Stricter than RFC 3986, which allows commas: no host has one, but a list of hosts would pass.
_LABEL = "[0-9A-Za-z_~-]+"
_AUTHORITY = re.compile(rf"(?:({_LABEL}(?:\.{_LABEL})*\.?)|\[([0-9A-Fa-f:.]+)\])(?::([0-9]{{0,5}}))?")
_LENGTH = re.compile("[0-9]{1,18}")
_ABSOLUTE = re.compile("https?://([^/?]*)(.*)", re.IGNORECASE)
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

Headers = Sequence[tuple[str, str]]


class Refusal(Exception):
    """A request that is refused: the status, message and extra headers of the connection's last response."""

    def __init__(self, status: int, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


@dataclass(frozen=True, slots=True)
class Request:
    """One whole request. Header names are in lower case, values are decoded as Latin-1.

    ``path`` is percent-decoded once, without slashes at its end, never empty, and ``*`` in ``OPTIONS *``. Of a query
    parameter given twice the last value counts.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: tuple[tuple[str, str], ...]
    body: bytes
    version: str = "1.1"
    """The HTTP version."""

    def header(self, name: str) -> str | None:
        """The first value of the header ``name`` (in lower case)."""
        return next(iter(self.header_values(name)), None)

    def header_values(self, name: str) -> list[str]:
        """All values of the header ``name`` (in lower case), for headers that may occur only once."""
        return [value for key, value in self.headers if key == name]

    def header_items(self, name: str) -> list[str]:
        """The items of a list header, which may be spread over several lines (RFC 9110, section 5.3)."""
        return [item.strip(" \t") for value in self.header_values(name) for item in value.split(",")]


def parse_head(head: bytes) -> tuple[Request, bytes]:
    """The request in ``head``, with an empty body, and its HTTP version as sent. Raises ``Refusal``."""
    request_line, *lines = head.split(b"\r\n")
    parts = request_line.split(b" ")
    if len(parts) != 3:
        expected = "method, target and HTTP/1.0 or HTTP/1.1 with single spaces between"
        raise Refusal(400, f"request line: expected {expected}, got {shown(request_line)}")
    method, target, version = parts
    if not _METHOD.fullmatch(method):
        raise Refusal(400, f"method: expected a token of at most 32 characters, got {shown(method)}")
    if version not in (b"HTTP/1.0", b"HTTP/1.1"):
        raise Refusal(400, f"version: expected HTTP/1.0 or HTTP/1.1, got {shown(version)}")
    if len(target) > MAX_TARGET_BYTES:
        raise Refusal(414, f"target: expected at most {MAX_TARGET_BYTES} bytes, got {len(target)}")
    if not _TARGET.fullmatch(target):
        raise Refusal(400, f"target: expected printable ASCII characters, got {shown(target)}")
    if len(lines) > MAX_HEADERS:
        raise Refusal(431, f"headers: expected at most {MAX_HEADERS}, got {len(lines)}")
    headers = tuple(parse_field(line, "header") for line in lines)
    host = _parse_host([value for name, value in headers if name == "host"], version)
    path, query = _parse_target(method.decode(), target.decode(), host)
    if version == b"HTTP/1.0":
        # RFC 9110, section 7.8: a server must ignore Upgrade in HTTP/1.0.
        headers = tuple(header for header in headers if header[0] != "upgrade")
    return Request(method.decode(), path, query, headers, b"", version.removeprefix(b"HTTP/").decode()), version


def parse_field(line: bytes, kind: str) -> tuple[str, str]:
    """The lower-case name and the value of a header or trailer (RFC 9112, section 5)."""
    if line[:1] in (b" ", b"\t"):
        raise Refusal(400, f"{kind}: expected no folded line, got {shown(line)}")
    match = _FIELD.fullmatch(line)
    if match is None:
        raise Refusal(400, f"{kind}: expected name: value without control characters, got {shown(line)}")
    return match[1].decode().lower(), match[2].strip(b" \t").decode("latin-1")


def _parse_host(values: list[str], version: bytes) -> str | None:
    """The one ``Host`` (RFC 9110, section 7.2), which an HTTP/1.0 request may lack."""
    if not values and version == b"HTTP/1.0":
        return None
    if len(values) != 1:
        raise Refusal(400, f"Host: expected exactly one, got {len(values)}")
    try:
        parse_authority(values[0])
    except ValueError:
        raise Refusal(400, f"Host: expected host or host:port, got {shown(values[0])}") from None
    return values[0]


def parse_authority(text: str) -> tuple[str, int | None]:
    """The host and port of ``host[:port]`` (RFC 3986, section 3.2, without user information). Raises ``ValueError``.

    A name is returned in lower case without a trailing dot, an IPv6 address without brackets in its shortest form, a
    missing or empty port as ``None``.
    """
    match = _AUTHORITY.fullmatch(text)
    if match is None or len(match[1] or "") > MAX_HOST_CHARS or int(match[3] or 0) > 65535:
        raise ValueError("expected host or host:port")
    host = match[1].lower().removesuffix(".") if match[1] else str(ipaddress.IPv6Address(match[2]))
    return host, int(match[3]) if match[3] else None


def _parse_target(method: str, target: str, host: str | None) -> tuple[str, Mapping[str, str]]:
    """The decoded path and query (RFC 9112, section 3.2). An absolute-form target must name the host in ``Host``."""
    if target == "*" and method == "OPTIONS":
        return "*", {}
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is not None:
        if host is None or absolute[1].lower() != host.lower():
            raise Refusal(400, f"target: expected a path, or the host that Host names, got {shown(target)}")
        target = absolute[2] if absolute[2].startswith("/") else f"/{absolute[2]}"
    if not target.startswith("/") or "#" in target or method == "CONNECT":
        raise Refusal(400, f"target: expected a path, got {shown(target)} for {method}")
    path, _, query = target.partition("?")
    if query.count("&") >= MAX_PARAMETERS:
        raise Refusal(400, f"query: expected at most {MAX_PARAMETERS} parameters, got more")
    try:
        if _BAD_ESCAPE.search(target):
            raise ValueError
        path = unquote(path, errors="strict")
        if _CONTROL.search(path):
            raise ValueError
        return path.rstrip("/") or "/", dict(parse_qsl(query, keep_blank_values=True, errors="strict"))
    except ValueError:
        expected = "UTF-8 in percent escapes, and no control characters in the path"
        raise Refusal(400, f"target: expected {expected}, got {shown(target)}") from None


def body_length(request: Request, version: bytes) -> int | None:
    """The body's length in bytes, or ``None`` for a chunked one (RFC 9112, section 6). Ambiguous framing is refused, to
    prevent request smuggling."""
    encodings, lengths = request.header_values("transfer-encoding"), request.header_values("content-length")
    if encodings:
        if version == b"HTTP/1.0":
            raise Refusal(400, "Transfer-Encoding: expected none in HTTP/1.0, got one")
        if lengths:
            raise Refusal(400, "Transfer-Encoding: expected no Content-Length beside it, got both")
        if [encoding.lower() for encoding in encodings] != ["chunked"]:
            raise Refusal(400, f"Transfer-Encoding: expected chunked, got {shown(', '.join(encodings))}")
        return None
    if not lengths:
        return 0
    if len(lengths) != 1 or not _LENGTH.fullmatch(lengths[0]):
        raise Refusal(400, f"Content-Length: expected one number of at most 18 digits, got {shown(', '.join(lengths))}")
    return int(lengths[0])


def check_content_encoding(request: Request) -> None:
    """Refuse a body with a content coding, such as gzip (RFC 9110, sections 8.4 and 15.5.16)."""
    unknown = [coding for coding in request.header_items("content-encoding") if coding.lower() not in ("", "identity")]
    if unknown:
        got = shown(", ".join(unknown))
        # In a 415 response Accept-Encoding lists the codings that are supported (RFC 9110, section 12.5.3).
        raise Refusal(
            415,
            f"Content-Encoding: expected none, got {got}: send the body as it is",
            [("Accept-Encoding", "identity")],
        )


def shown(value: bytes | str) -> str:
    """``value`` for an error message: shortened and printable."""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    return ascii(text[:64]) + ("..." if len(text) > 64 else "")
