"""Stand-ins around a relay, fast enough that the relay is what is measured: a worker, a backend and clients.

The worker's and the backend's answers take no time. Frames of the worker are masked with zeros, as RFC 6455 allows.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from base64 import b64encode
from collections import deque
from typing import cast

import orjson

MODEL = "stand-in"
SECRET = "measured"
CHUNK = 'data: {"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
ANSWER = '{"choices":[{"index":0,"message":{"role":"assistant","content":"word"},"finish_reason":"stop"}]}'


class Worker(asyncio.Protocol):
    """Registers, and answers each request at once: in one piece, or with ``chunks`` chunks, streams in turn."""

    def __init__(self, chunks: int, max_concurrent: int) -> None:
        self.registered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._chunks = chunks
        self._max_concurrent = max_concurrent
        self._transport: asyncio.Transport
        self._received = bytearray()
        self._upgraded = False
        self._streams: deque[tuple[bytes, bytes, int]] = deque()
        """For each, the frame of a chunk, that of the end, and how many chunks are left."""
        self._may_write = True
        self._scheduled = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        key = b64encode(os.urandom(16)).decode()
        self._transport.write(
            f"GET /v1/worker/connect?provider=local HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
            f"X-Worker-Secret: {SECRET}\r\n\r\n".encode()
        )
        register = {"type": "register", "worker_name": "stand-in", "models": [MODEL]}
        self._send({**register, "max_concurrent": self._max_concurrent, "protocol_version": "1", "current_load": 0})

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._upgraded:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            del self._received[: end + 4]
            self._upgraded = True
        while (payload := _take_frame(self._received)) is not None:
            self._answer(orjson.loads(payload))

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self._stream()

    def connection_lost(self, exc: Exception | None) -> None:
        self._streams.clear()

    def _answer(self, message: dict[str, object]) -> None:
        match message["type"]:
            case "register_ack":
                self.registered.set_result(None)
            case "ping":
                self._send({"type": "pong", "current_load": 0})
            case "request":
                end = {"type": "response_complete", "request_id": message["request_id"], "status_code": 200}
                if message["is_streaming"]:
                    chunk = {"type": "response_chunk", "request_id": message["request_id"], "chunk": CHUNK}
                    self._streams.append((_frame(chunk), _frame(end), self._chunks))
                    self._stream_soon()
                else:
                    self._send({**end, "headers": {"content-type": "application/json"}, "body": ANSWER})

    def _stream_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._stream)

    def _stream(self) -> None:
        """One chunk of every stream."""
        self._scheduled = False
        if not self._may_write or not self._streams:
            return
        frames = []
        for _ in range(len(self._streams)):
            chunk, end, left = self._streams.popleft()
            frames.append(chunk if left else end)
            if left:
                self._streams.append((chunk, end, left - 1))
        self._transport.write(b"".join(frames))
        self._stream_soon()

    def _send(self, message: dict[str, object]) -> None:
        self._transport.write(_frame(message))


def _frame(message: dict[str, object]) -> bytes:
    payload = orjson.dumps(message)
    size = len(payload)
    head = struct.pack("!BB", 0x81, 0x80 | size) if size < 126 else struct.pack("!BBH", 0x81, 0x80 | 126, size)
    return head + bytes(4) + payload


def _take_frame(buffer: bytearray) -> bytes | None:
    """The next whole frame's payload; a server's frames are not masked."""
    if len(buffer) < 2:
        return None
    size, start = buffer[1], 2
    if size == 126:
        size, start = int.from_bytes(buffer[2:4], "big"), 4
    elif size == 127:
        size, start = int.from_bytes(buffer[2:10], "big"), 10
    if len(buffer) < start + size:
        return None
    payload = bytes(buffer[start : start + size])
    del buffer[: start + size]
    return payload


class Backend(asyncio.Protocol):
    """An HTTP server that answers at once, for what a relay is compared with."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        body = ANSWER.encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._reply = head + body

    def data_received(self, data: bytes) -> None:
        # Its clients send a request in one piece, and the next after the answer.
        self._transport.write(self._reply)


def request(*, stream: bool) -> bytes:
    body = orjson.dumps({"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": "word " * 20}]})
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    ) + body


class Asking(asyncio.Protocol):
    """A client that asks ``times`` times on one connection, each after the answer to the one before."""

    def __init__(self, times: int) -> None:
        self.took: list[float] = []
        self.bad = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._times = times
        self._request = request(stream=False)
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        self._asked_at = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._received.endswith(ANSWER.encode()):
            return
        self.bad += not self._received.startswith(b"HTTP/1.1 200 ")
        self._received.clear()
        self.took.append(time.perf_counter() - self._asked_at)
        if len(self.took) < self._times:
            self._ask()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.done.set_result(None)


class Listening(asyncio.Protocol):
    """A client of one stream, which counts its chunks."""

    def __init__(self) -> None:
        self.chunks = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(request(stream=True))

    def data_received(self, data: bytes) -> None:
        whole = self._tail + data
        self.chunks += whole.count(b"data: ")
        # What may be the beginning of one more, or of the end.
        self._tail = whole[-5:]
        if whole.endswith(b"\r\n0\r\n\r\n"):
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.done.set_result(None)
