"""Prompts that begin like what was computed before, or is being computed."""

from __future__ import annotations

import itertools

import pytest
from scheduler_world import KEEPING, Client, SchedulerWorld, reused
from standin import (
    EngineFailure,
)

from umaserve.core.errors import Fault
from umaserve.core.requests import Priority
from umaserve.kvcache.prefix_cache import MIN_REUSED
from umaserve.scheduler.policy import policy
from umaserve.sessions.caller import Caller
from umaserve.sessions.engine_api import Outcome
from umaserve.sessions.states import State

SYSTEM = "all of these begin with the same words: "


def starts(world: SchedulerWorld, client: Client) -> list[int]:
    """Where the runs of its prompt began."""
    sampler = client.session.prepared.sampler
    slots = {run.slot for tick in world.engine.ticks for run in tick.runs if run.sampler is sampler}
    assert len(slots) == 1, "for clients with one place only"
    runs = [run for tick in world.engine.ticks for run in tick.runs if run.slot in slots]
    end = next(index for index, run in enumerate(runs) if run.sampler is sampler)
    begin = end
    while begin and runs[begin - 1].sampler is None:
        begin -= 1
    return [run.start for run in runs[begin : end + 1]]


@pytest.mark.parametrize(
    "capacity", [KEEPING, KEEPING | {"cached_cells": 1, "host_bytes": 20_000}], ids=["cells", "host"]
)
def test_what_is_erased_is_computed_again(capacity: dict[str, int]) -> None:
    world = SchedulerWorld(**capacity)
    prompt = SYSTEM + "first"
    first = world.arrive(prompt)
    running = world.arrive("somebody else", max_tokens=60)
    world.turn_until(lambda: first.end)
    where = "host_cache_bytes" if "host_bytes" in capacity else "kv_cells_cached"
    world.turn_until(lambda: world.scheduler.snapshot()[where])
    assert world.scheduler.erase_cached() >= len(prompt)
    again = world.arrive(prompt)
    world.turn_until(lambda: again.end)
    assert reused(again) == 0
    assert again.text == again.expected
    world.finish()
    assert running.text == running.expected
    assert world.scheduler.erase_cached() > 0
    assert world.scheduler.erase_cached() == 0


def test_a_prompt_is_computed_from_where_it_differs_from_an_earlier_one() -> None:
    world = SchedulerWorld(**KEEPING)
    first = world.arrive(SYSTEM + "first")
    world.turn_until(lambda: first.end)
    second = world.arrive(SYSTEM + "second")
    world.turn_until(lambda: second.end)
    again = world.arrive(SYSTEM + "second")
    world.turn_until(lambda: again.end)
    turn = world.arrive(again.request.prompt + again.text + " and then?")
    world.turn_until(lambda: turn.end)
    assert [client.text for client in world.clients] == [client.expected for client in world.clients]
    whole = len(SYSTEM + "second")
    # The last token of a prompt gives the logits, and the last one of an answer was never computed.
    expected = [0, len(SYSTEM), whole - 1, whole + len(again.text) - 1]
    assert [reused(client) for client in world.clients] == expected
    assert [starts(world, client)[0] for client in world.clients] == expected
    assert world.scheduler.metrics.prefix_reused_tokens == sum(expected)
    prompts = sum(len(client.request.prompt) for client in world.clients)
    assert world.scheduler.metrics.prompt_tokens == prompts - sum(expected)
    world.finish()


def test_a_prompt_is_shared_with_one_that_still_runs() -> None:
    world = SchedulerWorld(**KEEPING)
    first = world.arrive(SYSTEM + "first", max_tokens=60)
    world.turn_until(lambda: first.text)
    second = world.arrive(SYSTEM + "second")
    world.turn_until(lambda: second.end)
    assert first.end is None
    assert reused(second) == starts(world, second)[0] == len(SYSTEM)
    world.turn_until(lambda: first.end)
    assert [client.text for client in world.clients] == [client.expected for client in world.clients]
    world.finish()


def test_those_that_come_together_wait_for_the_first_to_compute_what_they_share() -> None:
    world = SchedulerWorld(batch_tokens=4, **KEEPING)
    first, other = world.arrive(SYSTEM + "0 is its number"), world.arrive("something else")
    clients = [first, *(world.arrive(SYSTEM + f"{number} is its number") for number in range(1, 4))]
    world.turn_until(lambda: clients[3].session.follows)
    assert first.session.state is State.PREFILL
    assert [client.session.follows for client in clients[1:]] == [first.session.id] * 3
    assert all(client.session.slot is None for client in clients[1:])
    assert other.session.follows is None
    world.turn_until(lambda: all(client.end for client in world.clients))
    assert [reused(client) for client in clients] == [0, *[len(SYSTEM)] * 3]
    assert [client.text for client in world.clients] == [client.expected for client in world.clients]
    world.finish()


def test_what_a_newcomer_can_reuse_is_looked_up_beside_any_number_that_wait() -> None:
    world = SchedulerWorld(slots=1, batch_tokens=2, cells=300, sequences=3, cached_cells=200)
    world.arrive("a conversation that was here before", max_tokens=5)
    world.turn_until(lambda: world.scheduler.idle)
    # What can be reused changes with each tick of this prompt.
    running = world.arrive("x" * 150, max_tokens=5)
    for number in range(20):
        world.arrive(f"{number} waits for long", max_tokens=5, priority=Priority.BACKGROUND)
    world.turn_until(lambda: all(client.session.prepared for client in world.clients))
    newcomer = world.arrive("a conversation that was here before, and goes on", max_tokens=5)
    world.turn_until(lambda: newcomer.session.prepared)
    world.turns(2)
    assert newcomer.session.slot is None
    assert running.session.state is State.PREFILL
    assert newcomer.session.reusable == len("a conversation that was here before")
    looked_at = [client.session.looked_at for client in world.clients[2:]]
    world.turns(8)
    again = [client.session.looked_at for client in world.clients[2:]]
    assert running.session.state is State.PREFILL
    assert all(before < after for before, after in zip(looked_at, again, strict=True)), "each has its turn"
    world.finish()


def test_who_shares_too_little_waits_for_nobody() -> None:
    world = SchedulerWorld(**KEEPING)
    words = SYSTEM[: MIN_REUSED - 1]
    clients = [world.arrive(words + str(number) * 60) for number in range(2)]
    world.turn_until(lambda: clients[0].session.slot is not None)
    world.turn_until(lambda: clients[1].session.slot is not None)
    assert clients[0].text == ""
    world.finish()


@pytest.mark.parametrize("why", ["cancelled", "abandoned", "paused", "failed", "of a worse class"])
def test_nobody_waits_for_one_that_does_not_get_on(why: str) -> None:
    world = SchedulerWorld(batch_tokens=8, **KEEPING)
    worse = Priority.BACKGROUND if why == "of a worse class" else Priority.INTERACTIVE
    leader = world.arrive(SYSTEM + "first", priority=worse)
    world.turn_until(lambda: leader.session.computed)
    follower = world.arrive(SYSTEM + "second")
    if why != "of a worse class":
        world.turn_until(lambda: follower.session.follows == leader.session.id)
        assert follower.session.slot is None
    match why:
        case "cancelled":
            world.cancel(leader)
        case "abandoned":
            world.abandon(leader)
        case "paused":
            world.pause(leader)
        case "failed":
            world.engine.failures.append(Outcome.FAILED)
    world.turn_until(lambda: follower.session.slot is not None)
    assert leader.text == ""
    world.turn_until(lambda: follower.end)
    assert follower.text == follower.expected
    world.resume(leader)
    world.finish()


def test_who_wants_no_cache_takes_nothing_from_it_and_leaves_nothing() -> None:
    world = SchedulerWorld(**KEEPING)
    for cache_prompt in (True, False, True):
        client = world.arrive(SYSTEM + "and more", cache_prompt=cache_prompt)
        world.turn_until(lambda client=client: client.end)
        assert client.text == client.expected
    cached, private, again = world.clients
    assert reused(private) == starts(world, private)[0] == 0
    assert reused(again) == len(cached.request.prompt) - 1
    world.scheduler.shed_caches()
    private = world.arrive(SYSTEM + "and more", cache_prompt=False)
    world.turn_until(lambda: private.end and not world.compute.jobs)
    assert world.scheduler.snapshot()["kv_cells_cached"] == 0
    world.finish()


def test_who_wants_no_cache_is_not_shared_with_while_it_runs() -> None:
    world = SchedulerWorld(**KEEPING)
    private = world.arrive(SYSTEM + "first", cache_prompt=False, max_tokens=60)
    world.turn_until(lambda: private.session.computed)
    other = world.arrive(SYSTEM + "second")
    world.turn_until(lambda: other.end)
    assert private.end is None
    assert reused(other) == 0
    world.finish()


@pytest.mark.parametrize("shared", [False, True])
def test_another_tenants_prompts_are_reused_only_where_all_are_shared(shared: bool) -> None:
    world = SchedulerWorld(shared_prefixes=shared, **KEEPING)
    key = Caller("openai", "192.0.2.1", "garden")
    first = world.arrive(SYSTEM + "alpha", max_tokens=60)
    world.turn_until(lambda: first.text)
    clients = [world.arrive(SYSTEM + "beta", key), world.arrive(SYSTEM + "gamma", key)]
    world.turn_until(lambda: all(client.end for client in [first, *clients]))
    late = world.arrive(SYSTEM + "delta", Caller("openai", "192.0.2.2", "garden"))
    world.turn_until(lambda: late.end)
    words = len(SYSTEM)
    assert reused(clients[0]) == (words if shared else 0)
    assert reused(clients[1]) >= words
    assert reused(late) == words, "a key is one tenant wherever it comes from"
    assert [client.text for client in world.clients] == [client.expected for client in world.clients]
    world.finish()


@pytest.mark.parametrize("host_bytes", [0, 4000])
def test_what_has_lost_its_cells_comes_back_from_host_memory(host_bytes: int) -> None:
    world = SchedulerWorld(slots=1, sequences=1, cached_cells=200, cells=200, host_bytes=host_bytes)
    for name in ("one", "two", "one"):
        client = world.arrive(f"{name}: {SYSTEM}")
        world.turn_until(lambda client=client: client.end)
        assert client.text == client.expected
    assert reused(world.clients[2]) == (len(f"one: {SYSTEM}") - 1 if host_bytes else 0)
    assert bool(world.scheduler.snapshot()["host_cache_bytes"]) == bool(host_bytes)
    world.finish()


def test_caches_are_dropped_when_they_are_told_to_be() -> None:
    world = SchedulerWorld(slots=2, sequences=2, cached_cells=200, cells=200, host_bytes=4000)
    for name in ("one", "two", "three"):
        client = world.arrive(f"{name}: {SYSTEM}")
        world.turn_until(lambda client=client: client.end and not world.compute.jobs)
    running = world.arrive(f"three: {SYSTEM} again", max_tokens=60)
    world.turn_until(lambda: running.text)
    assert world.engine.memory.saved
    world.scheduler.shed_caches()
    world.turn_until(lambda: not world.engine.memory.saved)
    assert running.end is None
    snapshot = world.scheduler.snapshot()
    assert (snapshot["kv_cells_cached"], snapshot["host_cache_bytes"]) == (0, 0)
    world.turn_until(lambda: running.end)
    assert running.text == running.expected
    world.finish()


@pytest.mark.parametrize("failure", [Outcome.FAILED, EngineFailure])
def test_what_a_failed_tick_may_have_spoilt_is_not_reused(failure: Outcome | type[EngineFailure]) -> None:
    world = SchedulerWorld(**KEEPING)
    kept = world.arrive(SYSTEM + "kept", max_tokens=4)
    world.turn_until(lambda: kept.end)
    spoilt = world.arrive(SYSTEM + "spoilt, and longer than what is kept")
    world.turn_until(lambda: len(spoilt.text) > 2)
    world.engine.failures.append(failure)
    world.turn_until(lambda: spoilt.end)
    assert spoilt.end is Fault.DECODE_FAILED
    again = world.arrive(spoilt.request.prompt)
    world.turn_until(lambda: again.end)
    trusted = len(SYSTEM) if failure is Outcome.FAILED else 0
    assert (reused(again), again.text) == (trusted, again.expected)
    world.finish()


def test_a_background_request_makes_way_and_goes_on_with_what_it_had() -> None:
    world = SchedulerWorld(slots=1, sequences=3, cached_cells=200)
    background = world.arrive("background", max_tokens=30, priority=Priority.BACKGROUND)
    world.turn_until(lambda: len(background.text) == 5)
    made = len(background.session.generated)
    hasty = world.arrive("hasty", max_tokens=5)
    world.turn_until(lambda: hasty.text)
    assert (background.session.slot, background.end) == (None, None)
    assert len(background.session.generated) <= made + 3
    world.turn_until(lambda: background.end)
    assert [client.text for client in world.clients] == [client.expected for client in world.clients]
    assert world.scheduler.metrics.recomputed_tokens == 1, "all but the last token was kept"
    assert reused(background) == 0, "its own tokens are nobody else's"
    world.finish()


def test_different_adapters_share_neither_ticks_nor_what_was_computed() -> None:
    world = SchedulerWorld(**KEEPING)
    one, two = (("one", 1.0),), (("one", 0.5), ("two", 1.0))
    clients = [world.arrive(SYSTEM + "x", max_tokens=20, lora=lora) for lora in (None, one, two, one)]
    # The stand-in asserts that each sequence is computed with its own ones only.
    world.turn_until(lambda: all(client.end for client in clients))
    assert {tick.adapters for tick in world.engine.ticks if tick.runs} == {(), one, two}
    assert [reused(client) for client in clients] == [0, 0, 0, len(SYSTEM)]
    assert [client.text for client in clients] == [client.expected for client in clients]
    turns = [tick.adapters for tick in world.engine.ticks if tick.runs]
    assert max(len(list(same)) for _adapters, same in itertools.groupby(turns[:40])) <= 4, "each has its turn"
    world.finish()


@pytest.mark.parametrize("batch_tokens", [32, 512])
def test_of_prompts_alike_that_were_gathered_one_is_computed(
    batch_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SchedulerWorld(slots=8, batch_tokens=batch_tokens, **KEEPING)
    monkeypatch.setattr(policy, "gathers", lambda _snapshot: True)
    alike = [world.arrive(f"the same prompt for all of them, and number {n}", max_tokens=3) for n in range(7)]
    other = world.arrive("another one, of which nothing is known", max_tokens=3)
    world.turn_until(lambda: all(client.session.prepared for client in (*alike, other)))
    monkeypatch.setattr(policy, "gathers", lambda _snapshot: False)
    world.turn_until(lambda: all(client.end for client in (*alike, other)))
    assert sorted(map(reused, alike)) == [0, *[len(alike[0].request.prompt) - 1] * 6]
    assert reused(other) == 0
    world.finish()
