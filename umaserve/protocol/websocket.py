"""The WebSocket codec (RFC 6455), server side: the opening handshake, then messages. Sans-IO, over wsproto's frames."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from wsproto.frame_protocol import CloseReason, Frame, FrameProtocol, Opcode, ParseFailed
from wsproto.utilities import generate_accept_token

from umaserve.protocol.http_head import Refusal, Request

VERSION = "13"
PIECES_PER_CALL = 256
"""Frame headers and pieces of payloads handled in one call: a message of tiny fragments must not hold the loop."""
PIECE_BYTES = 64 * 1024
"""wsproto makes several copies of what it is given, so a large payload goes through it in parts."""

_KEY = re.compile(r"[A-Za-z0-9+/]{22}==")


def wants_websocket(request: Request) -> bool:
    """Whether ``request`` asks for an upgrade to WebSocket, well-formed or not."""
    return "websocket" in _tokens(request, "upgrade")


def handshake(request: Request, subprotocols: Sequence[str] = ()) -> list[tuple[str, str]]:
    """The headers of the 101 response (RFC 6455 4.2.2), with the first of the client's subprotocols that is ours.

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
    headers = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", generate_accept_token(key.encode()).decode()),
    ]
    for offered in _items(request, "sec-websocket-protocol"):
        if offered in subprotocols:
            return [*headers, ("Sec-WebSocket-Protocol", offered)]
    return headers


def _items(request: Request, name: str) -> list[str]:
    """The items of a header that is a list, which may be spread over several lines (RFC 9110 5.3)."""
    return [item.strip(" \t") for value in request.header_values(name) for item in value.split(",")]


def _tokens(request: Request, name: str) -> list[str]:
    return [item.lower() for item in _items(request, name)]


def _only(request: Request, name: str) -> str | None:
    values = request.header_values(name.lower())
    if len(values) > 1:
        raise Refusal(400, f"{name}: expected once, got {len(values)} times")
    return values[0] if values else None


class Message(NamedTuple):
    """A whole message; ``data`` is UTF-8 where it is ``text``."""

    data: bytes
    text: bool


class WebSocketCodec:
    """Messages to bytes and back, after the handshake.

    Received bytes are judged only by ``next_message`` and ``next_payload``; the caller writes ``take_output`` after
    each of them. The peer's mistake is answered there with a close frame (RFC 6455 7.4.1): 1002 for a breach of the
    protocol, 1003 for a binary message where they are not taken, 1007 for text that is not UTF-8, and 1009 for a
    message over ``max_message_bytes``, from the frame's header, before its payload is stored.
    """

    def __init__(self, max_message_bytes: int, *, binary: bool = False) -> None:
        self._max = max_message_bytes
        self._binary = binary
        self._frames = FrameProtocol(client=False, extensions=[])
        self._buffer = bytearray()
        self._unread = 0
        """Payload bytes of the present frame that wsproto has not been given."""
        self._message = bytearray()
        self._announced = 0
        """The present message's size by its frames' headers."""
        self._output = bytearray()
        self._eof = False
        self.more = False
        """Whether the last call stopped for its bound of work, not for want of bytes: call again in a later turn."""
        self.closing = False
        """Whether a close frame was made, after which nothing more is sent and no message is given out."""
        self.closed = False
        """Whether nothing more will be received: the connection ends once ``take_output`` is written."""
        self.left = False
        """Whether a close frame of the peer's came, so that it is not a connection that was lost or broken."""

    @property
    def buffered(self) -> int:
        """Bytes received and not yet given out."""
        return len(self._buffer) + len(self._message)

    def receive_data(self, data: bytes) -> None:
        if not self.closed:
            self._buffer += data

    def receive_eof(self) -> None:
        """The peer sends no more; once what came is used up, the codec is ``closed``."""
        self._eof = True

    def next_payload(self) -> bytes | None:
        """The data of the next whole message, or ``None`` as in ``next_message``."""
        message = self.next_message()
        return None if message is None else message.data

    def next_message(self) -> Message | None:
        """The next whole message, or ``None``: until more bytes come, for now (``more``), or for ever (``closed``)."""
        self.more = False
        try:
            for _ in range(PIECES_PER_CALL):
                piece = self._next_piece()
                if not piece:
                    if self._eof:
                        self._end()
                    return None
                self._frames.receive_bytes(piece)
                for frame in self._frames.received_frames():
                    message = self._take(frame)
                    if message is not None:
                        return message
                # Here and not before, so that wsproto has found nothing wrong with the header itself.
                if self._announced > self._max:
                    raise ParseFailed(
                        f"message: expected at most {self._max} bytes, got {self._announced}",
                        CloseReason.MESSAGE_TOO_BIG,
                    )
        except ParseFailed as mistake:
            # Where wsproto met the bad byte depends on how the text was split, so its own words are of no use.
            utf8 = mistake.code is CloseReason.INVALID_FRAME_PAYLOAD_DATA
            goodbye = self.close(mistake.code, "text: expected UTF-8" if utf8 else str(mistake))
            self._output += goodbye
            self._end()
            return None
        self.more = not self.closed
        return None

    def _next_piece(self) -> bytes:
        """The next frame's header once it is whole, or what has come of the present one's payload; else ``b""``."""
        if self._unread:
            size = min(self._unread, len(self._buffer), PIECE_BYTES)
            self._unread -= size
        else:
            size = self._begin_frame()
        piece = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return piece

    def _begin_frame(self) -> int:
        """Note the next frame's payload length (RFC 6455 5.2) and return its header's, which is 0 until it is whole."""
        buffer = self._buffer
        if len(buffer) < 2:
            return 0
        masked, length = buffer[1] >> 7, buffer[1] & 0x7F
        extended = {126: 2, 127: 8}.get(length, 0)
        size = 2 + extended + 4 * masked
        if len(buffer) < size:
            return 0
        if extended:
            length = int.from_bytes(buffer[2 : 2 + extended], "big")
        self._unread = length
        if not buffer[0] & 0x08:
            self._announced += length
        return size

    def _take(self, frame: Frame) -> Message | None:
        match frame:
            case Frame(Opcode.PING, bytes(data)):
                if not self.closing:
                    self._output += self._frames.pong(data)
            case Frame(Opcode.CLOSE, (code, _)):
                self.left = True
                goodbye = self.close(code)
                self._output += goodbye
                self._end()
            case Frame(Opcode.BINARY) if not self._binary:
                raise ParseFailed("message: expected text, got binary", CloseReason.UNSUPPORTED_DATA)
            case Frame(Opcode.TEXT, str(text), _, finished):
                return self._add(text.encode(), finished, True)
            case Frame(Opcode.BINARY, bytes(data), _, finished):
                return self._add(data, finished, False)
        return None

    def _add(self, data: bytes, finished: bool, text: bool) -> Message | None:
        if not self.closing:
            self._message += data
        if not finished:
            return None
        message = Message(bytes(self._message), text)
        self._message = bytearray()
        self._announced = 0
        return None if self.closing else message

    def _end(self) -> None:
        self.closed = True
        self._buffer = bytearray()
        self._message = bytearray()

    def send(self, payload: bytes) -> bytes:
        """One text message of ``payload``, which is UTF-8; ``b""`` once a close frame was made."""
        return self.send_message(Message(payload, True))

    def send_message(self, message: Message) -> bytes:
        if self.closing:
            return b""
        return bytes(self._frames.send_data(message.data.decode() if message.text else message.data))

    def take_output(self) -> bytes:
        """What the codec has to say of itself: pongs, and the close frame that answers the peer's or its mistake."""
        output = bytes(self._output)
        self._output.clear()
        return output

    def ping(self, data: bytes = b"") -> bytes:
        """A ping with ``data``, at most 125 bytes; ``b""`` once a close frame was made."""
        return b"" if self.closing else bytes(self._frames.ping(data))

    def close(self, code: int, reason: str = "") -> bytes:
        """Our close frame, after any pongs that were not taken yet; ``b""`` if one was made already.

        ``reason`` is cut at a character's boundary to the 123 bytes of UTF-8 that the frame holds (RFC 6455 5.5).
        """
        if self.closing:
            return b""
        self.closing = True
        self._message = bytearray()
        return self.take_output() + self._frames.close(code, reason)
