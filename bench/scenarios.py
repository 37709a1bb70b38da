"""The loads beside llama-server: who asks what, and when, by the name of the load.

Run as a process of its own (arguments: scenario, HOST:PORT, the scenario's numbers).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from bench import workload
from bench.conversations import SSE, ServerSentEvents, Turn
from bench.load import ask, ask_all, connected, warm_up, write
from bench.trace import Stream, Trace
from bench.workload import chat_questions, endless_prompts, prefixed, prompts, warm_up_prompts
from umaserve.client import run

CALM_S = 2.0
STORM_S = 8.0
STORM_CLIENTS = 2
STORM_WORDS = 120
STORM_TOKENS = 8
STREAM_TOKENS = 6000
"""More than any server decodes meanwhile."""

PREFIX_TOKENS = 16
AGENTS_TEMPERATURE = 0.5
"""Agents draw their answers at random."""


async def storm(address: str) -> Trace:
    """The first stream is the one that suffers, from ``CALM_S`` before the storm until after it; the others are it."""
    await warm_up(SSE, address, 1 + STORM_CLIENTS)
    cpu = time.process_time()
    client = await connected(address)
    (text,) = prompts(1)
    decoding = asyncio.create_task(client.ask(ServerSentEvents(text, STREAM_TOKENS)))
    await asyncio.sleep(CALM_S)
    texts, until = endless_prompts(STORM_WORDS), time.monotonic() + STORM_S
    found = await asyncio.gather(*(_ask_until(until, address, texts) for _ in range(STORM_CLIENTS)))
    if decoding.done():
        await decoding
        raise RuntimeError(f"the stream of {STREAM_TOKENS} tokens ended before the storm")
    decoding.cancel()
    with suppress(asyncio.CancelledError):
        await decoding
    client.leave()
    return Trace([client.stream, *(stream for streams in found for stream in streams)], time.process_time() - cpu)


async def _ask_until(until: float, address: str, texts: Iterator[str]) -> list[Stream]:
    streams = []
    while time.monotonic() < until:
        conversation = ServerSentEvents(next(texts), STORM_TOKENS)
        stream = await ask(address, conversation)
        streams.append(replace(stream, prompt_tokens=conversation.prompt_tokens))
    return streams


async def prefixes(address: str, n_words: int, n_clients: int) -> Trace:
    """All at once, with a prefix that one other question had before."""
    await warm_up(SSE, address, n_clients)
    for texts in (warm_up_prompts(1), chat_questions(n_clients)):
        asked = [ServerSentEvents(text, PREFIX_TOKENS, reuse=True) for text in prefixed(n_words, texts)]
        trace = await ask_all(address, asked)
    return trace


def _said_by(role: str, content: str) -> Turn:
    return {"role": role, "content": content}


async def growing(
    address: str, n_clients: int, n_words: int, n_tokens: int, n_turns: int, round_: int, opening: int
) -> Trace:
    """All clients at once, each with a conversation of its own of ``n_turns``, or with one text to complete."""
    await warm_up(SSE, address, n_clients)
    cpu = time.process_time()
    texts = workload.growing(n_clients, n_words, n_turns, round_, opening)
    found = await asyncio.gather(
        *(_converse(address, of, n_tokens, AGENTS_TEMPERATURE if opening else 0.0) for of in texts)
    )
    return Trace([stream for streams in found for stream in streams], time.process_time() - cpu)


async def _converse(address: str, texts: Sequence[str], n_tokens: int, temperature: float) -> list[Stream]:
    if len(texts) == 1:
        return [await ask(address, ServerSentEvents(texts[0], n_tokens))]
    streams, turns = [], list[Turn]()
    for number, text in enumerate(texts):
        turns.append(_said_by("user", text))
        conversation = ServerSentEvents(turns, n_tokens, reuse=True, temperature=temperature)
        streams.append(replace(await ask(address, conversation), turn=number))
        turns.append(_said_by("assistant", conversation.answer))
    return streams


SCENARIOS: dict[str, Callable[..., Coroutine[Any, Any, Trace]]] = {
    scenario.__name__: scenario for scenario in (storm, prefixes, growing)
}


def main() -> None:
    name, address, *numbers = sys.argv[1:]
    write(run(SCENARIOS[name](address, *map(int, numbers))))


if __name__ == "__main__":
    main()
