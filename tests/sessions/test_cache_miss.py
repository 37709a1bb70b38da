"""Where a prompt leaves one that is nearly the same, and what is said of it to whom."""

from __future__ import annotations

import logging
import random

import pytest
from scheduler_world import ORIGIN, Client, SchedulerWorld

from umaserve.core.events import CacheMiss, Placed
from umaserve.sessions.cache_miss import RUN, SEARCHED, Difference, cache_miss, difference
from umaserve.sessions.caller import Caller
from umaserve.sessions.engine_api import media_ids

WORDS = "Answer in verse, name your sources, and be kind to whoever asks: most are children at school."
SYSTEM = "You help. Today is 2026-11-{day}. " + WORDS
AT, LENGTH = SYSTEM.index("{day}") + 1, len(SYSTEM.format(day=22))


def text(seed: int, length: int) -> list[int]:
    """Tokens that hardly any other text has in this order."""
    return random.Random(seed).choices(range(1000), k=length)


START, REST, OTHER = text(1, 20), text(2, 200), text(3, 200)


@pytest.mark.parametrize(
    ("known", "prompt"),
    [
        ([*START, 7, *REST], [*START, 8, *REST]),
        ([*START, 7, 7, 7, *REST], [*START, 8, *REST, *OTHER]),
        ([*START, *REST[:90], *OTHER[:90]], [*START, *OTHER[:90], *REST[:90]]),
        ([*START, *text(4, 5000), *REST], [*START, *REST, *OTHER]),
        ([*START, 7, *REST[: 2 * RUN]], [*START, 8, *text(4, 3 * SEARCHED), *REST[: 2 * RUN]]),
    ],
    ids=["a date", "another length", "tools in another order", "thoughts that were dropped", "at the end"],
)
def test_what_goes_on_alike_after_a_difference_is_nearly_the_same(known: list[int], prompt: list[int]) -> None:
    assert difference(prompt, known, 20) == Difference(20, tuple(known[20:24]), len(known))


@pytest.mark.parametrize(
    ("known", "prompt"),
    [
        ([*START, *REST], [*START, *OTHER]),
        ([*START, *REST], [*START, *REST]),
        ([*START], [*START, *REST]),
        ([*START, *REST], [*START]),
        ([*START, 7, *REST[: RUN - 1]], [*START, 8, *REST[: RUN - 1]]),
        ([*START, 7, *[5] * 100], [*START, 8, *[5] * 100]),
        ([], REST),
    ],
    ids=["another conversation", "the same", "the next turn", "a part", "too little", "a line of dashes", "nothing"],
)
def test_all_else_is_not(known: list[int], prompt: list[int]) -> None:
    common = next((at for at, pair in enumerate(zip(known, prompt, strict=False)) if pair[0] != pair[1]), len(known))
    assert difference(prompt, known, min(common, len(prompt) - 1)) is None


def placed(client: Client) -> Placed:
    (found,) = [output for output in client.outputs if isinstance(output, Placed)]
    return found


def ask(world: SchedulerWorld, prompt: str, caller: Caller = ORIGIN, **fields: object) -> CacheMiss | None:
    client = world.arrive(prompt, caller, max_tokens=2, **fields)
    world.turn_until(lambda: client.end)
    return placed(client).miss


@pytest.mark.parametrize(
    "capacity",
    [
        {"cached_cells": 400},
        {"cached_cells": 400, "host_bytes": 4000},
        {"cached_cells": 1, "host_bytes": 4000},
        {"host_bytes": 4000},
        {},
    ],
    ids=["cells", "both", "saved", "can't be cut", "nothing is reused"],
)
def test_the_prompt_is_told_where_it_leaves_the_one_before(capacity: dict[str, int]) -> None:
    world = SchedulerWorld(batch_tokens=200, **capacity)
    assert ask(world, SYSTEM.format(day=22)) is None
    assert ask(world, SYSTEM.format(day=22)) is None
    miss = CacheMiss(AT, LENGTH, "day is 2026-11-2", "3. A", "2. A") if capacity else None
    assert ask(world, SYSTEM.format(day=23)) == miss
    assert ask(world, SYSTEM.format(day=23) + " Hello!") is None
    assert ask(world, SYSTEM.format(day=23)[:34] + "Whatever else one may say about trains and ships and fish") is None


def test_a_running_sequence_is_known_too() -> None:
    world = SchedulerWorld(batch_tokens=200, cached_cells=400)
    running = world.arrive(SYSTEM.format(day=22), max_tokens=60)
    world.turn_until(lambda: running.tokens)
    assert ask(world, SYSTEM.format(day=23)) == CacheMiss(AT, LENGTH, "day is 2026-11-2", "3. A", "2. A")
    assert not running.end


def test_nobody_reads_what_another_wrote() -> None:
    alice, bob = (Caller("openai", "ip:10.0.0.1", key) for key in ("alice", "bob"))
    world = SchedulerWorld(batch_tokens=200, cached_cells=400)
    assert ask(world, SYSTEM.format(day=22), alice) is None
    assert ask(world, SYSTEM.format(day=23), bob) is None
    assert ask(world, SYSTEM.format(day=24), bob, cache_prompt=False) is None
    world = SchedulerWorld(batch_tokens=200, cached_cells=400, shared_prefixes=True)
    assert ask(world, SYSTEM.format(day=22), alice) is None
    assert ask(world, SYSTEM.format(day=23), bob) == CacheMiss(AT, LENGTH, "day is 2026-11-2", "3. A", None)
    world = SchedulerWorld(batch_tokens=200, cached_cells=400)
    relayed = Caller("openai", "relay:", several=True)
    assert ask(world, SYSTEM.format(day=22), relayed) is None
    assert ask(world, SYSTEM.format(day=23), relayed) == CacheMiss(AT, LENGTH, "day is 2026-11-2", "3. A", None)


def test_the_log_has_numbers_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    world = SchedulerWorld(batch_tokens=200, cached_cells=400)
    with caplog.at_level(logging.INFO, "umaserve"):
        ask(world, SYSTEM.format(day=22))
        ask(world, SYSTEM.format(day=23))
    (record,) = [record for record in caplog.records if record.message == "prompt differs from a cached one"]
    assert record.fields == {
        "request": "r1",
        "dialect": "uds",
        "key": "",
        "differs_at_token": AT + 1,
        "prompt_tokens": LENGTH,
        "known_tokens": LENGTH + 1,
        "prefix_reused_tokens": AT,
    }


def test_images_are_no_text() -> None:
    before, image = media_ids(1, 3), media_ids(2, 2)
    found = Difference(3, tuple(image), 90)
    prompt = [*before, *b"ab", *image, *text(5, 96)]
    told = cache_miss(found, prompt, lambda tokens: bytes(tokens).decode(), tells_known=True)
    assert told == CacheMiss(3, 103, "", "ab", "")
