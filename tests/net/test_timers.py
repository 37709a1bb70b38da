"""Timers, in invented seconds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from watched_loop import nothing

from umaserve.net.timers import Timer, Timers


def run_due(timers: Timers, now: float) -> None:
    for callback in timers.due(now):
        callback()


class TimerModel:
    """The plainest timers there can be: a table of deadlines, searched whole."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.now = 0.0
        self.handles: list[Timer] = []
        self.deadlines: dict[int, float] = {}
        self.fired: list[int] = []

    def add(self, delay: float) -> None:
        id_ = len(self.handles)
        self.handles.append(self.timers.add(self.now + delay, lambda: self.fired.append(id_)))
        self.deadlines[id_] = self.now + delay

    def postpone(self, id_: int, delay: float) -> None:
        at = max(self.now, self.handles[id_].at) + delay
        self.handles[id_].postpone(at)
        if id_ in self.deadlines:
            self.deadlines[id_] = at

    def cancel(self, id_: int) -> None:
        self.handles[id_].cancel()
        self.deadlines.pop(id_, None)

    def check(self) -> None:
        at = self.timers.next_at()
        if self.deadlines:
            # Early is allowed, late never.
            assert at is not None
            assert at <= min(self.deadlines.values())
        run_due(self.timers, self.now)
        due = sorted(id_ for id_, at in self.deadlines.items() if at <= self.now)
        assert sorted(self.fired) == due
        for id_ in due:
            del self.deadlines[id_]
        self.fired.clear()
        at = self.timers.next_at()
        assert (at is None) == (not self.deadlines)
        assert at is None or at > self.now


delays = st.integers(0, 20).map(lambda quarters: quarters / 4)
timer_moves = st.one_of(
    st.tuples(st.just("add"), delays),
    st.tuples(st.just("postpone"), st.integers(0, 50), delays),
    st.tuples(st.just("cancel"), st.integers(0, 50)),
    st.tuples(st.just("advance"), delays),
)


@given(st.lists(timer_moves, max_size=60))
def test_timers_do_what_the_plainest_timers_do(kv_operations: list[tuple]) -> None:
    model = TimerModel()
    for name, *arguments in kv_operations:
        if name == "advance":
            model.now += arguments[0]
        elif name == "add":
            model.add(arguments[0])
        elif model.handles:
            id_ = arguments[0] % len(model.handles)
            getattr(model, name)(id_, *arguments[1:])
        model.check()


def test_timers_run_in_the_order_of_their_deadlines() -> None:
    timers, fired = Timers(), []
    for at in (3.0, 1.0, 2.0):
        timers.add(at, lambda at=at: fired.append(at))
    run_due(timers, 2.0)
    assert fired == [1.0, 2.0]


def test_a_timer_may_cancel_and_add_others_that_are_due() -> None:
    timers, fired = Timers(), []

    def first() -> None:
        second.cancel()
        timers.add(1.0, lambda: fired.append("third"))

    timers.add(1.0, first)
    second = timers.add(2.0, lambda: fired.append("second"))
    run_due(timers, 5.0)
    assert fired == ["third"]
    assert timers.next_at() is None


@pytest.mark.parametrize("alive", [0, 10, 1000])
def test_cancelled_timers_do_not_pile_up(alive: int) -> None:
    timers = Timers()
    for _ in range(alive):
        timers.add(1.0, nothing)
    sizes = []
    for _ in range(10_000):
        timers.add(2.0, nothing).cancel()
        sizes.append(len(timers))
    assert max(sizes) <= max(alive + 65, 2 * alive + 2)
    assert max(sizes[5000:]) > alive + 50, "a sweep for every cancel would cost more than it saves"
    assert timers.next_at() == (1.0 if alive else None)


@pytest.mark.parametrize("seed", range(5))
def test_a_sweep_keeps_the_rest_in_order(seed: int) -> None:
    timers, fired = Timers(), []
    dice = random.Random(seed)
    all_of_them = [timers.add(at, lambda at=at: fired.append(at)) for at in dice.sample(range(1000), 200)]
    for timer in dice.sample(all_of_them, 150):
        timer.cancel()
    assert len(timers) < 200, "it was swept"
    run_due(timers, 1000)
    assert len(fired) == 50
    assert fired == sorted(fired)


def test_cancelling_twice_or_too_late_counts_once() -> None:
    timers = Timers()
    gone = [timers.add(1.0, nothing) for _ in range(100)]
    run_due(timers, 1.0)
    kept = [timers.add(2.0, nothing) for _ in range(100)]
    for timer in kept[:10] * 20 + gone:
        timer.cancel()
    assert len(timers) == 100, "a wrong count would have swept too soon"


def test_those_that_came_up_dead_count_no_more() -> None:
    timers = Timers()
    for _ in range(60):
        timers.add(1.0, nothing).cancel()
    run_due(timers, 1.0)
    kept = [timers.add(2.0, nothing) for _ in range(100)]
    for timer in kept[:10]:
        timer.cancel()
    assert len(timers) == 100, "a wrong count would have swept too soon"
