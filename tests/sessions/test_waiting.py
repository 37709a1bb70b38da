"""Why a request has no slot, as people are told."""

from __future__ import annotations

from scheduler_world import Client, SchedulerWorld

from umaserve.sessions.waiting import Why

KEEPING = {"cells": 256, "cached_cells": 256}


def why(world: SchedulerWorld, client: Client) -> Why:
    assert client.session.slot is None
    return world.scheduler.why_waiting(client.session)


def test_it_is_prepared_first_and_then_waits_for_a_slot() -> None:
    world = SchedulerWorld(slots=1)
    first = world.arrive("first", max_tokens=30)
    world.turn_until(lambda: first.tokens)
    second = world.arrive("second", max_tokens=1)
    assert why(world, second) is Why.PREPARING
    world.turns(5)
    assert why(world, second) is Why.SLOTS
    world.pause(second)
    world.turn()
    assert why(world, second) is Why.PAUSE
    world.resume(second)
    world.turn_until(lambda: second.end)
    world.finish()


def test_it_waits_for_cells() -> None:
    world = SchedulerWorld(slots=2, cells=64)
    first = world.arrive("x" * 40, max_tokens=20)
    world.turn_until(lambda: first.tokens)
    second = world.arrive("y" * 40, max_tokens=2)
    world.turns(5)
    assert why(world, second) is Why.CELLS
    world.turn_until(lambda: second.end)


def test_it_waits_for_one_that_begins_alike() -> None:
    world = SchedulerWorld(batch_tokens=4, **KEEPING)
    beginning = "You are an assistant who answers in few words. "
    first = world.arrive(f"{beginning}this", max_tokens=2)
    second = world.arrive(f"{beginning}that", max_tokens=2)
    world.turn_until(lambda: second.session.follows)
    assert why(world, second) is Why.PREFIX
    world.turn_until(lambda: first.end)
    world.turn_until(lambda: second.end)
    world.finish()
