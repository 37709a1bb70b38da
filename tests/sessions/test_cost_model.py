"""What a cost model starts from, and how fast it unlearns what is not so any more."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.sessions.cost_model import FIRST, MAX_S, Cost, CostModel

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
