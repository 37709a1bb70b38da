"""Tool calls in streamed text: what is content, what is a call, and that no way of cutting the text changes it."""

from __future__ import annotations

import json
from itertools import count, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from umaserve.dialects.tool_calls import ToolCallParser
from umaserve.messages import TOOL_CALL_CLOSE as CLOSE
from umaserve.messages import TOOL_CALL_OPEN as OPEN
from umaserve.messages import ToolCall

# A busy machine is no fault of the code.
untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

CALL = f'{OPEN}{{"name":"f","arguments":{{"x":1}}}}{CLOSE}'
FIRST, SECOND = ToolCall("c0", "f", '{"x":1}'), ToolCall("c1", "f", '{"x":1}')


def parser(*, only_first: bool = False) -> ToolCallParser:
    numbers = count()
    return ToolCallParser(lambda: f"c{next(numbers)}", only_first=only_first)


def parsed(*pieces: str, only_first: bool = False) -> tuple[str, list[ToolCall]]:
    reader = parser(only_first=only_first)
    content, calls = "", []
    for piece in pieces:
        more, found = reader.push(piece)
        content += more
        calls += found
    return content + reader.finish(), calls


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("", "", []),
        ("plain < text", "plain < text", []),
        (" \n", " \n", []),
        (CALL, "", [FIRST]),
        (f" \n{CALL}\n{CALL}\n", "", [FIRST, SECOND]),
        (f"  I call\n{CALL} \n and {CALL} done ", "  I call\n \n and  done ", [FIRST, SECOND]),
        (f'{OPEN}\n{{"name": "f", "arguments": {{"x": 1}}}}\n{CLOSE}', "", [FIRST]),
        (f'{OPEN}{{"name":"now"}}{CLOSE}', "", [ToolCall("c0", "now", "{}")]),
        (f"the {OPEN} tag, then {CALL}", f"the {OPEN} tag, then ", [FIRST]),
        (OPEN + CALL, OPEN, [FIRST]),
        (f'{OPEN}{{"name":{CLOSE}{CALL}', f'{OPEN}{{"name":{CLOSE}', [FIRST]),
    ],
)
def test_text_is_parted_into_content_and_calls(text: str, content: str, calls: list[ToolCall]) -> None:
    assert parsed(text) == (content, calls)
    assert parsed(*text) == (content, calls)


@pytest.mark.parametrize("said", [CLOSE, f'quoted \\" {CLOSE}', f"{OPEN}{CLOSE}{CLOSE}", "\\\\", f"\\\\ {CLOSE}"])
def test_a_tag_in_an_argument_ends_nothing(said: str) -> None:
    block = f'{OPEN}{{"name":"f","arguments":{{"x":"{said}"}}}}{CLOSE}'
    content, [call] = parsed(*block)
    assert content == ""
    assert json.loads(call.arguments) == {"x": json.loads(f'"{said}"')}


@pytest.mark.parametrize(
    "block",
    [
        "",
        "[]",
        "{}",
        '"f"',
        '{"name":"f","arguments":{}',
        '{"name":"","arguments":{}}',
        '{"name":1,"arguments":{}}',
        '{"name":"f","arguments":"{}"}',
        '{"name":"f","arguments":null}',
        '{"name":"f","arguments":{"x":NaN}}',
        '{"name":"f"}{"name":"f"}',
        f'{{"name":"f","arguments":{{"x":{"[" * 500 + "]" * 500}}}}}',
        f'{{"name":"f","arguments":{{"x":{"[" * 2000 + "]" * 2000}}}}}',
    ],
)
def test_a_block_that_is_no_call_is_content(block: str) -> None:
    text = f"a{OPEN}{block}{CLOSE}b"
    assert parsed(text) == (text, [])


@pytest.mark.parametrize("length", range(len(CALL)))
def test_an_unfinished_block_is_content(length: int) -> None:
    assert parsed("a", CALL[:length]) == ("a" + CALL[:length], [])


def test_content_is_held_only_where_a_tag_may_begin() -> None:
    reader = parser()
    assert reader.push("Hello <") == ("Hello ", [])
    assert reader.push("tool_") == ("", [])
    assert reader.push("box>!") == ("<tool_box>!", [])
    assert reader.push(OPEN + "{") == ("", [])
    assert reader.push(f'"name":"f"}}{CLOSE}') == ("", [ToolCall("c0", "f", "{}")])


def test_only_the_first_call_is_kept_with_the_text_before_it() -> None:
    text = f"so {CALL} and {CALL} end"
    assert parsed(text, only_first=True) == ("so ", [FIRST])
    assert parsed(*text, only_first=True) == ("so ", [FIRST])


PIECES = st.lists(
    st.sampled_from(
        [CALL, OPEN, CLOSE, " ", "\n", "a", "{", "}", '"', "\\", "<", "<tool", "</tool_call", '{"name":"g"}']
    )
)


@untimed
@given(pieces=PIECES, cuts=st.lists(st.integers(0, 400)), only_first=st.booleans())
def test_every_way_of_cutting_gives_the_same(pieces: list[str], cuts: list[int], only_first: bool) -> None:
    text = "".join(pieces)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    split = [text[start:end] for start, end in pairwise(places)]
    assert parsed(*split, only_first=only_first) == parsed(text, only_first=only_first)


@untimed
@given(text=PIECES.map("".join))
def test_nothing_but_calls_and_white_space_is_lost(text: str) -> None:
    content, calls = parsed(text)
    left = len("".join(text.split())) - len("".join(content.split()))
    shortest, longest = len(f'{OPEN}{{"name":"g"}}{CLOSE}'), len(CALL)
    assert len(calls) * shortest <= left <= len(calls) * longest
    assert calls or content == text
