"""Streams whose readers are behind, or that are paused: they wait, and give up their place to those who need it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from moments import arrived, in_decode, in_prefill, preparing, waiting
from scheduler_world import Client, SchedulerWorld

from umaserve.core.commands import Pause, Resume
from umaserve.core.events import Started, Steered
from umaserve.sessions.session import Hold
from umaserve.sessions.states import State

# Readers that fall behind.


@pytest.mark.parametrize("at", [1, 2, 7])
def test_a_held_stream_stops_and_goes_on_from_where_it_was(world: SchedulerWorld, at: int) -> None:
    slow, quick = world.arrive("slow", max_tokens=20), world.arrive("quick", max_tokens=20)
    world.turn_until(lambda: len(slow.text) == at)
    world.sessions.hold(slow.session, Hold.READER)
    world.turn_until(lambda: quick.end)
    world.turns(10)
    # The token that was being computed when its reader fell behind still comes.
    assert len(slow.text) <= at + 1
    assert slow.session.state is State.STREAM
    assert world.scheduler.snapshot()["tx_stalled_sessions"] == 1
    world.sessions.release(slow.session, Hold.READER)
    world.finish()
    assert slow.text == slow.expected
    assert quick.text == quick.expected


def test_a_reader_may_fall_behind_and_catch_up_at_every_token(world: SchedulerWorld) -> None:
    client = world.arrive("stutter", max_tokens=20)
    client.at_token = lambda: world.sessions.hold(client.session, Hold.READER)
    while client.end is None:
        world.turn()
        world.sessions.release(client.session, Hold.READER)
    assert client.text == client.expected
    world.finish()


def test_held_streams_keep_their_slots_and_cells_while_nobody_needs_them(world: SchedulerWorld) -> None:
    clients = [world.arrive(f"{number}", max_tokens=50) for number in range(3)]
    world.turn_until(lambda: all(client.text for client in clients))
    slots = [client.session.slot for client in clients]
    for client in clients:
        world.sessions.hold(client.session, Hold.READER)
    late = world.arrive("late")
    world.turn_until(lambda: late.end)
    assert [client.session.slot for client in clients] == slots
    for client in clients:
        world.sessions.release(client.session, Hold.READER)
    world.finish()
    assert [client.text for client in clients] == [client.expected for client in clients]
    assert late.text == late.expected
    assert world.scheduler.metrics.recomputed_tokens == 0


# Streams that give up their place while they are held.


@pytest.mark.parametrize("why", Hold)
@pytest.mark.parametrize("at", [1, 2, 9])
def test_an_evicted_stream_goes_on_as_if_nothing_had_been(world: SchedulerWorld, why: Hold, at: int) -> None:
    client = world.arrive("given up", max_tokens=30, stop=("!!",), logprobs=1)
    world.turn_until(lambda: len(client.text) == at)
    world.sessions.hold(client.session, why)
    world.turns(2)
    others = [world.arrive(f"{number}", max_tokens=10) for number in range(4)]
    world.turn_until(lambda: all(other.end for other in others))
    assert client.session.slot is None
    assert [other.text for other in others] == [other.expected for other in others]
    made = len(client.session.generated)
    prompt_tokens = world.scheduler.metrics.prompt_tokens
    world.sessions.release(client.session, why)
    world.turn_until(lambda: client.end)
    assert (client.text, client.end) == client.expected_end
    assert [output for output in client.outputs if isinstance(output, Started)] == [Started()]
    assert [token.token_id for token in client.tokens] == list(client.text.encode())
    assert all(token.logprobs is not None for token in client.tokens)
    assert world.scheduler.metrics.recomputed_tokens == len("given up") + made
    assert world.scheduler.metrics.prompt_tokens == prompt_tokens
    world.finish()


def test_who_is_held_longest_gives_way_and_no_more_than_are_needed(world: SchedulerWorld) -> None:
    clients = [world.arrive(f"{number}", max_tokens=40) for number in range(4)]
    world.turn_until(lambda: all(client.text for client in clients))
    for index in (2, 0, 3):
        world.pause(clients[index])
        world.turn()
    late = world.arrive("late", max_tokens=5)
    world.turn_until(lambda: late.end)
    assert [client.session.slot is None for client in clients] == [False, False, True, False]
    pair = [world.arrive("two at", max_tokens=20), world.arrive("once", max_tokens=20)]
    world.turn_until(lambda: all(client.text for client in pair))
    assert [client.session.slot is None for client in clients] == [True, False, True, False]
    for client in clients:
        world.resume(client)
    world.finish()
    assert [client.text for client in clients] == [client.expected for client in clients]


def test_nobody_gives_way_where_that_would_not_help() -> None:
    world = SchedulerWorld(slots=4, cells=100, sequence_tokens=100)
    stream = world.arrive("runs on", max_tokens=50)
    paused = world.arrive("paused", max_tokens=14)
    world.turn_until(lambda: stream.text and paused.text)
    world.pause(paused)
    big = world.arrive("big one", max_tokens=40)
    while stream.end is None:
        assert paused.session.slot is not None
        assert big.session.slot is None
        world.turn()
    world.turn_until(lambda: big.end)
    assert big.text == big.expected
    assert paused.session.slot is not None, "there was room without its cells"
    world.resume(paused)
    world.finish()
    assert paused.text == paused.expected


def test_cells_are_taken_from_the_held_too() -> None:
    world = SchedulerWorld(slots=8, cells=100, sequence_tokens=100)
    paused = [world.arrive(f"{number} holds", max_tokens=20) for number in range(3)]
    world.turn_until(lambda: all(client.text for client in paused))
    for client in paused:
        world.pause(client)
        world.turn()
    big = world.arrive("big", max_tokens=50)
    world.turn_until(lambda: big.end)
    assert [client.session.slot is None for client in paused] == [True, True, False]
    for client in paused:
        world.resume(client)
    world.finish()
    assert [client.text for client in [*paused, big]] == [client.expected for client in [*paused, big]]


@pytest.mark.parametrize("why", [Hold.PAUSE, Hold.DETACHED])
@pytest.mark.parametrize("moment", [arrived, preparing, waiting, in_prefill])
def test_a_prompt_that_is_held_is_not_computed(
    moment: Callable[[SchedulerWorld], Client], why: Hold, world: SchedulerWorld
) -> None:
    client = moment(world)
    world.sessions.hold(client.session, why)
    world.turns(3)
    computed = client.session.computed
    others = [world.arrive(f"takes its place {number}", max_tokens=20) for number in range(6)]
    world.turn_until(lambda: all(other.end for other in world.clients if other is not client))
    assert client.session.computed in (0, computed)
    assert client.session.slot is None, "it costs the others nothing"
    assert client.tokens == []
    world.sessions.release(client.session, why)
    world.finish()
    assert (client.text, client.end) == client.expected_end
    assert [other.text for other in others] == [other.expected for other in others]


def test_paused_streams_cost_the_others_nothing(world: SchedulerWorld) -> None:
    for number in range(12):
        world.arrive(f"{number} is paused", max_tokens=30)
    paused = list(world.clients)
    for client in paused:
        world.turn_until(lambda client=client: client.text)
        world.pause(client)
    busy = [world.arrive(f"{number} is busy", max_tokens=30) for number in range(8)]
    ticks = len(world.engine.ticks)
    world.turn_until(lambda: all(client.end for client in busy))
    assert [client.text for client in busy] == [client.expected for client in busy]
    prompts = {client.session.prepared.sampler for client in paused}
    assert not any(run.sampler in prompts for tick in world.engine.ticks[ticks + 1 :] for run in tick.runs)
    for client in paused:
        world.resume(client)
    world.finish()
    assert [client.text for client in paused] == [client.expected for client in paused]


def test_a_pause_is_acknowledged_after_the_last_token_before_it(world: SchedulerWorld) -> None:
    client = in_decode(world)
    world.pause(client)
    world.pause(client)
    world.scheduler.deliver()
    assert client.steered == [], "the tick that is being computed makes it another token"
    world.turn_until(lambda: len(client.steered) == 2)
    tokens = len(client.tokens)
    assert client.outputs[-3:] == [client.tokens[-1], Steered(Pause()), Steered(Pause())]
    for _ in range(3):
        world.turn()
    assert len(client.tokens) == tokens
    world.resume(client)
    world.turn_until(lambda: len(client.steered) == 3)
    assert client.outputs[-1] == Steered(Resume())
    world.finish()
    assert client.text == client.expected
