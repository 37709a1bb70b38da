"""The n-grams of earlier texts: what followed the latest occurrence is drafted, within the bounds."""

from __future__ import annotations

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.sessions.ngram_cache import CAPACITY, MAX_SCOPES, NGRAM, NgramCache, NgramCaches

TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=6)


@settings(max_examples=examples(300))
@given(TEXTS, st.lists(st.integers(0, 3), min_size=NGRAM, max_size=NGRAM), st.integers(0, 6))
def test_what_followed_the_latest_occurrence_is_drafted_up_to_the_end_of_its_text(
    texts: list[list[int]], ngram: list[int], limit: int
) -> None:
    cache = NgramCache()
    found: list[int] = []
    for text in texts:
        cache.add(text)
        for at in range(NGRAM, len(text) + 1):
            if text[at - NGRAM : at] == ngram:
                found = text[at : at + limit]
    assert cache.draft_tokens(ngram, limit) == found


def test_less_than_an_ngram_is_found_nowhere() -> None:
    cache = NgramCache()
    for text in ([], [1], [1, 2], [1, 2, 3]):
        cache.add(text)
    assert cache.draft_tokens((1, 2), 4) == []
    assert cache.draft_tokens((1, 2, 3), 4) == []


def test_what_is_overwritten_is_not_found_and_what_crosses_the_rings_end_is() -> None:
    cache = NgramCache()
    cache.add([1, 2, 3, 4, 5])
    rest = CAPACITY - 6
    cache.add(range(100, 100 + rest - 4))
    # Its first tokens are the last of the ring.
    cache.add([50, 51, 52, 53, 54, 55])
    assert cache.draft_tokens((50, 51, 52), 9) == [53, 54, 55]
    assert cache.draft_tokens((51, 52, 53), 9) == [54, 55]
    assert cache.draft_tokens((1, 2, 3), 9) == []
    assert cache.draft_tokens((100, 101, 102), 2) == [103, 104]


def test_the_scope_that_was_longest_not_used_goes_first() -> None:
    caches = NgramCaches()
    first, second = caches.of("0"), caches.of("1")
    for number in range(2, MAX_SCOPES):
        caches.of(str(number))
    assert caches.of("0") is first
    caches.of("one more")
    assert caches.of("0") is first
    assert caches.of("1") is not second


def test_nothing_is_left_of_what_is_cleared_also_for_who_looks_into_it() -> None:
    caches = NgramCaches()
    cache = caches.of("tenant")
    cache.add([1, 2, 3, 4])
    caches.clear()
    assert cache.draft_tokens((1, 2, 3), 4) == []
    cache.add([1, 2, 3, 5])
    assert caches.of("tenant").draft_tokens((1, 2, 3), 4) == [5]
