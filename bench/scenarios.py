"""The load of the measurements beside llama-server: who asks what, and when, by the name of the measurement.

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
from bench.conversations import SSE, Conversation, ServerSentEvents, Turn, WebSocket
from bench.load import ask, ask_all, connected, warm_up, write
from bench.trace import Stream, Trace
from bench.workload import (
    chat_questions,
    copying_prompt,
    endless_prompts,
    mixed,
    prefixed,
    prompts,
    warm_up_prompts,
)
from umaserve.client import run

CALM_S = 2.0
STORM_S = 8.0
STORM_CLIENTS = 2
STORM_WORDS = 120
STORM_TOKENS = 8
STREAM_TOKENS = 6000
"""More than any server decodes meanwhile."""

PREFIX_TOKENS = 16
CHAT_QUESTIONS = 30
CHAT_TOKENS = 8
COPIED_TOKENS = 200
PRESSURE_REQUESTS = 200
PRESSURE_CLIENTS = 32


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


async def short(address: str) -> Trace:
    """One after another on one connection, or on a new one where the server has closed it."""
    client = await connected(address)
    cpu = time.process_time()
    streams = []
    for question in (*warm_up_prompts(1), *chat_questions(CHAT_QUESTIONS)):
        asked = time.monotonic()
        try:
            stream = await client.ask(_chat(question), asked)
        except ConnectionResetError:
            # After a stream llama-server closes a connection that it said it would keep.
            client = await connected(address)
            stream = await client.ask(_chat(question), asked)
        streams.append(stream)
    client.leave()
    return Trace(streams[1:], time.process_time() - cpu)


def _chat(question: str) -> ServerSentEvents:
    return ServerSentEvents([_said_by("user", question)], CHAT_TOKENS, reuse=True)


def _said_by(role: str, content: str) -> Turn:
    return {"role": role, "content": content}


async def growing(address: str, n_clients: int, n_words: int, n_tokens: int, n_turns: int, round_: int) -> Trace:
    """All clients at once, each with a conversation of its own of ``n_turns``, or with one text to complete."""
    await warm_up(SSE, address, n_clients)
    cpu = time.process_time()
    texts = workload.growing(n_clients, n_words, n_turns, round_)
    found = await asyncio.gather(*(_converse(address, of, n_tokens) for of in texts))
    return Trace([stream for streams in found for stream in streams], time.process_time() - cpu)


async def _converse(address: str, texts: Sequence[str], n_tokens: int) -> list[Stream]:
    if len(texts) == 1:
        return [await ask(address, ServerSentEvents(texts[0], n_tokens))]
    streams, turns = [], list[Turn]()
    for number, text in enumerate(texts):
        turns.append(_said_by("user", text))
        conversation = ServerSentEvents(turns, n_tokens, reuse=True)
        streams.append(replace(await ask(address, conversation), turn=number))
        turns.append(_said_by("assistant", conversation.answer))
    return streams


async def copying(address: str) -> Trace:
    await warm_up(SSE, address, 1)
    return await ask_all(address, [ServerSentEvents(copying_prompt(), COPIED_TOKENS)])


async def pressure(address: str, classes: int) -> Trace:
    """The streams of those requests that ended well. With two ``classes`` every other one is in the background."""
    await warm_up(SSE, address, PRESSURE_CLIENTS)
    cpu = time.process_time()
    asked = (_of_class(i % classes, text, n_tokens) for i, (text, n_tokens) in enumerate(mixed(PRESSURE_REQUESTS)))
    found = await asyncio.gather(*(_ask_on(address, asked) for _ in range(PRESSURE_CLIENTS)))
    return Trace([stream for streams in found for stream in streams], time.process_time() - cpu)


def _of_class(number: int, text: str, n_tokens: int) -> Conversation:
    # OpenAI's dialect has no word for the class.
    return WebSocket(text, n_tokens, priority="background") if number else ServerSentEvents(text, n_tokens)


async def _ask_on(address: str, waiting: Iterator[Conversation]) -> list[Stream]:
    streams = []
    for conversation in waiting:
        try:
            streams.append(await ask(address, conversation))
        except OSError as error:
            print(f"a request failed: {error}", file=sys.stderr)
    return streams


SCENARIOS: dict[str, Callable[..., Coroutine[Any, Any, Trace]]] = {
    scenario.__name__: scenario for scenario in (storm, prefixes, short, growing, copying, pressure)
}


def main() -> None:
    name, address, *numbers = sys.argv[1:]
    write(run(SCENARIOS[name](address, *map(int, numbers))))


if __name__ == "__main__":
    main()
