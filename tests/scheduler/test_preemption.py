"""More work than the KV cache holds: all that runs gets to its end, whatever else happens, and with the same text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_world import Client, SchedulerWorld
from standin import ECHO, SHORT, answer

from umaserve.core.events import FinishReason, Waiting
from umaserve.core.requests import Priority
from umaserve.kvcache import reservations
from umaserve.scheduler.positions import PATIENCE_S
from umaserve.sessions.session import Hold
from umaserve.sessions.states import State


@pytest.fixture
def small_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reservations, "STEP", 4)
        patch.setattr(reservations, "UNKNOWN", 4)
        yield


def preemptions(world: SchedulerWorld) -> int:
    return int(world.scheduler.metrics.snapshot()["preemptions_total"])


def finish(world: SchedulerWorld) -> None:
    world.turn_until(lambda: all(client.end for client in world.clients))
    for client in world.clients:
        assert (client.text, client.end) == client.expected_end


def short_prompts(length: int) -> Iterator[str]:
    """Prompts whose answers end by themselves within so many tokens."""
    prompts = (f"{SHORT}{number}" for number in itertools.count())
    return (prompt for prompt in prompts if 2 < len(answer(prompt, length + 1)) <= length)


def test_what_may_become_long_and_is_not_runs_side_by_side() -> None:
    world = SchedulerWorld(slots=4, cells=1200, sequence_tokens=1000)
    for prompt in itertools.islice(short_prompts(60), 4):
        world.arrive(prompt, max_tokens=900)
    world.turn_until(lambda: any(len(tick.runs) == 4 for tick in world.engine.ticks))
    finish(world)
    assert preemptions(world) == 0
    world.finish()


def test_what_answers_took_says_what_is_promised() -> None:
    world = SchedulerWorld(slots=4, cells=400, sequence_tokens=400)
    for prompt in itertools.islice(short_prompts(20), 8):
        world.arrive(prompt, max_tokens=300)
    finish(world)
    ticks = len(world.engine.ticks)
    for prompt in itertools.islice(short_prompts(20), 4):
        world.arrive(prompt, max_tokens=300)
    finish(world)
    assert max(len(tick.runs) for tick in world.engine.ticks[ticks:]) == 4
    world.finish()


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    "kept",
    [{}, {"sequences": 6, "cached_cells": 60}, {"sequences": 6, "cached_cells": 60, "host_bytes": 2000}],
    ids=["nothing kept", "kept in the KV", "saved"],
)
def test_streams_that_outgrow_the_cells_take_turns_and_lose_nothing(kept: dict[str, int]) -> None:
    world = SchedulerWorld(slots=4, cells=100, sequence_tokens=90, **kept)
    for number in range(6):
        world.arrive(f"{number} grows and grows", max_tokens=60)
    world.turn_until(lambda: len(world.engine.ticks[-1].runs) == 4 if world.engine.ticks else False)
    finish(world)
    assert preemptions(world) >= 3
    ended = sorted(world.clients, key=lambda client: client.session.last_made_at)
    assert ended[0] is world.clients[0], "the oldest never loses its place"
    recomputed = world.scheduler.metrics.recomputed_tokens
    assert (recomputed < 30) == ("host_bytes" in kept), "what is saved is not computed again"
    world.finish()


@pytest.mark.usefixtures("small_steps")
def test_a_stream_that_grows_takes_from_who_is_held_and_then_from_background_work() -> None:
    world = SchedulerWorld(slots=4, cells=80, sequence_tokens=80)
    held = world.arrive("held", max_tokens=60)
    background = world.arrive("background", max_tokens=60, priority=Priority.BACKGROUND)
    world.turn_until(lambda: held.text and background.text)
    world.pause(held)
    grows = world.arrive("grows", max_tokens=70)
    world.turn_until(lambda: held.session.slot is None)
    assert None not in (background.session.slot, grows.session.slot)
    world.turn_until(lambda: background.session.slot is None)
    world.turn_until(lambda: grows.end)
    assert grows.text == grows.expected
    assert held.session.state is background.session.state is State.PREFILL or background.session.slot is not None
    world.resume(held)
    finish(world)
    world.finish()


@pytest.mark.usefixtures("small_steps")
def test_who_lost_its_place_comes_before_newcomers_and_is_told_where_it_stands() -> None:
    world = SchedulerWorld(slots=2, cells=60, sequence_tokens=60)
    first, second = world.arrive("first", max_tokens=50), world.arrive("second", max_tokens=40)
    world.turn_until(lambda: second.session.started_at is not None and second.session.slot is None)
    assert second.text
    newcomer = world.arrive("newcomer", max_tokens=2)
    world.turn_until(lambda: newcomer.session.prepared)
    world.clock.now += PATIENCE_S
    world.scheduler.tell_waiting()
    world.scheduler.deliver()
    assert [type(second.outputs[-1]), second.outputs[-1].position] == [Waiting, 1]
    world.turn_until(lambda: newcomer.end)
    assert first.end
    assert second.session.slot is not None or second.end
    finish(world)
    world.finish()


@pytest.mark.usefixtures("small_steps")
def test_background_work_finishes_beside_interactive_streams_that_keep_coming() -> None:
    world = SchedulerWorld(slots=3, cells=90, sequence_tokens=80)
    background = world.arrive("background", max_tokens=70, priority=Priority.BACKGROUND)
    for number in itertools.count():
        if background.end:
            break
        assert number < 3000, "it starves"
        if number % 5 == 0:
            world.arrive(f"{number}", max_tokens=40)
        # A turn takes a hundredth of a second, and background work ages by the clock.
        world.clock.now += 0.05
        world.turn()
    assert (background.text, background.end) == (background.expected, FinishReason.LENGTH)
    finish(world)


CLIENT = st.integers(0, 7)
steps = st.one_of(
    st.tuples(
        st.just("arrive"),
        st.text("xyz" + SHORT + ECHO, min_size=1, max_size=30),
        st.integers(1, 10**9) | st.integers(20, 60),
        st.sampled_from(Priority),
    ),
    st.tuples(st.just("hold"), CLIENT, st.sampled_from(Hold)),
    st.tuples(st.just("release"), CLIENT, st.sampled_from(Hold)),
    st.tuples(st.just("modify"), CLIENT, st.none() | st.integers(1, 80)),
    st.tuples(st.just("cancel"), CLIENT),
)


@settings(max_examples=examples(150))
@given(
    st.lists(st.tuples(steps, st.integers(0, 30)), min_size=6, max_size=25),
    st.sampled_from(
        [
            {"slots": 4, "cells": 90, "sequence_tokens": 80},
            {"slots": 2, "cells": 80, "sequence_tokens": 80, "batch_tokens": 5},
            {"slots": 4, "cells": 100, "sequence_tokens": 90, "sequences": 8, "cached_cells": 40, "host_bytes": 400},
            {"slots": 5, "cells": 130, "sequence_tokens": 80, "sequences": 8, "cached_cells": 130, "drafts": True},
            {"slots": 8, "cells": 200, "sequence_tokens": 100, "sequences": 9, "cached_cells": 1},
        ]
    ),
    st.sampled_from([1, 4, 16]),
)
def test_every_request_ends_whole_under_any_pressure(
    steps: list[tuple[tuple, int]], capacity: dict[str, int], step: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reservations, "STEP", step)
        patch.setattr(reservations, "UNKNOWN", step)
        world = SchedulerWorld(**capacity)
        world.arrive("the first of all", max_tokens=70)
        cancelled: list[Client] = []
        for (name, *arguments), turns in steps:
            if name == "arrive":
                prompt, max_tokens, priority = arguments
                world.arrive(prompt, max_tokens=max_tokens, priority=priority)
            else:
                client = world.clients[arguments[0] % len(world.clients)]
                match name:
                    case "modify":
                        world.modify(client, max_tokens=arguments[1])
                    case "cancel":
                        world.cancel(client)
                        cancelled.append(client)
                    case _:
                        getattr(world.sessions, name)(client.session, arguments[1])
            world.turns(turns)
        for client, why in itertools.product(world.clients, Hold):
            world.sessions.release(client.session, why)
        world.turn_until(lambda: all(client.end for client in world.clients))
        for client in world.clients:
            if client in cancelled:
                assert client.whole.startswith(client.text)
            else:
                assert (client.text, client.end) == client.expected_end
        world.finish()
