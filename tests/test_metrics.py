"""Percentiles and tick times, against values worked out by hand."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.metrics import WINDOW, ServingMetrics, TickTimes, Window, resident_bytes

# A busy box makes no test fail.
untimed = settings(deadline=None)


def window(milliseconds: list[float]) -> Window:
    window = Window()
    for ms in milliseconds:
        window.add(ms / 1000)
    return window


PERCENTILES = [
    # The nearest rank: the smallest value that at least so many percent do not exceed.
    ([], 50, 0.0),
    ([7], 0, 7),
    ([7], 50, 7),
    ([7], 100, 7),
    ([1, 2], 50, 1),
    ([1, 2], 51, 2),
    ([1, 2, 3], 50, 2),
    ([15, 20, 35, 40, 50], 5, 15),
    ([15, 20, 35, 40, 50], 30, 20),
    ([15, 20, 35, 40, 50], 40, 20),
    ([50, 15, 40, 20, 35], 41, 35),
    (list(range(1, 101)), 95, 95),
    (list(range(1, 101)), 99, 99),
    (list(range(1, 21)), 95, 19),
    (list(range(1, 22)), 95, 20),
]


@pytest.mark.parametrize(("values", "percent", "expected"), PERCENTILES)
def test_percentiles_are_of_the_nearest_rank(values: list[float], percent: float, expected: float) -> None:
    assert window(values).percentile(percent) == expected


@untimed
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=200), st.integers(1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values: list[int], percent: int) -> None:
    found = window(values).percentile(percent)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= percent * len(values)
    assert sum(value < found for value in values) * 100 < percent * len(values)


def test_a_window_forgets_the_oldest() -> None:
    full = window([1000.0] * WINDOW)
    for _ in range(WINDOW // 2):
        full.add(0.001)
    assert (full.percentile(50), full.percentile(51)) == (1.0, 1000.0)
    for _ in range(WINDOW // 2):
        full.add(0.001)
    assert full.percentile(100) == 1.0


def test_tick_times() -> None:
    times = TickTimes()
    assert (times.count, times.last, times.ewma, times.min, times.max) == (0, 0, 0, 0, 0)
    times.add(0.020)
    assert (times.count, times.last, times.ewma, times.min, times.max) == (1, 20, 20, 20, 20)
    times.add(0.010)
    assert (times.count, times.last, times.ewma, times.min, times.max) == (2, 10, 19, 10, 20)
    times.add(0.030)
    assert (times.count, times.last, times.min, times.max) == (3, 30, 10, 30)
    assert times.ewma == pytest.approx(20.1)


def test_the_snapshot_is_flat_and_rounded() -> None:
    metrics = ServingMetrics(tokens_generated=3)
    metrics.ticks.add(0.0123456789)
    metrics.ttft.add(0.25)
    snapshot = metrics.snapshot()
    assert snapshot["tokens_generated_total"] == 3
    assert snapshot["decode_ms_last"] == 12.346
    assert snapshot["batch_calls_total"] == 1
    assert (snapshot["ttft_ms_p50"], snapshot["ttft_ms_p95"], snapshot["tbt_ms_p50"]) == (250.0, 250.0, 0.0)
    assert all(isinstance(value, int | float | str) for value in snapshot.values())


def test_resident_bytes_are_whole_pages_of_this_process() -> None:
    resident = resident_bytes()
    # An interpreter with its libraries is at least so large, and no test needs more than the most.
    assert 5 * 2**20 < resident < 2**40
    assert resident % os.sysconf("SC_PAGE_SIZE") == 0
