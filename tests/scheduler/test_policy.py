"""The plan's promises over random snapshots, and plans by hand."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.core.requests import Priority
from umaserve.scheduler.draft_costs import SIZES
from umaserve.scheduler.policy.burst import BURST_S, GATHER_S, GATHER_SHARE, IN_TIME_S, WIDE_ROWS
from umaserve.scheduler.policy.policy import (
    HEADROOM,
    IDLE_TICK_S,
    MAX_IDLE_TICK_S,
    MAX_SHARE,
    MAX_SLOWDOWN,
    MIN_ROWS,
    MIN_SHARE,
    PREFILL_FLOOR,
    may_start,
    plan,
)
from umaserve.scheduler.policy.snapshot import AGING_S, Held, OtherModelsLoad, Plan, Prompt, Snapshot, Stream
from umaserve.sessions.cost_model import Cost
from umaserve.sessions.speculation import MAX_DRAFT_TOKENS, OF_DRAFT_MODEL

NOW = 1000.0
COST = Cost(0.002, 0.004, 0.003, 0.0005)
FREE = Cost(0.002, 0.0, 1e-7, 0.0)
ROW_OF_10_MS = Cost(0.0, 0.0, 0.01)

# A busy box makes no test fail.


def prompt(id_: int, **fields: object) -> Prompt:
    return Prompt(id_, 10, NOW, 1.0, Priority.INTERACTIVE, False, 20)._replace(**fields)


def snapshot(prompts: list[Prompt], streams: list[Stream] | None = None, **fields: object) -> Snapshot:
    plain = Snapshot(NOW, streams or [], prompts, 8, 10_000, 100, 512, COST)
    return dataclasses.replace(plain, **fields)


costs = st.builds(
    Cost,
    fixed_s=st.floats(0, 0.05),
    decode_row_s=st.floats(0, 0.05),
    prefill_row_s=st.floats(1e-7, 0.05),
    attention_s=st.floats(0, 0.001),
    several_s=st.floats(0, 0.05),
)
ADAPTERS = ((), (("a", 1.0),), (("b", 0.5),))
INTERACTIVE, BACKGROUND = Priority
arrivals = st.floats(NOW - 3 * AGING_S, NOW)
streams_of = st.builds(
    Stream,
    id=st.integers(0, 10**6),
    target_tbt_s=st.floats(0.001, 2.0),
    priority=st.sampled_from(Priority),
    arrived_at=arrivals,
    cells=st.integers(1, 500),
    # Hypothesis would choose these two as well, as it does for all fields of named tuples.
    lacks=st.just(0),
    drafts=st.just(False),
    last_token_at=st.floats(NOW - 1, NOW),
    draft_tokens=st.integers(0, 8),
    acceptance=st.floats(0, 1),
    adapters=st.sampled_from(ADAPTERS),
)
prompts_of = st.builds(
    Prompt,
    id=st.integers(10**6 + 1, 2 * 10**6),
    remaining=st.integers(1, 300),
    arrived_at=arrivals,
    target_ttft_s=st.floats(0.001, 100.0),
    priority=st.sampled_from(Priority),
    started=st.booleans(),
    cells=st.integers(1, 500),
    resumes=st.booleans(),
    adapters=st.sampled_from(ADAPTERS),
    moving_s=st.just(0.0),
)


@st.composite
def snapshots(draw: st.DrawFn, most_adapters: int = len(ADAPTERS)) -> Snapshot:
    among = ADAPTERS[:most_adapters]
    streams = draw(st.lists(streams_of, max_size=12, unique_by=lambda stream: stream.id))
    prompts = draw(st.lists(prompts_of, max_size=12, unique_by=lambda prompt: prompt.id))
    return Snapshot(
        now=NOW,
        streams=[one if one.adapters in among else one._replace(adapters=()) for one in streams],
        prompts=[one if one.adapters in among else one._replace(adapters=()) for one in prompts],
        free_slots=draw(st.integers(0, 6)),
        free_cells=draw(st.integers(0, 1500)),
        cached=draw(st.integers(0, 20_000)),
        # A configuration with fewer is refused.
        batch_tokens=draw(st.integers(12, 20) | st.integers(12, 600)),
        cost=draw(costs),
        held=[Held(-1 - id_, cells) for id_, cells in enumerate(draw(st.lists(st.integers(1, 500), max_size=5)))],
        last_adapters=draw(st.sampled_from(ADAPTERS)),
    )


plain_snapshots = snapshots(most_adapters=1)
"""Without adapters: every tick is for all."""


@st.composite
def growing_snapshots(draw: st.DrawFn) -> Snapshot:
    """Without adapters; some of the streams have outgrown what they were promised."""
    snapshot = draw(plain_snapshots)
    streams = [one._replace(lacks=draw(st.sampled_from([0, 1, 1, 9]))) for one in snapshot.streams]
    return dataclasses.replace(snapshot, streams=streams, free_cells=draw(st.integers(0, 12) | st.integers(0, 1500)))


@st.composite
def moving_snapshots(draw: st.DrawFn) -> Snapshot:
    """Without adapters; prompts that start have a prefix to load."""
    snapshot = draw(plain_snapshots)
    times = st.just(0.0) | st.floats(0, 0.1)
    prompts = [one if one.started else one._replace(moving_s=draw(times)) for one in snapshot.prompts]
    return dataclasses.replace(snapshot, prompts=prompts, moving_s=draw(times))


@st.composite
def snapshots_beside(draw: st.DrawFn) -> Snapshot:
    """Without adapters; other models on the same thread have streams, prompts, or both."""
    streaming = draw(st.booleans())
    elsewhere = OtherModelsLoad(
        decode_s=draw(st.floats(0, 0.3)) if streaming else 0.0,
        target_s=draw(st.floats(0.001, 2.0)) if streaming else math.inf,
        prefilling=draw(st.booleans()),
        prefilled_at=draw(st.sampled_from([1.0, 2.0, math.inf])),
        planned_s=draw(st.floats(0, 0.5)),
    )
    prefilled_at = draw(st.sampled_from([-math.inf, 1.0, 2.0]))
    return dataclasses.replace(draw(plain_snapshots), elsewhere=elsewhere, prefilled_at=prefilled_at)


def has_turn(snapshot: Snapshot) -> bool:
    """Whether no other model's prompts go first."""
    elsewhere = snapshot.elsewhere
    return not elsewhere.prefilling and snapshot.prefilled_at <= elsewhere.prefilled_at


def by_id(snapshot: Snapshot) -> dict[int, Prompt]:
    return {prompt.id: prompt for prompt in snapshot.prompts}


def prefilled(the_plan: Plan) -> int:
    return sum(tokens for _, tokens in the_plan.prefill)


def rows_of(the_plan: Plan) -> int:
    """Decode rows, the guesses' among them."""
    return len(the_plan.decode) + sum(draft_tokens for _, draft_tokens in the_plan.decode)


def decoded(snapshot: Snapshot, the_plan: Plan) -> list[Stream]:
    ids = {id_ for id_, _ in the_plan.decode}
    return [stream for stream in snapshot.streams if stream.id in ids]


def target(streams: Sequence[Stream]) -> float:
    """The tightest of the streams that are not in the background, or of all where there are none."""
    urgent = [stream for stream in streams if not in_background(stream)] or streams
    return min(stream.target_tbt_s for stream in urgent)


def in_background(one: Stream | Prompt) -> bool:
    return one.priority is BACKGROUND and one.arrived_at + AGING_S > NOW


def planned_first(snapshot: Snapshot) -> list[int]:
    """The order of all prompts, seen by planning one without any limit."""
    unlimited = dataclasses.replace(
        snapshot,
        streams=[],
        prompts=[one._replace(adapters=()) for one in snapshot.prompts],
        free_slots=10**6,
        free_cells=10**9,
        batch_tokens=10**6,
        cost=Cost(0, 0, 1e-9, 0),
        cached=0,
    )
    return [id_ for id_, _ in plan(unlimited).prefill]


# Over random snapshots: the rules by their numbers, and what holds for all.


@given(plain_snapshots)
def test_rule_1_every_stream_gets_its_token_save_for_background_ones_without_time(snapshot: Snapshot) -> None:
    the_plan = plan(snapshot)
    staying = [stream for stream in snapshot.streams if stream.id not in the_plan.preempt]
    left_out = [stream for stream in staying if stream not in decoded(snapshot, the_plan)]
    if not left_out:
        return
    taken = [one for one in decoded(snapshot, the_plan) if in_background(one)]
    preempted = [stream for stream in snapshot.streams if stream.id in the_plan.preempt]
    assert all(in_background(stream) for stream in left_out)
    assert taken or preempted, "at least one has its turn, unless it has just lost its place"
    assert max((s.last_token_at for s in taken), default=0) <= min(s.last_token_at for s in left_out), "in turns"
    planned = len(the_plan.decode) + len(preempted)
    one_more = snapshot.cost.seconds(planned + 1, 0, snapshot.cached)
    assert one_more > HEADROOM * target(snapshot.streams) * (1 - 1e-9), "there was no time for one more"


@given(snapshots())
def test_no_batch_and_no_prompt_is_overfilled(snapshot: Snapshot) -> None:
    the_plan = plan(snapshot)
    assert rows_of(the_plan) + prefilled(the_plan) <= snapshot.batch_tokens
    for planned in (the_plan.decode, the_plan.prefill):
        assert len({id_ for id_, _ in planned}) == len(planned)
    for id_, tokens in the_plan.prefill:
        assert 1 <= tokens <= by_id(snapshot)[id_].remaining


@given(plain_snapshots | moving_snapshots())
def test_rules_2_to_4_more_than_the_floor_keeps_the_time(snapshot: Snapshot) -> None:
    the_plan = plan(snapshot)
    moving_s = [by_id(snapshot)[id_].moving_s for id_, _ in the_plan.prefill]
    if prefilled(the_plan) <= (MIN_ROWS if any(moving_s) else PREFILL_FLOOR):
        return
    cost, cached = snapshot.cost, snapshot.cached
    # Those that gave way for the prompts were counted when the time was shared out.
    n_streams = len(the_plan.decode) + sum(stream.id in the_plan.preempt for stream in snapshot.streams)
    # Without streams, the nearest number of whole tiles, but one at least, and less than one that would remain.
    if not n_streams and prefilled(the_plan) < 2 * WIDE_ROWS:
        return
    rows = prefilled(the_plan) if n_streams else max(0, prefilled(the_plan) - 3 * WIDE_ROWS // 2)
    seconds = cost.seconds(n_streams, rows, cached)
    seconds += sum(moving_s) + snapshot.moving_s if n_streams else 0.0
    decode_s = cost.seconds(n_streams, 0, cached)
    if not n_streams:
        allowed = MAX_IDLE_TICK_S
    elif decode_s <= target(snapshot.streams):
        allowed = HEADROOM * target(snapshot.streams)
        if any(one.arrived_at + one.target_ttft_s < snapshot.now for one in snapshot.prompts):
            allowed = max(allowed, decode_s / (1 - MIN_SHARE))
    else:
        allowed = decode_s / (1 - MAX_SHARE)
    assert seconds <= allowed * (1 + 1e-9)


@given(plain_snapshots)
def test_rule_2_prefill_takes_the_floor_and_all_of_the_time_that_is_left(snapshot: Snapshot) -> None:
    streams = [stream._replace(priority=INTERACTIVE) for stream in snapshot.streams]
    snapshot = dataclasses.replace(snapshot, streams=streams)
    the_plan = plan(snapshot)
    n, rows = len(streams), prefilled(the_plan)
    wanted = sum(prompt.remaining for prompt in snapshot.prompts if prompt.started)
    wanted -= sum(by_id(snapshot)[id_].remaining for id_ in the_plan.preempt if id_ in by_id(snapshot))
    if not streams and len(snapshot.prompts) == 1 and wanted >= WIDE_ROWS:
        wanted -= 1
    assert rows >= min(PREFILL_FLOOR, snapshot.batch_tokens - n, wanted)
    decode_s = snapshot.cost.seconds(n, 0, snapshot.cached)
    if PREFILL_FLOOR <= rows < min(snapshot.batch_tokens - n, wanted):
        one_more = snapshot.cost.seconds(n, rows + 1 + (0 if streams else WIDE_ROWS // 2), snapshot.cached)
        least = IDLE_TICK_S if not streams else HEADROOM * target(streams)
        assert one_more >= max(least, 0 if not streams or decode_s <= target(streams) else decode_s) * (1 - 1e-9)


@pytest.mark.parametrize(("afforded", "rows"), [(1, 64), (40, 64), (90, 64), (100, 128), (300, 320)])
def test_rule_4_without_streams_a_tick_has_whole_tiles_and_one_whatever_it_takes(afforded: int, rows: int):
    cost = Cost(fixed_s=0.0, decode_row_s=0.0, prefill_row_s=IDLE_TICK_S / (afforded + 0.5), attention_s=0.0)
    waiting = [prompt(id_, remaining=1000, started=True, priority=BACKGROUND) for id_ in (1, 2)]
    assert prefilled(plan(snapshot(waiting, cached=0, cost=cost))) == rows


@pytest.mark.parametrize(("remaining", "rows"), [(64, 64), (65, 65), (127, 127), (128, 64), (1000, 64)])
def test_rule_4_the_rest_of_a_prompt_is_not_left_for_a_tick_without_a_tile(remaining: int, rows: int):
    cost = Cost(fixed_s=0.0, decode_row_s=0.0, prefill_row_s=IDLE_TICK_S / 64.5, attention_s=0.0)
    waiting = [
        prompt(1, remaining=remaining, started=True, priority=BACKGROUND),
        prompt(2, remaining=1000, arrived_at=NOW + 1, priority=BACKGROUND),
    ]
    done = plan(snapshot(waiting, cached=0, cost=cost))
    assert done.prefill[0] == (1, rows)


@pytest.mark.parametrize(("remaining", "rows"), [(1000, 512), (700, 320), (500, 256), (200, 128), (10_000, 512)])
def test_rule_4_a_tick_takes_a_share_of_what_the_prompts_still_take(remaining: int, rows: int):
    cost = Cost(fixed_s=0.0, decode_row_s=0.0, prefill_row_s=IDLE_TICK_S / 128.5, attention_s=0.0)
    alone = prompt(1, remaining=remaining, started=True)
    assert prefilled(plan(snapshot([alone], cached=0, cost=cost, batch_tokens=2048))) == rows
    several = [alone, prompt(2, remaining=20_000)]
    assert prefilled(plan(snapshot(several, cached=0, cost=cost, batch_tokens=2048))) == 512


def test_the_rest_of_a_prompt_is_left_where_the_batch_is_full():
    fast = Cost(fixed_s=0.0, decode_row_s=0.0, prefill_row_s=1e-6, attention_s=0.0)
    waiting = [prompt(id_, remaining=70, started=True) for id_ in (1, 2)]
    assert plan(snapshot(waiting, cost=fast, batch_tokens=134)).prefill == ((1, 70), (2, 64))


def test_in_a_decode_of_its_own_a_prompt_attends_to_its_own_tokens_only():
    cost = Cost(fixed_s=0.0, decode_row_s=0.0, prefill_row_s=IDLE_TICK_S / 128.5, attention_s=IDLE_TICK_S / 128.5)
    new = prompt(1, remaining=1000, started=True, priority=BACKGROUND)
    long = new._replace(computed=1000)
    for first, apart, rows in ((new, True, 128), (long, True, 64), (new, False, 64)):
        assert prefilled(plan(snapshot([first], cached=1000, cost=cost, prompts_apart=apart))) == rows


@given(plain_snapshots, st.floats(0.001, 2.0))
def test_rule_3_where_the_target_is_lost_prefill_has_its_share(snapshot: Snapshot, decode_s: float) -> None:
    cost = Cost(fixed_s=decode_s, decode_row_s=0.0, prefill_row_s=1e-3, attention_s=0.0)
    lost = dataclasses.replace(
        snapshot,
        streams=[Stream(1, 0.9 * decode_s)],
        prompts=[prompt(2, remaining=10**6, started=True), *snapshot.prompts],
        cost=cost,
        batch_tokens=10**6,
    )
    rows = prefilled(plan(lost))
    total = cost.seconds(1, rows, 0)
    if rows > PREFILL_FLOOR:
        assert total <= decode_s / (1 - MAX_SHARE) * (1 + 1e-9)
    # One row less than a share that is no whole number of them.
    assert total + cost.prefill_row_s >= decode_s / (1 - MIN_SHARE) * (1 - 1e-9)


@given(snapshots())
def test_rule_5_whoever_waited_too_long_is_overtaken_by_no_newcomer(snapshot: Snapshot) -> None:
    order = [by_id(snapshot)[id_] for id_ in planned_first(snapshot)]
    for ahead, behind in itertools.combinations(order, 2):
        aged_before_the_other_came = behind.arrived_at + AGING_S < ahead.arrived_at
        assert not aged_before_the_other_came or (ahead.resumes and not behind.resumes), "who resumes is no newcomer"
        assert not (in_background(ahead) and not in_background(behind))
        if behind.resumes and not ahead.resumes:
            assert in_background(behind)
            assert not in_background(ahead)


@given(snapshots(), st.floats(0.001, 100.0))
def test_rule_5_without_targets_of_their_own_the_order_is_that_of_arrival(snapshot: Snapshot, target: float) -> None:
    plain = [
        # Microseconds: closer arrivals have the same deadline, by rounding.
        one._replace(arrived_at=round(one.arrived_at, 6), target_ttft_s=target, own_target=False, resumes=False)
        for one in snapshot.prompts
    ]
    order = planned_first(dataclasses.replace(snapshot, prompts=plain))
    for background in (False, True):
        line = [one for one in plain if in_background(one) == background]
        assert [id_ for id_ in order if id_ in {one.id for one in line}] == [
            one.id for one in sorted(line, key=lambda one: (one.arrived_at, one.id))
        ]


@given(snapshots())
def test_rule_6_nobody_is_overtaken_but_by_those_who_have_started(snapshot: Snapshot) -> None:
    the_plan = plan(snapshot)
    prefill = dict(the_plan.prefill)
    order = [by_id(snapshot)[id_] for id_ in planned_first(snapshot) if id_ not in the_plan.preempt]
    assert list(prefill) == [prompt.id for prompt in order if prompt.id in prefill]
    order = [one for one in order if one.adapters == the_plan.adapters]
    for ahead, behind in itertools.combinations(order, 2):
        # All but the last get all that they want.
        if behind.id in prefill and prefill.get(ahead.id) != ahead.remaining:
            assert ahead.id not in prefill
            assert not ahead.started
            assert behind.started


def started_by(snapshot: Snapshot, the_plan: Plan) -> list[Prompt]:
    planned = [by_id(snapshot)[id_] for id_, _ in the_plan.prefill]
    return [prompt for prompt in planned if not prompt.started]


def fits(snapshot: Snapshot, new: list[Prompt], preempted: Sequence[int]) -> bool:
    """Whether there is room for the new ones without the evicted."""
    running = [*snapshot.held, *snapshot.streams, *(one for one in snapshot.prompts if one.started)]
    cells = snapshot.free_cells + sum(one.cells for one in running if one.id in preempted)
    return len(new) <= snapshot.free_slots + len(preempted) and sum(prompt.cells for prompt in new) <= cells


@given(snapshots())
def test_rule_6_slots_and_cells_are_never_promised_twice(snapshot: Snapshot) -> None:
    the_plan = plan(snapshot)
    assert fits(snapshot, started_by(snapshot, the_plan), the_plan.preempt)
    assert not set(the_plan.preempt) & {id_ for id_, _ in (*the_plan.decode, *the_plan.prefill)}


@given(snapshots())
def test_rule_7_the_held_longest_give_way_and_then_the_young_background_that_came_last(snapshot: Snapshot) -> None:
    the_plan = plan(snapshot)
    new = started_by(snapshot, the_plan)
    started: list[Stream | Prompt] = [*snapshot.streams, *(one for one in snapshot.prompts if one.started)]
    young = sorted((one for one in started if in_background(one)), key=lambda one: (-one.arrived_at, -one.id))
    held = [one.id for one in snapshot.held]
    evicted_held = [id_ for id_ in the_plan.preempt if id_ in held]
    evicted_young = [id_ for id_ in the_plan.preempt if id_ not in held]
    assert evicted_held == held[: len(evicted_held)]
    assert evicted_young == [one.id for one in young][: len(evicted_young)]
    if evicted_young:
        assert evicted_held == held, "only when no held one is left"
        assert any(prompt.priority is INTERACTIVE for prompt in new)
    if the_plan.preempt and len({one.adapters for one in snapshot.prompts}) == 1:
        assert not fits(snapshot, new, the_plan.preempt[:-1]), "no more of them than are needed"


@given(growing_snapshots())
def test_rule_7_a_stream_that_grows_takes_the_places_before_its_own(snapshot: Snapshot) -> None:
    the_plan = plan(snapshot)
    satisfied = [one._replace(lacks=0) for one in snapshot.streams]
    wanted = {id_ for id_, _ in plan(dataclasses.replace(snapshot, streams=satisfied, prompts=[])).decode}
    running: list[Stream | Prompt] = [*snapshot.streams, *(one for one in snapshot.prompts if one.started)]
    running.sort(key=lambda one: (in_background(one) is False, -one.arrived_at, -one.id))
    order = [*snapshot.held, *running]
    preempted = list(the_plan.preempt)
    assert preempted == [one.id for one in order[: len(preempted)]]

    def free_after(count: int) -> int:
        """Cells that nobody is promised where the first so many have lost their place."""
        gone = {one.id for one in order[:count]}
        lacking = sum(one.lacks for one in snapshot.streams if one.id in wanted - gone)
        return snapshot.free_cells + sum(one.cells for one in order[:count]) - lacking

    decode = {id_ for id_, _ in the_plan.decode}
    waits = {one.id: one.lacks for one in snapshot.streams if one.id in wanted - decode - {*preempted}}
    assert free_after(len(preempted)) + sum(waits.values()) >= sum(one.cells for one in started_by(snapshot, the_plan))
    assert 0 not in waits.values(), "who has cells for its next token makes it"
    # A lone stream is not preempted for its own growth, but an interactive prompt may take its place.
    if free_after(0) < 0 and len(order) > 1:
        assert not started_by(snapshot, the_plan)
        assert free_after(len(preempted) - 1) < 0 or not preempted, "no more of them than are needed"
        assert order[-1].id not in preempted, "somebody always gets to the end"
        assert not waits or len(preempted) == len(order) - 1


def size_of(rows: int) -> int:
    return next(size for size in SIZES if rows <= size)


@given(snapshots(), st.floats(1e-4, 0.1), st.dictionaries(st.sampled_from(SIZES), st.floats(1e-4, 2)))
def test_rule_8_guesses_are_verified_only_when_no_prompt_is_computed_and_in_time(
    snapshot: Snapshot, without_s: float, known: dict[int, float]
) -> None:
    n_streams = len(snapshot.streams)
    sizes = {size: seconds for size, seconds in known.items() if size > n_streams}
    the_plan = plan(dataclasses.replace(snapshot, draft_seconds={n_streams: without_s} | sizes))
    offered = {stream.id: stream for stream in snapshot.streams}
    n_draft_tokens = rows_of(the_plan) - len(the_plan.decode)
    assert all(draft_tokens <= offered[id_].draft_tokens for id_, draft_tokens in the_plan.decode)
    if not n_draft_tokens:
        return
    assert not the_plan.prefill
    assert len(the_plan.decode) == n_streams, "what is known is of as many streams"
    right = {id_: [offered[id_].acceptance ** (1 + n) for n in range(count)] for id_, count in the_plan.decode}
    tokens = [1 + sum(each) for each in right.values()]
    seconds = sizes.get(size_of(rows_of(the_plan)))
    tried = seconds is None
    if seconds is None:
        assert min(likely for each in right.values() for likely in each) >= 0.5
        seconds = without_s + n_draft_tokens * snapshot.cost.prefill_row_s
    assert seconds <= HEADROOM * target(decoded(snapshot, the_plan)) * (1 + 1e-9)
    assert seconds <= (1 + MAX_SLOWDOWN) * without_s * min(tokens) * (1 + 1e-9), "no stream waits much longer"
    paid = sum(tokens) * without_s >= n_streams * seconds * (1 - 1e-9)
    assert paid or (tried and n_streams == 1), "more tokens a second"


@given(snapshots())
def test_rule_9_a_tick_is_for_one_set_of_adapters_and_each_has_its_turn(snapshot: Snapshot) -> None:
    alive = {one.id: one.adapters for one in (*snapshot.streams, *snapshot.prompts)}
    seen = []
    for _ in {*alive.values()}:
        the_plan = plan(snapshot)
        assert {alive[id_] for id_, _ in (*the_plan.decode, *the_plan.prefill)} <= {the_plan.adapters}
        seen.append(the_plan.adapters)
        snapshot = dataclasses.replace(snapshot, last_adapters=the_plan.adapters)
    streaming = {stream.adapters for stream in snapshot.streams if not in_background(stream)}
    assert streaming <= set(seen)


@given(snapshots(), costs)
def test_rule_9_beside_streams_a_round_of_all_adapters_keeps_the_time(snapshot: Snapshot, cost: Cost) -> None:
    # So fast that most targets can be kept.
    cost = dataclasses.replace(cost.times(0.01), fixed_s=1e-4)
    streams = [one._replace(priority=INTERACTIVE) for one in snapshot.streams]
    waiting = [one._replace(target_ttft_s=math.inf, arrived_at=NOW, started=True) for one in snapshot.prompts]
    snapshot = dataclasses.replace(snapshot, cost=cost, streams=streams, prompts=waiting, free_cells=10**6)
    decode_s = sum(
        cost.seconds(sum(one.adapters == adapters for one in streams), 0, snapshot.cached)
        for adapters in {one.adapters for one in streams}
    )
    if not streams or decode_s > target(streams):
        return
    round_s = 0.0
    for _ in {one.adapters for one in (*streams, *waiting)}:
        the_plan = plan(snapshot)
        # So many may be more than there is time for.
        rows = prefilled(the_plan) if prefilled(the_plan) > MIN_ROWS else 0
        if the_plan.decode or rows:
            round_s += cost.seconds(len(the_plan.decode), rows, snapshot.cached)
        snapshot = dataclasses.replace(snapshot, last_adapters=the_plan.adapters)
    assert round_s <= max(decode_s, HEADROOM * target(streams)) * (1 + 1e-9)


def test_rule_9_a_prompt_with_other_adapters_keeps_the_time_of_the_streams():
    streams = [Stream(id_, 0.08) for id_ in range(8)]
    waiting = [prompt(9, remaining=1000, started=True, adapters=ADAPTERS[1])]
    the_plan = plan(snapshot(waiting, streams))
    assert the_plan.adapters == ADAPTERS[1]
    decode_s = COST.seconds(8, 0, 100)
    assert prefilled(the_plan) > MIN_ROWS // 4
    assert decode_s + COST.seconds(0, prefilled(the_plan), 100) <= HEADROOM * 0.08


def test_rule_9_background_streams_give_way_to_those_with_other_adapters():
    streams = [Stream(id_, 10.0, BACKGROUND, NOW) for id_ in range(8)]
    streams.append(Stream(9, 0.04, adapters=ADAPTERS[1]))
    the_plan = plan(snapshot([], streams, last_adapters=ADAPTERS[1]))
    assert the_plan.adapters == ()
    assert len(the_plan.decode) == 4, "as many as fit into half of the time"


@given(snapshots_beside())
def test_rule_11_more_than_the_floor_keeps_the_time_of_all_models(snapshot: Snapshot) -> None:
    the_plan = plan(snapshot)
    cost, cached, elsewhere = snapshot.cost, snapshot.cached, snapshot.elsewhere
    n_streams = len(the_plan.decode) + sum(stream.id in the_plan.preempt for stream in snapshot.streams)
    if not (n_streams or elsewhere.streaming) or prefilled(the_plan) <= MIN_ROWS:
        return
    decode_s = cost.seconds(n_streams, 0, cached) if n_streams else 0.0
    all_s = decode_s + elsewhere.decode_s
    shortest = min(elsewhere.target_s, target(snapshot.streams) if snapshot.streams else IDLE_TICK_S)
    prefill_s = cost.seconds(n_streams, prefilled(the_plan), cached) - decode_s
    allowed = HEADROOM * shortest
    if all_s > shortest:
        allowed = all_s / (1 - MAX_SHARE)
    elif any(one.arrived_at + one.target_ttft_s < snapshot.now for one in snapshot.prompts):
        allowed = max(allowed, all_s / (1 - MIN_SHARE))
    assert has_turn(snapshot)
    assert all_s + prefill_s <= allowed * (1 + 1e-9)
    if all_s <= shortest:
        assert decode_s + prefill_s + elsewhere.planned_s <= allowed * (1 + 1e-9), "beside the ticks that are planned"


@given(snapshots_beside(), st.booleans())
def test_rule_11_whatever_runs_elsewhere_nothing_stops(snapshot: Snapshot, prompts_apart: bool) -> None:
    snapshot = dataclasses.replace(snapshot, prompts_apart=prompts_apart)
    the_plan, alone = plan(snapshot), plan(dataclasses.replace(snapshot, elsewhere=OtherModelsLoad()))
    assert len(the_plan.decode) >= min(len(alone.decode), 1)
    interactive = {stream.id for stream in snapshot.streams if not in_background(stream)}
    assert {id_ for id_, _ in alone.decode} & interactive <= {id_ for id_, _ in the_plan.decode}
    if has_turn(snapshot) or not (snapshot.streams or snapshot.elsewhere.streaming):
        assert prefilled(the_plan) >= min(prefilled(alone), PREFILL_FLOOR)


@given(snapshots_beside())
def test_rule_11_beside_streams_prompts_wait_for_their_turn(snapshot: Snapshot) -> None:
    the_plan = plan(snapshot)
    if has_turn(snapshot) or not (the_plan.decode or snapshot.elsewhere.streaming):
        return
    assert not the_plan.prefill
    waits = any(one.started and one.remaining > 1 for one in snapshot.prompts)
    assert the_plan.throttled or not waits or len(the_plan.decode) == snapshot.batch_tokens


@given(snapshots_beside(), st.floats(1e-4, 0.1), st.floats(1.0, 2.0))
def test_rule_11_guesses_take_nobodys_time(snapshot: Snapshot, without_s: float, factor: float) -> None:
    seconds = {len(snapshot.streams): without_s} | dict.fromkeys(SIZES[-3:], factor * without_s)
    the_plan, elsewhere = plan(dataclasses.replace(snapshot, prompts=[], draft_seconds=seconds)), snapshot.elsewhere
    if rows_of(the_plan) == len(the_plan.decode):
        return
    assert not elsewhere.waits, "prompts of others want the time"
    tick_s = seconds.get(size_of(rows_of(the_plan)), without_s)
    shortest = min(elsewhere.target_s, target(snapshot.streams))
    assert tick_s + max(elsewhere.decode_s, elsewhere.planned_s) <= HEADROOM * shortest * (1 + 1e-9)
    assert not elsewhere.streaming or tick_s <= (1 + MAX_SLOWDOWN) * without_s * (1 + 1e-9)


@given(snapshots_beside())
def test_rule_11_where_the_target_is_lost_elsewhere_prefill_has_its_share(snapshot: Snapshot) -> None:
    decode_s = snapshot.elsewhere.decode_s
    elsewhere = OtherModelsLoad(decode_s, 0.9 * decode_s, planned_s=snapshot.elsewhere.planned_s)
    waiting = [prompt(1, remaining=10**6, started=True)]
    cost = Cost(0.0, 0.0, 1e-4, 0.0)
    lost = dataclasses.replace(
        snapshot, streams=[], prompts=waiting, held=[], cost=cost, batch_tokens=10**6, elsewhere=elsewhere
    )
    seconds = (prefilled(plan(lost)) + 1) * cost.prefill_row_s
    least = decode_s / (1 - MIN_SHARE) - decode_s
    assert seconds >= least * (1 - 1e-9)


@given(snapshots())
def test_the_plan_depends_on_nothing_but_the_snapshot(snapshot: Snapshot) -> None:
    assert plan(snapshot) == plan(snapshot)
    alike = dataclasses.replace(snapshot, prompts=[one._replace(adapters=()) for one in snapshot.prompts])
    alike = dataclasses.replace(alike, streams=[])
    assert plan(alike) == plan(dataclasses.replace(alike, prompts=list(reversed(alike.prompts))))


@given(growing_snapshots() | snapshots(), st.integers(0, 1))
def test_prompts_that_can_not_start_change_nothing(snapshot: Snapshot, free_slots: int) -> None:
    aged = [one._replace(arrived_at=NOW - AGING_S) for one in snapshot.streams]
    sets = {one.adapters for one in aged}
    waiting = [one._replace(started=False) for one in snapshot.prompts if one.adapters in sets]
    full = dataclasses.replace(snapshot, streams=aged, prompts=waiting, held=[], free_slots=free_slots)
    alone = dataclasses.replace(full, prompts=[])
    if not may_start(full.streams, full.held, full.free_slots, NOW):
        assert plan(full) == plan(alone)
    else:
        assert free_slots
    for streams, held in ((snapshot.streams, []), (aged, snapshot.held)):
        unsure = dataclasses.replace(full, streams=streams, held=held, prompts=waiting)
        if set(dict(plan(unsure).prefill)) & {one.id for one in waiting}:
            assert may_start(streams, held, free_slots, NOW)


# By hand.

LATE = NOW - AGING_S

ORDERS = {
    "the earlier deadline": [prompt(2, target_ttft_s=0.5), prompt(1, target_ttft_s=0.6)],
    "the earlier arrival": [prompt(2, arrived_at=NOW - 1), prompt(1)],
    "a late arrival with a tight target": [
        prompt(1, target_ttft_s=0.1),
        prompt(2, arrived_at=NOW - 1, target_ttft_s=2),
    ],
    "who came first, however late": [
        prompt(3, arrived_at=NOW - 9),
        prompt(2, arrived_at=NOW - 5),
        prompt(1, arrived_at=NOW - 0.5),
    ],
    "who can still keep a target of its own": [
        prompt(1, own_target=True),
        prompt(2, arrived_at=NOW - 5, own_target=True),
    ],
    "the older of equals": [prompt(1), prompt(2)],
    "interactive": [prompt(2, target_ttft_s=20), prompt(1, arrived_at=NOW - 9, priority=BACKGROUND, target_ttft_s=1)],
    "a stream that lost its place": [prompt(2, arrived_at=NOW - 9, resumes=True), prompt(1, target_ttft_s=0.1)],
    "but not one in the background": [prompt(1), prompt(2, priority=BACKGROUND, resumes=True)],
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


def did(decode: Sequence[int], prefill: tuple[tuple[int, int], ...] = (), preempt: tuple[int, ...] = ()) -> Plan:
    return Plan(tuple((id_, 0) for id_ in decode), prefill, preempt)


PLANS = {
    "nothing to do": (snapshot([]), did((), ())),
    "streams only": (snapshot([], [Stream(1, 0.1), Stream(2, 0.1)]), did((1, 2))),
    "more streams than rows": (snapshot([prompt(3)], [Stream(1, 0.1), Stream(2, 0.1)], batch_tokens=1), did((1,))),
    # 0.3 s, less 2 ms, at 3.05 ms a row: 97 rows, nearer to two tiles than to one
    "a long prompt alone": (snapshot([prompt(1, remaining=999)]), did((), ((1, 384),))),
    # 0.95 * 0.1 s, less 0.002 + 2 * 4.05 ms, at 3.05 ms a row
    "beside two streams": (
        snapshot([prompt(3, remaining=999)], [Stream(1, 0.1), Stream(2, 0.5)]),
        did((1, 2), ((3, 27),)),
    ),
    "a target that can't be kept": (snapshot([prompt(2, remaining=999)], [Stream(1, 0.001)]), did((1,), ((2, 2),))),
    # 6.05 ms of decoding, which the target just allows and its part that the plan uses does not
    "the floor": (snapshot([prompt(2)], [Stream(1, 0.0061)]), did((1,), ((2, 1),))),
    "the floor, less than it": (snapshot([prompt(2, remaining=1)], [Stream(1, 0.0061)]), did((1,), ((2, 1),))),
    "the floor, shared": (
        snapshot([prompt(2, remaining=1), prompt(3, remaining=9)], [Stream(1, 0.0061)]),
        did((1,), ((2, 1),)),
    ),
    # 0.09 s of decoding leave 5 ms, and as the least share of a tick 15.9 ms, at 1 ms a row
    "a target that is barely kept": (
        snapshot([prompt(2, remaining=99)], [Stream(1, 0.1)], cost=Cost(0.09, 0, 1e-3, 0)),
        did((1,), ((2, 5),)),
    ),
    "a target that is barely kept, and a prompt that is late": (
        snapshot([prompt(2, remaining=99, arrived_at=NOW - 5)], [Stream(1, 0.1)], cost=Cost(0.09, 0, 1e-3, 0)),
        did((1,), ((2, 15),)),
    ),
    # 0.2 s of decoding leave 35.3 ms as the least share of a tick, at 0.9 ms a row
    "a lost target where decoding takes as long as an idle tick": (
        snapshot([prompt(2, remaining=999, target_ttft_s=1e9)], [Stream(1, 0.1)], cost=Cost(0.2, 0, 0.9e-3, 0)),
        did((1,), ((2, 39),)),
    ),
    "background streams take turns": (
        snapshot([], [Stream(1, 0.01), *(Stream(n, 1.0, BACKGROUND, NOW - 1, last_token_at=-n) for n in (2, 3, 4))]),
        did((1, 4)),
    ),
    "the background that came last gives way": (
        snapshot(
            [prompt(1)],
            [Stream(2, 0.1, BACKGROUND, NOW - 2, 20), Stream(3, 0.1, BACKGROUND, NOW - 1, 20)],
            free_slots=0,
        ),
        did((2,), ((1, 10),), (3,)),
    ),
    "but not for its like": (
        snapshot([prompt(1, priority=BACKGROUND)], [Stream(2, 0.1, BACKGROUND, NOW - 2, 20)], free_slots=0),
        did((2,)),
    ),
    "nor if it has aged": (
        snapshot([prompt(1)], [Stream(2, 0.1, BACKGROUND, LATE, 20)], free_slots=0),
        did((2,)),
    ),
    "other adapters don't help a small one past a big one": (
        snapshot([prompt(1, cells=21, adapters=ADAPTERS[1]), prompt(2, cells=1)], free_cells=20),
        did(()),
    ),
    "nor do they take the last slot from who is ahead": (
        snapshot([prompt(1, adapters=ADAPTERS[1]), prompt(2)], free_slots=1, last_adapters=ADAPTERS[1]),
        did((), ((1, 10),)),
    ),
    "no slot": (snapshot([prompt(1)], free_slots=0), did((), ())),
    "no cells": (snapshot([prompt(1, cells=21)], free_cells=20), did((), ())),
    "just the cells": (snapshot([prompt(1, cells=20)], free_cells=20), did((), ((1, 10),))),
    "a big one holds back the small one behind it": (
        snapshot([prompt(1, cells=21), prompt(2, cells=1)], free_cells=20),
        did((), ()),
    ),
    "and not those that have started": (
        snapshot([prompt(1, cells=21), prompt(2, cells=1), prompt(3, started=True)], free_cells=20, free_slots=2),
        did((), ((3, 10),)),
    ),
    # 0.95 * 0.1 s, less 20 ms and 2 ms, at 3.05 ms a row
    "beside streams elsewhere": (
        snapshot([prompt(1, remaining=999)], elsewhere=OtherModelsLoad(0.02, 0.1)),
        did((), ((1, 23),)),
    ),
    "not while another model's prompts are computed": (
        snapshot([prompt(1, remaining=999)], elsewhere=OtherModelsLoad(0.02, 0.1, prefilling=True)),
        did((), ()),
    ),
    "nor before those that have waited longer": (
        snapshot(
            [prompt(3, remaining=999)], [Stream(1, 0.2)], elsewhere=OtherModelsLoad(prefilled_at=4.0), prefilled_at=5.0
        ),
        did((1,)),
    ),
    "but before others": (
        snapshot([prompt(1, remaining=999)], elsewhere=OtherModelsLoad(0.02, 0.1, prefilled_at=5.0), prefilled_at=4.0),
        did((), ((1, 23),)),
    ),
    "in what a tick of another model leaves": (
        snapshot([prompt(1, remaining=999)], elsewhere=OtherModelsLoad(0.02, 0.1, planned_s=0.08)),
        did((), ((1, 4),)),
    ),
    "the floor, where it leaves nothing": (
        snapshot([prompt(1, remaining=999)], elsewhere=OtherModelsLoad(0.02, 0.1, planned_s=0.3)),
        did((), ((1, 1),)),
    ),
    "enough for its decode where others elsewhere leave hardly any time": (
        snapshot([prompt(1, remaining=999)], elsewhere=OtherModelsLoad(0.09, 0.1)),
        did((), ((1, MIN_ROWS),)),
    ),
    "a long prompt beside prompts elsewhere": (
        snapshot([prompt(1, remaining=999)], elsewhere=OtherModelsLoad(prefilling=True, planned_s=0.3)),
        did((), ((1, 384),)),
    ),
    "the rest of a prompt that is too much beside streams elsewhere": (
        snapshot([prompt(1, remaining=120, started=True)], elsewhere=OtherModelsLoad(0.02, 0.24)),
        did((), ((1, 67),)),
    ),
    # 19 ms, less 5 ms: two rows take 10.1 ms, three 14.15 ms
    "background streams take turns for others elsewhere": (
        snapshot(
            [],
            [Stream(n, 1.0, BACKGROUND, NOW - 1, last_token_at=-n) for n in (2, 3, 4)],
            elsewhere=OtherModelsLoad(0.005, 0.02),
        ),
        did((4, 3)),
    ),
    "but not for those that have more time": (
        snapshot(
            [],
            [Stream(n, 0.01, BACKGROUND, NOW - 1, last_token_at=-n) for n in (2, 3)],
            elsewhere=OtherModelsLoad(0.005, 0.02),
        ),
        did((2, 3)),
    ),
    "cells for one of two": (snapshot([prompt(1), prompt(2)], free_cells=39), did((), ((1, 10),))),
    "one slot for two": (snapshot([prompt(1), prompt(2)], free_slots=1), did((), ((1, 10),))),
    "nobody needs the place of the held": (snapshot([prompt(1)], held=[Held(8, 20)]), did((), ((1, 10),))),
    "nobody waits": (snapshot([], free_slots=0, held=[Held(8, 20)]), did((), ())),
    "a slot of the one held longest": (
        snapshot([prompt(1)], free_slots=0, held=[Held(8, 20), Held(7, 30)]),
        did((), ((1, 10),), (8,)),
    ),
    "cells of as many as it takes": (
        snapshot([prompt(1, cells=60)], free_cells=15, held=[Held(8, 20), Held(7, 30), Held(6, 90)]),
        did((), ((1, 10),), (8, 7)),
    ),
    "a slot and cells": (
        snapshot([prompt(1)], free_slots=0, free_cells=0, held=[Held(8, 5), Held(7, 15), Held(6, 90)]),
        did((), ((1, 10),), (8, 7)),
    ),
    "a place for each of two": (
        snapshot([prompt(1), prompt(2)], free_slots=1, held=[Held(8, 20), Held(7, 20)]),
        did((), ((1, 10), (2, 10)), (8,)),
    ),
    "it would not help": (
        snapshot([prompt(1, cells=66)], free_cells=15, held=[Held(8, 20), Held(7, 30)]),
        did((), ()),
    ),
    "it would help the one behind, who overtakes nobody": (
        snapshot([prompt(1, cells=66), prompt(2, cells=1)], free_slots=0, free_cells=15, held=[Held(8, 20)]),
        did((), ()),
    ),
    "not for a prompt that has no rows in this tick": (
        snapshot(
            [prompt(2, remaining=99, started=True), prompt(3)], [Stream(1, 0.001)], free_slots=0, held=[Held(8, 9)]
        ),
        did((1,), ((2, 1),)),
    ),
    "a stream that grows has the free cells before a prompt does": (
        snapshot([prompt(2)], [Stream(1, 0.1, cells=20, lacks=1)], free_cells=20),
        did((1,)),
    ),
    "and takes the place of the held": (
        snapshot([], [Stream(1, 0.1, cells=20, lacks=1)], free_cells=0, held=[Held(8, 5), Held(7, 5)]),
        did((1,), (), (8,)),
    ),
    "then of the youngest in the background": (
        snapshot(
            [], [Stream(1, 0.1, lacks=1), *(Stream(n, 0.1, BACKGROUND, NOW - n, 5) for n in (3, 2))], free_cells=0
        ),
        did((1, 3), (), (2,)),
    ),
    "then of the youngest of all": (
        snapshot([], [Stream(n, 0.1, arrived_at=-n, cells=5, lacks=n == 3) for n in (1, 2, 3)], free_cells=0),
        did((2, 3), (), (1,)),
    ),
    "or of a prompt that came later": (
        snapshot(
            [prompt(2, started=True)],
            [Stream(1, 0.1, arrived_at=NOW - 1, cells=5, lacks=1)],
            free_cells=0,
            free_slots=0,
        ),
        did((1,), (), (2,)),
    ),
    "or loses its own, and nobody starts in it": (
        snapshot(
            [prompt(3, cells=1)],
            [Stream(1, 0.1, arrived_at=NOW - 1, cells=5), Stream(2, 0.1, arrived_at=NOW, cells=5, lacks=1)],
            free_cells=0,
        ),
        did((1,), (), (2,)),
    ),
    "in the background before anybody else's": (
        snapshot(
            [],
            [Stream(1, 0.1, arrived_at=NOW, cells=5), Stream(2, 0.1, BACKGROUND, NOW - 1, 5, lacks=1)],
            free_cells=0,
        ),
        did((1,), (), (2,)),
    ),
    "but waits where it is the last": (
        snapshot([], [Stream(1, 0.1, cells=5, lacks=1)], free_cells=0),
        did(()),
    ),
    "not for one that has started": (
        snapshot([prompt(1, started=True)], free_slots=0, free_cells=0, held=[Held(8, 20)]),
        did((), ((1, 10),)),
    ),
    "the last token of a wide batch by itself": (
        snapshot([prompt(1, remaining=WIDE_ROWS)], cost=FREE),
        did((), ((1, WIDE_ROWS - 1),)),
    ),
    "all of a wide one whose answer is random": (
        snapshot([prompt(1, remaining=WIDE_ROWS, random=True)], cost=FREE),
        did((), ((1, WIDE_ROWS),)),
    ),
    "all of a narrow one": (
        snapshot([prompt(1, remaining=WIDE_ROWS - 1)], cost=FREE),
        did((), ((1, WIDE_ROWS - 1),)),
    ),
    "all but the last token of one whose burst takes longer": (
        snapshot(
            [prompt(1), prompt(2, remaining=300), prompt(3, remaining=300)],
            cost=Cost(0.0, 0.0, MAX_IDLE_TICK_S / 128.5),
            prompts_apart=True,
        ),
        did((), ((1, 9),)),
    ),
    "all but the last tokens of a burst": (
        snapshot([prompt(1, remaining=WIDE_ROWS), prompt(2)], cost=Cost(0.0, 0.0, 1e-6), prompts_apart=True),
        did((), ((1, WIDE_ROWS - 1), (2, 9))),
    ),
    "all of one that fits a tick": (
        snapshot([prompt(1, remaining=WIDE_ROWS - 1), prompt(2)], cost=FREE, prompts_apart=True),
        did((), ((1, WIDE_ROWS - 1), (2, 10))),
    ),
    "all of one whose answers are drawn at random": (
        snapshot([prompt(1, remaining=WIDE_ROWS, random=True), prompt(2)], cost=FREE, prompts_apart=True),
        did((), ((1, WIDE_ROWS), (2, 10))),
    ),
    "but its last tokens if others are prepared": (
        snapshot([prompt(1, arrived_at=NOW - GATHER_S), prompt(2)], preparing=1, cost=FREE, prompts_apart=True),
        did((), ((1, 9), (2, 9))),
    ),
    "or if not all have the same adapters": (
        snapshot([prompt(1), prompt(2, adapters=ADAPTERS[1])], cost=FREE, prompts_apart=True),
        did((), ((1, 9),)),
    ),
    "or if it does not fit": (
        snapshot([prompt(number, remaining=50) for number in (1, 2, 3)], cost=ROW_OF_10_MS, prompts_apart=True),
        did((), ((1, 49), (2, 49))),
    ),
    "all of them where prompts share a decode": (
        snapshot([prompt(1, remaining=WIDE_ROWS), prompt(2)], cost=FREE),
        did((), ((1, WIDE_ROWS), (2, 10))),
    ),
    "a computed one waits for its burst": (
        snapshot(
            [prompt(1, remaining=1, started=True), prompt(2, remaining=300)],
            cost=Cost(0.0, 0.0, MAX_IDLE_TICK_S / 128.5),
            prompts_apart=True,
        ),
        did((), ((2, 128),)),
    ),
    "the last tokens of a burst together": (
        snapshot([prompt(number, remaining=1, started=True) for number in (1, 2, 3)], cost=FREE, prompts_apart=True),
        did((), ((1, 1), (2, 1), (3, 1))),
    ),
    "a computed one does not wait for one without room": (
        snapshot([prompt(1, remaining=1, started=True), prompt(2)], free_slots=0, cost=FREE, prompts_apart=True),
        did((), ((1, 1),)),
    ),
    "nor for one that came later": (
        snapshot(
            [prompt(1, remaining=1, started=True, arrived_at=990.0), prompt(2, arrived_at=990.0 + 2 * BURST_S)],
            cost=FREE,
            prompts_apart=True,
        ),
        did((), ((1, 1), (2, 9))),
    ),
    "nor for one in the background": (
        snapshot([prompt(1, remaining=1, started=True), prompt(2, priority=BACKGROUND)], cost=FREE, prompts_apart=True),
        did((), ((1, 1), (2, 9))),
    ),
    "nor once it has aged": (
        snapshot(
            [prompt(number, remaining=number, started=True, arrived_at=1000.0 - AGING_S) for number in (1, 20)],
            cost=FREE,
            prompts_apart=True,
        ),
        did((), ((1, 1), (20, 19))),
    ),
    "unless a stream has just begun": (
        snapshot(
            [prompt(number, remaining=number, started=True, arrived_at=1000.0 - AGING_S) for number in (1, 20)],
            began_at=NOW - AGING_S / 2,
            cost=FREE,
            prompts_apart=True,
        ),
        did((), ((20, 19),)),
    ),
    "nor beyond its own target": (
        snapshot(
            [prompt(1, remaining=1, started=True, own_target=True, target_ttft_s=IN_TIME_S / 2), prompt(2)],
            cost=FREE,
            prompts_apart=True,
        ),
        did((), ((2, 9), (1, 1))),
    ),
    "unless it has missed that": (
        snapshot(
            [
                prompt(1, remaining=1, started=True, own_target=True, target_ttft_s=1.0, arrived_at=NOW - 2.0),
                prompt(2, arrived_at=NOW - 2.0),
            ],
            cost=FREE,
            prompts_apart=True,
        ),
        did((), ((2, 9),)),
    ),
    "nor in the middle of its answer": (
        snapshot([prompt(1, remaining=1, started=True, resumes=True), prompt(2)], cost=FREE, prompts_apart=True),
        did((), ((1, 1), (2, 9))),
    ),
    "a prompt with a decode of its own gets enough for it": (
        snapshot(
            [prompt(99, remaining=100)],
            [Stream(number, 0.03) for number in range(20)],
            cost=Cost(0.009, 0.001, 0.001),
            prompts_apart=True,
        ),
        did(tuple(range(20)), ((99, MIN_ROWS),)),
    ),
    "loads of prefixes count as prefill": (
        snapshot(
            [prompt(number, moving_s=0.02) for number in (2, 3, 4)],
            [Stream(1, 0.1)],
            cost=Cost(0.01, 0.001, 0.001),
        ),
        did((1,), ((2, 10), (3, 10), (4, 4))),
    ),
    "and so do those that happen in any case": (
        snapshot(
            [prompt(number, moving_s=0.02) for number in (2, 3)],
            [Stream(1, 0.1)],
            cost=Cost(0.01, 0.001, 0.001),
            moving_s=0.04,
        ),
        did((1,), ((2, 10),)),
    ),
    "one is loaded however long it takes": (
        snapshot(
            [prompt(2, moving_s=0.5, remaining=99), prompt(3)],
            [Stream(1, 0.1)],
            cost=Cost(0.01, 0.001, 0.001),
        ),
        did((1,), ((2, MIN_ROWS),)),
    ),
    "but not if it takes longer than the streams": (
        snapshot([prompt(2, remaining=100)], [Stream(1, 0.01)], cost=Cost(0.009, 0.001, 0.001), prompts_apart=True),
        did((1,), ((2, 1),)),
    ),
    "nor beside a stream": (
        snapshot([prompt(2, remaining=1, started=True), prompt(3)], [Stream(1, 1.9)], cost=FREE, prompts_apart=True),
        did((1,), ((2, 1), (3, 10))),
    ),
    "a computed one waits for one that is prepared": (
        snapshot([prompt(1, arrived_at=NOW - GATHER_S)], preparing=1, cost=FREE, prompts_apart=True),
        did((), ((1, 9),)),
    ),
    "a burst waits for those that are being prepared": (
        snapshot([prompt(1), prompt(2)], preparing=1, cost=ROW_OF_10_MS, prompts_apart=True),
        Plan((), gathers=True),
    ),
    "but no longer than a share of what its rows take": (
        snapshot(
            [prompt(1, remaining=4, arrived_at=NOW - 0.041 * GATHER_SHARE)],
            preparing=1,
            cost=ROW_OF_10_MS,
            prompts_apart=True,
        ),
        did((), ((1, 3),)),
    ),
    "nor than GATHER_S": (
        snapshot([prompt(1, arrived_at=NOW - GATHER_S)], preparing=1, cost=ROW_OF_10_MS, prompts_apart=True),
        did((), ((1, 9),)),
    ),
    "nor once one of it has started": (
        snapshot([prompt(1, started=True), prompt(2)], preparing=1, cost=ROW_OF_10_MS, prompts_apart=True),
        did((), ((1, 9), (2, 9))),
    ),
    "nor beside a stream of another model": (
        snapshot(
            [prompt(1)],
            preparing=1,
            cost=ROW_OF_10_MS,
            prompts_apart=True,
            elsewhere=OtherModelsLoad(decode_s=0.01, target_s=1.0),
        ),
        did((), ((1, 9),)),
    ),
    "all of a wide one beside a stream": (
        snapshot([prompt(2, remaining=WIDE_ROWS)], [Stream(1, 1.9)], cost=FREE),
        did((1,), ((2, WIDE_ROWS),)),
    ),
}


@pytest.mark.parametrize(("situation", "expected"), PLANS.values(), ids=PLANS)
def test_plans(situation: Snapshot, expected: Plan) -> None:
    assert dataclasses.replace(plan(situation), throttled=False, adapters=()) == expected


GUESSER = Stream(1, 0.1, draft_tokens=MAX_DRAFT_TOKENS, acceptance=0.9)
TILES = {1: 0.01, 2: 0.02, 4: 0.027, 8: 0.034, 16: 0.064}
"""As SmolLM2's ticks on an EPYC without AVX-512."""


def guesser(
    changes: Mapping[str, Any] = MappingProxyType({}), seconds: Mapping[int, float] = TILES, **others: Any
) -> Snapshot:
    """A stream alone."""
    return snapshot([], [GUESSER._replace(**changes)], draft_seconds=seconds, **others)


# 1.9 tokens take twice as long as one, 3.44 2.7 times, 5.7 3.4 times, and 8.15 6.4 times.
GUESSES = {
    "as many as pay": (guesser(), 7),
    "all where they are right": (guesser({"acceptance": 0.99}), 15),
    "no more than there are": (guesser({"draft_tokens": 5}), 5),
    "none that don't make up for the second row": (guesser({"draft_tokens": 2, "acceptance": 0.8}), 0),
    "none that are mostly wrong": (guesser({"acceptance": 0.4}), 0),
    "no more than the target allows": (guesser({"target_tbt_s": 0.03}), 3),
    "none before a tick of one row": (guesser(seconds={}), 0),
    "a few to learn what they cost": (guesser(seconds={1: 0.01}), 1),
    "some to learn what they cost": (guesser(seconds={1: 0.01, 2: 0.02}), 3),
    "three of a draft model of which little is known": (
        guesser({"acceptance": OF_DRAFT_MODEL, "drafts": True}, {1: 0.01, 2: 0.02}),
        3,
    ),
    "no more than are all right at even odds": (guesser({"acceptance": 0.8}, {1: 0.01, 2: 0.02, 4: 0.09}), 0),
    "none that exceed the target at the cost of a prompt": (
        guesser({"target_tbt_s": 0.03, "acceptance": 0.95}, {1: 0.01, 2: 0.02, 4: 0.09}),
        0,
    ),
    "some where ticks mostly take half as long": (
        guesser({"target_tbt_s": 0.03, "acceptance": 0.95}, {1: 0.01, 2: 0.02, 4: 0.09}, caution=2.0),
        7,
    ),
    "none where a prompt wants the time": (snapshot([prompt(2)], [GUESSER], draft_seconds=TILES), 0),
    "a prompt that waits for a place wants none": (
        snapshot([prompt(2)], [GUESSER], draft_seconds=TILES, free_slots=0),
        7,
    ),
    "none where prompts elsewhere want the time": (guesser(elsewhere=OtherModelsLoad(prefilled_at=1.0)), 0),
    "no more than others elsewhere leave": (
        guesser({}, {1: 0.02, 2: 0.022, 4: 0.028}, elsewhere=OtherModelsLoad(0.07, 0.1)),
        1,
    ),
    "no more than a quarter longer for others elsewhere": (
        guesser({"acceptance": 0.99}, TILES | {2: 0.012}, elsewhere=OtherModelsLoad(0.01, 0.1)),
        1,
    ),
}


@pytest.mark.parametrize(("situation", "expected"), GUESSES.values(), ids=GUESSES)
def test_guesses(situation: Snapshot, expected: int) -> None:
    assert plan(situation).decode == ((1, expected),)


def guessers(acceptances: Sequence[float], seconds: Mapping[int, float], **others: Any) -> Snapshot:
    """Streams together."""
    streams = [GUESSER._replace(id=number, acceptance=acceptance) for number, acceptance in enumerate(acceptances)]
    return snapshot([], streams, draft_seconds=seconds, **others)


FOUR = {4: 0.02, 8: 0.03, 16: 0.055}
"""As ticks of Gemma 3 270M on a Xeon, twice as fast."""

GUESSES_OF_SEVERAL = {
    "one each where all are right": (guessers([0.9] * 4, FOUR), (1, 1, 1, 1)),
    "none that don't make up for the further rows": (guessers([0.45] * 4, FOUR), (0, 0, 0, 0)),
    "none that keep one without waiting": (guessers([0.99, 0.99, 0.99, 0.1], FOUR), (0, 0, 0, 0)),
    "the likeliest where nobody waits": (guessers([0.5, 0.9, 0.5, 0.8], FOUR | {8: 0.024}), (0, 3, 0, 1)),
    "what is left of a tile": (guessers([0.9] * 5, {5: 0.025, 8: 0.025}), (1, 1, 1, 0, 0)),
    "none without a tile above them": (guessers([0.9] * 64, {64: 0.02}), (0,) * 64),
    "none that overfill the batch": (guessers([0.9] * 4, FOUR | {8: 0.022}, batch_tokens=6), (1, 1, 0, 0)),
    "some to learn what they cost": (guessers([0.9] * 4, {4: 0.02}, cost=Cost(0.0, 0.005, 0.001)), (1, 1, 1, 1)),
    "none that can't pay": (guessers([0.6] * 4, {4: 0.02}, cost=Cost(0.0, 0.005, 0.005)), (0, 0, 0, 0)),
    "none before a tick without any": (guessers([0.9] * 4, {}), (0, 0, 0, 0)),
    "one each in cells of their own": (guessers([0.9, 0.9, 0.9, 0.6], FOUR | {8: 0.024}, parted=True), (1, 1, 1, 1)),
    "equally many in a tile": (guessers([0.9] * 3, {3: 0.02, 4: 0.02, 8: 0.024, 16: 1.0}, parted=True), (1, 1, 1)),
    "equally many in the batch": (guessers([0.9] * 4, FOUR | {8: 0.022}, parted=True, batch_tokens=7), (0, 0, 0, 0)),
    "none if one has none": (
        snapshot([], [GUESSER, GUESSER._replace(id=2, draft_tokens=0)], draft_seconds={2: 0.02, 4: 0.02}, parted=True),
        (0, 0),
    ),
}


@pytest.mark.parametrize(("situation", "expected"), GUESSES_OF_SEVERAL.values(), ids=GUESSES_OF_SEVERAL)
def test_guesses_of_several(situation: Snapshot, expected: tuple[int, ...]) -> None:
    assert tuple(number for _, number in plan(situation).decode) == expected


@pytest.mark.parametrize(("target_tbt_s", "throttled"), [(0.1, True), (1.9, False)])
def test_a_prompt_that_the_time_cuts_short_is_throttled(target_tbt_s: float, throttled: bool) -> None:
    assert plan(snapshot([prompt(2, remaining=400)], [Stream(1, target_tbt_s)])).throttled is throttled
