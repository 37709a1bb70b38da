"""The content filter: however the text comes, what is released holds no match and all else comes through."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import pytest
import regex
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from umaserve.core.errors import ConfigError, Fault, RequestError
from umaserve.sessions.content_filter import CONTEXT, MAX_HELD, ContentFilter, load

# A busy box makes no test fail.


def of(*patterns: str) -> ContentFilter:
    return ContentFilter("patterns", list(enumerate(patterns, 1)))


def run(filter_: ContentFilter, pieces: Iterable[str]) -> tuple[list[str], bool]:
    """What each piece releases, the rest at the end, and whether there was a match."""
    stream = filter_.stream()
    released: list[str] = []
    for piece in pieces:
        text, matched = stream.push(piece)
        released.append(text)
        if matched:
            assert stream.push("more") == stream.finish() == ("", True), "nothing more comes"
            return released, True
    text, matched = stream.finish()
    assert stream.finish() == ("", matched), "what was released is no longer held"
    return [*released, text], matched


def test_patterns_are_replaced_for_the_answers_that_begin_after() -> None:
    filter_ = of("old")
    begun = filter_.stream()
    filter_.take_patterns(of("new"))
    assert begun.push("an old word, ") == ("an ", True)
    assert run(filter_, ["an old word, ", "a new one"]) == (["an old word, ", "a "], True)
    filter_.check_prompt("an old word")
    with pytest.raises(RequestError):
        filter_.check_prompt("a new word")


def first_match(patterns: Iterable[str], text: str) -> int | None:
    found = (regex.search(pattern, text, regex.IGNORECASE) for pattern in patterns)
    return min((match.start() for match in found if match), default=None)


@st.composite
def cut(draw: st.DrawFn, whole: str) -> list[str]:
    """``whole`` in pieces, empty ones among them."""
    at = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    return [whole[start:end] for start, end in zip([0, *at], [*at, len(whole)], strict=True)]


texts = st.text("aAbc \nß", max_size=16)
atoms = st.sampled_from(["a", "b", "c", "ab", "bc", "[ab]", ".", " ", r"\w", r"\s", "[^a]", r"[^\W_]", "ß"])
boundaries = st.sampled_from(
    [r"\b", r"\B", r"\m", r"\M", "^", "(?m:^)", "(?m:$)", "(?<=a)", "(?<!b)", "(?!a)", "(?=b)"]
)
repeats = st.builds("{}{}".format, atoms, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "*?", "??"]))
parts = st.lists(atoms | boundaries | repeats, max_size=3).map("".join)
branches = st.builds("{}(?:{}|{})".format, parts, parts, parts)
# One character at the end, so that nothing in them looks past their match.
patterns = st.builds("{}{}".format, parts | branches, st.sampled_from(["a", "b", "c", ".", r"\s", "[^a]"]))
plain = st.text("abc ", min_size=1, max_size=4)


@settings(max_examples=examples(600))
@given(st.lists(patterns | plain, min_size=1, max_size=3), texts.flatmap(cut))
@example(["abcd", "bc"], ["a", "b", "c", "d"])
@example([r"a|b\Bc", r"(?:abc|b\b)c"], ["ab", "cc"])
@example([r" \ba"], [" ", "a"])
@example([r"[ab](?!\b)c"], ["a", "c"])
@example([r"..\w*?(?<!a)c"], ["ab", "aac"])
@example([r"(a)\w\1", "(?i:ß)b", "(?f)ss"], ["ab", "A"])
def test_the_text_ends_before_the_first_match_in_what_has_come_and_is_whole_without_one(
    given_patterns: list[str], pieces: list[str]
) -> None:
    stream = of(*given_patterns).stream()
    seen = released = ""
    for piece in pieces:
        seen += piece
        text, matched = stream.push(piece)
        released += text
        first = first_match(given_patterns, seen)
        assert matched == (first is not None)
        if matched:
            assert released == seen[:first]
            return
        assert seen.startswith(released)
    text, matched = stream.finish()
    assert (released + text, matched) == (seen, False)


@given(st.lists(plain, min_size=1, max_size=4), texts.flatmap(cut))
def test_no_more_is_held_than_has_to_be(strings: list[str], pieces: list[str]) -> None:
    stream = of(*strings).stream()
    seen = released = ""
    for piece in pieces:
        seen += piece
        text, matched = stream.push(piece)
        released += text
        lower = seen.lower()
        if matched:
            assert released == seen[: min(lower.index(string) for string in strings if string in lower)]
            return
        assert not any(string in lower for string in strings), "a match is told at once"
        tails = (lower[at:] for at in range(len(lower)))
        longest = next((tail for tail in tails if any(string.startswith(tail) for string in strings)), "")
        assert seen[len(released) :].lower() == longest


@given(
    st.sampled_from([r"oo\b", r"oo\B", "oo$", r"oo\Z", "(?m)oo$", r"oo\M", r"oo(?=\n)", r"o+(?:\.|$)", "(?m)o $"]),
    st.text("o. \nx", max_size=10).flatmap(cut),
)
def test_what_depends_on_the_next_character_waits_for_it(pattern: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    first = first_match([pattern], text)
    released, matched = run(of(pattern), pieces)
    assert ("".join(released), matched) == (text[:first], first is not None)


EXAMPLES = [
    # patterns, pieces, released by each piece and at the end, whether there was a match
    (["foo"], ["a f", "O", "x fo"], ["a ", "", "fOx ", "fo"], False),
    (["foo"], ["a F", "o", "O b"], ["a ", "", ""], True),
    (["foo"], ["a foo b"], ["a "], True),
    # A whole match wins over a partial one that begins before it.
    (["foo.*bar", "bad"], ["x foo ", "and bad"], ["x ", "foo and "], True),
    (["foo.*bar", "bad"], ["x foo ", "and bar"], ["x ", ""], True),
    (["abcd", "bc"], ["abcd"], [""], True),
    (["abcd", "bc"], ["ab", "c"], ["", "a"], True),
    # Of a match that waits, nothing is released either, nor of what may begin before it.
    (["abcd", r"bc\b"], ["abc", "d"], ["", ""], True),
    (["abcd", r"bc\b"], ["abc", "e"], ["", "abce", ""], False),
    (["foo$"], ["foo", " ", "foo"], ["", "foo ", "", ""], True),
    (["foo$"], ["foo\n", "x"], ["", "foo\nx", ""], False),
    (["(?m)foo$"], ["foo", "\n"], ["", ""], True),
    # What was released is still seen by what looks back.
    ([r"\bfoo"], ["a", "foo", "-", "foo"], ["a", "foo", "-", ""], True),
    (["(?<=ab)c"], ["xab", "x", "c ", "ab", "c"], ["x", "abx", "c ", "", "ab"], True),
    (["^a"], ["x", "a"], ["x", "a", ""], False),
    (["(?m)^a"], ["x\n", "a"], ["x\n", ""], True),
    ([r"\Aa"], ["x" * CONTEXT, "x" * CONTEXT, "a"], ["x" * CONTEXT, "x" * CONTEXT, "a", ""], False),
    (["ß"], ["STRASSE ẞ"], ["STRASSE "], True),
    (["foo"], ["", ""], ["", "", ""], False),
    ([], ["any", "thing"], ["any", "thing", ""], False),
]


@pytest.mark.parametrize(("given_patterns", "pieces", "released", "matched"), EXAMPLES)
def test_examples(given_patterns: list[str], pieces: list[str], released: list[str], matched: bool) -> None:
    assert run(of(*given_patterns), pieces) == (released, matched)


def test_no_more_than_the_most_is_held_and_the_oldest_goes_first() -> None:
    held = "foo" + "x" * (MAX_HELD - 3)
    stream = of("foo.*bar").stream()
    assert stream.push(held) == ("", False)
    assert stream.push("y") == ("f", False)
    assert stream.push("bar") == (held[1:] + "ybar", False), "the match is too long to be seen"
    stream = of("foo.*bar").stream()
    assert stream.push("a" + held + "xy") == ("afo", False)
    assert of("foo.*bar").stream().push(f"a{held}bar") == ("a", True), "it came in one piece"


def test_what_is_held_at_the_most_still_ends_before_another_match() -> None:
    stream = of("foo.*bar", "bad").stream()
    stream.push("foo" + "x" * (MAX_HELD - 3))
    assert stream.push("ybad") == ("foo" + "x" * (MAX_HELD - 3) + "y", True)


def test_a_prompt_with_a_match_is_refused_without_repeating_it() -> None:
    filter_ = of("hunter2", r"\bkey: \w{8}")
    filter_.check_prompt("monkey: abcdefgh, hunter3")
    for prompt in ("my HUNTER2", "Key: abcdefgh"):
        with pytest.raises(RequestError) as caught:
            filter_.check_prompt(prompt)
        assert caught.value.fault is Fault.CONTENT_FILTERED
        assert caught.value.message == "prompt: contains text that this server does not allow"


SLOW = "(?:a|aa)+-x"


def test_a_pattern_that_takes_too_long_fails_the_request_and_the_log_names_its_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    filter_ = ContentFilter("patterns", [(3, "plain"), (7, SLOW)])
    stream = filter_.stream()
    for check in (filter_.check_prompt, stream.push):
        caplog.clear()
        with caplog.at_level(logging.ERROR), pytest.raises(RequestError) as caught:
            check("a" * 200 + "b")
        assert caught.value.fault is Fault.DECODE_FAILED
        assert caught.value.message == "content filter: the server could not check the text in time"
        assert [record.getMessage() for record in caplog.records] == [
            "content filter: line 7: the pattern takes too long: write it more simply"
        ]


def written(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def test_a_file_has_one_pattern_a_line_with_comments_and_empty_lines_between(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbffirst\r\n\n# second\n   \n th\xc3\xaerd\\b\n#\n(a)\\1"
    filter_ = load(written(tmp_path / "patterns", data))
    for text in ("First", " thîrd", "aa"):
        with pytest.raises(RequestError):
            filter_.check_prompt(text)
    filter_.check_prompt("second thîrds # a\r\n")


def test_a_file_without_patterns_lets_everything_through(tmp_path: Path) -> None:
    filter_ = load(written(tmp_path / "patterns", b"# none yet\n"))
    filter_.check_prompt("anything")
    assert run(filter_, ["any", "thing"]) == (["any", "thing", ""], False)


REFUSED = [
    (b"ok\n(", "line 2: missing )"),
    (b"x*", "line 1: it matches the empty text"),
    (b"#\n\n^|a", "line 3: it matches the empty text"),
    (b"caf\xe9", "line 1: not UTF-8"),
    (rb"a\Kb", "line 1: '\\\\K' can't be followed"),
    (rb"\Ga", "line 1: '\\\\G' can't be followed"),
    (b"a(*SKIP)b", "line 1: '(*SKIP' can't be followed"),
    (b"(?:foo){e<=1}", "line 1: '{e' can't be followed"),
    (b"(?:foo){1<=i<=2}", "line 1: '{1<=i' can't be followed"),
    (b"(?r)foo", "line 1: its flags are more than"),
    (b"(?b)foo", "line 1: its flags are more than"),
    (b"(?x)foo # it", "line 1: its flags are more than"),
    (rb".\p{2i<|<R(?$[0", "line 1: "),
    (b"(a" * 3000 + b")" * 3000, "line 1: nested too deep"),
    (b"(?#^)b", "line 1: "),
    (b"a\n" * 1025, "line 1025: more than 1024 patterns"),
    (b"#" * (1 << 20) + b"\n", "longer than 1048576 bytes"),
]


@pytest.mark.parametrize(("data", "problem"), REFUSED, ids=[problem for _, problem in REFUSED])
def test_a_bad_file_is_refused_in_one_line_that_says_where(tmp_path: Path, data: bytes, problem: str) -> None:
    path = written(tmp_path / "patterns", data)
    with pytest.raises(ConfigError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"content filter {path}: {problem}")
    assert "; " in message, "it says what to do"
    assert "\n" not in message


@pytest.mark.parametrize("pattern", [r"\\K", r"[\b{e}]a", r"\p{L}{2}", r"\(*a", r"a{2}", r"\{e\}", "(?f)ß", "(?s)a.b"])
def test_what_only_looks_like_something_unsupported_is_taken(pattern: str) -> None:
    assert run(of(pattern), ["~"]) == (["~", ""], False)


def test_the_most_patterns_in_the_largest_file_are_taken(tmp_path: Path) -> None:
    data = b"a\n" * 1024
    load(written(tmp_path / "patterns", data + b"#" * ((1 << 20) - len(data))))


@pytest.mark.parametrize("name", ["missing", "."])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"^content filter .*: (No such file or directory|not a regular file); .+"):
        load(str(tmp_path / name))
