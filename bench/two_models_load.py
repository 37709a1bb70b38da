"""The load of ``bench.models``: who asks which of two models what, and when, by the name of the measurement.

Run as a process of its own (arguments: scenario, HOST:PORT and name of the one model, of the other one, the scenario's
numbers).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from bench.conversations import ServerSentEvents
from bench.load import Asking, ask, connected, write
from bench.trace import Stream, Trace
from bench.workload import WARM_UP_TOKENS, prompts, warm_up_prompts, words
from umaserve.client import run
from umaserve.settings.addresses import parse_address

BEFORE = 16
"""Tokens of a stream before anything is asked of the other model."""
STORM_TOKENS = 8
CALM_S = 2.0
"""How long a stream runs alone before the other model is asked for."""
AFTER_S = 0.5
"""How long a stream goes on after what it ran beside."""
STREAM_TOKENS = 6000
"""More than any server decodes meanwhile."""
_LOOK_S = 0.02


class Place(NamedTuple):
    """Where a model answers."""

    address: str
    model: str

    def asks(self, text: str, n_tokens: int) -> ServerSentEvents:
        return ServerSentEvents(text, n_tokens, model=self.model)

    async def answer(self, text: str, n_tokens: int) -> Stream:
        conversation = self.asks(text, n_tokens)
        stream = await ask(self.address, conversation)
        return replace(stream, prompt_tokens=conversation.prompt_tokens)


async def storm(one: Place, other: Place, n_prompts: int, n_words: int, n_tokens: int) -> Trace:
    """The first stream is one model's, of ``n_tokens``; the others are prompts of ``n_words`` for the other one, which
    all come once that stream has ``BEFORE`` tokens."""
    await _warm_up((one, 1), (other, n_prompts))
    cpu = time.process_time()
    client, decoding = await _stream(one, n_tokens)
    asked = await asyncio.gather(*(other.answer(words(n_words, seed), STORM_TOKENS) for seed in range(n_prompts)))
    stream = await decoding
    client.leave()
    return Trace([stream, *asked], time.process_time() - cpu)


async def streams(one: Place, other: Place, n_streams: int, n_tokens: int) -> Trace:
    """So many of each model, all at once."""
    await _warm_up((one, n_streams), (other, n_streams))
    cpu = time.process_time()
    texts = prompts(2 * n_streams)
    places = (one, other) * n_streams
    found = await asyncio.gather(*(place.answer(text, n_tokens) for place, text in zip(places, texts, strict=True)))
    return Trace(list(found), time.process_time() - cpu)


async def switch(one: Place, other: Place) -> Trace:
    """The other model is not loaded. Instead of its first token, the first stream has the time from which on it was;
    the second one is the answer that waited for it, the third one the next answer."""
    await _warm_up((one, 1))
    cpu = time.process_time()
    loading = asyncio.create_task(_loading(other))
    first, second = prompts(2)
    waited = await other.answer(first, STORM_TOKENS)
    return Trace([await loading, waited, await other.answer(second, STORM_TOKENS)], time.process_time() - cpu)


async def answers(_one: Place, other: Place) -> Trace:
    """Two, one after the other, by a server that has just started."""
    return Trace([await other.answer(text, STORM_TOKENS) for text in prompts(2)], time.process_time())


async def beside(one: Place, other: Place) -> Trace:
    """The first stream is one model's, and goes on until after the second one, which is the other model's answer: that
    is asked for after ``CALM_S``, and is not loaded."""
    await _warm_up((one, 1))
    cpu = time.process_time()
    client, decoding = await _stream(one, STREAM_TOKENS)
    await asyncio.sleep(CALM_S)
    answered = await other.answer(prompts(2)[1], STORM_TOKENS)
    await asyncio.sleep(AFTER_S)
    if decoding.done():
        await decoding
        raise RuntimeError(f"the stream of {STREAM_TOKENS} tokens ended before the other model was loaded")
    decoding.cancel()
    with suppress(asyncio.CancelledError):
        await decoding
    client.leave()
    return Trace([client.stream, answered], time.process_time() - cpu)


async def _warm_up(*places: tuple[Place, int]) -> None:
    """Ask each so many times at once, which also loads it, what nobody will ask again."""
    for place, n in places:
        await asyncio.gather(*(place.answer(text, WARM_UP_TOKENS) for text in warm_up_prompts(n)))


async def _stream(place: Place, n_tokens: int) -> tuple[Asking, asyncio.Task[Stream]]:
    """One that has begun."""
    client = await connected(place.address)
    decoding = asyncio.create_task(client.ask(place.asks(prompts(1)[0], n_tokens)))
    await asyncio.sleep(0)
    while len(client.stream.tokens) < BEFORE and not decoding.done():
        await asyncio.sleep(_LOOK_S)
    return client, decoding


async def _loading(place: Place) -> Stream:
    """Until the server says that the model is loaded."""
    asked = time.monotonic()
    while not await _is_loaded(place):
        await asyncio.sleep(_LOOK_S)
    return Stream(asked, [time.monotonic()])


async def _is_loaded(place: Place) -> bool:
    reader, writer = await asyncio.open_connection(*parse_address(place.address))
    try:
        writer.write(b"GET /models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
    finally:
        writer.close()
    models = orjson.loads(answer.partition(b"\r\n\r\n")[2])["data"]
    (state,) = [model["status"]["value"] for model in models if model["id"] == place.model]
    return bool(state == "loaded")


SCENARIOS: dict[str, Callable[..., Coroutine[Any, Any, Trace]]] = {
    scenario.__name__: scenario for scenario in (storm, streams, switch, answers, beside)
}


def main() -> None:
    name, one, its_name, other, others_name, *numbers = sys.argv[1:]
    write(run(SCENARIOS[name](Place(one, its_name), Place(other, others_name), *map(int, numbers))))


if __name__ == "__main__":
    main()
