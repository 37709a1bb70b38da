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
from moments import LONG, MOMENTS, held, in_decode, preempted
from scheduler_world import ORIGIN, Client, SchedulerWorld
from standin import (
    ECHO,
    PIECES,
    SHORT,
    EngineFailure,
    answer,
    scored,
)

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Placed, Prefilled, Prefilling, Started
from umaserve.core.requests import ChatTurn, Priority, Sampling, TokenIds, Tool, ToolCall
from umaserve.scheduler.policy.policy import MAX_SHARE
from umaserve.scheduler.policy.snapshot import AGING_S
from umaserve.sessions.caller import Caller
from umaserve.sessions.engine_api import Listing, Outcome, Tick, TickResult
from umaserve.sessions.kv_operations import Copy, Divide, Load, Release, Save
from umaserve.sessions.session import Hold
from umaserve.sessions.states import State

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
    assert world.scheduler.metrics.batch_sessions == sum(len(tick.runs) for tick in world.engine.ticks)


def test_the_longest_sequence_is_told_while_it_grows_and_afterwards(world: SchedulerWorld) -> None:
    metrics = world.scheduler.metrics
    long = world.arrive(LONG, max_tokens=30)
    world.turn_until(lambda: len(long.tokens) > 5)
    assert metrics.longest_sequence == long.session.computed > len(LONG)
    world.turn_until(lambda: long.end)
    longest = metrics.longest_sequence
    assert longest >= len(LONG) + len(long.text) - 1
    world.arrive("short", max_tokens=3)
    world.finish()
    assert metrics.longest_sequence == longest


def test_the_end_token_is_neither_sent_nor_counted(world: SchedulerWorld) -> None:
    prompts = (f"{SHORT}{number}" for number in itertools.count())
    prompt = next(prompt for prompt in prompts if 0 < len(answer(prompt, 50)) < 20)
    client = world.arrive(prompt, max_tokens=50)
    world.finish()
    assert client.text == client.expected
    assert client.end is FinishReason.STOP
    assert world.scheduler.metrics.tokens_generated >= len(client.text)
    assert client.session.usage.completion_tokens == len(client.text)


def test_a_token_that_the_request_names_ends_the_answer_as_the_end_token_does(world: SchedulerWorld) -> None:
    whole = answer("hello", 50)
    sampling = Sampling(stop_token_ids=(ord(whole[3]),))
    client = world.arrive("hello", max_tokens=50, sampling=sampling)
    beside = world.arrive("hello", max_tokens=50)
    world.turn_until(lambda: client.end is not None and beside.end is not None)
    assert client.text == whole[: whole.index(whole[3])]
    assert client.end is FinishReason.STOP
    assert client.session.usage.completion_tokens == len(client.text)
    assert beside.text == beside.expected
    # What it leaves in the cache is what it says.
    again = world.arrive("hello", max_tokens=50)
    world.finish()
    assert again.text == again.expected


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


def test_the_end_tells_the_tokens_to_those_who_want_them(world: SchedulerWorld) -> None:
    asking, other = (world.arrive("hello", max_tokens=9, wants_tokens=wants) for wants in (True, False))
    world.finish()
    told, untold = asking.outputs[-1], other.outputs[-1]
    assert isinstance(told, Finished)
    assert isinstance(untold, Finished)
    assert bytes(told.tokens) == b"hello" + asking.text.encode()
    assert untold.tokens == ()


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


def test_a_context_that_the_filter_forbids_is_refused() -> None:
    world = SchedulerWorld(patterns=("forbidden",))
    client = world.arrive((ChatTurn("user", "hello"),), context=tuple(b"say forbidden words"))
    world.finish()
    assert client.end is Fault.CONTENT_FILTERED


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
    client, other = world.arrive("hello", max_tokens=20, wants_tokens=True), world.arrive("other", max_tokens=20)
    world.turn_until(lambda: client.end and other.end)
    assert (client.text, client.end) == (whole[: whole.index(whole[at : at + 4])], FinishReason.CONTENT_FILTER)
    assert len(client.session.generated) == at + 4, "and no more of it is computed"
    end = client.outputs[-1]
    assert isinstance(end, Finished)
    assert end.tokens == (), "nor told as tokens"
    assert (other.text, other.end) == other.expected_end


def test_a_pattern_that_only_begins_at_the_end_is_released() -> None:
    whole = answer("hello", 20)
    world = SchedulerWorld(patterns=(whole[-3:] + "x!",))
    client = world.arrive("hello", max_tokens=20)
    world.finish()
    assert (client.text, client.end) == (whole, FinishReason.LENGTH)
    assert len(client.tokens) == 20


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
