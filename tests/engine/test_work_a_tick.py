"""What the engine's process does for a tick besides computing, counted: more of it fails here, on whatever box."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from remote_engine import remote_engine
from work_counter import CallCounter, mean

from umaserve.core.requests import Generate, Sampling
from umaserve.engine.engine import LlamaEngine, load
from umaserve.remote.server import Server
from umaserve.sessions.engine_api import Run, Tick
from umaserve.sessions.kv_operations import Release
from umaserve.settings.daemon import Config

TICKS = 24
BOUNDS = {1: (79, 66, 2), 16: (474, 342, 2)}
"""By the number of streams: calls in Python, in C and into the kernel of the thread that computes. Measured: (75, 63,
2) and (465, 333, 2)."""


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    made = load(Config(parallel=16, n_ctx=16 * 256, threads=1), lambda _fraction: True)
    yield made
    made.close()


@pytest.mark.parametrize("streams", BOUNDS)
def test_a_tick_takes_no_more_work_around_its_decode(streams: int, engine: LlamaEngine) -> None:
    counter = CallCounter(Server._do.__code__)
    threading.setprofile(counter)
    remote = remote_engine(engine)
    threading.setprofile(None)
    prompt = Generate("t", "A tick", 64, sampling=Sampling(temperature=0.0, ignore_eos=True))
    prepared = [remote.prepare(prompt) for _ in range(streams)]
    tokens = [one.tokens for one in prepared]
    start = 0
    remote.run(Tick([Release(slot) for slot in range(streams)], [], threads=1))
    for _ in range(2 + TICKS):
        runs = [Run(slot, start, tokens[slot], one.sampler) for slot, one in enumerate(prepared)]
        start += len(tokens[0])
        tokens = [list(said) for said in remote.run(Tick([], runs, threads=1)).tokens]
    remote.close()
    counted = mean(counter.rounds[-TICKS:])
    assert all(n <= most for n, most in zip(counted, BOUNDS[streams], strict=True)), (counted, BOUNDS[streams])
