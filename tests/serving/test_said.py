"""What a tenant has said: the longest earlier occurrence is found, within the bounds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.serving.said import MAX_MATCH, MAX_TRIED, MIN_MATCH, SaidTokens
from umaserve.serving.speculation import NGRAM

TEXTS = st.lists(st.lists(st.integers(0, 2), max_size=40), max_size=4)


def _matched(said: list[int], position: int, text: list[int]) -> int:
    length = 0
    while length < min(position, len(text), MAX_MATCH) and said[position - 1 - length] == text[-1 - length]:
        length += 1
    return length


@settings(max_examples=500)
@given(TEXTS, st.lists(st.integers(0, 2), max_size=40), st.sampled_from([16, 64, 256]), st.integers(1, 6))
def test_the_longest_of_the_latest_occurrences_is_found(
    texts: list[list[int]], text: list[int], capacity: int, most: int
) -> None:
    index = SaidTokens(capacity)
    whole: list[int] = []
    for one in texts:
        for token in one:
            index.append(token)
        index.close()
        whole += [*one, -1]
    kept = whole[-capacity:]
    lengths = {at: _matched(kept, at, text) for at in range(NGRAM, len(kept) + 1)}
    length, position = index.longest(text)
    position -= len(whole) - len(kept)
    # Hash chains may hold other n-grams: only with so few of them in all is the search certain to be whole.
    usable = {at: n for at, n in lengths.items() if n >= NGRAM and kept[at : at + 1] not in ([], [-1])}
    if length:
        assert usable[position] == length
        follows = kept[position : position + most]
        follows = follows[: follows.index(-1)] if -1 in follows else follows
        assert index.after(position + len(whole) - len(kept), most) == follows
    if len(kept) <= MAX_TRIED:
        assert length == max(usable.values(), default=0)
        assert position + len(whole) - len(kept) == max(
            (at + len(whole) - len(kept) for at, n in usable.items() if n == length), default=0
        )


def test_what_is_overwritten_is_not_found() -> None:
    index = SaidTokens(16)
    for token in [*range(1, 6), *range(10, 30)]:
        index.append(token)
    assert index.longest([1, 2, 3]) == (0, 0)
    assert index.after(3, 2) == []
    assert index.after(index.longest([20, 21, 22])[1], 2) == [23, 24]


def test_short_matches_make_no_drafts_and_long_ones_end_with_their_text() -> None:
    index = SaidTokens(64)
    for token in [*range(1, MIN_MATCH + 1), 50]:
        index.append(token)
    index.close()
    index.append(51)
    text = list(range(1, MIN_MATCH + 1))
    assert index.draft_tokens(text, 4) == [50]
    assert index.draft_tokens([99, *text[1:]], 4) == ()
    assert index.draft_tokens(text[1:], 4) == ()
