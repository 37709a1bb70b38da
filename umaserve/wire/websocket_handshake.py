"""The opening handshake of WebSocket (RFC 6455, section 4) of servers and clients. Sans-IO."""

from __future__ import annotations

import re
from collections.abc import Sequence

import h11
from wsproto.utilities import generate_accept_token, generate_nonce

from umaserve.wire.http_head import Headers, Refusal, Request, parse_field, shown

VERSION = "13"
MAX_ANSWER_BYTES = 16 * 1024
"""Bytes of the head of a server's response to a handshake."""

_KEY = re.compile(r"[A-Za-z0-9+/]{22}==")
_TOKEN_CHAR = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_TOKEN = rf"{_TOKEN_CHAR}+"
# A quoted value must be a token once unescaped.
_VALUE = rf'(?:{_TOKEN}|"(?:\\?{_TOKEN_CHAR})+")'
_EXTENSION = re.compile(rf"{_TOKEN}(?:[ \t]*;[ \t]*{_TOKEN}(?:[ \t]*=[ \t]*{_VALUE})?)*")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n\0]*)?")


def wants_websocket(request: Request) -> bool:
    """Whether ``request`` asks for an upgrade to WebSocket, well-formed or not."""
    return "websocket" in _tokens(request, "upgrade")


def handshake(request: Request, subprotocols: Sequence[str] = ()) -> list[tuple[str, str]]:
    """The headers of the 101 response (RFC 6455 4.2.2), with the first offered subprotocol that is in ``subprotocols``.

    Extensions are never negotiated. Raises ``Refusal``: 400 for a malformed handshake, 426 for another version.
    """
    if request.method != "GET":
        raise Refusal(400, f"method: expected GET for a WebSocket handshake, got {request.method}")
    if not wants_websocket(request):
        raise Refusal(400, "Upgrade: expected websocket")
    if "upgrade" not in _tokens(request, "connection"):
        raise Refusal(400, "Connection: expected upgrade")
    if _only(request, "Sec-WebSocket-Version") != VERSION:
        supported = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Version", VERSION)]
        raise Refusal(426, f"Sec-WebSocket-Version: expected {VERSION}", supported)
    key = _only(request, "Sec-WebSocket-Key")
    if key is None or not _KEY.fullmatch(key):
        raise Refusal(400, "Sec-WebSocket-Key: expected 16 bytes in base64")
    _check_extensions(request)
    headers = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", generate_accept_token(key.encode()).decode()),
    ]
    for offered in request.header_items("sec-websocket-protocol"):
        if offered in subprotocols:
            return [*headers, ("Sec-WebSocket-Protocol", offered)]
    return headers


def _check_extensions(request: Request) -> None:
    """Fail the handshake for a malformed list of extensions (RFC 6455 9.1), though none is ever used."""
    values = request.header_values("sec-websocket-extensions")
    offered = [item for item in request.header_items("sec-websocket-extensions") if item]
    if values and not (offered and all(_EXTENSION.fullmatch(item) for item in offered)):
        expected = "a list of extensions, each a token with parameters"
        raise Refusal(400, f"Sec-WebSocket-Extensions: expected {expected}, got {shown(', '.join(values))}")


def _tokens(request: Request, name: str) -> list[str]:
    return [item.lower() for item in request.header_items(name)]


def _only(request: Request, name: str) -> str | None:
    values = request.header_values(name.lower())
    if len(values) > 1:
        raise Refusal(400, f"{name}: expected once, got {len(values)} times")
    return values[0] if values else None


class HandshakeFailed(Exception):
    """The client's handshake can't be sent, or the server didn't accept it. ``status``: of its response, if any."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def client_handshake(host: str, path: str, headers: Headers = ()) -> tuple[bytes, str]:
    """The request that opens a WebSocket (RFC 6455 4.1), with the extra ``headers``, and its key for ``check_accept``.

    Raises ``HandshakeFailed`` if ``host``, ``path`` or ``headers`` contain what a request can't hold.
    """
    key = generate_nonce().decode()
    asked = [("Host", host), ("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Key", key)]
    fields = [*asked, ("Sec-WebSocket-Version", VERSION), *headers]
    try:
        encoded = [(name.encode("ascii"), value.encode("latin-1")) for name, value in fields]
        request = h11.Request(method="GET", target=path.encode("ascii"), headers=encoded)
    except (UnicodeEncodeError, h11.LocalProtocolError):
        # Without the original error's text: one of the values is a secret.
        expected = "printable ASCII in host and path, and headers without control characters"
        raise HandshakeFailed(f"handshake: expected {expected}, got others") from None
    return h11.Connection(h11.CLIENT).send(request), key


def read_answer(received: bytes) -> tuple[int, Headers, bytes] | None:
    """The status, the headers (names in lower case) and the bytes after the head of the server's response.

    ``None`` until the head is whole. Raises ``HandshakeFailed`` for a head that is malformed or too large.
    """
    end = received.find(b"\r\n\r\n", 0, MAX_ANSWER_BYTES)
    if end < 0:
        if len(received) >= MAX_ANSWER_BYTES:
            raise HandshakeFailed(f"answer: expected a head of at most {MAX_ANSWER_BYTES} bytes, got more")
        return None
    status_line, *lines = received[:end].split(b"\r\n")
    match = _STATUS_LINE.fullmatch(status_line)
    if match is None:
        raise HandshakeFailed(f"answer: expected HTTP/1.1 and a status, got {shown(status_line)}")
    try:
        headers = [parse_field(line, "answer") for line in lines]
    except Refusal as refusal:
        raise HandshakeFailed(refusal.message) from None
    return int(match[1]), headers, received[end + 4 :]


def check_accept(status: int, headers: Headers, key: str) -> None:
    """Raise ``HandshakeFailed`` unless the response accepts the handshake with ``key`` (RFC 6455 4.1)."""
    if status != 101:
        raise HandshakeFailed(f"status: expected 101 Switching Protocols, got {status}", status)
    for name, token in (("upgrade", "websocket"), ("connection", "upgrade")):
        values = [value for header, value in headers if header == name]
        tokens = [item.strip(" \t").lower() for value in values for item in value.split(",")]
        if token not in tokens:
            raise HandshakeFailed(f"{name}: expected {token}, got {shown(', '.join(tokens))}", status)
    accepts = [value for name, value in headers if name == "sec-websocket-accept"]
    if accepts != [generate_accept_token(key.encode()).decode()]:
        raise HandshakeFailed(f"sec-websocket-accept: expected our key's, got {shown(', '.join(accepts))}", status)
    for name, value in headers:
        if name in ("sec-websocket-protocol", "sec-websocket-extensions"):
            raise HandshakeFailed(f"{name}: expected none, since none was offered, got {shown(value)}", status)
