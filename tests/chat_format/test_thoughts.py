"""Thoughts, answers and marks, told apart however the text is cut."""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.chat_format.thoughts import Part, Piece, ThoughtSplitter, split
from umaserve.core.tool_call_format import THINK_TAGS, ThoughtForm

HARMONY = ThoughtForm(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    "<|start|>assistant",
    ("<|channel|>final<|message|>", "<|channel|>commentary<|message|>"),
    "<|end|>",
)
GRANITE = ThoughtForm("<think>", "</think>", "", ("<response>",), "</response>")
PROSE = ThoughtForm("Here are my steps:\n", "\n[FINAL]\n")
FORMS = (THINK_TAGS, HARMONY, GRANITE, PROSE)

CASES = {
    "no thought": (THINK_TAGS, False, " Hello <think>", "", " Hello <think>"),
    "a thought": (THINK_TAGS, False, "\n<think>\nHm.\n</think>\n\nHi\n", "Hm.", "Hi\n"),
    "an empty thought": (THINK_TAGS, False, "<think>\n\n</think>\n\nHi", "", "Hi"),
    "opened by the template": (THINK_TAGS, True, "Hm.\n</think>Hi </think>", "Hm.", "Hi </think>"),
    "never closed": (THINK_TAGS, True, "Hm. </thin", "Hm. </thin", ""),
    "only closed": (THINK_TAGS, False, "</think>Hi", "", "Hi"),
    "a call in a thought": (
        THINK_TAGS,
        False,
        "<think><tool_call>{}</tool_call></think>No",
        "<tool_call>{}</tool_call>",
        "No",
    ),
    "begun like a mark": (THINK_TAGS, False, "<thin air>", "", "<thin air>"),
    "cut in a mark": (THINK_TAGS, False, "<thin", "", "<thin"),
    "two thoughts": (THINK_TAGS, False, "<think>a</think><think>b</think>c", "ab", "c"),
    "channels": (
        HARMONY,
        False,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi",
        "Hm.",
        "Hi",
    ),
    "no thought in channels": (HARMONY, False, "<|channel|>final<|message|>Hi", "", "Hi"),
    "thoughts after a preamble": (
        HARMONY,
        False,
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>analysis<|message|>a<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}",
        "a",
        "I look.<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}",
    ),
    "an answer in tags": (GRANITE, True, "a</think><response>b</response>", "a", "b"),
    "words as marks": (PROSE, False, "Here are my steps:\n1.\n[FINAL]\n2.", "1.", "2."),
}


def pieces_of(form: ThoughtForm, opened: bool, parts: list[str]) -> list[Piece]:
    splitter = ThoughtSplitter(form, opened=opened)
    return [*(piece for part in parts for piece in splitter.push(part)), *splitter.finish()]


@pytest.mark.parametrize(("form", "opened", "text", "thoughts", "answer"), CASES.values(), ids=CASES)
def test_thoughts_and_answer(form: ThoughtForm, opened: bool, text: str, thoughts: str, answer: str):
    assert split(pieces_of(form, opened, [text])) == (thoughts, answer)
    assert split(pieces_of(form, opened, list(text))) == (thoughts, answer)


ATOMS = sorted(
    {atom for form in FORMS for atom in (form.opens, form.closes, form.turn, *form.answers, form.answer_closes)}
    | {" ", "\n", "a", "<", "</th", "<|", "Here"}
)


@settings(max_examples=examples(300))
@given(
    st.sampled_from(FORMS),
    st.booleans(),
    st.lists(st.sampled_from(ATOMS), max_size=8).map("".join),
    st.lists(st.integers(1, 9), max_size=40),
)
def test_however_the_text_is_cut_the_parts_are_the_same(form: ThoughtForm, opened: bool, text: str, cuts: list[int]):
    parts, rest = [], text
    for length in cuts:
        parts.append(rest[:length])
        rest = rest[length:]
    cut, whole = pieces_of(form, opened, [*parts, rest]), pieces_of(form, opened, [text])
    assert split(cut) == split(whole)
    assert "".join(piece for _part, piece in cut) == text


def test_what_is_decided_is_released_at_once():
    splitter = ThoughtSplitter(THINK_TAGS)
    assert splitter.push("<think>\nHm, ") == [(Part.MARK, "<think>"), (Part.MARK, "\n"), (Part.THOUGHT, "Hm,")]
    assert splitter.thinking
    assert splitter.push("so") == [(Part.THOUGHT, " so")]
    assert splitter.push("</think>") == [(Part.MARK, "</think>")]
    assert not splitter.thinking
    assert splitter.push("Yes") == [(Part.ANSWER, "Yes")]
    assert splitter.answering


def test_a_copy_goes_on_by_itself():
    first = ThoughtSplitter(THINK_TAGS)
    first.push("<thi")
    second = first.copy()
    assert first.push("s>") == [(Part.ANSWER, "<this>")]
    assert second.push("nk>a") == [(Part.MARK, "<think>"), (Part.THOUGHT, "a")]
