"""Guesses: what followed last time, and how far one believes in them."""

from __future__ import annotations

import itertools

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.sessions.ngram_cache import NGRAM
from umaserve.sessions.speculation import FORGETTING, LEARNING, PRIOR, Acceptance, PromptIndex, Repetition


@settings(max_examples=examples(300))
@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), max_size=10), st.integers(0, 6))
def test_what_followed_last_time_is_guessed_however_the_text_came(
    prompt: list[int], generated: list[int], most: int
) -> None:
    repetition = Repetition(PromptIndex(prompt))
    for token in generated:
        repetition.append(token)
    whole = prompt + generated
    end = whole[-NGRAM:]
    before = [at for at in range(NGRAM, len(whole)) if whole[at - NGRAM : at] == end and len(end) == NGRAM]
    expected = list(itertools.islice(itertools.cycle(whole[before[-1] :]), most)) if before else []
    assert list(repetition.draft_tokens(most)) == expected


def test_the_prompt_stays_the_callers() -> None:
    prompt = [1, 2, 3, 4, 1, 2, 3]
    repetition = Repetition(PromptIndex(prompt))
    repetition.append(9)
    assert prompt == [1, 2, 3, 4, 1, 2, 3]
    assert list(Repetition(PromptIndex(prompt)).draft_tokens(9)) == [4, 1, 2, 3, 4, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("draft_tokens", "right", "verified"),
    [(0, 0, ""), (1, 0, "-"), (1, 1, "+"), (4, 0, "-"), (4, 2, "++-"), (4, 4, "++++")],
)
def test_acceptance_learns_from_what_was_verified(draft_tokens: int, right: int, verified: str) -> None:
    acceptance = Acceptance()
    expected = PRIOR
    for one in verified:
        expected += LEARNING * ((one == "+") - expected)
    acceptance.observe(draft_tokens, right)
    assert acceptance.share == pytest.approx(expected)


def test_acceptance_goes_back_to_the_prior_where_nothing_is_guessed() -> None:
    acceptance = Acceptance()
    for _ in range(20):
        acceptance.observe(1, 0)
    low = acceptance.share
    assert low < 0.05
    acceptance.observe(0, 0)
    assert acceptance.share == pytest.approx(low + FORGETTING * (PRIOR - low))
    for _ in range(2000):
        acceptance.observe(0, 0)
    assert acceptance.share == pytest.approx(PRIOR, abs=0.001)


@given(
    st.lists(
        st.integers(0, 8).flatmap(lambda draft_tokens: st.tuples(st.just(draft_tokens), st.integers(0, draft_tokens)))
    )
)
def test_acceptance_stays_a_share(ticks: list[tuple[int, int]]) -> None:
    acceptance = Acceptance()
    for draft_tokens, right in ticks:
        acceptance.observe(draft_tokens, right)
        assert 0 < acceptance.share < 1
