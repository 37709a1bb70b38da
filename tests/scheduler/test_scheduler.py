"""The scheduler on a stand-in engine: every stream whole, every slot and cell back, every failure kept to its own."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_world import ORIGIN, Client, SchedulerWorld
from standin import (
    DEFAULT_MAX_TOKENS,
    ECHO,
    PIECES,
    SHORT,
    EngineFailure,
    answer,
    scored,
)

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Placed, Prefilled, Prefilling, Started, Steered, Waiting
from umaserve.core.requests import (
    ChatTurn,
    Grammar,
    Pause,
    Priority,
    Resume,
    Sampling,
    Syntax,
    TokenIds,
    Tool,
    ToolCall,
)
from umaserve.kvcache.prefix_cache import MIN_REUSED
from umaserve.scheduler import planner
from umaserve.scheduler.policy.policy import MAX_SHARE
from umaserve.scheduler.policy.snapshot import AGING_S
from umaserve.scheduler.scheduler import PATIENCE_S
from umaserve.scheduler.steering import CHANGED_PER_TICK
from umaserve.scheduler.turns import REMEMBERED
from umaserve.sessions.caller import Caller
from umaserve.sessions.engine_api import Listing, Outcome, Tick, TickResult
from umaserve.sessions.kv_operations import Copy, Divide, Load, Release, Save
from umaserve.sessions.session import Hold
from umaserve.sessions.states import State

LONG = "a prompt that needs more than one tick, since a batch is shorter than it is"


@pytest.fixture
def world() -> SchedulerWorld:
    return SchedulerWorld()


# To the end.


def test_a_request_for_no_tokens_takes_no_tick() -> None:
    world = SchedulerWorld()
    client = world.arrive("hello", max_tokens=0)
    world.turn_until(lambda: client.end)
    assert (client.text, client.end) == ("", FinishReason.LENGTH)
    last = client.outputs[-1]
    assert isinstance(last, Finished)
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (5, 0)
    assert world.engine.ticks == []
    world.finish()


def test_one_request() -> None:
    world = SchedulerWorld()
    client = world.arrive("hello", max_tokens=5)
    world.finish()
    assert client.text == client.expected
    assert len(client.text) == 5
    assert client.end is FinishReason.LENGTH
    last = client.outputs[-1]
    assert isinstance(last, Finished)
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (5, 5)
    assert client.outputs[:3] == [Started(), Placed(), Prefilled(5, started_s=0.02)]
    assert [token.token_id for token in client.outputs[3:-1]] == list(client.text.encode())


@pytest.mark.parametrize(
    "capacity",
    [
        {},
        {"slots": 1},
        {"slots": 2, "batch_tokens": 2},
        {"slots": 8, "batch_tokens": 64, "cells": 2000},
        {"cells": 130, "sequence_tokens": 120},
    ],
    ids=str,
)
def test_many_requests_each_get_their_own_text(capacity: dict[str, int]) -> None:
    world = SchedulerWorld(**capacity)
    for number in range(20):
        world.arrive(f"{SHORT * (number % 2)}{number} {LONG[: 3 * number]}", max_tokens=1 + 7 * number % 40)
        world.turns(number % 3)
    world.turn_until(lambda: all(client.end for client in world.clients))
    assert [client.text for client in world.clients] == [client.expected for client in world.clients]
    for client in world.clients:
        length = len(client.text) == client.request.max_tokens
        assert client.end is (FinishReason.LENGTH if length else FinishReason.STOP)
    world.finish()


def test_in_divided_cells_each_gets_its_own_text_whatever_is_loaded_and_copied() -> None:
    world = SchedulerWorld(parts=4, host_bytes=20_000, cached_cells=1)
    for number in range(24):
        length = 3 * (number % 8) + 60 * (number % 11 == 10)
        world.arrive(f"{LONG[:30]}{number % 5} {LONG[:length]}", max_tokens=1 + 7 * number % 40)
        world.turns(5 * (number % 3))
    world.turn_until(lambda: all(client.end for client in world.clients))
    assert [client.text for client in world.clients] == [client.expected for client in world.clients]
    done = {type(one) for tick in world.engine.ticks for one in tick.kv_operations}
    assert done >= {Copy, Load, Save, Divide, Release}
    world.finish()


def test_streams_run_side_by_side(world: SchedulerWorld) -> None:
    for number in range(4):
        world.arrive(f"{number}", max_tokens=30)
    world.finish()
    assert sum(len(tick.runs) == 4 for tick in world.engine.ticks) >= 10


def test_the_end_token_is_neither_sent_nor_counted(world: SchedulerWorld) -> None:
    prompts = (f"{SHORT}{number}" for number in itertools.count())
    prompt = next(prompt for prompt in prompts if 0 < len(answer(prompt, 50)) < 20)
    client = world.arrive(prompt, max_tokens=50)
    world.finish()
    assert client.text == client.expected
    assert client.end is FinishReason.STOP
    assert world.scheduler.metrics.tokens_generated >= len(client.text)
    assert client.session.usage.completion_tokens == len(client.text)


def test_the_progress_of_a_prompt_is_told_to_those_who_want_it(world: SchedulerWorld) -> None:
    prompt = "long " * 30
    asking, other = (world.arrive(prompt + name, wants_progress=wants) for name, wants in (("a", True), ("b", False)))
    world.finish()
    parts = [output for output in asking.outputs if isinstance(output, Prefilling)]
    assert parts[0].done_tokens == parts[0].reused_tokens
    assert [part.done_tokens for part in parts] == sorted({part.done_tokens for part in parts})
    assert parts[-1].done_tokens == parts[-1].input_tokens == len(prompt) + 1
    assert not any(isinstance(output, Prefilling) for output in other.outputs)
    assert asking.text == asking.expected


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_stop_string_ends_the_text_before_it(world: SchedulerWorld, length: int) -> None:
    whole = answer("stop here", 40)
    stop = whole[5 : 5 + length]
    client = world.arrive("stop here", max_tokens=40, stop=(stop,))
    world.finish()
    assert client.text == client.expected == whole[: whole.index(stop)]
    assert client.end is FinishReason.STOP
    assert stop not in client.text
    last = client.outputs[-1]
    assert isinstance(last, Finished)
    assert last.stop_string == stop


def test_what_a_stop_string_held_back_is_sent_when_the_length_is_reached(world: SchedulerWorld) -> None:
    whole = answer("held back", 6)
    client = world.arrive("held back", max_tokens=6, stop=(whole[-2:] + "!",))
    world.finish()
    assert (client.text, client.end) == (whole, FinishReason.LENGTH)
    assert len(client.tokens) == 6, "with the token that released it, and not by itself"


# The order within a turn.


def test_the_next_tick_is_submitted_before_tokens_are_handed_out(world: SchedulerWorld) -> None:
    log: list[str] = []
    client = world.arrive("order", max_tokens=8)
    client.at_token = lambda: log.append("token")
    world.turn_until(lambda: client.session.state is State.DECODE)
    log.clear()
    world.compute.submitted = lambda: log.append("submit")
    while client.end is None:
        world.turn()
    # A token comes out of each tick, and no two without a tick that computes in between; the last tick clears up.
    assert log[0::2] == ["submit"] * (len(log) // 2)
    assert log[1::2] == ["token"] * (len(log) // 2)
    world.finish()


def test_one_tick_is_in_flight_at_a_time(world: SchedulerWorld) -> None:
    world.arrive("one", max_tokens=8)
    world.arrive("two", max_tokens=8)
    for _ in range(30):
        world.turn()
        world.scheduler.pump()
        assert len(world.compute.jobs) <= 1
    world.finish()


# Tokens that are late.


def test_a_late_stream_keeps_no_other_waiting(world: SchedulerWorld) -> None:
    slow, other = (world.arrive(name, max_tokens=30) for name in ("slow", "other"))
    world.engine.slow = lambda slot: slot == slow.session.slot
    world.turn_until(lambda: other.end is not None)
    assert slow.outputs[-1] is not slow.end
    assert slow.text == ""
    world.engine.slow = lambda _slot: False
    world.finish()
    assert (slow.text, other.text) == (slow.expected, other.expected)


@pytest.mark.parametrize(
    "capacity",
    [{}, {"slots": 2}, {"cells": 130, "sequence_tokens": 120}, {"cached_cells": 200, "sequences": 8}],
    ids=str,
)
def test_tokens_that_are_late_now_and_then_are_the_same(capacity: dict[str, int]) -> None:
    world = SchedulerWorld(**capacity)
    ticks = world.engine.ticks
    world.engine.slow = lambda slot: (len(ticks) + slot) % 3 == 0
    for number in range(12):
        world.arrive(f"{SHORT * (number % 2)}{number} {LONG[: 3 * number]}", max_tokens=1 + 7 * number % 40)
        world.turns(number % 3)
    world.cancel(world.clients[0])
    world.turn_until(lambda: all(client.end for client in world.clients))
    for client in world.clients[1:]:
        assert client.text == client.expected
    world.finish()


# Cancelling and leaving, at every moment.


def waiting(world: SchedulerWorld) -> Client:
    for number in range(4 - len(world.clients)):
        world.arrive(f"in the way {number}", max_tokens=30)
    world.turn_until(lambda: all(client.session.slot is not None for client in world.clients))
    client = world.arrive(LONG)
    world.turn_until(lambda: client.session.prepared is not None)
    assert client.session.slot is None
    return client


def arrived(world: SchedulerWorld) -> Client:
    return world.arrive(LONG)


def preparing(world: SchedulerWorld) -> Client:
    client = world.arrive(LONG)
    world.scheduler.pump()
    assert world.preparing.jobs
    assert client.session.prepared is None
    return client


def in_prefill(world: SchedulerWorld) -> Client:
    client = world.arrive(LONG)
    world.turn_until(lambda: client.session.computed > 0)
    assert client.session.state is State.PREFILL
    return client


def in_decode(world: SchedulerWorld) -> Client:
    client = world.arrive(LONG, max_tokens=40)
    world.turn_until(lambda: len(client.text) == 5)
    assert client.session.state is State.DECODE
    return client


def held(world: SchedulerWorld) -> Client:
    client = in_decode(world)
    world.sessions.hold(client.session, Hold.READER)
    world.turns(2)
    return client


def preempted(world: SchedulerWorld) -> Client:
    client = in_decode(world)
    world.pause(client)
    world.turn()
    for number in range(4):
        world.arrive(f"in its place {number}", max_tokens=30)
    world.turn_until(lambda: client.session.slot is None)
    assert client.session.state is State.PREFILL
    world.resume(client)
    return client


def in_prefill_again(world: SchedulerWorld) -> Client:
    client = preempted(world)
    world.turn_until(lambda: client.session.slot is not None)
    assert client.session.state is State.PREFILL
    assert client.session.generated
    return client


def at_its_last_token(world: SchedulerWorld) -> Client:
    client = world.arrive("last", max_tokens=3)
    world.turn_until(lambda: len(client.session.generated) == 2)
    assert len(world.compute.jobs) == 1
    return client


MOMENTS = [arrived, preparing, waiting, in_prefill, in_decode, held, preempted, in_prefill_again, at_its_last_token]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_cancel_ends_it_and_nobody_else(moment: Callable[[SchedulerWorld], Client], world: SchedulerWorld) -> None:
    other = world.arrive("somebody else", max_tokens=60)
    client = moment(world)
    world.cancel(client)
    world.turn()
    assert client.end is FinishReason.CANCELLED
    assert client.expected.startswith(client.text)
    world.finish()
    assert other.text == other.expected
    assert all(one.text == one.expected for one in world.clients if one is not client)


@pytest.mark.parametrize("moment", MOMENTS)
def test_nothing_comes_after_a_client_has_gone(
    moment: Callable[[SchedulerWorld], Client], world: SchedulerWorld
) -> None:
    other = world.arrive("somebody else", max_tokens=60)
    client = moment(world)
    world.abandon(client)
    world.finish()
    assert client.end is None
    assert other.text == other.expected


def test_a_cancelled_stream_is_computed_no_more(world: SchedulerWorld) -> None:
    client = in_decode(world)
    world.cancel(client)
    in_flight = len(world.engine.ticks) + len(world.compute.jobs)
    world.turns(10)
    assert all(not tick.runs for tick in world.engine.ticks[in_flight:])


def test_a_sink_may_cancel_at_its_own_token(world: SchedulerWorld) -> None:
    client = world.arrive("enough", max_tokens=40)
    client.at_token = lambda: world.cancel(client)
    world.finish()
    assert client.end is FinishReason.CANCELLED
    assert client.text == client.expected[: len(client.text)]


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


# Modifications.


@pytest.mark.parametrize(
    "moment", [arrived, preparing, waiting, in_prefill, in_decode, held, preempted, in_prefill_again]
)
@pytest.mark.parametrize("fields", [{"max_tokens": 7}, {"max_tokens": 60}, {"stop": tuple("aeiou")}, {}], ids=str)
def test_a_modification_holds_from_the_next_token_on(
    moment: Callable[[SchedulerWorld], Client], fields: dict[str, object], world: SchedulerWorld
) -> None:
    other = world.arrive("somebody else", max_tokens=60)
    client = moment(world)
    command = world.modify(client, **fields)
    world.turn_until(lambda: Steered(command) in client.outputs)
    world.sessions.release(client.session, Hold.READER)
    world.finish()
    assert (client.text, client.end) == client.expected_end
    assert all(one.text == one.expected for one in world.clients)
    assert other.end is FinishReason.LENGTH


@pytest.mark.parametrize("moment", [in_decode, held, preempted, in_prefill_again])
def test_fewer_tokens_than_there_are_end_it_there(
    moment: Callable[[SchedulerWorld], Client], world: SchedulerWorld
) -> None:
    client = moment(world)
    command = world.modify(client, max_tokens=2)
    world.turn_until(lambda: client.end)
    assert client.end is FinishReason.LENGTH
    assert client.outputs[-2] == Steered(command)
    assert client.text == client.whole[: len(client.session.generated)]
    assert len(client.text) >= 5
    world.finish()


def test_other_stops_see_what_was_held_back(world: SchedulerWorld) -> None:
    whole = answer("held back", 20)
    client = world.arrive("held back", max_tokens=20, stop=(whole[3:6] + "!",))
    world.turn_until(lambda: len(client.session.generated) == 5)
    world.modify(client, stop=(whole[4:6],))
    world.turn_until(lambda: client.steered)
    assert (client.text, len(client.tokens)) == (whole[:3], 6)
    world.turn_until(lambda: client.end)
    assert (client.text, client.end) == (whole[:4], FinishReason.STOP)
    world.finish()


@pytest.mark.parametrize("moment", [arrived, preparing, waiting, in_prefill, in_decode, held, preempted])
def test_a_refused_modification_changes_nothing(
    moment: Callable[[SchedulerWorld], Client], world: SchedulerWorld
) -> None:
    client = moment(world)
    command = world.modify(client, stop=tuple("aeiou"), prompt="refuse", max_tokens=3)
    world.turn_until(lambda: client.steered and client.steered[-1].command is command)
    assert str(client.steered[-1].refusal) == "prompt: too long"
    assert client.session.request == client.request
    world.sessions.release(client.session, Hold.READER)
    world.finish()
    assert (client.text, client.end) == client.expected_end
    assert len(client.limits) == 1


@pytest.mark.parametrize(
    ("changes", "refusal", "applied"),
    [
        (({"prompt": "refuse"}, {"max_tokens": 50}), None, 50),
        (({"max_tokens": 50}, {"prompt": "refuse"}), "prompt: too long", 40),
        (({"max_tokens": 1}, {"max_tokens": 60}), None, 60),
        (({"max_tokens": 1}, {"max_tokens": 10**9}), None, 200 - len(LONG)),
    ],
    ids=str,
)
def test_of_several_modifications_the_last_holds_and_all_are_answered_alike(
    world: SchedulerWorld, changes: tuple[dict[str, object], dict[str, object]], refusal: str | None, applied: int
) -> None:
    client, made = in_decode(world), []
    change = world.engine.change
    world.engine.change = lambda *arguments: (made.append(arguments), change(*arguments))[1]
    first = world.modify(client, **changes[0])
    world.pause(client)
    second = world.modify(client, **changes[1])
    world.resume(client)
    world.turn_until(lambda: client.steered)
    assert [one.command for one in client.steered] == [first, Pause(), second, Resume()]
    said = [one.refusal and str(one.refusal) for one in client.steered]
    assert said == [refusal, None, refusal, None]
    assert len(made) == 1, "a sampler is made for the last one only"
    assert client.session.prepared.max_tokens == applied
    world.finish()
    assert (client.text, len(client.text), client.end) == (client.expected, applied, FinishReason.LENGTH)


@pytest.mark.parametrize("turns_between", [0, 3])
def test_a_modification_stands_by_itself_whether_or_not_the_one_before_was_applied(
    world: SchedulerWorld, turns_between: int
) -> None:
    client = in_decode(world)
    world.modify(client, max_tokens=12)
    world.turns(turns_between)
    world.modify(client, max_tokens=None)
    world.finish()
    assert (len(client.text), client.end) == (DEFAULT_MAX_TOKENS, FinishReason.LENGTH)
    assert client.text == client.expected


def test_a_modification_that_ends_it_is_answered_before_the_end(world: SchedulerWorld) -> None:
    client = in_decode(world)
    world.modify(client, max_tokens=60)
    world.modify(client, max_tokens=1)
    world.finish()
    assert client.end is FinishReason.LENGTH
    assert [type(output) for output in client.outputs[-3:]] == [Steered, Steered, Finished]


def test_so_many_requests_are_modified_before_one_tick_and_the_others_before_the_next() -> None:
    world = SchedulerWorld(slots=3 * CHANGED_PER_TICK, cells=2000, batch_tokens=100)
    clients = [world.arrive(f"{number:02}", max_tokens=60) for number in range(2 * CHANGED_PER_TICK + 1)]
    world.turn_until(lambda: all(client.text for client in clients))
    for client in clients:
        world.modify(client, max_tokens=30)
    answered = []
    while len(answered) < 3:
        world.turn()
        answered.append(sum(bool(client.steered) for client in clients))
    assert answered == [CHANGED_PER_TICK, 2 * CHANGED_PER_TICK, 2 * CHANGED_PER_TICK + 1]
    world.finish()
    assert [client.text for client in clients] == [client.expected for client in clients]


def test_the_loop_turns_again_where_more_changes_wait_than_one_turn_applies() -> None:
    world = SchedulerWorld(slots=2 * CHANGED_PER_TICK, cells=2000)
    clients = [world.arrive(f"{number:02}", max_tokens=60) for number in range(CHANGED_PER_TICK + 1)]
    world.turn_until(lambda: all(client.text for client in clients))
    for client in clients:
        world.pause(client)
    world.turn_until(lambda: not world.compute.jobs)
    for client in clients:
        world.modify(client, max_tokens=30)
    assert world.scheduler.eager, "no tick runs whose end would make the loop turn"
    steered = []
    while world.scheduler.eager:
        world.turn()
        steered.append(sum(len(client.steered) - 1 for client in clients))
    assert steered == [CHANGED_PER_TICK, CHANGED_PER_TICK + 1]
    world.resume(clients[0])
    world.turn()
    world.modify(clients[0], max_tokens=20)
    assert world.compute.jobs
    assert not world.scheduler.eager, "the end of the tick makes the loop turn"
    for client in clients:
        world.resume(client)
    world.finish()


def test_changes_of_what_is_not_prepared_make_nobody_turn(world: SchedulerWorld) -> None:
    client = preparing(world)
    world.pause(client)
    assert not world.scheduler.eager
    world.preparing.step()
    assert world.scheduler.eager
    world.turn()
    assert not world.scheduler.eager
    assert client.steered == [Steered(Pause())]
    world.resume(client)
    world.finish()


def test_a_modification_that_fails_inside_fails_its_request_alone(world: SchedulerWorld) -> None:
    other, client = world.arrive("other", max_tokens=40), in_decode(world)
    world.modify(client, prompt="raise")
    world.finish()
    assert client.end is Fault.DECODE_FAILED
    assert client.steered == []
    assert other.text == other.expected


def test_a_modification_leaves_the_id_and_the_class(world: SchedulerWorld) -> None:
    caller = dataclasses.replace(ORIGIN, priority=Priority.BACKGROUND)
    client = world.arrive(LONG, caller, max_tokens=40, priority=Priority.INTERACTIVE)
    world.turn_until(lambda: client.text)
    world.modify(client, id="another", max_tokens=50, priority=Priority.INTERACTIVE)
    world.turn_until(lambda: client.steered)
    request = client.session.request
    assert (request.id, request.priority, request.max_tokens) == (client.request.id, Priority.BACKGROUND, 50)
    world.cancel(client)
    world.finish()
    assert client.end is FinishReason.CANCELLED


def test_a_modification_leaves_the_grammar_to_which_the_answer_holds(world: SchedulerWorld) -> None:
    own, other = Grammar(Syntax.REGEX, "a+", "grammar"), Grammar(Syntax.REGEX, "b+", "grammar")
    client = world.arrive(LONG, max_tokens=40, sampling=Sampling(grammar=own))
    world.turn_until(lambda: client.text)
    world.modify(client, sampling=Sampling(temperature=0.5, grammar=other))
    world.turn_until(lambda: client.steered)
    assert client.session.request.sampling == Sampling(temperature=0.5, grammar=own)
    world.finish()


@pytest.mark.parametrize("paused", [False, True])
def test_an_answer_that_may_get_longer_waits_for_no_cells_before_it_does(paused: bool) -> None:
    world = SchedulerWorld(slots=4, cells=60, sequence_tokens=60)
    other, grows = world.arrive("other", max_tokens=30), world.arrive("grows", max_tokens=15)
    world.turn_until(lambda: grows.text and other.text)
    if paused:
        world.pause(grows)
    world.modify(grows, max_tokens=50)
    world.turn_until(lambda: len(grows.steered) == 1 + paused)
    assert grows.session.slot is not None
    world.resume(grows)
    world.turn_until(lambda: grows.end)
    assert world.scheduler.metrics.preemptions == 1, "the younger one, which is the one that grew"
    assert (other.text, grows.text) == (other.expected, grows.expected)
    assert (len(grows.text), grows.end) == (50, FinishReason.LENGTH)
    world.finish()


def test_a_shorter_answer_gives_cells_back() -> None:
    world = SchedulerWorld(slots=4, cells=60, sequence_tokens=60)
    shrinks = world.arrive("shrinks", max_tokens=50)
    world.turn_until(lambda: shrinks.text)
    late = world.arrive("late", max_tokens=20)
    world.turns(3)
    assert late.session.slot is None
    world.modify(shrinks, max_tokens=25)
    world.turn_until(lambda: late.text)
    assert shrinks.end is None
    world.finish()
    assert (shrinks.text, late.text) == (shrinks.expected, late.expected)


# Admission.


def test_answers_that_are_short_for_certain_have_their_cells_from_the_start() -> None:
    world = SchedulerWorld(slots=4, cells=100, sequence_tokens=100)
    clients = [world.arrive(f"{number} tokens", max_tokens=40) for number in range(6)]
    world.turn_until(lambda: all(client.end for client in clients))
    assert [client.text for client in clients] == [client.expected for client in clients]
    assert world.scheduler.metrics.preemptions == 0
    world.finish()


def test_interactive_goes_before_background_until_that_has_aged() -> None:
    world = SchedulerWorld(slots=1)
    world.arrive("in the way", max_tokens=10)
    world.turns(4)
    background = world.arrive("background", priority=Priority.BACKGROUND)
    world.turns(4)
    first = world.arrive("first")
    world.turn_until(lambda: first.session.slot is not None)
    assert background.session.slot is None
    world.clock.now += AGING_S
    second = world.arrive("second")
    world.turn_until(lambda: background.session.slot is not None)
    assert second.session.slot is None
    world.finish()


def test_a_prompt_beside_a_stream_leaves_its_target(world: SchedulerWorld) -> None:
    run = world.engine.run

    def run_slowly(tick: Tick) -> TickResult:
        return dataclasses.replace(run(tick), seconds=0.01 * sum(len(run.tokens) for run in tick.runs))

    world.engine.run = run_slowly
    stream = world.arrive("stream", max_tokens=60, target_tbt_s=0.001)
    world.turn_until(lambda: len(stream.text) >= 3)
    ticks = len(world.engine.ticks)
    prompt = world.arrive("a prompt that takes some ticks", target_ttft_s=0.001)
    world.turn_until(lambda: prompt.text)
    assert stream.end is None
    rows = [sum(len(run.tokens) for run in tick.runs) for tick in world.engine.ticks[ticks:]]
    # No target can be kept that is shorter than a tick: the prompt has its share of the time beside it.
    assert 1 < max(rows) <= 1 / (1 - MAX_SHARE)
    world.finish()


# Failures.


@pytest.mark.parametrize("failure", [Outcome.FAILED, EngineFailure], ids=["failed", "raised"])
def test_a_failing_tick_fails_those_in_it_and_nobody_else(
    world: SchedulerWorld, failure: Outcome | type[EngineFailure]
) -> None:
    held_one = held(world)
    stream, prompt = world.arrive("stream", max_tokens=40), None
    world.turn_until(lambda: stream.text)
    prompt = world.arrive(LONG)
    world.turn_until(lambda: prompt.session.computed)
    for number in range(3):
        world.arrive(f"waits {number}")
    late = world.clients[-1]
    world.engine.failures.append(failure)
    world.turn_until(lambda: stream.end)
    assert stream.end is Fault.DECODE_FAILED
    assert stream.expected.startswith(stream.text)
    world.sessions.release(held_one.session, Hold.READER)
    world.finish()
    assert prompt.end is Fault.DECODE_FAILED
    assert held_one.text == held_one.expected, "it was not in the batch"
    assert late.text == late.expected


def test_a_client_that_left_during_a_failing_tick_hears_nothing(world: SchedulerWorld) -> None:
    gone, cancelled = in_decode(world), world.arrive("cancelled", max_tokens=40)
    world.turn_until(lambda: cancelled.text)
    world.engine.failures.append(Outcome.FAILED)
    world.abandon(gone)
    world.cancel(cancelled)
    world.finish()
    assert cancelled.end is FinishReason.CANCELLED


def test_without_cells_the_youngest_gives_way_and_the_others_lose_nothing(world: SchedulerWorld) -> None:
    clients = []
    for number in range(3):
        clients.append(world.arrive(f"{number}", max_tokens=30))
        world.turns(1)
    world.turn_until(lambda: all(client.text for client in clients))
    world.engine.failures += [Outcome.NO_CELLS, Outcome.NO_CELLS]
    world.finish()
    assert [client.end for client in clients[1:]] == [Fault.MEMORY_PRESSURE] * 2
    assert clients[0].text == clients[0].expected


def test_without_cells_one_that_leaves_anyway_makes_the_room(world: SchedulerWorld) -> None:
    old, young = world.arrive("old", max_tokens=30), None
    world.turns(3)
    young = world.arrive("young", max_tokens=30)
    world.turn_until(lambda: young.text)
    world.engine.failures.append(Outcome.NO_CELLS)
    world.cancel(young)
    world.finish()
    assert young.end is FinishReason.CANCELLED
    assert old.text == old.expected


@pytest.mark.parametrize(("prompt", "fault"), [("refuse", Fault.CONTEXT_EXCEEDED), ("raise", Fault.DECODE_FAILED)])
def test_a_request_that_cannot_be_prepared_fails_alone(world: SchedulerWorld, prompt: str, fault: Fault) -> None:
    before = world.arrive("before")
    bad = world.arrive(prompt)
    after = world.arrive("after")
    world.finish()
    assert bad.end is fault
    _started, error = bad.outputs
    assert isinstance(error, RequestError)
    assert error.request_id == bad.request.id
    assert "told to" not in error.message, "what went wrong inside is not the client's"
    assert (before.text, after.text) == (before.expected, after.expected)


def test_a_request_that_is_cancelled_cannot_fail_any_more(world: SchedulerWorld) -> None:
    client = world.arrive("raise")
    world.scheduler.pump()
    world.cancel(client)
    world.finish()
    assert client.end is FinishReason.CANCELLED


# Draining.


def test_draining_lets_the_running_finish_and_refuses_the_waiting(world: SchedulerWorld) -> None:
    running = [world.arrive(f"running {number}", max_tokens=30) for number in range(4)]
    world.turn_until(lambda: all(client.session.slot is not None for client in running))
    waiting = [world.arrive("waiting"), world.arrive("not even prepared")]
    world.turn()
    world.sessions.draining = True
    world.scheduler.refuse_waiting()
    assert not world.scheduler.idle
    world.turn_until(lambda: world.scheduler.idle)
    assert [client.end for client in waiting] == [Fault.SHUTTING_DOWN] * 2
    assert [client.text for client in running] == [client.expected for client in running]
    with pytest.raises(RequestError):
        world.arrive("too late")


def test_draining_lets_those_finish_that_have_lost_their_place(world: SchedulerWorld) -> None:
    client = preempted(world)
    world.sessions.draining = True
    world.scheduler.refuse_waiting()
    world.turn_until(lambda: world.scheduler.idle)
    assert (client.text, client.end) == client.expected_end


def test_the_scheduler_is_not_idle_before_the_last_words_are_delivered(world: SchedulerWorld) -> None:
    client = world.arrive("waiting")
    world.scheduler.refuse_waiting()
    assert not world.scheduler.idle
    world.turn()
    assert client.end is Fault.SHUTTING_DOWN
    world.turn_until(lambda: world.scheduler.idle)


def test_the_scheduler_is_not_idle_before_the_last_slot_is_cleared(world: SchedulerWorld) -> None:
    client = held(world)
    world.abandon(client)
    assert not world.compute.jobs
    assert not world.scheduler.idle
    world.finish()


def test_failing_all_ends_all(world: SchedulerWorld) -> None:
    clients = [world.arrive(f"{LONG[: number * 10]}!", max_tokens=30) for number in range(7)]
    world.turn_until(lambda: any(client.text for client in clients))
    world.sessions.hold(next(client for client in clients if client.text).session, Hold.READER)
    world.scheduler.fail_running()
    world.turn()
    assert {client.end for client in clients} <= {Fault.SHUTTING_DOWN, FinishReason.STOP, FinishReason.LENGTH}
    assert clients[-1].end is Fault.SHUTTING_DOWN
    world.finish()


# What is counted.


def test_what_is_counted(world: SchedulerWorld) -> None:
    clients = [world.arrive("one two three", max_tokens=6), world.arrive("four", max_tokens=6)]
    world.turn_until(lambda: all(client.end for client in clients))
    world.turns(5)
    metrics = world.scheduler.metrics
    metrics.fold()
    assert metrics.tokens_generated == sum(len(client.expected) for client in clients)
    assert metrics.prompt_tokens == len("one two three" + "four")
    assert metrics.ticks.count == sum(bool(tick.runs) for tick in world.engine.ticks)
    assert metrics.ticks.last == pytest.approx(10)
    # Turns are 10 ms: a token every turn.
    assert metrics.tbt.percentile(50) == pytest.approx(10)
    assert metrics.ttft.percentile(50) > 0
    snapshot = world.scheduler.snapshot()
    assert (snapshot["kv_cells_total"], snapshot["active_sessions"], snapshot["waiting_sessions"]) == (400, 0, 0)


def test_what_is_counted_is_counted_by_dialect_too(world: SchedulerWorld) -> None:
    http = Caller("openai", "192.0.2.1", "garden")
    world.arrive("one two three", max_tokens=6)
    world.arrive("four", http, max_tokens=4)
    failed = world.arrive("refuse", http)
    world.turn_until(lambda: all(client.end for client in world.clients))
    world.scheduler.metrics.fold()
    value = world.scheduler.metrics.registry.get_sample_value
    assert failed.end is Fault.CONTEXT_EXCEEDED
    assert value("umaserve_requests_total", {"dialect": "uds", "model": "", "end": "length"}) == 1
    assert value("umaserve_requests_total", {"dialect": "openai", "model": "", "end": "length"}) == 1
    assert value("umaserve_requests_total", {"dialect": "openai", "model": "", "end": "context_exceeded"}) == 1
    for dialect, prompt, completion in (("uds", 13, 6), ("openai", 4, 4)):
        labels = {"dialect": dialect, "model": ""}
        assert value("umaserve_request_prompt_tokens_total", labels) == prompt
        assert value("umaserve_request_completion_tokens_total", labels) == completion
        assert value("umaserve_queue_seconds_count", labels) == 1, "one that never started waited for nothing"
        assert value("umaserve_time_to_first_token_seconds_count", labels) == 1
        assert value("umaserve_time_between_tokens_seconds_count", labels) == completion - 1
    gone = world.arrive("gone", http)
    world.turn_until(lambda: gone.tokens)
    made = len(gone.session.generated)
    world.abandon(gone)
    assert value("umaserve_requests_total", {"dialect": "openai", "model": "", "end": "abandoned"}) == 1
    assert value("umaserve_request_completion_tokens_total", {"dialect": "openai", "model": ""}) == 4 + made
    world.turns(3)
    world.scheduler.metrics.fold()
    assert value("umaserve_tick_seconds_count") == world.scheduler.metrics.ticks.count
    world.finish()


def test_tokens_and_ends_say_when_they_were_made(world: SchedulerWorld) -> None:
    world.clock.now = 7.0
    client = world.arrive("hello", max_tokens=4)
    world.turn_until(lambda: client.end)
    first, *rest = client.tokens
    assert first.since_last_s == pytest.approx(first.elapsed_s)
    # Turns are 10 ms, and each makes a token.
    assert [token.since_last_s for token in rest] == pytest.approx([0.01] * 3)
    assert [token.elapsed_s for token in rest] == pytest.approx([first.elapsed_s + 0.01 * n for n in (1, 2, 3)])
    end = client.outputs[-1]
    assert isinstance(end, Finished)
    assert 0 < end.timing.started_s < end.timing.first_token_s
    assert end.timing.first_token_s == pytest.approx(first.elapsed_s)
    assert end.timing.total_s == pytest.approx(rest[-1].elapsed_s)
    world.finish()


@pytest.mark.parametrize("count", [None, 0, 3])
def test_each_token_brings_the_logprobs_that_were_asked_for(world: SchedulerWorld, count: int | None) -> None:
    client, other = world.arrive("hello", max_tokens=4, logprobs=count), world.arrive("other", max_tokens=4, logprobs=1)
    world.finish()
    for token in client.tokens:
        if count is None:
            assert token.logprobs is None
        else:
            assert token.logprobs.chosen == scored(token.token_id)
            assert len(token.logprobs.top) == count
    assert [token.logprobs.chosen.piece for token in other.tokens] == [PIECES[token.token_id] for token in other.tokens]


def test_what_each_was_given_is_told_of(world: SchedulerWorld) -> None:
    key = Caller("openai", "192.0.2.1", "garden")
    world.arrive("one", max_tokens=3)
    world.arrive("two", key, max_tokens=5)
    gone = world.arrive("gone", Caller("uds", "uid:1"), max_tokens=5)
    world.turn_until(lambda: gone.session.generated)
    delivered = len(gone.tokens)
    world.abandon(gone)
    world.turn_until(lambda: all(client.end for client in world.clients[:2]))
    counts = {caller: sum(n for one, n, _ in world.spent if one == caller) for caller, _, _ in world.spent}
    counts.setdefault(gone.session.caller, 0)
    assert counts == {ORIGIN: 3, key: 5, gone.session.caller: delivered}
    assert [at for _, _, at in world.spent] == sorted(at for _, _, at in world.spent)
    world.finish()


def test_each_end_is_a_line_of_the_log(world: SchedulerWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "umaserve.requests")
    world.arrive("hello", Caller("openai", "192.0.2.1", "garden"), max_tokens=4)
    world.arrive("refuse")
    world.turn_until(lambda: all(client.end for client in world.clients))
    by_request = {record.fields["request"]: record.fields for record in caplog.records}
    assert by_request["r0"].items() >= {
        "dialect": "openai", "peer": "192.0.2.1", "key": "garden", "end": "length",
        "prompt_tokens": 5, "completion_tokens": 4,
    }.items()  # fmt: skip
    assert 0 < by_request["r0"]["queue_ms"] < by_request["r0"]["ttft_ms"] < by_request["r0"]["total_ms"]
    assert (by_request["r1"]["end"], by_request["r1"]["ttft_ms"]) == ("context_exceeded", None)
    assert len(caplog.records) == 2


# Waiting.


def test_who_waits_is_told_where_it_stands_when_it_has_waited_for_a_while() -> None:
    world = SchedulerWorld(slots=1)
    world.arrive("in the way", max_tokens=60)
    later = world.arrive("later", max_tokens=2, priority=Priority.BACKGROUND)
    sooner = world.arrive("sooner", max_tokens=2)
    paused = world.arrive("paused", max_tokens=2)
    world.pause(paused)
    world.turns(5)
    world.clock.now = PATIENCE_S / 2
    world.scheduler.tell_waiting()
    world.clock.now = 2 * PATIENCE_S
    world.arrive("new", max_tokens=2)
    world.scheduler.tell_waiting()
    world.scheduler.deliver()
    told = [[one for one in client.outputs if isinstance(one, Waiting)] for client in world.clients]
    # The paused one keeps its place, and each class has a line of its own.
    assert told == [[], [Waiting(1, 1, None)], [Waiting(1, 3, None)], [], []]
    world.turn_until(lambda: sooner.end)
    world.clock.now += PATIENCE_S
    world.scheduler.tell_waiting()
    world.turn()
    eta = [output for output in later.outputs if isinstance(output, Waiting)][-1].eta_s
    assert eta is not None
    assert eta > 0, "the time of those that have ended says how long it may be"
    world.resume(paused)
    world.finish()
    assert later.text == later.expected


def test_the_position_told_is_the_order_in_which_they_are_served() -> None:
    world = SchedulerWorld(slots=1)
    world.arrive("in the way", max_tokens=100)
    world.arrive("aged", max_tokens=2, priority=Priority.BACKGROUND)
    world.clock.now += AGING_S
    for number in range(2):
        world.arrive(f"early {number}", max_tokens=2)
    world.arrive("patient", max_tokens=2, priority=Priority.BACKGROUND)
    world.turns(8)
    # Those before it have missed what the server aims at for all.
    world.clock.now += 10 * PATIENCE_S
    world.arrive("late", max_tokens=2)
    world.turns(3)
    world.clock.now += PATIENCE_S
    world.scheduler.tell_waiting()
    world.scheduler.deliver()
    waiting = world.clients[1:]
    told = [(client.request.prompt, client.outputs[-1].position) for client in waiting]
    assert told == [("aged", 1), ("early 0", 2), ("early 1", 3), ("patient", 1), ("late", 4)]
    world.finish()
    served = sorted(waiting, key=lambda client: client.session.started_at)
    assert [client.request.prompt for client in served] == ["aged", "early 0", "early 1", "late", "patient"]


def test_a_position_counts_those_who_are_just_being_prepared() -> None:
    world = SchedulerWorld(slots=1)
    world.arrive("in the way", max_tokens=60)
    world.turns(5)
    world.arrive("first", max_tokens=2)
    world.scheduler.pump()
    second = world.arrive("second", max_tokens=2)
    for _ in range(2):
        world.clock.now += 2 * PATIENCE_S
        world.scheduler.tell_waiting()
        world.turns(5)
    assert {one.position for one in second.outputs if isinstance(one, Waiting)} == {2}


COMES = st.tuples(st.just("come"), st.sampled_from(Priority), st.sampled_from([None, 0.5, 9.0]), st.booleans())
STEERED = st.tuples(st.sampled_from(["pause", "resume", "cancel"]), st.integers(0, 9))
PASSES = st.tuples(st.just("turns"), st.integers(1, 8)) | st.tuples(st.just("wait"), st.floats(0.1, 1.5))


@given(st.lists(COMES | STEERED | PASSES, max_size=18))
def test_no_position_grows_but_by_a_change_of_class(steps: list) -> None:
    world = SchedulerWorld(slots=2, cells=64)
    told: dict[tuple[str, bool], int] = {}
    for step in steps:
        running = [client for client in world.clients if client.session.running]
        match step:
            case "come", priority, target, long:
                n_tokens = 40 if long else 3
                world.arrive(f"r{len(world.clients)}", max_tokens=n_tokens, priority=priority, target_ttft_s=target)
            case "turns", count:
                world.turns(count)
            case "wait", seconds:
                world.clock.now += seconds
            case what, index if running:
                client = running[index % len(running)]
                getattr(world, what)(client)
                if client.session.started_at is not None:
                    # It leaves the line of those who go on.
                    told.pop((client.request.id, True), None)
        assert world.clock.now < AGING_S, "nobody changes its class"
        world.scheduler.tell_waiting()
        for session in world.sessions.running():
            for output in session.outbox:
                if isinstance(output, Waiting):
                    line = session.request_id, session.started_at is not None
                    assert 1 <= output.position <= min(told.get(line, output.position), output.length)
                    told[line] = output.position
        world.scheduler.deliver()


# The content filter.


@pytest.mark.parametrize(
    "prompt",
    [
        "say Forbidden words",
        TokenIds(tuple(b"say forbidden words")),
        (ChatTurn("user", "hello"), ChatTurn("user", "forbidden")),
        (ChatTurn("assistant", "", (ToolCall("1", "look", '{"for": "forbidden"}'),)),),
    ],
    ids=["text", "tokens", "a turn", "a call of an earlier turn"],
)
def test_a_prompt_that_the_filter_forbids_is_refused(prompt: str | tuple[ChatTurn, ...] | TokenIds) -> None:
    world = SchedulerWorld(patterns=("forbidden",))
    bad, good = world.arrive(prompt), world.arrive("say allowed words")
    world.finish()
    assert bad.end is Fault.CONTENT_FILTERED
    assert (good.text, good.end) == good.expected_end


@pytest.mark.parametrize("tool", [Tool("look", "forbidden", "{}"), Tool("look", "", '{"title": "forbidden"}')])
def test_a_tool_that_the_filter_forbids_is_refused(tool: Tool) -> None:
    world = SchedulerWorld(patterns=("forbidden",))
    client = world.arrive("hello", tools=(tool,))
    world.finish()
    assert client.end is Fault.CONTENT_FILTERED


@pytest.mark.parametrize("at", [0, 3, 7])
def test_an_answer_ends_before_what_the_filter_forbids(at: int) -> None:
    whole = answer("hello", 20)
    world = SchedulerWorld(patterns=(whole[at : at + 4],))
    client, other = world.arrive("hello", max_tokens=20), world.arrive("other", max_tokens=20)
    world.turn_until(lambda: client.end and other.end)
    assert (client.text, client.end) == (whole[: whole.index(whole[at : at + 4])], FinishReason.CONTENT_FILTER)
    assert len(client.session.generated) == at + 4, "and no more of it is computed"
    assert (other.text, other.end) == other.expected_end


def test_a_pattern_that_only_begins_at_the_end_is_released() -> None:
    whole = answer("hello", 20)
    world = SchedulerWorld(patterns=(whole[-3:] + "x!",))
    client = world.arrive("hello", max_tokens=20)
    world.finish()
    assert (client.text, client.end) == (whole, FinishReason.LENGTH)
    assert len(client.tokens) == 20


# What was computed before.

SYSTEM = "all of these begin with the same words: "
KEEPING = {"sequences": 12, "cached_cells": 400, "cells": 800}


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


def reused(client: Client) -> int:
    """How many tokens of its prompt were computed for others, as its client is told."""
    end = client.outputs[-1]
    assert isinstance(end, Finished)
    return end.usage.prefix_reused_tokens


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
    assert len(background.session.generated) <= made + 2
    world.turn_until(lambda: background.end)
    assert [client.text for client in world.clients] == [client.expected for client in world.clients]
    assert world.scheduler.metrics.recomputed_tokens == 1, "all but the last token was kept"
    assert reused(background) == 0, "its own tokens are nobody else's"
    world.finish()


# Adapters.


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


# Guesses.


def guessing(**settings: object) -> SchedulerWorld:
    """A world that has seen that a tick of many rows takes no longer than one of a single row."""
    world = SchedulerWorld(**{"cached_cells": 100} | settings)
    for rows in range(1, 20):
        world.scheduler._governor.observe(1, rows, 0, 0, 0.01, 0.0)
    return world


def per_tick(world: SchedulerWorld) -> list[int]:
    """How many rows of guesses each tick had."""
    return [sum(run.draft_tokens for run in tick.runs) for tick in world.engine.ticks]


@pytest.mark.parametrize("draft_tokens", [True, False])
@pytest.mark.parametrize("drafts", [True, False])
def test_guesses_change_nothing_but_the_number_of_ticks(draft_tokens: bool, drafts: bool) -> None:
    world = guessing(draft_tokens=draft_tokens, drafts=drafts, sequences=8)
    client = world.arrive(ECHO + "and again", max_tokens=80, logprobs=1)
    other = world.arrive("no echo", max_tokens=30)
    world.turn_until(lambda: client.end and other.end)
    assert (client.text, client.end) == client.expected_end
    assert (other.text, other.end) == other.expected_end
    assert [token.token_id for token in client.tokens] == list(client.text.encode())
    assert [token.logprobs.chosen for token in client.tokens] == [scored(token.token_id) for token in client.tokens]
    ticks = sum(any(run.sampler for run in tick.runs) for tick in world.engine.ticks)
    metrics = world.scheduler.metrics
    assert (ticks < 60) == (metrics.draft_tokens_accepted > 20) == draft_tokens
    assert metrics.draft_tokens >= metrics.draft_tokens_accepted >= 0
    assert (sum(per_tick(world)) > 0) == draft_tokens
    assert any(tick.drafts for tick in world.engine.ticks) == (draft_tokens and drafts)
    world.finish()


@pytest.mark.parametrize("max_tokens", range(30, 46))
def test_guesses_do_not_go_beyond_the_length(max_tokens: int) -> None:
    world = guessing(cells=60, sequence_tokens=55)
    client = world.arrive(ECHO + "again", max_tokens=max_tokens)
    world.finish()
    assert (client.text, client.end) == client.expected_end
    assert len(client.tokens) == max_tokens
    assert sum(per_tick(world))


@pytest.mark.parametrize("at", range(20, 36))
def test_a_stop_string_among_guessed_tokens_ends_there(at: int) -> None:
    whole = answer(ECHO + "stop it!", 60)
    stop = whole[at : at + 9]
    world = guessing(**KEEPING)
    client = world.arrive(ECHO + "stop it!", max_tokens=60, stop=(stop,))
    world.turn_until(lambda: client.end)
    assert (client.text, client.end) == client.expected_end
    made = len(client.session.generated)
    assert made == whole.index(stop) + len(stop), "what follows was dropped"
    assert world.scheduler.metrics.tokens_generated == made
    # All of it that was computed can be gone on with, and no more.
    again = world.arrive(client.request.prompt + whole, max_tokens=5)
    world.turn_until(lambda: again.end)
    assert again.text == again.expected
    assert reused(again) in (len(client.request.prompt) + made - 1, len(client.request.prompt) + made)
    world.finish()


def test_nothing_is_guessed_while_a_prompt_wants_the_time() -> None:
    world = guessing()
    world.arrive(ECHO + "and again", max_tokens=100)
    world.turn_until(lambda: sum(per_tick(world)) > 5)
    prompt = world.arrive(LONG)
    world.turn_until(lambda: prompt.session.computed)
    ticks = len(world.engine.ticks)
    world.turn_until(lambda: prompt.text)
    assert sum(per_tick(world)[ticks:-1]) == 0
    world.finish()
    assert [one.text for one in world.clients] == [one.expected for one in world.clients]


def test_a_stream_that_lost_its_place_with_guesses_left_counts_them_once() -> None:
    world = guessing(slots=1, batch_tokens=8)
    client = world.arrive(ECHO + "and again", max_tokens=60)
    world.turn_until(lambda: client.session.draft_tokens and sum(per_tick(world)) > 5)
    world.pause(client)
    world.turn_until(lambda: not world.compute.jobs)
    right = world.scheduler.metrics.draft_tokens_accepted
    other = world.arrive("other", max_tokens=3)
    world.turn_until(lambda: other.end)
    assert client.session.slot is None
    world.resume(client)
    world.turn_until(lambda: client.session.state is State.DECODE)
    assert world.scheduler.metrics.draft_tokens_accepted >= right
    world.finish()
    assert client.text == client.expected


# All of it in any order.

CLIENT = st.integers(0, 5)
arrivals = st.tuples(
    st.just("arrive"), st.text("xyz" + SHORT + ECHO, min_size=1, max_size=30), st.integers(1, 12), st.booleans()
)
kv_operations = st.one_of(
    arrivals,
    st.tuples(st.sampled_from(["cancel", "abandon", "pause", "resume"]), CLIENT),
    st.tuples(st.sampled_from(["hold", "release"]), CLIENT, st.sampled_from(Hold)),
    st.tuples(st.just("modify"), CLIENT, st.none() | st.integers(1, 40), st.text("abcde", max_size=2)),
    st.tuples(st.just("expire"), st.floats(0.1, 1.0)),
)
FAILURES = [None, None, None, Outcome.FAILED, Outcome.NO_CELLS, EngineFailure]


@settings(max_examples=examples(200))
@given(
    st.lists(arrivals, min_size=3, max_size=6),
    st.lists(st.tuples(kv_operations, st.integers(0, 6)), min_size=12, max_size=40),
    st.just([]) | st.lists(st.sampled_from(FAILURES), max_size=20),
    st.sampled_from(
        [
            {},
            {"slots": 2, "cells": 50, "sequence_tokens": 45, "batch_tokens": 9},
            {"slots": 1},
            {"cached_cells": 400},
            {"slots": 2, "cells": 60, "sequence_tokens": 45, "sequences": 4, "cached_cells": 30, "host_bytes": 150},
            {"slots": 1, "cells": 60, "sequence_tokens": 45, "cached_cells": 60, "drafts": True},
        ]
    ),
    st.booleans(),
)
def test_whatever_happens_every_text_is_its_own_and_all_comes_back(
    first: list[tuple],
    then: list[tuple[tuple, int]],
    failures: list[Outcome | type[EngineFailure] | None],
    capacity: dict[str, int],
    remote: bool,
) -> None:
    world = SchedulerWorld(remote=remote, **capacity)
    world.engine.failures += failures
    steps = [(arrival, 1) for arrival in first] + then
    names = {name for (name, *_), _turns in steps}
    for (name, *arguments), turns in steps:
        match name:
            case "arrive":
                prompt, max_tokens, background = arguments
                stop = (answer(prompt, max_tokens)[-2:],) if max_tokens % 3 == 0 else ()
                world.arrive(
                    prompt,
                    max_tokens=max_tokens,
                    priority=Priority(background),
                    stop=tuple(filter(None, stop)),
                )
            case "expire":
                world.sessions.expire(arguments[0])
            case _:
                client = world.clients[arguments[0] % len(world.clients)]
                if name in ("hold", "release"):
                    getattr(world.sessions, name)(client.session, arguments[1])
                elif name == "modify":
                    # Stops of one character hold nothing back: see ``expected_end``.
                    stop = client.request.stop if client.request.stop else tuple(arguments[2])
                    world.modify(client, max_tokens=arguments[1], stop=stop)
                else:
                    getattr(world, name)(client)
        world.turns(turns)
    clients = list(world.clients)
    for _ in range(2000):
        if world.scheduler.idle and not world.compute.jobs:
            break
        for client, why in itertools.product(clients, Hold):
            world.sessions.release(client.session, why)
        world.turn()
    world.engine.failures.clear()
    for client in clients:
        match client.end:
            case FinishReason.STOP | FinishReason.LENGTH:
                assert (client.text, client.end) == client.expected_end
            case FinishReason.CANCELLED | Fault.DECODE_FAILED | Fault.MEMORY_PRESSURE | Fault.TIMED_OUT as end:
                # What a cancel releases may be the beginning of a stop string that never came to its end.
                assert client.whole.startswith(client.text)
                causes = {FinishReason.CANCELLED: "cancel" in names, Fault.TIMED_OUT: "expire" in names}
                assert causes.get(end, any(failures))
            case end:
                assert client.gone, end
    world.finish()


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([*Hold, None, 10, 35]), st.integers(0, 8)),
        min_size=8,
        max_size=40,
    ),
    st.sampled_from(
        [
            {"slots": 1},
            {"slots": 2, "cells": 90, "sequence_tokens": 80},
            {"slots": 3, "cells": 110},
            {"slots": 1, "sequences": 3, "cached_cells": 100, "host_bytes": 300},
            {"slots": 3, "cells": 110, "sequences": 6, "cached_cells": 110},
        ]
    ),
)
def test_streams_that_lose_their_places_again_and_again_lose_nothing_else(
    steps: list[tuple[int, Hold | int | None, int]], capacity: dict[str, int]
) -> None:
    """Each step holds one with a reason that it isn't held for, or releases it, or gives it another length."""
    world = SchedulerWorld(**capacity)
    clients = [world.arrive(f"{number} and more", max_tokens=25) for number in range(4)]
    for index, move, turns in steps:
        client = clients[index]
        match move:
            case Hold() if move in client.session.holds:
                world.sessions.release(client.session, move)
            case Hold():
                world.sessions.hold(client.session, move)
            case None:
                for why in Hold:
                    world.sessions.release(client.session, why)
            case length:
                world.modify(client, max_tokens=length)
        world.turns(turns)
    for client, why in itertools.product(clients, Hold):
        world.sessions.release(client.session, why)
    world.turn_until(lambda: all(client.end for client in clients))
    assert [(client.text, client.end) for client in clients] == [client.expected_end for client in clients]
    world.finish()


# Preparing.


def prepared_order(world: SchedulerWorld) -> list[object]:
    """Prompts, as they get prepared from now on."""
    order: list[object] = []
    prepare = world.engine.prepare
    world.engine.prepare = lambda request, *_more: (order.append(request.prompt), prepare(request))[1]
    return order


def test_one_request_is_prepared_at_a_time_by_class_and_never_for_who_has_left(world: SchedulerWorld) -> None:
    first = world.arrive("first", max_tokens=2)
    world.scheduler.pump()
    patient = world.arrive("patient", max_tokens=2, priority=Priority.BACKGROUND)
    gone = world.arrive("gone", max_tokens=2)
    hasty = world.arrive("hasty", max_tokens=2)
    world.scheduler.pump()
    assert len(world.preparing.jobs) == 1
    world.abandon(gone)
    order = prepared_order(world)
    world.turn_until(lambda: all(client.end for client in (first, patient, hasty)))
    assert order == ["first", "hasty", "patient"]
    world.finish()


def test_the_choices_of_one_request_are_prepared_once(world: SchedulerWorld) -> None:
    order = prepared_order(world)
    world.arrive("before", max_tokens=2)
    world.scheduler.pump()
    prompt = "the same prompt, for all its choices"
    choices = [world.arrive(prompt, sampling=Sampling(seed=n), max_tokens=9) for n in range(3)]
    longer = world.arrive(prompt, max_tokens=30)
    stranger = world.arrive(prompt, Caller("uds", "stranger"), max_tokens=9)
    gone = choices.pop(1)
    world.scheduler.pump()
    world.abandon(gone)
    world.finish()
    assert order[:4] == ["before", prompt, prompt, prompt]
    assert prompt not in order[4:]
    for client in (*choices, longer, stranger):
        assert client.text == client.expected
    tokens = [client.session.prepared.tokens for client in (*choices, longer)]
    assert tokens[0] is tokens[1]
    assert tokens[0] is not tokens[2]


def test_choices_that_cannot_be_prepared_fail_each_by_its_id(world: SchedulerWorld) -> None:
    world.arrive("before", max_tokens=2)
    world.scheduler.pump()
    prompt = "x" * 1000
    choices = [world.arrive(prompt, sampling=Sampling(seed=n)) for n in range(3)]
    world.finish()
    assert [client.end for client in choices] == [Fault.CONTEXT_EXCEEDED] * 3
    assert [client.outputs[-1].request_id for client in choices] == [client.request.id for client in choices]


def test_sequences_that_end_together_beside_a_stream_are_saved_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "MAX_SAVING_S", 0.0)
    world = SchedulerWorld(host_bytes=100_000, cached_cells=1)
    stream = world.arrive("a stream that goes on", max_tokens=60)
    others = [world.arrive(f"{number} ends soon", max_tokens=3 + number) for number in range(3)]
    world.turn_until(lambda: all(client.tokens for client in (stream, *others)))
    for client in others:
        world.cancel(client)
    before = len(world.engine.ticks)
    world.turn_until(lambda: stream.end)
    saves = [
        sum(isinstance(one, Save) for one in tick.kv_operations)
        for tick in world.engine.ticks[before:]
        if any(run.sampler for run in tick.runs)
    ]
    assert [number for number in saves if number] == [1, 1, 1]
    assert stream.text == stream.expected
    world.finish()


def test_tenants_have_their_requests_prepared_in_turn(world: SchedulerWorld) -> None:
    order = prepared_order(world)
    key, other = Caller("openai", "192.0.2.1", "garden"), Caller("openai", "192.0.2.1", "orchard")
    for number in range(3):
        world.arrive(f"many {number}", max_tokens=2)
    world.arrive("late", max_tokens=2, priority=Priority.BACKGROUND)
    for number in range(2):
        world.arrive(f"key {number}", key, max_tokens=2)
    world.turns(2)
    world.arrive("other", other, max_tokens=2)
    world.finish()
    assert order[:7] == ["many 0", "key 0", "other", "many 1", "key 1", "many 2", "late"]


def test_background_requests_that_have_waited_long_are_prepared_before_newcomers(world: SchedulerWorld) -> None:
    world.arrive("first", max_tokens=2)
    world.scheduler.pump()
    world.arrive("patient", max_tokens=2, priority=Priority.BACKGROUND)
    world.scheduler.pump()
    order = prepared_order(world)
    world.clock.now += AGING_S
    for number in range(3):
        world.arrive(f"newcomer {number}", max_tokens=2)
    world.finish()
    assert order[1:5] == ["patient", "newcomer 0", "newcomer 1", "newcomer 2"]


def test_a_tenant_that_was_forgotten_is_as_good_as_new(world: SchedulerWorld) -> None:
    order = prepared_order(world)
    first = world.arrive("first", Caller("uds", "first"), max_tokens=1)
    for number in range(REMEMBERED):
        client = world.arrive("x", Caller("uds", f"peer {number}"), max_tokens=1)
        world.turn_until(lambda client=client: client.session.prepared)
    assert first.end
    order.clear()
    for prompt, peer in (("again", "first"), ("remembered", "peer 1"), ("new", "newcomer")):
        world.arrive(prompt, Caller("uds", peer), max_tokens=1)
    world.turn_until(lambda: all(client.end for client in world.clients))
    assert order == ["again", "new", "remembered"]


def test_a_result_that_cannot_be_taken_fails_its_tick_and_nobody_else(world: SchedulerWorld) -> None:
    client = world.arrive("first", max_tokens=8)
    world.turn_until(lambda: client.tokens)
    session = client.session
    assert session.text is not None
    session.text.push = lambda token: (_ for _ in ()).throw(IndexError(token))
    world.turn_until(lambda: client.end)
    assert client.end is Fault.DECODE_FAILED
    world.finish()


def test_errors_of_the_disk_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SchedulerWorld(host_bytes=20_000, keeps=True)
    monkeypatch.setattr(world.engine, "look", lambda: Listing(errors=2))
    world.turn()
    world.disk.step()
    world.turn()
    assert world.scheduler.metrics.snapshot()["disk_cache_errors_total"] == 2
