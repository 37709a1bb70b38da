"""How the KV cells are divided."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from umaserve.kvcache.partitioning import SETTLED_S, SHARED, Partitioning

WAYS = ((16, 1024), (8, 2048), (4, 4096), (2, 8192))


def test_the_most_parts_are_in_force_at_first_and_as_long_as_all_fit():
    division = Partitioning(WAYS, 0.0)
    assert division.parts == 16
    assert not division.choose([1024] * 16, 16, 1.0)
    assert not division.choose([], 0, 1.0)
    assert division.parts == 16


def test_longer_sequences_get_fewer_and_larger_parts_at_once():
    division = Partitioning(WAYS, 0.0)
    assert division.choose([100, 1025], 1, 0.0)
    assert division.parts == 8
    assert division.choose([5000, 5000], 2, 0.0)
    assert division.parts == 2


def test_what_fits_no_parts_shares_the_cells():
    division = Partitioning(WAYS, 0.0)
    assert division.choose([2000] * 9, 8, 0.0)
    assert division.parts == SHARED
    assert not division.parted


def test_running_sessions_go_back_into_parts_only_some_time_later():
    division = Partitioning(WAYS, 0.0)
    assert division.choose([9000], 0, 0.0)
    assert not division.choose([100], 1, SETTLED_S / 2)
    assert division.choose([100], 1, SETTLED_S)
    assert division.parts == 16


def test_an_idle_cache_is_divided_for_the_next_session_at_once():
    division = Partitioning(WAYS, 0.0)
    assert division.choose([9000], 0, 0.0)
    assert division.choose([100], 0, 0.1)
    assert division.parts == 16


def test_where_no_division_is_possible_all_share():
    division = Partitioning((), 0.0)
    assert not division.possible
    assert not division.choose([10**6], 1, 0.0)
    assert division.parts == SHARED


NEEDS = st.lists(st.integers(1, 16384), max_size=16)


@given(st.lists(st.tuples(NEEDS, st.integers(0, 16), st.floats(0, 20)), max_size=20))
def test_all_sessions_fit_after_every_choice(choices: list[tuple[list[int], int, float]]) -> None:
    division, now = Partitioning(WAYS, 0.0), 0.0
    for needs, running, later in choices:
        now += later
        before = division.parts
        assert division.choose(needs, min(running, len(needs)), now) == (division.parts != before)
        if division.parted:
            assert len(needs) <= division.parts
            assert max(needs, default=0) <= dict(WAYS)[division.parts]
