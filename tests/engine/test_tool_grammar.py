"""Grammars for calls in the forms of models: each accepts the calls, and refuses other names and types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from llama_templates import NAMES, needs_templates, template_source
from llguidance import LLMatcher, LLTokenizer
from tool_forms import FORMS

from umaserve.chat_format.written_calls import written
from umaserve.core.requests import Grammar, Syntax, Tool, ToolCall
from umaserve.core.tool_call_format import ToolForm
from umaserve.engine.grammar.loose_tools import loosened
from umaserve.engine.grammar.tool_grammar import of_tools
from umaserve.engine.template.template import Template

TOKENIZER = LLTokenizer("byte")
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "exact": {"type": "boolean"},
        "units": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["city", "exact"],
}
TOOLS = [Tool("get_weather", "", json.dumps(SCHEMA)), Tool("any", "", '{"type":"object","additionalProperties":true}')]
VALUES = {"city": "Zürich, 12", "days": -3, "unit": "C", "exact": True, "units": [1, 2]}


def accepts(
    form: ToolForm,
    text: str,
    *,
    must_call: bool = True,
    several: bool = True,
    or_schema: Grammar | None = None,
    tools: Sequence[Tool] = TOOLS,
) -> bool:
    grammar = of_tools(form, tools, must_call=must_call, several=several, or_schema=or_schema)
    matcher = LLMatcher(TOKENIZER, grammar.lark, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = text.removeprefix(form.opened).encode()
    if grammar.after:
        _before, found, data = data.partition(grammar.after)
        assert found
    return matcher.try_consume_tokens(list(data)) == len(data) and matcher.is_accepting()


def called(form: ToolForm, *, name: str = "get_weather", n: int = 1, **values: object) -> str:
    arguments = {key: value for key, value in {**VALUES, **values}.items() if value is not None}
    return written(form, [ToolCall("abcdefgh1", name, json.dumps(arguments))] * n)


def check(form: ToolForm) -> None:
    if form.parameters is not None and form.parameters.values == "python":
        # Such values are asked for in JSON, which is read too.
        form = replace(form, parameters=replace(form.parameters, values="json"))
    for must_call in (True, False):
        assert accepts(form, called(form), must_call=must_call)
        assert accepts(form, called(form, days=None, unit=None), must_call=must_call)
        assert accepts(form, called(form, n=2), must_call=must_call) is (form.between is not None)
        assert not accepts(form, called(form, name="set_weather"), must_call=must_call)
        assert not accepts(form, called(form, days=[1]), must_call=must_call)
        assert not accepts(form, called(form, exact=12), must_call=must_call)
        assert not accepts(form, called(form, city=None), must_call=must_call)
        assert not accepts(form, called(form, unit="K"), must_call=must_call)
    assert not accepts(form, called(form, n=2), several=False)
    assert accepts(form, called(form, name="any", n=1))


@pytest.mark.parametrize("name", FORMS)
def test_calls_are_accepted_and_those_of_wrong_names_and_types_are_not(name: str) -> None:
    check(FORMS[name])


@needs_templates
@pytest.mark.parametrize("name", NAMES)
def test_calls_in_the_forms_of_llama_cpps_templates(name: str) -> None:
    check(Template(template_source(name), "<s>", "</s>").tool_form)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("schema", "takes"),
    [
        ({}, False),
        ({"type": "object"}, False),
        ({"type": "object", "properties": {}, "required": [], "title": "NoArguments"}, False),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {}}, False),
        ({"type": "object", "properties": {}, "additionalProperties": False}, False),
        ({"type": "object", "properties": {}, "additionalProperties": True}, True),
        ({"type": "object", "additionalProperties": {}}, True),
        ({"additionalProperties": {"type": "string"}}, True),
        ({"type": "object", "patternProperties": {"^x$": {"type": "string"}}}, True),
        ({"type": "object", "required": ["x"]}, True),
        ({"$ref": "#/$defs/of", "$defs": {"of": {"type": "object", "properties": {"x": {"type": "string"}}}}}, True),
    ],
)
def test_a_tool_without_parameters_takes_none_unless_it_says_so(
    schema: dict[str, object], takes: bool, strict: bool
) -> None:
    tool = loosened(Tool("f", "", json.dumps(schema), strict=strict))
    for form in (FORMS["json"], FORMS["tags"]):
        # Names that only a pattern, or a reference, tells are not in the forms that have no JSON.
        if form.parameters is None or not schema.keys() & {"patternProperties", "$ref"}:
            assert accepts(form, called(form, name="f", **dict.fromkeys(VALUES), x="1"), tools=[tool]) is takes
        if not schema.get("required"):
            assert accepts(form, called(form, name="f", **dict.fromkeys(VALUES)), tools=[tool])


@pytest.mark.parametrize(
    ("required", "kept"), [([[]], []), ([{"city": 1}, "city"], ["city"]), (["city", 5, "none"], ["city"]), ("city", [])]
)
def test_what_is_required_in_no_valid_way_is_left_out(required: object, kept: list[str]) -> None:
    tool = loosened(Tool("f", "", json.dumps({**SCHEMA, "required": required})))
    assert json.loads(tool.parameters)["required"] == kept


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_is_a_call_or_matches_the_schema(name: str) -> None:
    text = '{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}'
    schema = Grammar(Syntax.JSON_SCHEMA, text, "json_schema")
    text = FORMS[name].text_opens
    assert accepts(FORMS[name], text + '{"x": 1}', must_call=False, or_schema=schema)
    assert accepts(FORMS[name], called(FORMS[name]), must_call=False, or_schema=schema)
    assert not accepts(FORMS[name], text + '{"x": "1"}', must_call=False, or_schema=schema)
    assert not accepts(FORMS[name], "I think", must_call=False, or_schema=schema)


def test_text_of_any_kind_is_free_where_calls_are_known_at_the_beginning_alone() -> None:
    assert accepts(FORMS["bare"], "Well, {}", must_call=False)
    assert not accepts(FORMS["bare"], "{}", must_call=False)


def test_text_follows_the_mark_that_the_form_has_for_it() -> None:
    assert accepts(FORMS["opened"], "all\nWell, {}", must_call=False)
    assert not accepts(FORMS["opened"], "Well, {}", must_call=False)
    assert not accepts(FORMS["opened"], "allow {}", must_call=False)
    assert not accepts(FORMS["opened"], "all\nWell, {}", must_call=True)


def test_after_a_text_a_call_has_all_of_its_marks() -> None:
    form, call = FORMS["opened"].in_text(), called(FORMS["opened"])
    assert accepts(form, call)
    assert accepts(form, call + call)
    assert not accepts(form, call.removeprefix(FORMS["opened"].opened))
    assert not accepts(form, "all\nWell")


@pytest.mark.parametrize("units", [[], [[1], [2, {"k": "v", "of": {"units": [3]}}]], {"units": {"units": 1}}])
def test_elements_may_be_in_one_another(units: object) -> None:
    assert accepts(FORMS["elements"], called(FORMS["elements"], units=units))
    assert accepts(FORMS["elements"], called(FORMS["elements"], name="any", units=units))
