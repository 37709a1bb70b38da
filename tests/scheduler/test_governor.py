"""The thread governor, on an invented box whose other programs come and go."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from umaserve.scheduler.governor import BLIND_FACTOR, MAX_PATIENCE_S, SETTLED_S, ThreadGovernor
from umaserve.sessions.cost_model import Cost
from umaserve.system.cores import CoreUse


class Box:
    """``cores`` of which others have ``taken``; a thread without a core of its own makes a tick ten times as long."""

    def __init__(self, cores: int = 2, *, tells: bool = True, seed: int = 0, known: Cost | None = None) -> None:
        self.cores = cores
        self.taken = 0
        self.speed_up = 2.0
        """Of two threads with a core each, beside one."""
        self.now = 0.0
        self.tells = tells
        self.random = random.Random(seed)
        self.used: list[int] = []
        self.governor = ThreadGovernor(cores, self.now, self.core_use, known)

    def core_use(self) -> CoreUse | None:
        idle = max(0.0, self.cores - self.taken - self.governor.threads)
        return CoreUse(idle, self.taken) if self.tells else None

    def seconds(self, threads: int, rows: int = 1) -> float:
        alone = 0.012 * rows / threads ** math.log2(self.speed_up)
        noise = self.random.uniform(0.95, 1.1)
        return alone * noise * (1 if threads <= self.cores - self.taken else 10)

    def run(self, seconds: float, rows: Callable[[], tuple[int, int]] = lambda: (1, 0)) -> float:
        """Ticks for so long; the rate of late, of that of the best number of threads."""
        end, half = self.now + seconds, self.now + seconds / 2
        done = spent = 0.0
        while self.now < end:
            decode, prefill = rows()
            threads = self.governor.threads_for(prefill > 0)
            took = self.seconds(threads, decode + prefill)
            self.now += took
            if self.now > half:
                done, spent = done + decode + prefill, spent + took
            self.used.append(threads)
            self.governor.observe(threads, decode, prefill, 100, took, self.now)
        best = max(1, self.cores - self.taken)
        return done / spent / (best / 0.012)


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("cores", [2, 4])
def test_all_are_used_on_an_idle_box(cores: int, tells: bool) -> None:
    box = Box(cores, tells=tells)
    assert box.run(12) > 0.9
    assert (box.governor.threads, box.governor.reason) == (cores, "all")


@pytest.mark.parametrize("cores", [2, 4])
def test_a_program_that_comes_is_given_its_core_and_one_that_goes_leaves_it(cores: int) -> None:
    box = Box(cores)
    box.run(8)
    box.taken = 1
    assert box.run(4) > 0.9, "over the last two seconds"
    assert (box.governor.threads, box.governor.reason) == (cores - 1, "another program uses a core")
    box.taken = 0
    assert box.run(4) > 0.9
    assert (box.governor.threads, box.governor.reason) == (cores, "all")


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("factor", [1 / 3, 1.0, 3.0])
def test_it_does_not_matter_whether_the_box_was_busier_or_quicker_at_the_last_run(factor: float, tells: bool) -> None:
    row_s = factor * 0.006
    box = Box(tells=tells, known=Cost(0.0, row_s, row_s, 0.0, 0.0))
    box.run(8)
    assert box.governor.cost.seconds(1, 0, 100) == pytest.approx(0.006, rel=0.25)
    if tells:
        assert set(box.used) == {2}
    box.taken = 1
    assert box.run(4) > 0.9
    assert box.governor.threads == 1
    box.taken = 0
    assert box.run(BLIND_FACTOR * MAX_PATIENCE_S if not tells else 4) > 0.9
    learned = box.governor.learned
    assert learned is not None
    assert learned.seconds(1, 0, 100) == pytest.approx(0.006, rel=0.25), "with all threads"


def test_a_box_that_is_busy_from_the_start_is_noticed() -> None:
    box = Box()
    box.taken = 1
    box.run(8)
    assert box.governor.threads == 1


def test_the_kernel_s_word_is_enough_for_a_first_trial() -> None:
    box = Box()
    box.run(0.5)
    box.taken = 1
    box.run(SETTLED_S / 4)
    assert box.governor.threads == 1


@pytest.mark.parametrize(("before_s", "others"), [(0.3, 2.0), (SETTLED_S + 1, 0.4)])
def test_what_others_did_before_a_request_is_no_reason_for_a_trial(before_s: float, others: float) -> None:
    box = Box()
    reports = {"now": CoreUse(0.5, 0.0)}
    box.governor._core_use = lambda: reports["now"]
    box.run(before_s)
    reports["now"] = CoreUse(0.0, others)
    box.now += 60.0
    box.run(0.4)
    assert set(box.used) == {2}, "the report may still be that of the pause"
    reports["now"] = CoreUse(0.5, 0.0)
    box.run(1.0)
    assert set(box.used) == {2}


def test_a_busy_box_is_not_tried_again_and_again_where_the_kernel_says_so() -> None:
    box = Box()
    box.run(8)
    box.taken = 1
    box.run(2)
    box.used.clear()
    box.run(MAX_PATIENCE_S - 5)
    assert box.used.count(2) == 0


def test_trials_without_a_word_of_the_kernel_get_rarer() -> None:
    box = Box(tells=False)
    box.taken = 1
    box.run(20)
    box.used.clear()
    assert box.run(BLIND_FACTOR * MAX_PATIENCE_S) > 0.9
    assert 0 < box.used.count(2) < 20


def test_fewer_are_not_even_tried_on_a_box_that_the_kernel_calls_idle() -> None:
    box = Box()
    box.run(60)
    assert set(box.used) == {2}


def test_fewer_are_tried_when_ticks_get_slower_whatever_the_kernel_says() -> None:
    box = Box()
    box.run(8)
    box.core_use = lambda: CoreUse(0.0, 0.0)  # type: ignore[method-assign]
    box.governor._core_use = box.core_use
    box.taken = 1
    assert box.run(4) > 0.9


@pytest.mark.parametrize("speed_up", [1.4, 2.0])
def test_a_trial_that_makes_ticks_slower_ends_after_two(speed_up: float) -> None:
    box = Box(tells=False)
    box.speed_up = speed_up
    box.run(SETTLED_S + 2)
    assert box.used.count(1) == 2
    assert box.governor.threads == 2


def test_a_suspicion_alone_makes_no_prompt_slower() -> None:
    box = Box(seed=1)
    box.core_use = lambda: CoreUse(0.0, 0.4)  # type: ignore[method-assign]
    box.governor._core_use = box.core_use
    box.run(SETTLED_S + 10, lambda: (0, 64) if len(box.used) % 8 < 6 else (1, 0))
    assert {threads for at, threads in enumerate(box.used) if at % 8 < 6} == {2}
    assert 1 in box.used, "the trial happens between prompts"
    assert box.governor.threads == 2


def test_a_single_tick_that_was_held_up_changes_nothing() -> None:
    box = Box()
    box.run(8)
    box.governor.observe(2, 1, 0, 100, 5.0, box.now)
    assert box.governor.threads == 2


def test_a_taken_core_costs_two_long_ticks_and_not_five() -> None:
    box = Box()
    box.run(12)
    box.taken, before = 1, len(box.used)
    box.run(3)
    assert box.used[before : before + 12].count(2) == 2
    assert (box.governor.threads, box.governor.reason) == (1, "another program uses a core")


def test_mixed_ticks_are_judged_by_their_own_work() -> None:
    box = Box()
    mixed = random.Random(1)
    box.run(15, lambda: (mixed.randint(1, 8), mixed.choice([0, 0, 16, 64])))
    assert box.run(6, lambda: (mixed.randint(1, 8), mixed.choice([0, 0, 16, 64]))) > 0.9
    assert box.governor.threads == 2


def test_one_thread_is_never_governed() -> None:
    box = Box(1)
    box.taken = 1
    box.run(2)
    assert set(box.used) == {1}


def test_ticks_that_take_no_time_or_teach_nothing_divide_by_nothing() -> None:
    governor = ThreadGovernor(2, 0.0, lambda: None)
    for tick in range(100):
        for prefill, seconds in ((9, 10.0), (0, 0.0), (1, 0.0)):
            governor.observe(governor.threads, 1 - bool(prefill), prefill, 0, seconds, float(tick))
    assert governor.threads in (1, 2)
