"""What draft tokens cost, by the ticks that verified some."""

from __future__ import annotations

import pytest

from umaserve.scheduler.draft_costs import FORGOTTEN, LATEST, REFRESHED, TRIED, DraftCosts


def test_nothing_is_known_before_a_tick_of_one_row() -> None:
    costs = DraftCosts()
    for _ in range(9):
        costs.observe(1, 4, 0.03)
    assert costs.seconds(1) == {}
    costs.observe(1, 1, 0.01)
    assert costs.seconds(1) == {1: 0.01}


def test_the_shorter_one_of_the_first_ticks_counts() -> None:
    costs = DraftCosts()
    costs.observe(1, 1, 0.5)
    costs.observe(1, 1, 0.01)
    costs.observe(1, 4, 0.5)
    assert 4 not in costs.seconds(1), "one may have been delayed"
    costs.observe(1, 4, 0.03)
    assert costs.seconds(1)[4] == pytest.approx(0.03)


def test_the_median_of_the_latest_counts() -> None:
    costs = DraftCosts()
    costs.observe(1, 1, 0.01)
    for factor in (9, 9, 9, 3, 3, 3, 9, 3):
        costs.observe(1, 4, 0.01 * factor)
    assert costs.seconds(1)[4] == pytest.approx(0.03)


def test_fewer_rows_count_as_the_size_above_them() -> None:
    costs = DraftCosts()
    costs.observe(1, 1, 0.01)
    for rows, factor in ((3, 2), (5, 4), (9, 8), (0, 7), (65, 7)):
        for _ in range(TRIED):
            costs.observe(1, rows, 0.01 * factor)
    assert costs.seconds(1) == pytest.approx({1: 0.01, 4: 0.02, 8: 0.04, 16: 0.08})


def test_all_grow_with_what_one_row_takes() -> None:
    costs = DraftCosts()
    costs.observe(1, 1, 0.01)
    for seconds in (0.03, 0.03):
        costs.observe(1, 4, seconds)
    for _ in range(2):
        costs.observe(1, 1, 0.02)
    assert costs.seconds(1) == pytest.approx({1: 0.02, 4: 0.06})


def test_one_row_is_seen_now_and_then() -> None:
    costs = DraftCosts()
    costs.observe(1, 1, 0.01)
    ticks = 0
    while costs.seconds(1):
        costs.observe(1, 4, 0.03)
        ticks += 1
    assert ticks == REFRESHED
    costs.observe(1, 1, 0.01)
    assert costs.seconds(1) == pytest.approx({1: 0.01, 4: 0.03})


def test_what_is_not_used_is_forgotten_and_learned_anew() -> None:
    costs = DraftCosts()
    costs.observe(1, 1, 0.01)
    for _ in range(LATEST):
        costs.observe(1, 8, 0.5)
    for _ in range(2 * FORGOTTEN):
        costs.observe(1, 1, 0.01)
    assert costs.seconds(1) == {1: 0.01}
    for _ in range(TRIED):
        costs.observe(1, 8, 0.03)
    assert costs.seconds(1)[8] == pytest.approx(0.03)


def test_each_number_of_streams_has_sizes_of_its_own() -> None:
    costs = DraftCosts()
    for streams, without_s in ((1, 0.01), (4, 0.03), (5, 0.04)):
        costs.observe(streams, streams, without_s)
        for _ in range(TRIED):
            costs.observe(streams, 8, 0.06)
    assert costs.seconds(1) == pytest.approx({1: 0.01, 8: 0.06})
    assert costs.seconds(4) == pytest.approx({4: 0.03, 8: 0.06})
    assert costs.seconds(5) == pytest.approx({5: 0.04, 8: 0.06})
    assert costs.seconds(2) == {}


def test_what_other_numbers_of_streams_take_makes_the_one_without_old() -> None:
    costs = DraftCosts()
    costs.observe(4, 4, 0.03)
    for _ in range(REFRESHED - 1):
        costs.observe(1, 1, 0.01)
    assert costs.seconds(4) == {4: 0.03}
    costs.observe(1, 1, 0.01)
    assert costs.seconds(4) == {}


def test_several_streams_wait_longer_until_what_does_not_pay_is_tried_again() -> None:
    costs = DraftCosts()
    costs.observe(4, 4, 0.03)
    for _ in range(TRIED):
        costs.observe(4, 8, 0.06)
    for _ in range(4 * FORGOTTEN - 2):
        costs.observe(4, 4, 0.03)
    assert 8 in costs.seconds(4)
    for _ in range(4 * FORGOTTEN):
        costs.observe(4, 4, 0.03)
    assert costs.seconds(4) == {4: 0.03}
