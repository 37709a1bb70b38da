"""What a cost model starts from, what it learns, and how fast it unlearns what is not so any more."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.sessions.cost_model import FIRST, MAX_S, Cost, CostModel, MovingCost
from umaserve.sessions.engine_api import Capacity, SavedBytes
from umaserve.sessions.kv_operations import Copy, Divide, Load, Release, Save

TRUE_COSTS = [
    pytest.param(Cost(0.003, 0.007, 0.007, 0.0002), id="two slow cores"),
    pytest.param(Cost(0.010, 0.0005, 0.0002, 0.00001), id="a device with a price for each call"),
    pytest.param(Cost(0.0, 0.002, 0.001, 0.0), id="no fixed cost"),
    pytest.param(Cost(0.006, 0.0015, 0.0015, 0.0, 0.008), id="a second row that costs as much as the first"),
]
Rows = tuple[int, int, int]
"""Rows of streams and of prompts, and cached positions."""


def long_prompt() -> Iterator[Rows]:
    """Its parts."""
    return ((0, 64, computed) for computed in itertools.count(0, 64))


def parts_and_streams(dice: random.Random) -> Iterator[Rows]:
    while True:
        streams = dice.randint(0, 8)
        yield streams, dice.choice([0, 8, 100]) if streams else dice.randint(1, 200), dice.randint(0, 2000)


def off(model: CostModel, true: Cost, tick: Rows) -> float:
    """How many times too long or too short the prediction of ``tick`` is."""
    ratio = model.cost.seconds(*tick) / true.seconds(*tick)
    return max(ratio, 1 / ratio)


@pytest.mark.parametrize("true", TRUE_COSTS)
@pytest.mark.parametrize("seed", range(5))
def test_what_is_known_is_predicted_from_the_first_tick_on(true: Cost, seed: int) -> None:
    model, dice = CostModel(true), random.Random(seed)
    assert model.cautious.seconds(0, 64, 0) == pytest.approx(1.1 * true.seconds(0, 64, 0))
    for number, tick in enumerate(itertools.islice(parts_and_streams(dice), 30)):
        assert off(model, true, tick) < (1.11 if number < FIRST else 2.5)
        model.observe(*tick, true.seconds(*tick) * dice.uniform(0.9, 1.1))


@pytest.mark.parametrize("true", TRUE_COSTS)
@given(
    factor=st.floats(1 / 3, 3.0), seed=st.integers(0, 1000), one_prompt=st.booleans(), held_up=st.sampled_from([1, 10])
)
def test_a_box_that_was_busier_or_quicker_is_unlearned(
    true: Cost, factor: float, seed: int, one_prompt: bool, held_up: int
) -> None:
    model, dice = CostModel(true.times(factor)), random.Random(seed)
    ticks = long_prompt() if one_prompt else parts_and_streams(dice)
    for number, tick in enumerate(itertools.islice(ticks, 20)):
        if number in (3, 4):
            assert off(model, true, tick) < 1.2, "the first ticks tell how fast the box is"
        first = held_up if not number else 1
        model.observe(*tick, true.seconds(*tick) * dice.uniform(0.9, 1.1) * first)
    assert off(model, true, tick) < 1.5


@pytest.mark.parametrize("true", TRUE_COSTS)
@pytest.mark.parametrize("factor", [0.01, 1.0, 100.0])
def test_an_unknown_model_is_known_by_its_first_tick(true: Cost, factor: float) -> None:
    model, box = CostModel(), true.times(factor)
    model.observe(0, 64, 0, box.seconds(0, 64, 0))
    assert off(model, box, (0, 64, 0)) < 1.001
    for tick in itertools.islice(long_prompt(), 1, 20):
        assert off(model, box, tick) < 1.5
        model.observe(*tick, box.seconds(*tick))


def test_one_tick_that_reads_from_a_slow_disk_says_nothing_about_the_others() -> None:
    true = Cost(0.003, 0.007, 0.007, 0.0002)
    model = CostModel(true)
    for number, tick in enumerate(itertools.islice(long_prompt(), 20)):
        model.observe(*tick, true.seconds(*tick) * (1 if number else 50))
        assert off(model, true, tick) < 1.01


def test_learned_is_what_was_known_until_there_are_enough_ticks() -> None:
    known = Cost(0.003, 0.007, 0.007, 0.0002)
    for model in (CostModel(), CostModel(known)):
        before = model.learned
        assert before in (None, known)
        for _ in range(FIRST - 1):
            model.observe(0, 64, 0, 1.0)
            assert model.learned is before
        model.observe(0, 64, 0, 1.0)
        assert model.learned is not before
        assert model.learned == model.cost


@pytest.mark.parametrize(
    ("cost", "makes_sense"),
    [
        (Cost(), True),
        (Cost(0.0, 0.0, 1e-7), True),
        (Cost(MAX_S, MAX_S, MAX_S, MAX_S, MAX_S), True),
        (Cost(fixed_s=-1e-9), False),
        (Cost(decode_row_s=math.nan), False),
        (Cost(attention_s=math.inf), False),
        (Cost(several_s=2 * MAX_S), False),
        (Cost(prefill_row_s=0.0), False),
    ],
)
def test_no_ticks_teach_what_makes_no_sense(cost: Cost, makes_sense: bool) -> None:
    assert cost.makes_sense is makes_sense


known = st.builds(Cost, *[st.floats(0.0, MAX_S)] * 2, st.floats(1e-7, MAX_S), *[st.floats(0.0, MAX_S)] * 2)
ticks = st.tuples(
    st.integers(0, 256), st.integers(0, 4096), st.integers(0, 10**6), st.just(0.0) | st.floats(1e-9, 1000.0)
)


@given(known, st.lists(ticks.filter(lambda tick: tick[0] + tick[1] > 0), max_size=30))
def test_whatever_is_known_and_seen_makes_sense(start: Cost, seen: list[tuple[int, int, int, float]]) -> None:
    model = CostModel(start)
    for tick in seen:
        model.observe(*tick)
        assert all(math.isfinite(value) and value >= 0 for value in model.cautious.coefficients)
        assert model.cost.prefill_row_s > 0


# Learned from ticks.

costs = st.builds(
    Cost,
    fixed_s=st.floats(0, 0.05),
    decode_row_s=st.floats(0, 0.05),
    prefill_row_s=st.floats(1e-7, 0.05),
    attention_s=st.floats(0, 0.001),
    several_s=st.floats(0, 0.05),
)


def noisy_ticks(true: Cost, noise: float, seed: int, count: int) -> Iterator[tuple[int, int, int, float]]:
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


@pytest.mark.parametrize("true", TRUE_COSTS)
@pytest.mark.parametrize("seed", range(3))
def test_a_linear_cost_is_learned_from_noisy_ticks(true: Cost, seed: int) -> None:
    model = CostModel()
    for tick in noisy_ticks(true, 0.05, seed, 200):
        model.observe(*tick)
    assert worst_error(model, true) < 0.1


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_a_box_that_becomes_slower_or_faster_is_followed(factor: float) -> None:
    before = Cost(0.003, 0.007, 0.007, 0.0002)
    after = Cost(*(factor * value for value in dataclasses.astuple(before)))
    model = CostModel()
    for tick in noisy_ticks(before, 0.05, 1, 300):
        model.observe(*tick)
    for tick in noisy_ticks(after, 0.05, 2, 250):
        model.observe(*tick)
    assert worst_error(model, after) < 0.05


def test_what_a_noisy_box_takes_on_average_is_learned() -> None:
    true = Cost(0.003, 0.007, 0.007, 0.0002)
    model = CostModel()
    dice = random.Random(1)
    ratios = []
    for number, (decode, prefill, cached, seconds) in enumerate(noisy_ticks(true, 0.0, 1, 2000)):
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
    slowness = 0.020 / Cost().seconds(1, 0, 100)
    assert model.cost.prefill_row_s == pytest.approx(slowness * Cost().prefill_row_s), "only how fast the box is"


observations = st.tuples(
    st.integers(0, 256), st.integers(0, 4096), st.integers(0, 10**6), st.just(0.0) | st.floats(1e-9, 1000.0)
)


@given(st.lists(observations.filter(lambda tick: tick[0] + tick[1] > 0), max_size=30))
def test_a_cost_is_never_negative_whatever_was_seen(seen: list[tuple[int, int, int, float]]) -> None:
    model = CostModel()
    for tick in seen:
        model.observe(*tick)
        values = dataclasses.astuple(model.cost)
        assert all(math.isfinite(value) and value >= 0 for value in values)
        assert model.cost.prefill_row_s > 0


@given(costs, st.floats(0.0, 2.0), st.integers(0, 64), st.integers(0, 10**5))
def test_the_most_rows_within_a_time_agree_with_the_time_they_take(
    cost: Cost, seconds: float, decode: int, cached: int
) -> None:
    # Of streams that are several, so that a prompt's row is a row more and nothing else.
    decode += 2
    rows = cost.prefill_rows_within(seconds - cost.seconds(decode, 0, cached), cached)
    if rows > 0:
        assert cost.seconds(decode, rows, cached) <= seconds * (1 + 1e-9)
    assert rows >= 0
    assert cost.seconds(decode, rows + 1, cached) >= seconds * (1 - 1e-9)


@pytest.mark.parametrize("byte_s", [1e-11, 1e-9])
def test_the_time_of_kv_operations_is_learned_by_their_bytes(byte_s: float) -> None:
    cost = MovingCost(Capacity(4, 10_000, 4_000, 512, saved_bytes=SavedBytes(1000, 20_000)))
    size = 1000 + 20_000 * 300
    for _ in range(100):
        cost.observe([Save(0, 0, size), Release(0), Load(0, size, 1)], 2 * size * byte_s, parted=True)
        # Neither of these says anything about the time for a byte.
        cost.observe([Divide(2), Save(0, 0, size)], 9.0, parted=True)
        cost.observe([Release(0), Copy(0, 1, 300)], 9.0, parted=False)
    assert cost.of_sequence(300) == pytest.approx(size * byte_s, rel=0.01)
    assert cost.seconds([Load(0, size, 1), Release(0)], parted=True) == pytest.approx(size * byte_s, rel=0.01)
    assert cost.seconds([Copy(0, 1, 300)], parted=True) == pytest.approx(2 * size * byte_s, rel=0.01)
    assert cost.seconds([Copy(0, 1, 300)], parted=False) == 0.0


def test_one_interrupted_kv_operation_is_not_believed() -> None:
    cost = MovingCost(Capacity(4, 10_000, 4_000, 512, saved_bytes=SavedBytes(1000, 20_000)))
    before = cost.of_sequence(300)
    cost.observe([Save(0, 0, 6_001_000)], 60.0, parted=True)
    assert before < cost.of_sequence(300) < 1.5 * before


def test_rows_that_cost_nothing_are_not_believed() -> None:
    assert Cost(0.001, 0.001, 0.0, 0.0).prefill_rows_within(1.0, 100) == 0
