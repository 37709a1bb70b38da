"""The load generator: clients that all ask at once, each on a connection of its own, as raw frames.

Run as a process of its own (arguments: socket, clients, tokens of each). It does as little as it can with a frame,
since it shares the machine with the daemon it measures.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import cast

import orjson

from bench.trace import Stream, Trace
from bench.workload import WARM_UP_TOKENS, prompts, warm_up_prompts
from umaserve.client import run
from umaserve.protocol.framing import FrameCodec

_MAX_EVENT_BYTES = 1 << 20


class Asking(asyncio.Protocol):
    """One client: connects, asks, notes when each token comes, and leaves at the end."""

    def __init__(self, request: bytes) -> None:
        self.stream = Stream(time.monotonic(), [])
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._codec = FrameCodec(_MAX_EVENT_BYTES)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, since uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self._codec.receive_data(data)
        while (payload := self._codec.next_payload()) is not None:
            event = orjson.loads(payload)
            if event["event"] == "token":
                self.stream.tokens.append(now)
            else:
                self._end(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the daemon closed the connection: {exc or 'end of stream'}")

    def _end(self, event: dict[str, object]) -> None:
        self._transport.close()
        if event["event"] == "eos" and event["reason"] == "length":
            self.ended.set_result(None)
        else:
            self._fail(f"not the end of a whole answer: {event}")

    def _fail(self, message: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(ConnectionError(message))


async def ask_all(path: str, texts: list[str], n_tokens: int) -> Trace:
    """Ask for ``n_tokens`` after each text, all at once."""
    options = {"id": "bench", "max_tokens": n_tokens, "ignore_eos": True}
    requests = [FrameCodec.send(orjson.dumps({**options, "prompt": text})) for text in texts]
    cpu = time.process_time()
    streams = await asyncio.gather(*(_ask(path, request) for request in requests))
    cpu = time.process_time() - cpu
    if any(len(stream.tokens) != n_tokens for stream in streams):
        raise RuntimeError(f"expected {n_tokens} tokens each, got {[len(stream.tokens) for stream in streams]}")
    return Trace(streams, cpu)


async def _ask(path: str, request: bytes) -> Stream:
    client = Asking(request)
    await asyncio.get_running_loop().create_unix_connection(lambda: client, path)
    await client.ended
    return client.stream


async def warm_up_and_ask(path: str, n_clients: int, n_tokens: int) -> Trace:
    """The measured run, after the warm-up."""
    await ask_all(path, warm_up_prompts(n_clients), WARM_UP_TOKENS)
    return await ask_all(path, prompts(n_clients), n_tokens)


def main() -> None:
    path, n_clients, n_tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sys.stdout.buffer.write(run(warm_up_and_ask(path, n_clients, n_tokens)).dump())


if __name__ == "__main__":
    main()
