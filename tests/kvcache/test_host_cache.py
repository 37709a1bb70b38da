"""Places in host memory: never two in one, the oldest overwritten first, and none found that is not there any more."""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.kvcache.host_cache import HostCache, Place
from umaserve.sessions.engine_api import SavedBytes

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)
OWNERS = st.sampled_from(["one", "two"])


def key_of(cache: HostCache, scope: str, tokens: tuple[int, ...]) -> int:
    found = cache.match(scope, tokens)
    assert found is not None
    assert found.length == len(tokens)
    return found.holder


def overlap(one: Place, other: Place) -> bool:
    return one.offset < other.offset + other.size and other.offset < one.offset + one.size


@settings(max_examples=examples(300))
@given(
    st.integers(0, 60),
    st.tuples(st.integers(0, 5), st.integers(1, 3)),
    st.lists(st.none() | st.tuples(OWNERS, TOKENS), max_size=40),
)
def test_places_are_apart_and_the_oldest_go_first(
    n_bytes: int, saved_bytes: tuple[int, int], steps: list[tuple[str, tuple[int, ...]] | None]
) -> None:
    """``None`` clears it."""
    cache = HostCache(n_bytes, SavedBytes(*saved_bytes))
    live: dict[int, tuple[str, tuple[int, ...], Place]] = {}
    """By key, the oldest first."""
    for step in steps:
        if step is None:
            cache.clear()
            live.clear()
        else:
            scope, tokens = step
            size = saved_bytes[0] + saved_bytes[1] * len(tokens)
            saved = any(whose == scope and held[: len(tokens)] == tokens for whose, held, _place in live.values())
            place = cache.put(scope, tokens)
            assert (place is None) == (saved or size > n_bytes)
            if place is not None:
                assert (place.size, place.tokens) == (size, len(tokens))
                gone = [key for key in live if cache.place(key) is None]
                assert gone == list(live)[: len(gone)], "the oldest first"
                for key in gone:
                    del live[key]
                live[key_of(cache, scope, tokens)] = (scope, tokens, place)
        places = [place for _scope, _tokens, place in live.values()]
        assert all(0 <= place.offset <= place.offset + place.size <= n_bytes for place in places)
        assert not any(overlap(one, other) for index, one in enumerate(places) for other in places[:index])
        assert cache.used_bytes == sum(place.size for place in places)
        for key, (scope, tokens, place) in live.items():
            assert cache.place(key) == place
            found = cache.match(scope, tokens)
            assert found is not None
            assert (found.length, found.holder in live) == (len(tokens), True)
            assert live[found.holder][0] == scope


def test_nothing_goes_before_its_place_is_wanted() -> None:
    cache = HostCache(30, SavedBytes(0, 1))
    places = [cache.put("", [number] * 10) for number in range(5)]
    assert [place and place.offset for place in places] == [0, 10, 20, 0, 10]
    assert [cache.match("", [number] * 10) is not None for number in range(5)] == [False, False, True, True, True]


def test_one_that_does_not_fit_behind_the_last_goes_to_the_beginning() -> None:
    cache = HostCache(30, SavedBytes(0, 1))
    for number, length in enumerate((10, 15, 10)):
        cache.put("", [number] * length)
    assert cache.place(key_of(cache, "", (2,) * 10)) == Place(0, 10, 10)
    assert cache.match("", [0]) is None
    assert cache.match("", [1]) is not None, "nothing was written over it"
    assert cache.used_bytes == 25


@pytest.mark.parametrize(("tokens", "fits"), [(10, True), (11, False)])
def test_what_is_longer_than_the_memory_is_not_saved(tokens: int, fits: bool) -> None:
    cache = HostCache(25, SavedBytes(5, 2))
    assert (cache.put("", [1] * tokens) is not None) == fits


def test_what_is_only_of_use_whole_is_found_only_whole_and_saved_beside_what_is_longer():
    cache = HostCache(60, SavedBytes(0, 1), entire=True)
    assert cache.put("one", [1, 2, 3, 4, 5]) is not None
    assert cache.match("one", [1, 2, 3, 4]) is None
    assert cache.nearest("one", [1, 2, 3, 7]) == (3, (1, 2, 3, 4, 5))
    assert cache.put("one", [1, 2, 3]) is not None
    assert cache.put("one", [1, 2, 3]) is None
    for tokens, length in (([1, 2, 3, 4], 3), ([1, 2, 3], 3), ([1, 2, 3, 4, 5, 6], 5), ([1, 2, 9], 0)):
        found = cache.match("one", tokens)
        assert (0 if found is None else found.length) == length


def test_a_window_limits_what_is_saved_for_each_token():
    assert [SavedBytes(10, 2, 5, 3).of(tokens) for tokens in (0, 1, 3, 4, 100)] == [10, 17, 31, 33, 225]
