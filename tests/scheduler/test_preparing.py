"""Requests that are prepared: one at a time, by class, and by tenants in turn."""

from __future__ import annotations

import pytest
from scheduler_world import SchedulerWorld

from umaserve.core.errors import Fault
from umaserve.core.requests import Priority, Sampling
from umaserve.scheduler import planner
from umaserve.scheduler.policy.snapshot import AGING_S
from umaserve.scheduler.turns import REMEMBERED
from umaserve.sessions.caller import Caller
from umaserve.sessions.kv_operations import Save


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
