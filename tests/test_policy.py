"""The plan's promises over random snapshots, a small simulation of them, and what the cost model learns."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.messages import Priority
from umaserve.serving.cost_model import Cost, CostModel
from umaserve.serving.policy import (
    AGING_S,
    HEADROOM,
    IDLE_TICK_S,
    PREFILL_FLOOR,
    Held,
    Plan,
    Prompt,
    Snapshot,
    Stream,
    plan,
)

NOW = 1000.0
COST = Cost(0.002, 0.004, 0.003, 0.0005)

# A busy box makes no test fail.
untimed = settings(deadline=None)


def prompt(id_: int, **fields: object) -> Prompt:
    plain = Prompt(id_, 10, NOW, 1.0, Priority.INTERACTIVE, False, 20)
    return dataclasses.replace(plain, **fields)


def snapshot(prompts: list[Prompt], streams: list[Stream] | None = None, **fields: object) -> Snapshot:
    plain = Snapshot(NOW, streams or [], prompts, 8, 10_000, 100, 512, COST)
    return dataclasses.replace(plain, **fields)


costs = st.builds(
    Cost,
    fixed_s=st.floats(0, 0.05),
    decode_row_s=st.floats(0, 0.05),
    prefill_row_s=st.floats(1e-7, 0.05),
    attention_s=st.floats(0, 0.001),
)
streams_of = st.builds(Stream, id=st.integers(0, 10**6), target_tbt_s=st.floats(0.001, 2.0))
prompts_of = st.builds(
    Prompt,
    id=st.integers(0, 10**6),
    remaining=st.integers(1, 300),
    arrived_at=st.floats(NOW - 3 * AGING_S, NOW),
    target_ttft_s=st.floats(0.001, 100.0),
    priority=st.sampled_from(Priority),
    started=st.booleans(),
    cells=st.integers(1, 500),
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    return Snapshot(
        now=NOW,
        streams=draw(st.lists(streams_of, max_size=12, unique_by=lambda stream: stream.id)),
        prompts=draw(st.lists(prompts_of, max_size=12, unique_by=lambda prompt: prompt.id)),
        free_slots=draw(st.integers(0, 6)),
        free_cells=draw(st.integers(0, 1500)),
        cached=draw(st.integers(0, 20_000)),
        batch_tokens=draw(st.integers(1, 10) | st.integers(1, 600)),
        cost=draw(costs),
        held=[Held(-1 - id_, cells) for id_, cells in enumerate(draw(st.lists(st.integers(1, 500), max_size=5)))],
    )


def by_id(snapshot: Snapshot) -> dict[int, Prompt]:
    return {prompt.id: prompt for prompt in snapshot.prompts}


def prefilled(the_plan: Plan) -> int:
    return sum(tokens for _, tokens in the_plan.prefill)


def budget(snapshot: Snapshot) -> float:
    return HEADROOM * min(s.target_tbt_s for s in snapshot.streams) if snapshot.streams else IDLE_TICK_S


def planned_first(snapshot: Snapshot) -> list[int]:
    """The order of all prompts, seen by planning one without any limit."""
    unlimited = dataclasses.replace(
        snapshot, streams=[], free_slots=10**6, free_cells=10**9, batch_tokens=10**6, cost=Cost(0, 0, 1e-9, 0), cached=0
    )
    return [id_ for id_, _ in plan(unlimited).prefill]


# Over random snapshots.


@untimed
@given(snapshots())
def test_every_stream_that_can_go_on_gets_its_token(snapshot: Snapshot) -> None:
    ids = [stream.id for stream in snapshot.streams]
    assert list(plan(snapshot).decode) == ids[: snapshot.batch_tokens]


@untimed
@given(snapshots())
def test_no_batch_and_no_prompt_is_overfilled(snapshot: Snapshot) -> None:
    the_plan = plan(snapshot)
    assert len(the_plan.decode) + prefilled(the_plan) <= snapshot.batch_tokens
    ids = [id_ for id_, _ in the_plan.prefill]
    assert len(set(ids)) == len(ids)
    for id_, tokens in the_plan.prefill:
        assert 1 <= tokens <= by_id(snapshot)[id_].remaining


@untimed
@given(snapshots())
def test_more_than_the_floor_keeps_the_tightest_target(snapshot: Snapshot) -> None:
    the_plan = plan(snapshot)
    rows = prefilled(the_plan)
    if rows > PREFILL_FLOOR:
        predicted = snapshot.cost.seconds(len(the_plan.decode), rows, snapshot.cached)
        assert predicted <= budget(snapshot) * (1 + 1e-9)


def startable(snapshot: Snapshot) -> list[Prompt]:
    """Prompts that a tick may compute: those that run, and those in front of the first that does not fit."""
    prompts = []
    slots = snapshot.free_slots + len(snapshot.held)
    cells = snapshot.free_cells + sum(one.cells for one in snapshot.held)
    for prompt in (by_id(snapshot)[id_] for id_ in planned_first(snapshot)):
        if not prompt.started:
            slots, cells = slots - 1, cells - prompt.cells
            if slots < 0 or cells < 0:
                slots = -1
                continue
        prompts.append(prompt)
    return prompts


@untimed
@given(snapshots())
def test_prefill_takes_the_floor_and_all_of_the_time_that_is_left(snapshot: Snapshot) -> None:
    the_plan = plan(snapshot)
    rows, room = prefilled(the_plan), snapshot.batch_tokens - len(the_plan.decode)
    wanted = sum(prompt.remaining for prompt in startable(snapshot))
    assert rows >= min(PREFILL_FLOOR, room, wanted)
    if PREFILL_FLOOR <= rows < min(room, wanted):
        one_more = snapshot.cost.seconds(len(the_plan.decode), rows + 1, snapshot.cached)
        assert one_more >= budget(snapshot) * (1 - 1e-9)


@untimed
@given(snapshots())
def test_slots_and_cells_are_never_promised_twice(snapshot: Snapshot) -> None:
    the_plan = plan(snapshot)
    assert fits(snapshot, started_by(snapshot, the_plan), the_plan.evict)


def started_by(snapshot: Snapshot, the_plan: Plan) -> list[Prompt]:
    planned = [by_id(snapshot)[id_] for id_, _ in the_plan.prefill]
    return [prompt for prompt in planned if not prompt.started]


def fits(snapshot: Snapshot, new: list[Prompt], evicted: Sequence[int]) -> bool:
    """Whether there is room for the new ones without the evicted."""
    cells = snapshot.free_cells + sum(one.cells for one in snapshot.held if one.id in evicted)
    return len(new) <= snapshot.free_slots + len(evicted) and sum(prompt.cells for prompt in new) <= cells


@untimed
@given(snapshots())
def test_the_held_give_way_in_their_order_and_no_more_of_them_than_are_needed(snapshot: Snapshot) -> None:
    the_plan = plan(snapshot)
    evicted = list(the_plan.evict)
    assert evicted == [one.id for one in snapshot.held][: len(evicted)]
    if evicted:
        assert not fits(snapshot, started_by(snapshot, the_plan), evicted[:-1])


@untimed
@given(snapshots())
def test_nobody_is_overtaken_but_by_those_who_have_started(snapshot: Snapshot) -> None:
    prefill = dict(plan(snapshot).prefill)
    order = [by_id(snapshot)[id_] for id_ in planned_first(snapshot)]
    assert list(prefill) == [prompt.id for prompt in order if prompt.id in prefill]
    for ahead, behind in itertools.combinations(order, 2):
        # All but the last get all that they want.
        if behind.id in prefill and prefill.get(ahead.id) != ahead.remaining:
            assert ahead.id not in prefill
            assert not ahead.started
            assert behind.started


@untimed
@given(snapshots())
def test_whoever_waited_too_long_is_overtaken_by_no_newcomer(snapshot: Snapshot) -> None:
    order = [by_id(snapshot)[id_] for id_ in planned_first(snapshot)]
    for ahead, behind in itertools.combinations(order, 2):
        aged_before_the_other_came = behind.arrived_at + AGING_S < ahead.arrived_at
        assert not aged_before_the_other_came


@untimed
@given(snapshots())
def test_the_plan_depends_on_nothing_but_the_snapshot(snapshot: Snapshot) -> None:
    shuffled = dataclasses.replace(snapshot, prompts=list(reversed(snapshot.prompts)))
    assert plan(snapshot) == plan(snapshot) == plan(shuffled)


# By hand.

LATE = NOW - AGING_S
BACKGROUND = Priority.BACKGROUND

ORDERS = {
    "the earlier deadline": [prompt(2, target_ttft_s=0.5), prompt(1, target_ttft_s=0.6)],
    "the earlier arrival": [prompt(2, arrived_at=NOW - 1), prompt(1)],
    "a late arrival with a tight target": [
        prompt(1, target_ttft_s=0.1),
        prompt(2, arrived_at=NOW - 1, target_ttft_s=2),
    ],
    "the older of equals": [prompt(1), prompt(2)],
    "interactive": [prompt(2, target_ttft_s=20), prompt(1, arrived_at=NOW - 9, priority=BACKGROUND, target_ttft_s=1)],
    "background that has waited": [prompt(2, arrived_at=LATE, priority=BACKGROUND), prompt(1)],
    "background that waits still": [prompt(1), prompt(2, arrived_at=LATE + 0.1, priority=BACKGROUND)],
    "a target that is too far off": [
        prompt(2, arrived_at=NOW - 1, target_ttft_s=1e9),
        prompt(1, target_ttft_s=AGING_S),
    ],
}


@pytest.mark.parametrize("expected", ORDERS.values(), ids=ORDERS)
def test_who_goes_first(expected: list[Prompt]) -> None:
    assert planned_first(snapshot(expected[::-1])) == [prompt.id for prompt in expected]


PLANS = {
    "nothing to do": (snapshot([]), Plan((), ())),
    "streams only": (snapshot([], [Stream(1, 0.1), Stream(2, 0.1)]), Plan((1, 2), ())),
    "more streams than rows": (snapshot([prompt(3)], [Stream(1, 0.1), Stream(2, 0.1)], batch_tokens=1), Plan((1,), ())),
    # 0.2 s of a tick, less 0.002 fixed, at 3.05 ms a row
    "a long prompt alone": (snapshot([prompt(1, remaining=999)]), Plan((), ((1, 64),))),
    # 0.9 * 0.1 s, less 0.002 + 2 * 4.05 ms, at 3.05 ms a row
    "beside two streams": (
        snapshot([prompt(3, remaining=999)], [Stream(1, 0.1), Stream(2, 0.5)]),
        Plan((1, 2), ((3, 26),)),
    ),
    "a target that can't be kept": (snapshot([prompt(2, remaining=999)], [Stream(1, 0.001)]), Plan((1,), ((2, 8),))),
    "the floor, less than it": (snapshot([prompt(2, remaining=5)], [Stream(1, 0.001)]), Plan((1,), ((2, 5),))),
    "the floor, shared": (
        snapshot([prompt(2, remaining=5), prompt(3, remaining=9)], [Stream(1, 0.001)]),
        Plan((1,), ((2, 5), (3, 3))),
    ),
    "no slot": (snapshot([prompt(1)], free_slots=0), Plan((), ())),
    "no cells": (snapshot([prompt(1, cells=21)], free_cells=20), Plan((), ())),
    "just the cells": (snapshot([prompt(1, cells=20)], free_cells=20), Plan((), ((1, 10),))),
    "a big one holds back the small one behind it": (
        snapshot([prompt(1, cells=21), prompt(2, cells=1)], free_cells=20),
        Plan((), ()),
    ),
    "and not those that have started": (
        snapshot([prompt(1, cells=21), prompt(2, cells=1), prompt(3, started=True)], free_cells=20, free_slots=2),
        Plan((), ((3, 10),)),
    ),
    "cells for one of two": (snapshot([prompt(1), prompt(2)], free_cells=39), Plan((), ((1, 10),))),
    "one slot for two": (snapshot([prompt(1), prompt(2)], free_slots=1), Plan((), ((1, 10),))),
    "nobody needs the place of the held": (snapshot([prompt(1)], held=[Held(8, 20)]), Plan((), ((1, 10),))),
    "nobody waits": (snapshot([], free_slots=0, held=[Held(8, 20)]), Plan((), ())),
    "a slot of the one held longest": (
        snapshot([prompt(1)], free_slots=0, held=[Held(8, 20), Held(7, 30)]),
        Plan((), ((1, 10),), (8,)),
    ),
    "cells of as many as it takes": (
        snapshot([prompt(1, cells=60)], free_cells=15, held=[Held(8, 20), Held(7, 30), Held(6, 90)]),
        Plan((), ((1, 10),), (8, 7)),
    ),
    "a slot and cells": (
        snapshot([prompt(1)], free_slots=0, free_cells=0, held=[Held(8, 5), Held(7, 15), Held(6, 90)]),
        Plan((), ((1, 10),), (8, 7)),
    ),
    "a place for each of two": (
        snapshot([prompt(1), prompt(2)], free_slots=1, held=[Held(8, 20), Held(7, 20)]),
        Plan((), ((1, 10), (2, 10)), (8,)),
    ),
    "it would not help": (
        snapshot([prompt(1, cells=66)], free_cells=15, held=[Held(8, 20), Held(7, 30)]),
        Plan((), ()),
    ),
    "it would help the one behind, who overtakes nobody": (
        snapshot([prompt(1, cells=66), prompt(2, cells=1)], free_slots=0, free_cells=15, held=[Held(8, 20)]),
        Plan((), ()),
    ),
    "not for a prompt that has no rows in this tick": (
        snapshot(
            [prompt(2, remaining=99, started=True), prompt(3)], [Stream(1, 0.001)], free_slots=0, held=[Held(8, 9)]
        ),
        Plan((1,), ((2, 8),)),
    ),
    "not for one that has started": (
        snapshot([prompt(1, started=True)], free_slots=0, free_cells=0, held=[Held(8, 20)]),
        Plan((), ((1, 10),)),
    ),
}


@pytest.mark.parametrize(("situation", "expected"), PLANS.values(), ids=PLANS)
def test_plans(situation: Snapshot, expected: Plan) -> None:
    assert plan(situation) == expected


# A simulation: nobody starves.


@dataclasses.dataclass
class Job:
    """A request that comes at its time, and how far it is."""

    arrives_at: float
    prompt_tokens: int
    answer_tokens: int
    priority: Priority = Priority.INTERACTIVE
    target_ttft_s: float = 1.0
    computed: int = 0
    generated: int = 0
    started: bool = False
    first_token_at: float = math.inf
    ended_at: float = math.inf

    @property
    def cells(self) -> int:
        return self.prompt_tokens + self.answer_tokens


class Box:
    """Ticks as the scheduler runs them, each as long as the cost model says."""

    def __init__(self, jobs: Iterator[Job], slots: int = 4, cells: int = 4000) -> None:
        self.now = 0.0
        self.slots, self.cells = slots, cells
        self.longest_gap = 0.0
        self._future = jobs
        self._next = next(jobs)
        self.jobs: list[Job] = []
        self._waiting: dict[int, Job] = {}

    def tick(self) -> None:
        while self._next.arrives_at <= self.now:
            self._waiting[len(self.jobs)] = self._next
            self.jobs.append(self._next)
            self._next = next(self._future)
        waiting = self._waiting
        holders = [job for job in waiting.values() if job.started]
        cached = sum(job.computed for job in holders)
        the_plan = plan(
            Snapshot(
                now=self.now,
                streams=[Stream(id_, 0.1) for id_, job in waiting.items() if job.computed >= job.prompt_tokens],
                prompts=[
                    Prompt(
                        id_,
                        job.prompt_tokens - job.computed,
                        job.arrives_at,
                        job.target_ttft_s,
                        job.priority,
                        job.started,
                        job.cells,
                    )
                    for id_, job in waiting.items()
                    if job.computed < job.prompt_tokens
                ],
                free_slots=self.slots - len(holders),
                free_cells=self.cells - sum(job.cells for job in holders),
                cached=cached,
                batch_tokens=256,
                cost=COST,
            )
        )
        if not the_plan.decode and not the_plan.prefill:
            self.now = self._next.arrives_at
            return
        seconds = COST.seconds(len(the_plan.decode), prefilled(the_plan), cached)
        self.now += seconds
        if the_plan.decode:
            self.longest_gap = max(self.longest_gap, seconds)
        for id_ in the_plan.decode:
            self._token(id_)
        for id_, tokens in the_plan.prefill:
            job = self.jobs[id_]
            job.started = True
            job.computed += tokens
            if job.computed == job.prompt_tokens:
                job.first_token_at = self.now
                self._token(id_)

    def _token(self, id_: int) -> None:
        job = self.jobs[id_]
        job.generated += 1
        if job.generated == job.answer_tokens:
            job.ended_at = self.now
            del self._waiting[id_]


def steady(every_s: float, others: list[Job]) -> Iterator[Job]:
    """Short interactive requests for ever, and the others among them."""
    arrivals = (Job(number * every_s, 60, 12) for number in itertools.count())
    waiting = sorted(others, key=lambda job: job.arrives_at)
    for job in arrivals:
        while waiting and waiting[0].arrives_at <= job.arrives_at:
            yield waiting.pop(0)
        yield job


@pytest.mark.parametrize(
    "every_s",
    [pytest.param(0.35, id="a busy box"), pytest.param(0.18, id="more than the box can do")],
)
@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: Job(5.0, 60, 12, Priority.BACKGROUND), id="background"),
        pytest.param(lambda: Job(5.0, 3000, 12, Priority.BACKGROUND), id="long background"),
        pytest.param(lambda: Job(5.0, 3000, 12, target_ttft_s=60.0), id="long prompt"),
        pytest.param(lambda: Job(5.0, 60, 3900), id="needs nearly all the cells"),
    ],
)
def test_background_work_and_long_prompts_finish_under_a_steady_stream(
    other: Callable[[], Job], every_s: float
) -> None:
    job = other()
    box = Box(steady(every_s, [job]))
    # On an overloaded box, whoever came up to AGING_S later may still be ahead, and takes so much the longer.
    while job.ended_at == math.inf and box.now < 6 * AGING_S:
        box.tick()
    assert job.ended_at < math.inf
    assert box.longest_gap < 0.1, "and the running streams keep their target all the while"


def test_interactive_requests_hardly_notice_background_work() -> None:
    background = [Job(2.0 + number, 300, 5, Priority.BACKGROUND) for number in range(5)]
    box = Box(steady(0.5, background))
    while any(job.ended_at == math.inf for job in background):
        box.tick()
    interactive = [job for job in box.jobs if job.priority is Priority.INTERACTIVE and job.started]
    assert len(interactive) > 10
    assert max(min(job.first_token_at, box.now) - job.arrives_at for job in interactive) < 1.0


# The cost model.


def ticks(true: Cost, noise: float, seed: int, count: int) -> Iterator[tuple[int, int, int, float]]:
    """Ticks of a server with some streams and now and then a prompt."""
    dice = random.Random(seed)
    for _ in range(count):
        decode = dice.randint(0, 8)
        prefill = dice.choice([0, 0, 8, dice.randint(1, 200)]) if decode else dice.randint(1, 200)
        cached = dice.randint(0, 8000)
        yield decode, prefill, cached, true.seconds(decode, prefill, cached) * dice.uniform(1 - noise, 1 + noise)


def worst_error(model: CostModel, true: Cost) -> float:
    grid = itertools.product((0, 1, 4, 8), (0, 8, 32, 128), (0, 2000, 6000))
    return max(abs(model.cost.seconds(*point) / true.seconds(*point) - 1) for point in grid if point[0] + point[1] > 0)


TRUE_COSTS = [
    pytest.param(Cost(0.003, 0.007, 0.007, 0.0002), id="two slow cores"),
    pytest.param(Cost(0.010, 0.0005, 0.0002, 0.00001), id="a device with a price for each call"),
    pytest.param(Cost(0.0, 0.002, 0.001, 0.0), id="no fixed cost"),
]


@pytest.mark.parametrize("true", TRUE_COSTS)
@pytest.mark.parametrize("seed", range(3))
def test_a_linear_cost_is_learned_from_noisy_ticks(true: Cost, seed: int) -> None:
    model = CostModel()
    for tick in ticks(true, 0.05, seed, 200):
        model.observe(*tick)
    assert worst_error(model, true) < 0.08


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_a_box_that_becomes_slower_or_faster_is_followed(factor: float) -> None:
    before = Cost(0.003, 0.007, 0.007, 0.0002)
    after = Cost(*(factor * value for value in dataclasses.astuple(before)))
    model = CostModel()
    for tick in ticks(before, 0.05, 1, 300):
        model.observe(*tick)
    for tick in ticks(after, 0.05, 2, 250):
        model.observe(*tick)
    assert worst_error(model, after) < 0.05


def test_what_a_noisy_box_takes_on_average_is_learned() -> None:
    true = Cost(0.003, 0.007, 0.007, 0.0002)
    model = CostModel()
    dice = random.Random(1)
    ratios = []
    for number, (decode, prefill, cached, seconds) in enumerate(ticks(true, 0.0, 1, 2000)):
        # Another program takes the core for a while in every fourth tick.
        model.observe(decode, prefill, cached, seconds * dice.choice([0.5, 0.5, 0.5, 2.5]))
        if number >= 200:
            ratios.append(model.cost.seconds(4, 16, 2000) / true.seconds(4, 16, 2000))
    assert sum(ratios) / len(ratios) == pytest.approx(1.0, abs=0.15)


def test_before_the_first_tick_a_guess_is_made() -> None:
    assert CostModel().cost == Cost()
    assert Cost().seconds(1, 8, 0) > 0


def test_one_kind_of_tick_teaches_only_that_kind() -> None:
    model = CostModel()
    for _ in range(50):
        model.observe(1, 0, 100, 0.020)
    assert model.cost.seconds(1, 0, 100) == pytest.approx(0.020, rel=0.01)
    assert model.cost.prefill_row_s == pytest.approx(Cost().prefill_row_s), "nothing was learned about it"


observations = st.tuples(
    st.integers(0, 256), st.integers(0, 4096), st.integers(0, 10**6), st.just(0.0) | st.floats(1e-9, 1000.0)
)


@untimed
@given(st.lists(observations.filter(lambda tick: tick[0] + tick[1] > 0), max_size=30))
def test_a_cost_is_never_negative_whatever_was_seen(seen: list[tuple[int, int, int, float]]) -> None:
    model = CostModel()
    for tick in seen:
        model.observe(*tick)
        values = dataclasses.astuple(model.cost)
        assert all(math.isfinite(value) and value >= 0 for value in values)
        assert model.cost.prefill_row_s > 0


@untimed
@given(costs, st.floats(0.0, 2.0), st.integers(0, 64), st.integers(0, 10**5))
def test_the_most_rows_within_a_time_agree_with_the_time_they_take(
    cost: Cost, seconds: float, decode: int, cached: int
) -> None:
    rows = cost.prefill_rows_within(seconds, decode, cached)
    if rows > 0:
        assert cost.seconds(decode, rows, cached) <= seconds * (1 + 1e-9)
    assert rows >= 0
    assert cost.seconds(decode, rows + 1, cached) >= seconds * (1 - 1e-9)


def test_rows_that_cost_nothing_are_not_believed() -> None:
    assert Cost(0.001, 0.001, 0.0, 0.0).prefill_rows_within(1.0, 1, 100) == 0
