"""The WebSocket codec (RFC 6455) of servers and clients. Sans-IO, over wsproto's frame parser."""

from __future__ import annotations

import enum
import io
import os
import struct
from typing import NamedTuple

from wsproto.frame_protocol import CloseReason, Frame, FrameProtocol, Opcode, ParseFailed, XorMaskerSimple

from umaserve.core.errors import Fault, RequestError

CloseCode = CloseReason
"""The status codes of close frames (RFC 6455 7.4.1), by name."""

PIECES_PER_CALL = 256
"""Frame headers and payload pieces handled in one call: a message of tiny fragments must not block the loop."""
MAX_FRAME_BYTES = 8 * 1024 * 1024
"""A longer message is sent in several frames: some peers refuse longer frames."""
PIECE_BYTES = 64 * 1024
"""wsproto copies its input several times, so a large payload is given to it in pieces."""


_FINAL = 0x80
_MASKED = 0x80
_FINAL_TEXT = _FINAL | Opcode.TEXT
_SHORT_MASK_BYTES = 512
"""Up to this size one XOR of two large integers is faster than wsproto's masking, above it slower."""


class Message(NamedTuple):
    """A whole message; ``data`` is UTF-8 if ``text``."""

    data: bytes
    text: bool


class State(enum.Enum):
    """The state of the closing handshake (RFC 6455, section 7). Messages are sent and returned only while ``OPEN``."""

    OPEN = enum.auto()
    CLOSING = enum.auto()
    """Our close frame was made. What arrives before the peer's is dropped."""
    LEFT = enum.auto()
    """The peer's close frame arrived, and ours was made."""
    BROKEN = enum.auto()
    """The peer sent something invalid, which a close frame answers."""
    LOST = enum.auto()
    """The input ended without a close frame."""
    ENDED = enum.auto()
    """Our close frame was made, and the peer didn't answer with one."""


class _Event(enum.Enum):
    CLOSE = enum.auto()
    """Our close frame is made."""
    PEER_CLOSE = enum.auto()
    MISTAKE = enum.auto()
    END_OF_INPUT = enum.auto()


_TRANSITIONS: dict[tuple[State, _Event], State] = {
    (State.OPEN, _Event.CLOSE): State.CLOSING,
    (State.OPEN, _Event.PEER_CLOSE): State.LEFT,
    (State.OPEN, _Event.MISTAKE): State.BROKEN,
    (State.OPEN, _Event.END_OF_INPUT): State.LOST,
    (State.CLOSING, _Event.PEER_CLOSE): State.LEFT,
    (State.CLOSING, _Event.MISTAKE): State.ENDED,
    (State.CLOSING, _Event.END_OF_INPUT): State.ENDED,
}


class WebSocketCodec:
    """Messages to bytes and back, after the handshake.

    Received bytes are parsed only by ``next_message`` and ``next_payload``; the caller writes ``take_output`` after
    each of them. The peer's mistake is answered there with a close frame: ``PROTOCOL_ERROR``; ``UNSUPPORTED_DATA``
    for a binary message unless ``binary``; ``INVALID_FRAME_PAYLOAD_DATA`` for text that is not UTF-8;
    ``MESSAGE_TOO_BIG`` for a message over ``max_message_bytes``, judged by the frame's header before its payload is
    stored. ``mistake`` then holds the error, and ``explain`` sends a message before that close frame.
    """

    def __init__(self, max_message_bytes: int, *, binary: bool = False, client: bool = False) -> None:
        self._max = max_message_bytes
        self._binary = binary
        self._client = client
        """A client's frames are masked, a server's are not (RFC 6455 5.1)."""
        self._frames = FrameProtocol(client=client, extensions=[])
        self._buffer = bytearray()
        self._unread = 0
        """Payload bytes of the current frame not yet given to wsproto."""
        self._message = io.BytesIO()
        """The current message so far. BytesIO, since ``getvalue`` makes no copy."""
        self._announced = 0
        """The current message's size in bytes, by its frame headers."""
        self._fragmented = False
        """Whether the current message's last frame is still to come."""
        self._output = bytearray()
        self._goodbye = b""
        """The close frame that answers the peer's mistake, until it is taken."""
        self._eof = False
        self.more = False
        """Whether the last call stopped at its work limit, not for lack of bytes: call again in a later turn."""
        self.state = State.OPEN
        self.close_code: int | None = None
        """Code from the peer's close frame, as ``close_reason``; ``NO_STATUS_RCVD`` if it has no code (RFC 6455
        7.1.5)."""
        self.close_reason = ""
        self.mistake: RequestError | None = None
        """The peer's mistake, until ``explain`` or ``take_output`` is called."""

    @property
    def closed(self) -> bool:
        """Whether nothing more will be received: the connection ends once ``take_output`` is written."""
        return self.state not in (State.OPEN, State.CLOSING)

    @property
    def buffered(self) -> int:
        """Bytes received and not yet returned."""
        return len(self._buffer) + self._message.tell()

    def receive_data(self, data: bytes) -> None:
        if not self.closed:
            self._buffer += data

    def receive_eof(self) -> None:
        """End of the peer's input; the codec is ``closed`` once the received bytes are consumed."""
        self._eof = True

    def next_payload(self) -> bytes | None:
        """The data of the next whole message, or ``None`` as in ``next_message``."""
        message = self.next_message()
        return None if message is None else message.data

    def next_message(self) -> Message | None:
        """The next whole message, or ``None``: until more bytes arrive, until the next call (``more``), or for good
        (``closed``)."""
        self.more = False
        message = self._take_whole()
        if message is not None:
            return message
        try:
            for _ in range(PIECES_PER_CALL):
                if self.closed:
                    return None
                piece = self._next_piece()
                if not piece:
                    if self._eof:
                        self._move(_Event.END_OF_INPUT)
                    return None
                self._frames.receive_bytes(piece)
                for frame in self._frames.received_frames():
                    message = self._take(frame)
                    if message is not None:
                        return message
                # After wsproto, whose errors in the header come first.
                if self._announced > self._max:
                    raise ParseFailed(
                        f"message: expected at most {self._max} bytes, got {self._announced}",
                        CloseCode.MESSAGE_TOO_BIG,
                    )
        except ParseFailed as mistake:
            # wsproto's own message has a position that depends on how the text was split.
            utf8 = mistake.code is CloseCode.INVALID_FRAME_PAYLOAD_DATA
            reason = "text: expected UTF-8" if utf8 else str(mistake)
            if self.state is State.OPEN:
                self._goodbye = self._close_frame(mistake.code, reason)
                too_big = mistake.code is CloseCode.MESSAGE_TOO_BIG
                self.mistake = RequestError.of_text(Fault.FRAME_TOO_LARGE if too_big else Fault.BAD_REQUEST, reason)
            self._move(_Event.MISTAKE)
            return None
        self.more = not self.closed
        return None

    def _take_whole(self) -> Message | None:
        """The next message if it is one short, valid text frame that is whole in the buffer.

        A fast path: most messages are, and wsproto takes ten times as long. Everything else is left to wsproto.
        """
        buffer = self._buffer
        if len(buffer) < 2 or buffer[0] != _FINAL_TEXT or self._unread or self._fragmented:
            return None
        if self.state is not State.OPEN:
            return None
        length, start = buffer[1], 2
        if not self._client:
            # An unmasked frame gives a length above 127 here.
            length, start = length ^ _MASKED, 6
        if length > 125:
            if length != 126 or len(buffer) < 4:
                return None
            length, start = buffer[2] << 8 | buffer[3], start + 2
            if length < 126:
                return None
        end = start + length
        if length > self._max or len(buffer) < end:
            return None
        data = bytes(memoryview(buffer)[start:end])
        if not self._client:
            data = _masked(data, bytes(buffer[start - 4 : start]))
        try:
            data.decode()
        except UnicodeDecodeError:
            return None
        del buffer[:end]
        return Message(data, True)

    def _next_piece(self) -> bytes:
        """The next frame's header once it is whole, or the next part of the current frame's payload; else ``b""``."""
        if self._unread:
            size = min(self._unread, len(self._buffer), PIECE_BYTES)
            self._unread -= size
        else:
            size = self._begin_frame()
        piece = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return piece

    def _begin_frame(self) -> int:
        """Note the next frame's payload length (RFC 6455 5.2); return its header's length, 0 until that is whole."""
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
                if self.state is State.OPEN:
                    self._output += self._frames.pong(data)
            case Frame(Opcode.CLOSE, (code, str(reason))):
                self.close_code, self.close_reason = int(code), reason
                if self.state is State.OPEN:
                    self._output += self._frames.close(code)
                self._move(_Event.PEER_CLOSE)
            case Frame(Opcode.BINARY) if not self._binary:
                raise ParseFailed("message: expected text, got binary", CloseCode.UNSUPPORTED_DATA)
            case Frame(Opcode.TEXT, str(text), _, finished):
                return self._add(text.encode(), finished, True)
            case Frame(Opcode.BINARY, bytes(data), _, finished):
                return self._add(data, finished, False)
        return None

    def _add(self, data: bytes, finished: bool, text: bool) -> Message | None:
        if self.state is State.OPEN:
            self._message.write(data)
        self._fragmented = not finished
        if not finished:
            return None
        message = Message(self._message.getvalue(), text)
        self._message = io.BytesIO()
        self._announced = 0
        return message if self.state is State.OPEN else None

    def _move(self, event: _Event) -> None:
        self.state = _TRANSITIONS[self.state, event]
        self._message = io.BytesIO()
        if self.closed:
            self._buffer = bytearray()

    def send(self, payload: bytes) -> bytes:
        """The frames of one text message with the UTF-8 ``payload``; ``b""`` unless ``OPEN``."""
        return self.send_message(Message(payload, True))

    def send_message(self, message: Message) -> bytes:
        """The frames of ``message``: one, or several for a long message; ``b""`` unless ``OPEN``. Made here since
        wsproto, which makes the control frames, takes several times as long."""
        if self.state is not State.OPEN:
            return b""
        data, opcode = message.data, Opcode.TEXT if message.text else Opcode.BINARY
        if len(data) <= MAX_FRAME_BYTES:
            return self._frame(_FINAL | opcode, data)
        frames = []
        for start in range(0, len(data), MAX_FRAME_BYTES):
            end = start + MAX_FRAME_BYTES
            final = 0 if end < len(data) else _FINAL
            frames.append(self._frame(final | (Opcode.CONTINUATION if start else opcode), data[start:end]))
        return b"".join(frames)

    def _frame(self, first: int, data: bytes) -> bytes:
        mask_bit, length = _MASKED if self._client else 0, len(data)
        if length < 126:
            header = bytes((first, mask_bit | length))
        elif length < 2**16:
            header = struct.pack("!BBH", first, mask_bit | 126, length)
        else:
            header = struct.pack("!BBQ", first, mask_bit | 127, length)
        if not self._client:
            return header + data
        mask = os.urandom(4)
        return header + mask + _masked(data, mask)

    def take_output(self) -> bytes:
        """The codec's own output: pongs, and the close frame that answers the peer's close frame or mistake."""
        output = bytes(self._output) + self._goodbye
        self._output.clear()
        self._goodbye, self.mistake = b"", None
        return output

    def explain(self, payload: bytes) -> None:
        """Send a text message with ``payload`` before the close frame that answers ``mistake``, if there is one."""
        if self.mistake is not None:
            self._output += self._frame(_FINAL_TEXT, payload)
            self.mistake = None

    def ping(self, data: bytes = b"") -> bytes:
        """A ping with ``data``, at most 125 bytes; ``b""`` unless ``OPEN``."""
        return bytes(self._frames.ping(data)) if self.state is State.OPEN else b""

    def close(self, code: int, reason: str = "") -> bytes:
        """Our close frame, after any pending pongs; ``b""`` unless ``OPEN``.

        ``reason`` is cut at a character boundary to the 123 bytes of UTF-8 that the frame holds (RFC 6455 5.5).
        """
        if self.state is not State.OPEN:
            return b""
        self._move(_Event.CLOSE)
        return self._close_frame(code, reason)

    def _close_frame(self, code: int, reason: str) -> bytes:
        return self.take_output() + bytes(self._frames.close(code, reason))


def _masked(data: bytes, mask: bytes) -> bytes:
    """``data`` masked, or unmasked, with the four bytes of ``mask`` (RFC 6455 5.3)."""
    length = len(data)
    if length > _SHORT_MASK_BYTES:
        return bytes(XorMaskerSimple(mask).process(bytearray(data)))
    pattern = (mask * (length // 4 + 1))[:length]
    return (int.from_bytes(data, "little") ^ int.from_bytes(pattern, "little")).to_bytes(length, "little")
