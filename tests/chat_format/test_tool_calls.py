"""Tool calls in streamed text: what is content, what is a call, and that no way of cutting the text changes it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_forms import FORMS

from umaserve.chat_format.call_atoms import MAX_SPACES
from umaserve.chat_format.tool_calls import CallPiece, ToolCallParser, parser_for
from umaserve.core.events import ModelInfo
from umaserve.core.requests import ChatTurn, Generate, Tool
from umaserve.core.tool_call_format import TOLD_IN_WORDS, Slot, ToolForm

# A busy machine is no fault of the code.

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "colour": {"$ref": "#/$defs/Colour"},
        "count": {"type": "integer"},
        "ok": {"type": "boolean"},
        "of": {"type": "object"},
        "some": {"type": "array"},
    },
    "$defs": {"Colour": {"enum": ["red", "blue"]}},
}
TOOLS = [Tool("f", "", json.dumps(SCHEMA)), Tool("get-it_2", "", '{"type":"object"}')]


TEXTS = {
    "json": '<tool_call>\n{"name": "f", "arguments": {"text": "a </tool_call> \\" }", "count": 3}}\n</tool_call>',
    "list": '[TOOL_CALLS][{"name": "f", "arguments": {"text": "a", "of": {"k": []}}, "id": "abcdefgh1"}]',
    "ids": '[TOOL_CALLS]f[CALL_ID]abcdefgh1[ARGS]{"text": "[ARGS]"}',
    "numbers": '<|calls|><|call|>functions.f:0<|args|>{"count": -1}<|end|><|done|>',
    "bare": '{"name": "f", "parameters": {"ok": true}}',
    "tags": '<tool_call>\n<function=f>\n<parameter=text>\n\n if a < b:\n\t"x" </p\n\n</parameter>\n'
    "<parameter=count>\n3\n</parameter>\n<parameter=ok>\nTrue\n</parameter>\n</function>\n</tool_call>",
    "pairs": "<tool_call>f\n<arg_key>colour</arg_key>\n<arg_value>red</arg_value>\n<arg_key>text</arg_key>\n<arg_value>"
    '<![CDATA[<b>\n&]]></arg_value>\n<arg_key>of</arg_key>\n<arg_value>{"k": [1]}</arg_value>\n</tool_call>',
    "typed": '<calls>\n<invoke name="f">\n<parameter name="text" string="true">12</parameter>\n<parameter name="some" '
    'string="false">["a"]</parameter>\n</invoke>\n</calls>',
    "python": "<|tool_call_start|>[f(text='it (1, 2)', count=-3, ok=True, some=['a', None], of={\"k\": 1})]"
    "<|tool_call_end|>",
    "quoted": '<|tool_call>call:f{count:1,of:{k:[<|"|>a, b}<|"|>,true]},text:<|"|>it\'s "x"<|"|>}<tool_call|>',
    "elements": ']<]mark[>[<tool_call>\n]<]mark[>[<invoke name="f">]<]mark[>[<text>\n a</text>\n]<]mark[>[</text>'
    "]<]mark[>[<of>]<]mark[>[<of>1]<]mark[>[</of>]<]mark[>[<k>]<]mark[>[<item>x]<]mark[>[</item>]<]mark[>[</k>"
    "]<]mark[>[</of>]<]mark[>[<some>]<]mark[>[</some>]<]mark[>[</invoke>\n]<]mark[>[</tool_call>",
    "opened": 'f\n{"text": ">>> x"}',
}
ARGUMENTS = {
    "json": {"text": 'a </tool_call> " }', "count": 3},
    "list": {"text": "a", "of": {"k": []}},
    "ids": {"text": "[ARGS]"},
    "numbers": {"count": -1},
    "bare": {"ok": True},
    "tags": {"text": '\n if a < b:\n\t"x" </p\n', "count": 3, "ok": True},
    "pairs": {"colour": "red", "text": "<b>\n&", "of": {"k": [1]}},
    "typed": {"text": "12", "some": ["a"]},
    "python": {"text": "it (1, 2)", "count": -3, "ok": True, "some": ["a", None], "of": {"k": 1}},
    "quoted": {"count": 1, "of": {"k": ["a, b}", True]}, "text": 'it\'s "x"'},
    "elements": {"text": "\n a</text>\n", "of": {"of": 1, "k": ["x"]}, "some": []},
    "opened": {"text": ">>> x"},
}
CALL = '<tool_call>{"name":"f","arguments":{"x":1}}</tool_call>'
NAMES = sorted(FORMS)


def parsed(form: ToolForm, *pieces: str, only_first: bool = False) -> tuple[str, list[tuple[str, str, str, bool]]]:
    """The content, and the id, the name and the arguments of each call, and whether it is whole."""
    numbers = count()
    reader = ToolCallParser(form, TOOLS, lambda: f"c{next(numbers)}", only_first=only_first)
    content, found = "", list[CallPiece]()
    for text, more in [*map(reader.push, pieces), reader.finish()]:
        content += text
        found += more
    calls = []
    for begun in [piece for piece in found if piece.name]:
        of_call = [piece for piece in found if piece.index == begun.index]
        assert of_call[0] is begun
        assert [piece.whole for piece in of_call[:-1]] == [False] * (len(of_call) - 1)
        calls.append((begun.id, begun.name, "".join(piece.arguments for piece in of_call), of_call[-1].whole))
    return content, calls


def whole(name: str, *pieces: str) -> tuple[str, list[tuple[str, object]]]:
    content, calls = parsed(FORMS[name], *pieces)
    return content, [(called, json.loads(arguments)) for _id, called, arguments, is_whole in calls if is_whole]


@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_the_same_however_it_is_cut(name: str) -> None:
    text, expected = TEXTS[name], ("", [("f", ARGUMENTS[name])])
    assert whole(name, text) == expected
    assert whole(name, *text) == expected
    for at in range(1, len(text)):
        assert whole(name, text[:at], text[at:]) == expected


@pytest.mark.parametrize("name", NAMES)
def test_white_space_between_the_parts_of_a_call_makes_no_difference(name: str) -> None:
    opens = FORMS[name].opens
    text = TEXTS[name].replace("\n<", "\n \n<") if FORMS[name].parameters is None else TEXTS[name]
    assert whole(name, opens + "\n  " + text.removeprefix(opens)) == ("", [("f", ARGUMENTS[name])])


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_the_end_cuts_off_stays_a_call_once_it_has_begun(name: str) -> None:
    text, begun = TEXTS[name], False
    for length in range(text.index("f"), len(text)):
        content, calls = parsed(FORMS[name], text[:length])
        begun |= bool(calls)
        assert content == ("" if begun else text[:length])
        assert [call[1] for call in calls] == ["f"] * begun
        for _id, _name, arguments, is_whole in calls:
            assert not is_whole or json.loads(arguments) == ARGUMENTS[name]
        assert parsed(FORMS[name], *text[:length]) == (content, calls)
    assert begun


def test_what_a_cut_off_call_says_is_told_with_it() -> None:
    reader = ToolCallParser(FORMS["json"], TOOLS, lambda: "c0")
    reader.push(TEXTS["json"][:60])
    assert reader.finish() == ("", [CallPiece(0, cut=TEXTS["json"][:60])])


@pytest.mark.parametrize("name", NAMES)
def test_a_call_of_no_tool_is_content(name: str) -> None:
    text = TEXTS[name].replace("f", "unknown", 1) if name != "numbers" else TEXTS[name].replace(".f:", ".unknown:")
    assert parsed(FORMS[name], text) == (text, [])
    assert parsed(FORMS[name], *text) == (text, [])


@pytest.mark.parametrize("name", sorted({*NAMES} - {"bare"}))
def test_text_before_a_call_is_content_and_more_calls_may_follow(name: str) -> None:
    form, text = FORMS[name], TEXTS[name]
    one = form.opened + text.removeprefix(form.opens).removesuffix(form.closes)
    both = form.opens + one + (form.between or "") + one + form.closes
    expected = [("f", ARGUMENTS[name])] * 2
    assert whole(name, f"Well: <b>[x] {both}") == ("Well: <b>[x] ", expected)
    assert whole(name, *f"Well: <b>[x] {both}") == ("Well: <b>[x] ", expected)
    content, [only] = parsed(form, *f"so {both} end", only_first=True)
    assert (content, only[1], only[3]) == ("so ", "f", True)


def test_a_form_without_a_tag_is_known_at_the_beginning_alone() -> None:
    text = TEXTS["bare"]
    assert whole("bare", f"\n {text}") == ("", [("f", ARGUMENTS["bare"])])
    assert whole("bare", f"like {text}") == (f"like {text}", [])
    assert whole("bare", "{ a set }") == ("{ a set }", [])


def test_the_mark_of_a_text_is_no_content() -> None:
    assert whole("opened", "al", "l", "\nWell, >>> al", "l\n") == ("Well, >>> all\n", [])
    assert whole("opened", "all\nWell.", f">>>{TEXTS['opened']}") == ("Well.", [("f", ARGUMENTS["opened"])])
    assert whole("opened", "allow") == ("allow", [])


def test_an_answer_that_goes_on_with_a_text_begins_with_no_call() -> None:
    turns = (ChatTurn("user", "Hi"), ChatTurn("assistant", "The form is"))
    model = ModelInfo("m", "llama", "Q8_0", 1, 1, 64, 64, 9, 8, None, "<s>", "</s>", tool_form=FORMS["opened"])
    call = TEXTS["opened"]

    def split(request: Generate) -> tuple[str, int]:
        parser = parser_for(request, model, lambda: "c")
        (said, pieces), (rest, more) = parser.push(f"{call}>>>{call}"), parser.finish()
        return said + rest, sum(piece.whole for piece in [*pieces, *more])

    continued = Generate("r", turns, tools=tuple(TOOLS))
    assert split(continued) == (call, 1)
    for other in (
        replace(continued, continue_final_message=False),
        replace(continued, prompt=turns[:1]),
        replace(continued, prompt=(turns[0], ChatTurn("assistant", ""))),
    ):
        assert split(other) == ("", 2)


def test_the_id_that_the_model_writes_before_the_arguments_is_the_calls_but_once() -> None:
    text = TEXTS["ids"]
    assert [call[0] for call in parsed(FORMS["ids"], text + text)[1]] == ["abcdefgh1", "c0"]
    assert [call[0] for call in parsed(FORMS["list"], TEXTS["list"])[1]] == ["c0"]


def test_calls_in_another_form_that_the_model_uses_are_found_too() -> None:
    form = ToolForm(("<|to|>", Slot.NAME, "<|json|>", Slot.ARGUMENTS), also=(FORMS["json"],))
    _content, calls = parsed(form, f"<|to|>f<|json|>{{}}{CALL}")
    assert [(name, arguments) for _id, name, arguments, _whole in calls] == [("f", "{}"), ("f", '{"x":1}')]


@pytest.mark.parametrize(
    ("text", "content", "n_calls"),
    [
        ("", "", 0),
        ("plain < text", "plain < text", 0),
        (" \n", " \n", 0),
        (f" \n{CALL}\n{CALL}\n", "", 2),
        (f"  I call\n{CALL} \n and {CALL} done ", "  I call\n \n and  done ", 2),
        (f"the <tool_call> tag, then {CALL}", "the <tool_call> tag, then ", 1),
        ("<tool_call>" + CALL, "<tool_call>", 1),
        ('<tool_call>{"name":</tool_call>' + CALL, '<tool_call>{"name":</tool_call>', 1),
        (CALL + CALL[:-20], "", 1),
        (CALL + CALL[:20], CALL[:20], 1),
        (CALL.removesuffix("</tool_call>"), "", 1),
        (CALL.removesuffix("call>"), "", 1),
    ],
)
def test_text_is_parted_into_content_and_calls(text: str, content: str, n_calls: int) -> None:
    for pieces in ([text], list(text)):
        found, calls = parsed(TOLD_IN_WORDS, *pieces)
        assert (found, [call[3] for call in calls if call[3]]) == (content, [True] * n_calls)


@pytest.mark.parametrize(
    "block",
    [
        "",
        "[]",
        "{}",
        '"f"',
        '{"name":"f","arguments":{]}',
        '{"name":"f","arguments":[]}',
        '{"name":"","arguments":{}}',
        '{"name":1,"arguments":{}}',
        '{"name":"f","arguments":"{}"}',
        '{"name":"f","arguments":null}',
        '{"name":"f","arguments":{"x":NaN}}',
        '{"name":"f"}{"name":"f"}',
        '{"name":"f","arguments":{},"more":1}',
        f'{{"name":"f","arguments":{{"x":{"[" * 2000 + "]" * 2000}}}}}',
    ],
)
def test_a_block_that_is_no_call_is_content(block: str) -> None:
    text = f"a<tool_call>{block}</tool_call>b"
    content, calls = parsed(TOLD_IN_WORDS, text)
    assert content == text
    assert not any(call[3] for call in calls)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("3", 3),
        ("3.50", 3.5),
        ("null", None),
        ("[1, 2", "[1, 2"),
        ("{'a': (1, -2), 'b': None}", {"a": [1, -2], "b": None}),
        ("__import__('os')", "__import__('os')"),
        ("NaN", "NaN"),
        ("1e999", "1e999"),
        ("", ""),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_a_value_that_the_schema_makes_no_string_is_what_it_says(written: str, value: object) -> None:
    text = f"<tool_call>get-it_2\n<arg_key>x</arg_key>\n<arg_value>{written}</arg_value>\n</tool_call>"
    assert whole("pairs", text) == ("", [("get-it_2", {"x": value})])


def test_arguments_are_passed_on_while_they_are_written() -> None:
    reader = ToolCallParser(FORMS["tags"], TOOLS, lambda: "c0")
    steps = [
        "<tool_call>\n<function=f>\n",
        "<parameter=text>\n",
        "some long text, ",
        "and more of it",
        "\n</parameter>",
    ]
    pieces = [reader.push(step) for step in steps]
    assert [content for content, _pieces in pieces] == [""] * 5
    assert [[piece.name or piece.arguments for piece in more] for _content, more in pieces] == [
        ["f", "{"],
        ['"text": "'],
        ["som"],
        ["e long text, a"],
        ['nd more of it"'],
    ]


def test_content_is_held_only_where_a_call_may_begin() -> None:
    reader = ToolCallParser(TOLD_IN_WORDS, TOOLS, lambda: "c0")
    assert reader.push("Hello <") == ("Hello ", [])
    assert reader.push("tool_") == ("", [])
    assert reader.push("box>!") == ("<tool_box>!", [])
    assert reader.push("<tool_call>" + " " * MAX_SPACES) == ("", [])
    assert reader.push(" ")[0] == "<tool_call>" + " " * (MAX_SPACES + 1)


PIECES = st.lists(
    st.one_of(
        st.sampled_from([*TEXTS.values(), CALL]),
        st.sampled_from(
            ["<tool_call>", "</tool_call>", " ", "\n", "a", "{", "}", '"', "\\", "<", "[", "]", "'", "f(", ","]
        ),
        st.sampled_from([text[:at] for text in TEXTS.values() for at in range(5, len(text), 11)]),
        st.sampled_from([text[at:] for text in TEXTS.values() for at in range(5, len(text), 11)]),
    ),
    max_size=6,
)


@given(name=st.sampled_from(NAMES), pieces=PIECES, cuts=st.lists(st.integers(0, 400)), only_first=st.booleans())
def test_every_way_of_cutting_gives_the_same(name: str, pieces: list[str], cuts: list[int], only_first: bool) -> None:
    text = "".join(pieces)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    split = [text[start:end] for start, end in pairwise(places)]
    assert parsed(FORMS[name], *split, only_first=only_first) == parsed(FORMS[name], text, only_first=only_first)


@given(name=st.sampled_from(NAMES), pieces=PIECES)
def test_text_in_which_no_call_begins_is_all_content_and_arguments_are_objects(name: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    content, calls = parsed(FORMS[name], text)
    done = [arguments for _id, _name, arguments, is_whole in calls if is_whole]
    assert calls or content == text
    assert all(isinstance(json.loads(arguments), dict) for arguments in done)
