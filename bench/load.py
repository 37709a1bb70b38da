"""The load generator: clients that all ask at once, each on a connection of its own.

Run as a process of its own (arguments: dialect, address, clients, tokens of each).
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import cast

from bench.conversations import CONVERSATIONS, Conversation
from bench.trace import Stream, Trace
from bench.workload import WARM_UP_TOKENS, prompts, warm_up_prompts
from umaserve.addresses import parse_address
from umaserve.client import run


class Asking(asyncio.Protocol):
    """One client: connects, asks, notes when each token comes, and leaves at the end."""

    def __init__(self, conversation: Conversation) -> None:
        self.stream = Stream(time.monotonic(), [])
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._conversation = conversation
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, since uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        # What it raises ends the connection, and comes back as the reason.
        self.stream.tokens.extend([now] * self._conversation.receive(data))
        if self._conversation.outbox:
            self._send()
        if self._conversation.ended and not self.ended.done():
            self._transport.close()
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            reason = exc or "the server closed it"
            self.ended.set_exception(ConnectionError(f"the connection ended before the answer: {reason}"))

    def _send(self) -> None:
        self._transport.write(self._conversation.outbox)
        self._conversation.outbox = b""


async def ask_all(dialect: str, address: str, texts: list[str], n_tokens: int) -> Trace:
    """Ask for ``n_tokens`` after each text, all at once. ``address`` is the path of a socket, or HOST:PORT."""
    conversations = [CONVERSATIONS[dialect](text, n_tokens) for text in texts]
    cpu = time.process_time()
    streams = await asyncio.gather(*(_ask(address, conversation) for conversation in conversations))
    cpu = time.process_time() - cpu
    if any(len(stream.tokens) != n_tokens for stream in streams):
        raise RuntimeError(f"expected {n_tokens} tokens each, got {[len(stream.tokens) for stream in streams]}")
    return Trace(streams, cpu)


async def _ask(address: str, conversation: Conversation) -> Stream:
    client = Asking(conversation)
    loop = asyncio.get_running_loop()
    if address.startswith("/"):
        await loop.create_unix_connection(lambda: client, address)
    else:
        await loop.create_connection(lambda: client, *parse_address(address))
    await client.ended
    return client.stream


async def warm_up_and_ask(dialect: str, address: str, n_clients: int, n_tokens: int) -> Trace:
    """The measured run, after the warm-up."""
    await ask_all(dialect, address, warm_up_prompts(n_clients), WARM_UP_TOKENS)
    return await ask_all(dialect, address, prompts(n_clients), n_tokens)


def main() -> None:
    dialect, address, n_clients, n_tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    # Buffered also where Python's own is not: what is written at once may go out in parts.
    with open(sys.stdout.fileno(), "wb", closefd=False) as output:
        output.write(run(warm_up_and_ask(dialect, address, n_clients, n_tokens)).dump())


if __name__ == "__main__":
    main()
