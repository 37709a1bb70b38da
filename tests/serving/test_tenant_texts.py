"""What tenants have said is added in pieces and kept within bounds."""

from __future__ import annotations

import pytest

from umaserve.serving.caller import Caller
from umaserve.serving.said import MIN_MATCH, SaidTokens
from umaserve.serving.session import Session
from umaserve.serving.tenant_texts import MAX_OF_REQUEST, MAX_SCOPES, MAX_WAITING, OVERLAP, TOKENS_A_TURN, TenantTexts
from umaserve.serving.ticks import Prepared


def ended(said: SaidTokens, prompt: list[int], answer: list[int], reused: int = 0) -> Session:
    session = Session(1, lambda _output: None, Caller("uds", "uid:1000"))
    session.prepared = Prepared(prompt, 9, object())
    session.generated, session.said, session.reused = answer, said, reused
    return session


def knows(said: SaidTokens, token: int) -> bool:
    """Whether ``token`` is drafted, in a text that counts up."""
    return list(said.draft_tokens(range(token - 8, token), 1)) == [token]


def test_the_scope_that_was_longest_not_used_goes_first() -> None:
    texts = TenantTexts()
    first, second = texts.of("0"), texts.of("1")
    for number in range(2, MAX_SCOPES):
        texts.of(str(number))
    assert texts.of("0") is first
    texts.of("one more")
    assert texts.of("0") is first
    assert texts.of("1") is not second


def test_a_long_text_is_added_in_pieces_and_its_beginning_left_out() -> None:
    texts = TenantTexts()
    said = texts.of("")
    texts.ended(ended(said, list(range(1000, 1000 + MAX_OF_REQUEST)), list(range(50, 70))))
    turns = 0
    while texts.incomplete:
        texts.add_some()
        turns += 1
    assert turns == MAX_OF_REQUEST // TOKENS_A_TURN
    assert knows(said, 69)
    assert knows(said, 1100)
    assert not knows(said, 1015)


def test_a_reused_prefix_is_not_added_again() -> None:
    texts = TenantTexts()
    said = texts.of("")
    texts.ended(ended(said, list(range(100, 300)), [300, 301], reused=168 + OVERLAP))
    texts.add_some()
    assert knows(said, 301)
    assert knows(said, 268 + MIN_MATCH)
    assert not knows(said, 267 + MIN_MATCH)


@pytest.mark.parametrize("clear", [True, False])
def test_what_waits_is_bounded_and_can_be_cleared(clear: bool) -> None:
    texts = TenantTexts()
    said = texts.of("")
    for number in range(MAX_WAITING + 1):
        texts.ended(ended(said, list(range(100 * number, 100 * number + 20)), [100 * number + 20]))
    if clear:
        texts.clear()
    while texts.incomplete:
        texts.add_some()
    assert [knows(said, 100 * number + 20) for number in (0, MAX_WAITING - 1, MAX_WAITING)] == [
        not clear,
        not clear,
        False,
    ]
