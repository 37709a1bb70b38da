"""The tick that is submitted behind the one that runs."""

from __future__ import annotations

from scheduler_world import Client, SchedulerWorld
from standin import EngineFailure, answer

from umaserve.core.errors import Fault
from umaserve.core.events import FinishReason
from umaserve.sessions.engine_api import Outcome


def world_with_stream(**capacity: int) -> tuple[SchedulerWorld, Client]:
    """A world whose compute thread has a tick of the stream to do, and the one after it."""
    world = SchedulerWorld(**({"cached_cells": 40, "draft_tokens": False} | capacity))
    stream = world.arrive("a stream", max_tokens=40)
    world.turn_until(lambda: len(world.compute.jobs) == 2)
    return world, stream


def test_the_tick_after_the_running_one_needs_no_turn_of_the_loop() -> None:
    world, stream = world_with_stream()
    before, made = len(world.engine.ticks), len(stream.session.generated)
    world.compute.step()
    world.compute.step()
    assert len(world.engine.ticks) == before + 2
    assert len(stream.session.generated) == made + 2
    assert len(world.compute.jobs) == 2, "each submits the one after the next"
    world.finish()
    assert stream.text == stream.expected


def test_a_prompt_that_arrives_takes_the_place_of_the_tick_after_the_running_one() -> None:
    world, stream = world_with_stream()
    before = len(world.engine.ticks)
    newcomer = world.arrive("a newcomer")
    world.scheduler.pump()
    world.preparing.step()
    world.scheduler.pump()
    while len(world.engine.ticks) < before + 2:
        world.compute.step()
    assert len(world.engine.ticks[before].runs) == 1
    assert len(world.engine.ticks[before + 1].runs) == 2
    world.finish()
    assert [stream.text, newcomer.text] == [stream.expected, newcomer.expected]


def test_a_stream_that_a_stop_string_ends_leaves_no_token_behind() -> None:
    world = SchedulerWorld(cached_cells=40, draft_tokens=False)
    stopped = world.arrive("stopped", max_tokens=30, stop=(answer("stopped", 30)[9:11],))
    world.turn_until(lambda: stopped.end)
    assert (stopped.text, stopped.end) == stopped.expected_end
    world.finish()


def test_no_tick_is_submitted_behind_one_that_makes_the_last_token() -> None:
    world = SchedulerWorld(cached_cells=40, draft_tokens=False)
    short = world.arrive("short", max_tokens=6)
    world.turn_until(lambda: short.end)
    assert short.end is FinishReason.LENGTH
    assert sum(len(tick.runs) for tick in world.engine.ticks) == 6
    world.finish()


def test_nothing_is_submitted_ahead_where_no_token_can_be_taken_back() -> None:
    world = SchedulerWorld()
    stream = world.arrive("a stream")
    world.turn_until(lambda: len(world.compute.jobs) > 1 or stream.end)
    assert stream.text == stream.expected


def test_the_tick_behind_one_that_failed_is_not_run() -> None:
    for failure in (Outcome.FAILED, EngineFailure):
        world, stream = world_with_stream()
        world.engine.failures.append(failure)
        before = len(world.engine.ticks)
        world.turn_until(lambda stream=stream: stream.end)
        assert stream.end is Fault.DECODE_FAILED
        assert len(world.engine.ticks) == before + 1
        world.finish()


def test_a_change_holds_from_the_token_after_its_acknowledgement() -> None:
    world, stream = world_with_stream()
    world.modify(stream, max_tokens=20)
    world.turn_until(lambda: stream.steered)
    assert len(stream.tokens) <= 20
    world.finish()
    assert stream.text == stream.expected


def test_a_result_that_comes_before_that_of_the_tick_before_waits_for_it() -> None:
    world, stream = world_with_stream()
    made = len(stream.session.generated)
    jobs = [world.compute.jobs.popleft() for _ in range(2)]
    results = [job() for job, _done in jobs]
    (_, first_done), (_, second_done) = jobs
    second_done(results[1])
    assert len(stream.session.generated) == made
    first_done(results[0])
    assert len(stream.session.generated) == made + 2
    world.finish()
    assert stream.text == stream.expected
