"""The moments in the life of a request: each brings one there."""

from __future__ import annotations

from scheduler_world import Client, SchedulerWorld

from umaserve.sessions.session import Hold
from umaserve.sessions.states import State

LONG = "a prompt that needs more than one tick, since a batch is shorter than it is"


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
