"""How models write tool calls, learned from chat templates; and calls in that form read again.

Those of llama.cpp's sources are fetched by scripts/test.
"""

from __future__ import annotations

import json
from itertools import chain, count
from typing import Any

import pytest
from llama_templates import NAMES, needs_templates, template_source

from umaserve.chat_format.thoughts import ThoughtSplitter, split
from umaserve.chat_format.tool_calls import CallPiece, ToolCallParser
from umaserve.chat_format.written_calls import written
from umaserve.core.requests import ChatTurn, Tool, ToolCall
from umaserve.core.tool_call_format import THINK_TAGS, TOLD_IN_WORDS, ParameterForm, Slot, ToolForm
from umaserve.engine.template.chat_template import ChatTemplate
from umaserve.engine.template.template import MAX_GROWTH, Template

PROPERTIES = {
    "city": {"type": "string", "description": "A city."},
    "days": {"type": "integer", "description": "Days."},
    "ratio": {"type": "number", "description": "A ratio."},
    "exact": {"type": "boolean", "description": "Whether it is exact."},
    "more": {"type": "object", "description": "More."},
    "units": {"type": "array", "description": "Units.", "items": {"type": "string"}},
}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["city"]}
TOOLS = [Tool("get_weather", "Tells the weather.", json.dumps(SCHEMA)), Tool("other-1", "Other.", json.dumps(SCHEMA))]
CALLS = [
    ToolCall(
        "abcdefgh1",
        "get_weather",
        '{"city": "Zürich, 12", "days": -3, "ratio": 2.5, "exact": true, "more": {"k": ["x", 1]}, "units": ["p", "q"]}',
    ),
    ToolCall("abcdefgh2", "other-1", '{"city": "two words\\nand <a> line"}'),
]
QUESTION = {"role": "user", "content": "Is it warm?"}

HEAD = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
CALL = "{% for c in m.tool_calls %}{% set f = c.function %}"
TAIL = "<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
ONE_BY_ONE = (
    HEAD + CALL + '<call>{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}</call>{% endfor %}' + TAIL
)
LISTED = (
    HEAD + "{% if m.tool_calls %}[CALLS][" + CALL + '{"id": "{{ c.id }}", "function": "{{ f.name }}", '
    '"with": {{ f.arguments | tojson }}}{{ "" if loop.last else ", " }}{% endfor %}]{% endif %}' + TAIL
)
NUMBERED = HEAD + CALL + "<|call|>{{ f.name }}:{{ loop.index }}<|with|>{{ f.arguments | tojson }}{% endfor %}" + TAIL
TAGGED = (
    HEAD + CALL + "<call={{ f.name }}>\n{% for key, value in f.arguments.items() %}<of={{ key }}>\n"
    "{{ value if value is string else value | tojson }}\n</of>\n{% endfor %}</call>{% endfor %}" + TAIL
)
PYTHON = (
    HEAD + "{% if m.tool_calls %}<calls>[" + CALL + "{{ f.name }}({% for key, value in f.arguments.items() %}{{ key }}="
    """{{ "'" ~ value ~ "'" if value is string else value | tojson }}{{ "" if loop.last else ", " }}{% endfor %})"""
    '{{ "" if loop.last else ", " }}{% endfor %}]</calls>{% endif %}' + TAIL
)
SINGLE = (
    HEAD
    + CALL.replace("m.tool_calls", "m.tool_calls[:1]")
    + '{"f": "{{ f.name }}", "x": {{ f.arguments | tojson }}}{% endfor %}'
    + TAIL
)
EQUALS = tuple((kind, "=") for kind in ("string", "number", "boolean", "object", "array"))
LINES = tuple((kind, ">\n") for kind, _before in EQUALS)
FORMS = {
    ONE_BY_ONE: ToolForm(('<call>{"name": "', Slot.NAME, '", "arguments": ', Slot.ARGUMENTS, "}</call>"), between=""),
    LISTED: ToolForm(
        ('{"id": "', Slot.ID, '", "function": "', Slot.NAME, '", "with": ', Slot.ARGUMENTS, "}"),
        opens="[CALLS][",
        closes="]",
        between=", ",
    ),
    NUMBERED: ToolForm(("<|call|>", Slot.NAME, ":", Slot.INDEX, "<|with|>", Slot.ARGUMENTS), between="", first_index=1),
    TAGGED: ToolForm(
        ("<call=", Slot.NAME, ">\n", Slot.ARGUMENTS, "</call>"),
        between="",
        parameters=ParameterForm("<of=", LINES, "\n</of>\n"),
    ),
    PYTHON: ToolForm(
        (Slot.NAME, "(", Slot.ARGUMENTS, ")"),
        opens="<calls>[",
        closes="]</calls>",
        between=", ",
        parameters=ParameterForm("", EQUALS, "", ", ", "'"),
    ),
    SINGLE: ToolForm(('{"f": "', Slot.NAME, '", "x": ', Slot.ARGUMENTS, "}"), between=None),
}

NOT_LEARNED = {
    "HuggingFaceTB-SmolLM3-3B": "has no tools",
    "LFM2-8B-A1B": "writes no earlier calls; known by its list of tools",
    "LFM2.5-Instruct": "writes no earlier calls; known by its list of tools",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "writes calls of messages without content alone; known by its tags",
    "google-gemma-2-2b-it": "has no tools",
    "ibm-granite-granite-3.3-2B-Instruct": "writes no earlier calls; known by its instructions",
    "llama-cpp-rwkv-world": "has no tools",
    "microsoft-Phi-3.5-mini-instruct": "has no tools",
}


def template(source: str) -> Template:
    return Template(source, "<s>", "</s>", ends=("<|eom_id|>", "<|call|>", "<|eom|>"))


def answer(of: Template, calls: list[ToolCall]) -> str:
    """The turn with ``calls`` as the template writes it, from the first call on."""
    form = of.tool_form
    messages = [
        {"type": "function", "function": {"name": call.name, "arguments": call.arguments}, "id": call.id}
        for call in calls
    ]
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": SCHEMA}}
        for t in TOOLS
    ]
    turn = {"role": "assistant", "content": "", "tool_calls": messages}
    whole = of.prompt([QUESTION, turn], tools, {}, opens_answer=False, limit=MAX_GROWTH)
    opens = [(one.opens + (one.call[0] if isinstance(one.call[0], str) else "")).strip() for one in (form, *form.also)]
    after = whole.rindex(QUESTION["content"])
    return whole[min(at for text in opens if (at := whole.find(text, after)) >= 0) :]


def read(form: ToolForm, *pieces: str, ended: bool = False) -> list[tuple[str, Any]]:
    """The calls in a text; where it is not ``ended`` by a token, it has nothing else."""
    numbers = count()
    parser = ToolCallParser(form, TOOLS, lambda: f"c{next(numbers)}")
    found = list[CallPiece]()
    for content, more in [*map(parser.push, pieces), parser.finish()]:
        assert ended or not content.strip()
        found += more
    calls = [piece for piece in found if piece.name]
    assert {piece.index for piece in found if piece.whole} == {piece.index for piece in calls}
    texts = ["".join(piece.arguments for piece in found if piece.index == call.index) for call in calls]
    return [(call.name, json.loads(text)) for call, text in zip(calls, texts, strict=True)]


@pytest.mark.parametrize("source", FORMS, ids=["one by one", "listed", "numbered", "tagged", "python", "single"])
def test_the_form_is_learned_from_what_the_template_renders(source: str) -> None:
    learned = template(source)
    assert learned.tool_form == FORMS[source]
    assert (learned.writes_calls, learned.tells_tools) == (True, True)


@pytest.mark.parametrize(
    "source",
    [
        HEAD + TAIL,
        HEAD + "{% if m.tool_calls %}{{ raise_exception('no calls') }}{% endif %}" + TAIL,
        HEAD + CALL + "{{ f.name }}{% endfor %}" + TAIL,
        HEAD + CALL + "{{ f.arguments | tojson }} for {{ f.name }}{% endfor %}" + TAIL,
        HEAD
        + CALL
        + "<{{ f.name }}>{% for key, v in f.arguments.items() %}<{{ key }}>{{ v }}</{{ key }}>{% endfor %}{% endfor %}"
        + TAIL,
    ],
)
def test_a_template_in_no_known_form_has_calls_as_text(source: str) -> None:
    learned = template(source)
    assert learned.tool_form == TOLD_IN_WORDS
    assert not learned.writes_calls
    assert not learned.tells_tools
    turns = [ChatTurn("user", "Hi"), ChatTurn("assistant", "", (CALLS[1],))]
    prompt = ChatTemplate(source, "", "").render(turns, TOOLS, continue_final_message=False)
    assert "<tools>" in prompt
    assert written(TOLD_IN_WORDS, [CALLS[1]]) in prompt


def test_a_template_without_tools_has_them_told_in_its_form_of_calls() -> None:
    source = ONE_BY_ONE.replace("{% if tools %}{{ tools | tojson }}{% endif %}", "")
    prompt = ChatTemplate(source, "", "").render(
        [ChatTurn("user", "Hi"), ChatTurn("assistant", "", (CALLS[1],))], TOOLS
    )
    assert "<tools>" in prompt
    assert '<call>{"name": "the function", "arguments": {"argument": "value"}}</call>' in prompt
    assert '<call>{"name": "other-1", "arguments": ' in prompt


def test_what_follows_the_tokens_that_end_an_answer_is_no_part_of_the_form() -> None:
    source = ONE_BY_ONE.replace("{% endfor %}<end>", "{% endfor %}{% if m.tool_calls %}<done>{% endif %}<end>")
    assert template(source).tool_form.closes == "<done>"
    assert Template(source, "", "", ends=("<done>",)).tool_form.closes == ""
    between = ONE_BY_ONE.replace("</call>", "</call><done>")
    assert Template(between, "", "", ends=("<done>",)).tool_form.between is None


@needs_templates
@pytest.mark.parametrize("name", NAMES)
def test_calls_as_llama_cpps_templates_write_them_are_read(name: str) -> None:
    of = template(template_source(name))
    if name in NOT_LEARNED:
        assert not of.writes_calls
        return
    assert of.writes_calls
    calls = CALLS[:1] if of.tool_form.between is None else CALLS
    expected = [(call.name, json.loads(call.arguments)) for call in calls]
    rendered = answer(of, calls).removeprefix(of.tool_form.opened)
    ways = [[rendered], list(rendered)]
    for at in range(1, len(rendered), 7):
        ways.append([rendered[:at], rendered[at:]])
    for pieces in ways:
        assert read(of.tool_form, *pieces, ended=True) == expected


@needs_templates
@pytest.mark.parametrize("name", NAMES)
def test_calls_written_in_the_form_of_llama_cpps_templates_are_read(name: str) -> None:
    form = template(template_source(name)).tool_form
    calls = CALLS[:1] if form.between is None else CALLS
    expected = [(call.name, json.loads(call.arguments)) for call in calls]
    text = written(form, calls).removeprefix(form.opened)
    assert read(form, text) == expected
    for at in range(1, len(text)):
        assert read(form, text[:at], text[at:]) == expected


@needs_templates
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_call_in_the_forms_of_llama_cpps_templates_is_text(name: str) -> None:
    form = template(template_source(name)).tool_form
    text = written(form, CALLS[:1]).removeprefix(form.opened)
    unknown = text.replace("get_weather", "get_nothing")
    assert content_and_whole(form, unknown) == (unknown, 0)
    for length in range(1, len(text), 3):
        _content, n_whole = content_and_whole(form, text[:length])
        if n_whole:
            assert read(form, text[:length], ended=True) == [("get_weather", json.loads(CALLS[0].arguments))]
            continue
        for begun in (text[:length], f"So: {text[:length]}"):
            parser = ToolCallParser(form, TOOLS, lambda: "c0")
            contents, pieces = zip(parser.push(begun), parser.finish(), strict=True)
            whole = "".join([*contents, *(piece.cut for more in pieces for piece in more)])
            # What has begun as a call is none of the text; of both, only white space before a call is lost.
            assert whole.lstrip() == begun.lstrip()


@needs_templates
@pytest.mark.parametrize("name", NAMES)
def test_calls_and_text_after_thoughts_are_read_in_the_forms_of_llama_cpps_templates(name: str) -> None:
    of = template(template_source(name))
    form, thoughts = of.tool_form, of.thought_form or THINK_TAGS
    before = f"{thoughts.opens}deep{thoughts.closes}{thoughts.turn}"
    opens = thoughts.answers[0] if thoughts.answers else ""
    for text, said, n_calls in (
        (before + written(form, CALLS[:1]).removeprefix(form.opened), "", 1),
        (f"{before}{opens}So.{thoughts.answer_closes}", "So.", 0),
    ):
        for pieces in ([text], list(text)):
            splitter = ThoughtSplitter(thoughts)
            split_text = [*chain.from_iterable(map(splitter.push, pieces)), *splitter.finish()]
            thought, answer = split(split_text)
            assert thought == "deep"
            content, n_whole = content_and_whole(form, answer)
            assert (content.strip(), n_whole) == (said, n_calls)


def content_and_whole(form: ToolForm, text: str) -> tuple[str, int]:
    """The content of a text, and how many whole calls it has."""
    parser = ToolCallParser(form, TOOLS, lambda: "c0")
    read = [parser.push(text), parser.finish()]
    return "".join(content for content, _more in read), sum(piece.whole for _content, more in read for piece in more)
