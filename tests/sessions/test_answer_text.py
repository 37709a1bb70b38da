"""An answer's text: however it comes in tokens, stops and filter end it where they end it in one piece."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import FinishReason
from umaserve.sessions.answer_text import AnswerText, Said
from umaserve.sessions.content_filter import ContentFilter
from umaserve.sessions.detokenizer import Detokenizer

STOP, FILTER = FinishReason.STOP, FinishReason.CONTENT_FILTER


def said(
    pieces: Sequence[str], stops: Sequence[str] = (), patterns: Sequence[str] = ()
) -> tuple[list[str], FinishReason | None]:
    """What each piece released, up to the end, with what was held back last; and why it ended, if before the end."""
    filtered = ContentFilter("patterns", list(enumerate(patterns, 1))).stream() if patterns else None
    text = AnswerText(Detokenizer([piece.encode() for piece in pieces], stops), filtered)
    released = []
    for token in range(len(pieces)):
        new, ended = text.push(token)
        released.append(new.text)
        if ended is not None:
            assert text.finish() == (Said(""), ended is FILTER), "nothing comes after the end"
            return released, ended
    rest, matched = text.finish()
    return [*released, rest.text], FILTER if matched else None


CASES = {
    "as it comes": (["a", "b"], [], [], ["a", "b", ""], None),
    "a stop": (["a", "b", "cd"], ["bc"], [], ["a", "", ""], STOP),
    "the rest of a stop": (["a", "b"], ["bc"], [], ["a", "", "b"], None),
    "a match": (["a", "bad", "c"], [], ["bad"], ["a", ""], FILTER),
    "a match over pieces": (["a b", "a", "d c"], [], ["bad"], ["a ", "", ""], FILTER),
    "what might have matched": (["ba", "x"], [], ["bad"], ["", "bax", ""], None),
    "the rest of a match": (["a", "ba"], [], ["bad"], ["a", "", "ba"], None),
    "a match before the stop": (["a", "bad."], ["."], ["bad"], ["a", ""], FILTER),
    "the match after the stop is never seen": (["a", ".bad"], ["."], ["bad"], ["a", ""], STOP),
    "what the filter held comes with the stop": (["ba", "."], ["."], ["bad"], ["", "ba"], STOP),
    "a stop that makes the end of a match": (["say bad", "!"], ["!"], ["bad$"], ["say ", ""], FILTER),
    "a match in what the stops held": (["a", "bad"], ["bad!"], ["bad"], ["a", "", ""], FILTER),
    "a match at the very end": (["a ", "bad"], [], [r"bad\b"], ["a ", "", ""], FILTER),
}


@pytest.mark.parametrize(("pieces", "stops", "patterns", "released", "ended"), CASES.values(), ids=CASES)
def test_what_comes_of_pieces(
    pieces: list[str], stops: list[str], patterns: list[str], released: list[str], ended: FinishReason | None
) -> None:
    assert said(pieces, stops, patterns) == (released, ended)


@given(st.text("abc", max_size=12), st.lists(st.integers(1, 3), max_size=12), st.sampled_from(["c", "cc", "ba"]))
def test_it_is_the_same_text_however_it_is_split(whole: str, lengths: list[int], pattern: str) -> None:
    pieces, rest = [], whole
    for length in lengths:
        pieces.append(rest[:length])
        rest = rest[length:]
    released, ended = said([*pieces, rest], (), [pattern])
    found = re.search(pattern, whole)
    assert "".join(released) == (whole if found is None else whole[: found.start()])
    assert ended is (None if found is None else FILTER)


@given(st.lists(st.text("abc", max_size=3), max_size=8), st.sampled_from(["c", "cab", "bb"]))
def test_a_filter_that_matches_nothing_changes_neither_text_nor_end(pieces: list[str], stop: str) -> None:
    plain, ended = said(pieces, [stop])
    filtered, filtered_end = said(pieces, [stop], ["never"])
    assert ("".join(filtered), filtered_end) == ("".join(plain), ended)


def test_a_filter_that_is_too_slow_is_an_error_at_each_call() -> None:
    class Slow:
        def push(self, _text: str) -> tuple[str, bool]:
            raise RequestError(Fault.DECODE_FAILED, "request", "too slow")

    text = AnswerText(Detokenizer([b"a"], ()), Slow())
    for call in (lambda: text.push(0), text.finish):
        with pytest.raises(RequestError, match="too slow"):
            call()
