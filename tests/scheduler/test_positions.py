"""Where in the queue those who wait are told to be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scheduler_world import SchedulerWorld

from umaserve.core.events import Waiting
from umaserve.core.requests import Priority
from umaserve.scheduler.policy.snapshot import AGING_S
from umaserve.scheduler.positions import PATIENCE_S


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
                    line = session.request.id, session.started_at is not None
                    assert 1 <= output.position <= min(told.get(line, output.position), output.length)
                    told[line] = output.position
        world.scheduler.deliver()
