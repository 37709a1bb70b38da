"""A client's side of each dialect, sans-IO: what it sends for one whole answer, and the tokens in what comes back.

It does as little as it can with a message, since it shares the machine with the server that it measures: one parse of
its JSON, the same for all dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import orjson

from umaserve.wire.framing import FrameCodec

UNIX_SOCKET = "Unix socket"
WEBSOCKET = "WebSocket"
SSE = "SSE"

_MAX_EVENT_BYTES = 1 << 20
_HTTP_END = b"\r\n\r\n"
_CRLF = b"\r\n"
_TEXT, _CLOSE, _PING, _PONG = 0x81, 0x88, 0x89, 0x8A
_MASKED = 0x80
_MASK = bytes(4)
"""A client has to mask what it sends (RFC 6455, section 5.3); zeros leave it as it is."""


Turn = Mapping[str, str]
"""``role`` and ``content``."""


class Conversation(Protocol):
    """One request and its answer. ``outbox`` is what has to be sent now, at first the opening.

    Where it has ended, all that the server sends for it has been received, and the connection can take another one.
    """

    outbox: bytes
    ended: bool

    def receive(self, data: bytes) -> int:
        """How many tokens came to their end with ``data``. Raises ``ConnectionError`` for anything but an answer."""


class FramedJson:
    """The Unix socket's frames."""

    def __init__(self, prompt: str, n_tokens: int) -> None:
        request = {"id": "bench", "prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True}
        self.outbox = FrameCodec.send(orjson.dumps(request))
        self.ended = False
        self._codec = FrameCodec(_MAX_EVENT_BYTES)

    def receive(self, data: bytes) -> int:
        self._codec.receive_data(data)
        tokens = 0
        while (payload := self._codec.next_payload()) is not None:
            event = orjson.loads(payload)
            if event["event"] == "token":
                tokens += 1
            else:
                self.ended = _whole(event, event["event"] == "eos" and event["reason"])
        return tokens


class WebSocket:
    """``/generate`` with its default options, so that each message repeats the whole text so far."""

    def __init__(self, prompt: str, n_tokens: int) -> None:
        self.outbox = (
            b"GET /generate HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dW1hc2VydmUncyBiZW5jaA==\r\n\r\n"
        )
        self.ended = False
        parameters = {"max_tokens": n_tokens, "temperature": 0, "ignore_eos": True}
        self._config = orjson.dumps({"type": "config", "prompt": prompt, "parameters": parameters})
        self._buffer = bytearray()
        self._upgraded = False

    def receive(self, data: bytes) -> int:
        self._buffer += data
        if not self._upgraded:
            if not _take_head(self._buffer, b"HTTP/1.1 101 "):
                return 0
            self._upgraded = True
            self.outbox += _masked(_TEXT, self._config)
        tokens = 0
        for kind, payload in _frames(self._buffer):
            if kind == _PING:
                self.outbox += _masked(_PONG, payload)
                continue
            if kind != _TEXT:
                raise ConnectionError(f"not a text message: {kind:#x} {payload[:200]!r}")
            message = orjson.loads(payload)
            if message["type"] == "token":
                # The message that says "finished" ends the tokens; it is none.
                tokens += not message["finished"]
            elif message["type"] not in ("init", "status"):
                self.ended = _whole(message, message["type"] == "completion" and message["finish_reason"])
                self.outbox += _masked(_CLOSE, b"")
        return tokens


class ServerSentEvents:
    """``/v1/completions`` or ``/v1/chat/completions`` as a stream, which llama.cpp's own server answers too.

    A token that has no event of its own, since it ends within a character, counts when the answer ends.
    """

    def __init__(
        self,
        prompt: str | Sequence[Turn],
        n_tokens: int,
        *,
        reuse: bool = False,
        model: str = "",
        temperature: float = 0.0,
    ) -> None:
        """``prompt``: a text to complete, or the turns of a chat. ``reuse``: may the server use again what it has
        computed for others? ``model``: the name of one, where the server has several."""
        chat = not isinstance(prompt, str)
        asked: dict[str, object] = {"messages": prompt} if chat else {"prompt": prompt}
        if model:
            asked["model"] = model
        options = {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}, "cache_prompt": reuse}
        body = orjson.dumps({**asked, "max_tokens": n_tokens, "temperature": temperature, **options})
        self.outbox = (
            b"POST /v1/%bcompletions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (b"chat/" if chat else b"", len(body), body)
        )
        self.ended = False
        self.answer = ""
        """Text so far."""
        self.prompt_tokens = 0
        """Count by the server, once it has said so at the end."""
        self._n_tokens = n_tokens
        self._counted = self._generated = 0
        self._buffer = bytearray()
        self._begun = self._said_all = False
        self._events = bytearray()
        self._reason: object = None

    def receive(self, data: bytes) -> int:
        self._buffer += data
        if not self._begun and not _take_head(self._buffer, b"HTTP/1.1 200 "):
            return 0
        self._begun = True
        last = False
        for chunk in _chunks(self._buffer):
            last = not chunk
            self._events += chunk
        *events, self._events = self._events.split(b"\n\n")
        tokens = sum(map(self._count, events))
        if last and not self._said_all:
            raise ConnectionError(f"not the end of a whole answer: {bytes(self._events)!r}")
        self.ended = last
        return tokens

    def _count(self, event: bytearray) -> int:
        tokens = 0
        if event == b"data: [DONE]":
            self._said_all = _whole(event, self._generated == self._n_tokens and self._reason)
            tokens = self._n_tokens - self._counted
        elif event.startswith(b"data: "):
            tokens = self._count_chunk(orjson.loads(event[6:]))
        self._counted += tokens
        return tokens

    def _count_chunk(self, content: dict[str, Any]) -> int:
        if "choices" not in content:
            raise ConnectionError(f"not the chunk of an answer: {content}")
        if usage := content.get("usage"):
            self.prompt_tokens, self._generated = usage["prompt_tokens"], usage["completion_tokens"]
        if not content["choices"]:
            return 0
        (choice,) = content["choices"]
        self._reason = choice["finish_reason"]
        # Chat begins with a chunk that only says who speaks.
        text = choice["text"] if "text" in choice else choice["delta"].get("content")
        self.answer += text or ""
        return int((bool(text) or "text" in choice) and self._reason is None)


CONVERSATIONS: dict[str, Callable[[str, int], Conversation]] = {
    UNIX_SOCKET: FramedJson,
    WEBSOCKET: WebSocket,
    SSE: ServerSentEvents,
}
"""By the dialect's name: from a prompt and the number of tokens to generate after it."""


def _whole(end: Any, reason: object) -> bool:
    """True for the end of an answer that has all its tokens."""
    if reason != "length":
        raise ConnectionError(f"not the end of a whole answer: {end}")
    return True


def _take_head(buffer: bytearray, expected: bytes) -> bool:
    """Drop the head of the reply if it is all there; it has to begin as ``expected``."""
    end = buffer.find(_HTTP_END)
    if end >= 0 and not buffer.startswith(expected):
        raise ConnectionError(f"expected {expected.decode()}, got {bytes(buffer[:500])!r}")
    if end >= 0:
        del buffer[: end + len(_HTTP_END)]
    return end >= 0


def _frames(buffer: bytearray) -> Iterator[tuple[int, bytes]]:
    """Take each whole frame of a server, as its first byte and its payload (RFC 6455, section 5.2)."""
    while len(buffer) >= 2:
        length, begin = buffer[1], 2
        if length >= 126:
            begin = 4 if length == 126 else 10
            if len(buffer) < begin:
                return
            length = int.from_bytes(buffer[2:begin])
        end = begin + length
        if len(buffer) < end:
            return
        yield buffer[0], bytes(memoryview(buffer)[begin:end])
        del buffer[:end]


def _masked(kind: int, payload: bytes) -> bytes:
    """A client's frame."""
    n = len(payload)
    if n < 126:
        return bytes([kind, _MASKED | n]) + _MASK + payload
    if n < 1 << 16:
        return bytes([kind, _MASKED | 126]) + n.to_bytes(2) + _MASK + payload
    raise ValueError(f"no client here sends {n} bytes")


def _chunks(buffer: bytearray) -> Iterator[bytes]:
    """Take each whole chunk (RFC 9112, section 7.1)."""
    while (head := buffer.find(_CRLF)) >= 0:
        begin = head + len(_CRLF)
        end = begin + int(buffer[:head], 16)
        if len(buffer) < end + len(_CRLF):
            return
        yield bytes(memoryview(buffer)[begin:end])
        del buffer[: end + len(_CRLF)]
