"""The load generator: clients that all ask at once, each on a connection of its own.

Run as a process of its own (arguments: dialect, address, clients, tokens of each).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import cast

from bench.conversations import CONVERSATIONS, Conversation
from bench.trace import Stream, Trace
from bench.workload import WARM_UP_TOKENS, prompts, warm_up_prompts
from umaserve.client import run
from umaserve.settings.addresses import parse_address


class Asking(asyncio.Protocol):
    """One client on its connection: asks, notes when each token comes, and may ask again when it has its answer."""

    stream: Stream
    """Stream of the latest answer, so far."""

    def __init__(self) -> None:
        self._conversation: Conversation
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport

    async def ask(self, conversation: Conversation, asked: float | None = None) -> Stream:
        """The whole answer, asked for now, or since ``asked``.

        Raises ``ConnectionError`` for anything else, ``ConnectionResetError`` where the connection ended before it.
        """
        if self._transport.is_closing():
            raise ConnectionResetError("the server closed the connection before the question")
        self.stream = Stream(time.monotonic() if asked is None else asked, [])
        self._conversation = conversation
        self._ended = asyncio.get_running_loop().create_future()
        self._send()
        await self._ended
        return self.stream

    def leave(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, since uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if self._ended.done():
            return  # A farewell.
        try:
            self.stream.tokens.extend([now] * self._conversation.receive(data))
        except ConnectionError as error:
            self._ended.set_exception(error)
            self._transport.close()
            return
        if self._conversation.outbox:
            self._send()
        if self._conversation.ended:
            self._ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.done():
            reason = exc or "the server closed it"
            self._ended.set_exception(ConnectionResetError(f"the connection ended before the answer: {reason}"))

    def _send(self) -> None:
        self._transport.write(self._conversation.outbox)
        self._conversation.outbox = b""


async def connected(address: str) -> Asking:
    """A client on a new connection. ``address`` is the path of a socket, or HOST:PORT."""
    loop = asyncio.get_running_loop()
    if address.startswith("/"):
        _, client = await loop.create_unix_connection(Asking, address)
    else:
        _, client = await loop.create_connection(Asking, *parse_address(address))
    return client


async def ask(address: str, conversation: Conversation) -> Stream:
    """The whole answer, asked for on a connection of its own; the time counts from before it is made."""
    asked = time.monotonic()
    client = await connected(address)
    try:
        return await client.ask(conversation, asked)
    finally:
        client.leave()


async def ask_all(address: str, conversations: Sequence[Conversation]) -> Trace:
    """All at once."""
    cpu = time.process_time()
    streams = await asyncio.gather(*(ask(address, conversation) for conversation in conversations))
    return Trace(streams, time.process_time() - cpu)


async def warm_up(dialect: str, address: str, n_clients: int) -> None:
    """Ask what nobody will ask again."""
    await ask_all(address, [CONVERSATIONS[dialect](text, WARM_UP_TOKENS) for text in warm_up_prompts(n_clients)])


async def warm_up_and_ask(dialect: str, address: str, n_clients: int, n_tokens: int) -> Trace:
    """The measured run, after the warm-up."""
    await warm_up(dialect, address, n_clients)
    trace = await ask_all(address, [CONVERSATIONS[dialect](text, n_tokens) for text in prompts(n_clients)])
    if any(len(stream.tokens) != n_tokens for stream in trace.streams):
        raise RuntimeError(f"expected {n_tokens} tokens each, got {[len(stream.tokens) for stream in trace.streams]}")
    return trace


def write(trace: Trace) -> None:
    """To standard output."""
    # Buffered also where Python's own is not: what is written at once may go out in parts.
    with open(sys.stdout.fileno(), "wb", closefd=False) as output:
        output.write(trace.dump())


def main() -> None:
    dialect, address, n_clients, n_tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    write(run(warm_up_and_ask(dialect, address, n_clients, n_tokens)))


if __name__ == "__main__":
    main()
