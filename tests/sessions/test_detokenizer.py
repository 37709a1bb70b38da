"""From tokens to text: however the bytes are cut into tokens, the text is the same and no stop string shows."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from umaserve.sessions.detokenizer import Detokenizer

# A busy box makes no test fail.


def run(pieces: list[bytes], stops: list[str]) -> tuple[list[str], bool]:
    """What each token releases, the rest at the end, and whether a stop string ended it."""
    stream = Detokenizer(pieces, stops)
    released: list[str] = []
    for token in range(len(pieces)):
        text, stopped = stream.push(token)
        released.append(text)
        if stopped:
            assert stream.finish() == ""
            return released, True
    released.append(stream.finish())
    assert stream.finish() == "", "what was released is no longer held"
    return released, False


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """The rule, character by character: the first moment at which the text ends in a stop string."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@st.composite
def cuts(draw: st.DrawFn, data: st.SearchStrategy[bytes]) -> list[bytes]:
    """A byte string as tokens, empty ones among them."""
    whole = draw(data)
    at = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    return [whole[start:end] for start, end in zip([0, *at], [*at, len(whole)], strict=True)]


any_text = st.text(st.sampled_from("ab é漢🙂") | st.characters(exclude_categories=["Cs"]), max_size=40)
# Few letters, so that stops are met, overlap each other and repeat within themselves.
few = "aé🙂"
stop_strings = st.lists(st.text(few, min_size=1, max_size=4), max_size=4)


@given(cuts(any_text.map(str.encode)))
def test_any_tokenization_gives_the_same_text_in_whole_characters(pieces: list[bytes]) -> None:
    released, _ = run(pieces, [])
    text = b"".join(pieces).decode()
    assert "".join(released) == text
    # A character sent in halves would show as U+FFFD, unless the text has one itself.
    assert "".join(released).count("\ufffd") == text.count("\ufffd")


@given(cuts(st.binary(max_size=30) | st.lists(st.sampled_from(b"a\x80\xbf\xc3\xe2\xf0\xff")).map(bytes)))
def test_bytes_that_are_no_text_are_replaced_the_same_way_however_they_are_cut(pieces: list[bytes]) -> None:
    released, _ = run(pieces, [])
    assert "".join(released) == b"".join(pieces).decode(errors="replace")


@given(cuts(st.text(few, max_size=30).map(str.encode)), stop_strings)
@example([b"abcd"], ["abcd", "bc"])
@example([b"a", b"b", b"c", b"d"], ["abcd", "bc"])
@example([b"aab"], ["ab", "aab"])
@example([b"aaab"], ["aab"])
@example([b"abab", b"abc"], ["ababc"])
def test_the_text_ends_before_the_stop_that_is_complete_first(pieces: list[bytes], stops: list[str]) -> None:
    released, stopped = run(pieces, stops)
    assert ("".join(released), stopped) == expected(b"".join(pieces).decode(), stops)


@given(cuts(st.text(few, max_size=30).map(str.encode)), stop_strings)
def test_nothing_is_sent_that_may_still_become_a_stop_and_all_else_is(pieces: list[bytes], stops: list[str]) -> None:
    released, stopped = run(pieces, stops)
    sent = b""
    for number, text in enumerate(released[:-1]):
        sent += text.encode()
        seen = b"".join(pieces[: number + 1]).decode(errors="ignore")
        held = seen[len(sent.decode()) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
        tails = (seen[at:] for at in range(len(seen)))
        longest = next((tail for tail in tails if any(stop.startswith(tail) for stop in stops)), "")
        assert held == longest, "no more is held than has to be"
    assert stopped or "".join(released) == b"".join(pieces).decode()


TABLE = [
    # pieces, stops, released by each token and at the end, whether stopped
    ([b"hel", b"lo"], [], ["hel", "lo", ""], False),
    ([b"\xf0\x9f", b"\x99", b"\x82!"], [], ["", "", "🙂!", ""], False),
    ([b"caf\xc3"], [], ["caf", "\ufffd"], False),
    ([b"one\n", b"\ntwo"], ["\n\n"], ["one", ""], True),
    ([b"one\n", b"two"], ["\n\n"], ["one", "\ntwo", ""], False),
    ([b"one\n"], ["\n\n"], ["one", "\n"], False),
    ([b"one\n", b"\xe2\x82"], ["\n\n"], ["one", "", "\n\ufffd"], False),
    ([b"a STOP b"], ["STOP"], ["a "], True),
    ([b"x</", b"s", b">y"], ["</s>", "</a>"], ["x", "", ""], True),
    ([b"abc"], ["c", "b"], ["a"], True),
    ([b"caf\xc3", b"\xa9"], ["é"], ["caf", ""], True),
    # The last byte of the text turns into a character, which may be a stop as well.
    ([b"a\xc3"], ["a\ufffd"], ["", ""], False),
]


@pytest.mark.parametrize(("pieces", "stops", "released", "stopped"), TABLE)
def test_examples(pieces: list[bytes], stops: list[str], released: list[str], stopped: bool) -> None:
    assert run(pieces, stops) == (released, stopped)


def test_the_same_token_gives_its_piece_each_time() -> None:
    stream = Detokenizer([b"no ", b"yes "], [])
    assert [stream.push(token)[0] for token in (1, 0, 1)] == ["yes ", "no ", "yes "]


@given(cuts(st.text(few, max_size=30).map(str.encode)), stop_strings, stop_strings, st.data())
def test_other_stops_hold_for_all_that_was_not_sent_yet(
    pieces: list[bytes], first: list[str], then: list[str], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(pieces)))
    stream, sent = Detokenizer(pieces, first), ""
    for token in range(at):
        text, stopped = stream.push(token)
        sent += text
        if stopped:
            return
    stream.set_stops(then)
    released = ""
    for token in range(at, len(pieces)):
        text, stopped = stream.push(token)
        released += text
        if stopped:
            break
    else:
        stopped = False
    released += stream.finish()
    # The whole text is known here, and the stream learnt of the stops when the first characters of it were held.
    rest = b"".join(pieces).decode()[len(sent) :]
    assert released == expected_from(rest, then, held(pieces[:at], sent))
    assert not stopped or any(stop in rest for stop in then)


def held(pieces: list[bytes], sent: str) -> int:
    return len(b"".join(pieces).decode(errors="ignore")) - len(sent)


def expected_from(text: str, stops: list[str], known: int) -> str:
    """The rule, when the first ``known`` characters come at once."""
    for end in range(known, len(text) + 1):
        found = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text[:end]]
        if found:
            return text[: min(found)[1]]
    return text


def test_a_stop_that_is_held_already_ends_the_text_at_the_next_call() -> None:
    for last in ("push", "finish"):
        stream = Detokenizer([b"say one\n", b"x"], ["\nnever", "one\n\n"])
        assert stream.push(0) == ("say ", False)
        stream.set_stops(["ne"])
        assert (stream.push(1) if last == "push" else (stream.finish(), True)) == ("o", True)
        assert stream.finish() == ""


def test_without_stops_all_that_was_held_comes_in_its_order() -> None:
    stream = Detokenizer([b"one\n", b"two"], ["\n\n"])
    assert stream.push(0) == ("one", False)
    stream.set_stops([])
    assert stream.push(1) == ("\ntwo", False)
    assert stream.finish() == ""


def test_the_stop_string_that_ended_a_text_is_told() -> None:
    stream = Detokenizer([b"a", b"b", b"c"], ["bc", "cc"])
    assert [stream.push(token) for token in (0, 1)] == [("a", False), ("", False)]
    assert stream.stop_string is None
    assert stream.push(2) == ("", True)
    assert stream.stop_string == "bc"
