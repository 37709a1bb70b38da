"""Clients of the Unix socket: ``Client`` blocks, ``AsyncClient`` is for asyncio. Each request has its own connection.

    with Client().generate("Why is the sky blue?", chat=True) as stream:
        for event in stream:
            print(event["text"], end="", flush=True)
    print(stream.end["usage"])

Options are the contract's request fields (``max_tokens``, ``temperature``, ``stop``, ``json_schema``, …). An ``error``
event raises ``ServerError``. A connection that ends too early, or a server that doesn't speak framed JSON, raises
``ConnectionError``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import socket
import struct
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

import orjson

from umaserve.core.errors import RequestError
from umaserve.system.unix_sockets import path_to_call
from umaserve.wire.framing import FrameCodec

T = TypeVar("T")
Event = dict[str, Any]

MAX_EVENT_BYTES = 64 * 1024 * 1024
_READ = 64 * 1024
_HEADER = struct.Struct("<I")
_ids = itertools.count(1)


class ServerError(Exception):
    """The server's ``error`` event; ``code`` is the contract's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def _frame(value: Event) -> bytes:
    return FrameCodec.send(orjson.dumps(value))


def _send(sock: socket.socket, value: Event) -> None:
    try:
        sock.sendall(_frame(value))
    except BrokenPipeError:
        return  # The server has closed already; the reason is in what is still to be read.


def _request(prompt: str | None, options: Event) -> Event:
    request = {"id": f"c{next(_ids)}", **options}
    if prompt is not None:
        request["prompt"] = prompt
    return request


def _receive(sock: socket.socket, codec: FrameCodec) -> Event:
    """The next event."""
    try:
        while (payload := codec.next_payload()) is None:
            data = sock.recv(_READ)
            if not data:
                raise _lost()
            codec.receive_data(data)
    except RequestError:
        raise _foreign() from None
    return _checked(payload)


def _checked(payload: bytes) -> Event:
    try:
        event: Event = orjson.loads(payload)
        if event["event"] == "error":
            raise ServerError(event["code"], event["message"])
    except (orjson.JSONDecodeError, TypeError, KeyError):
        raise _foreign() from None
    return event


def _lost() -> ConnectionError:
    return ConnectionError("the server closed the connection before the end of its answer")


def _foreign() -> ConnectionError:
    return ConnectionError("the server there does not speak framed JSON")


class Stream:
    """One generation. Iterating yields the ``token`` events; afterwards ``end`` is the ``eos`` event."""

    def __init__(self, sock: socket.socket, request: Event) -> None:
        self.id: str = request["id"]
        self.end: Event | None = None
        self._sock = sock
        self._codec = FrameCodec(MAX_EVENT_BYTES)
        _send(sock, request)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        while self.end is None:
            event = _receive(self._sock, self._codec)
            if event["event"] == "token":
                yield event
            else:
                self.end = event

    def cancel(self) -> None:
        """Ask the server to stop at the next token; keep iterating until the end."""
        _send(self._sock, {"event": "cancel", "id": self.id})

    def wait(self, seconds: float) -> bool:
        """Wait for up to ``seconds``; returns whether there is input from the server, or the connection's end."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(self._codec.buffered or poll.poll(seconds * 1000))

    def close(self) -> None:
        """Close the connection, which cancels a running generation."""
        self._sock.close()


class Client:
    """A blocking client of the daemon at ``path``; ``None``: the user's own daemon, else the system's. ``timeout``:
    seconds for each read or write; ``None``: no limit."""

    def __init__(self, path: str | None = None, timeout: float | None = None) -> None:
        self.path = path_to_call(os.environ) if path is None else path
        self.timeout = timeout

    def generate(self, prompt: str | None = None, **options: Any) -> Stream:
        """Start a generation. ``chat=[…]`` may be given instead of ``prompt``."""
        return Stream(self._connect(), _request(prompt, options))

    def complete(self, prompt: str | None = None, **options: Any) -> Event:
        """The whole answer: the ``eos`` event, with ``text``, ``reason`` and ``usage``."""
        with self.generate(prompt, stream=False, **options) as stream:
            for _ in stream:
                continue
            assert stream.end is not None
            return stream.end

    def metrics(self) -> Event:
        """One snapshot of the server's metrics."""
        with self._connect() as sock:
            _send(sock, {"type": "metrics"})
            return _receive(sock, FrameCodec(MAX_EVENT_BYTES))

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(self.timeout)
        try:
            sock.connect(self.path)
        except BaseException:
            sock.close()
            raise
        return sock


class AsyncStream:
    """Like ``Stream``, for ``async for``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Event) -> None:
        self.id: str = request["id"]
        self.end: Event | None = None
        self._reader = reader
        self._writer = writer
        writer.write(_frame(request))

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while self.end is None:
            event = await _read_event(self._reader)
            if event["event"] == "token":
                yield event
            else:
                self.end = event

    async def cancel(self) -> None:
        """Ask the server to stop at the next token; keep iterating until the end."""
        self._writer.write(_frame({"event": "cancel", "id": self.id}))
        await self._writer.drain()

    async def close(self) -> None:
        """Close the connection, which cancels a running generation."""
        await _close(self._writer)


class AsyncClient:
    """A client for asyncio; ``path`` as of ``Client``. ``run`` runs it on uvloop if that is installed."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path_to_call(os.environ) if path is None else path

    async def generate(self, prompt: str | None = None, **options: Any) -> AsyncStream:
        """Start a generation. ``chat=[…]`` may be given instead of ``prompt``."""
        reader, writer = await asyncio.open_unix_connection(self.path, limit=_READ)
        return AsyncStream(reader, writer, _request(prompt, options))

    async def complete(self, prompt: str | None = None, **options: Any) -> Event:
        """The whole answer: the ``eos`` event, with ``text``, ``reason`` and ``usage``."""
        async with await self.generate(prompt, stream=False, **options) as stream:
            async for _ in stream:
                continue
            assert stream.end is not None
            return stream.end

    async def metrics(self) -> Event:
        """One snapshot of the server's metrics."""
        reader, writer = await asyncio.open_unix_connection(self.path, limit=_READ)
        try:
            writer.write(_frame({"type": "metrics"}))
            return await _read_event(reader)
        finally:
            await _close(writer)


async def _read_event(reader: asyncio.StreamReader) -> Event:
    try:
        (length,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        if length > MAX_EVENT_BYTES:
            raise _foreign()
        payload = await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        raise _lost() from None
    return _checked(payload)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except ConnectionError:
        return  # The server closed first.


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run``, on uvloop if that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
