"""The fields that bind an answer to a grammar mean the same in every dialect, and go one at a time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from grammars import allows
from hypothesis import given
from hypothesis import strategies as st

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Generate, Grammar, Syntax
from umaserve.dialects import grammars
from umaserve.dialects.chat.request import read_request
from umaserve.dialects.generate.request import read_body, read_config
from umaserve.dialects.openai.requests import chat_request, completion_request
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.uds.conversation import JsonDialect
from umaserve.engine.grammar.grammar import lark_of
from umaserve.wire.fields import Fields

LIMITS = RequestLimits(1000)
TURNS = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}}
SCHEMA_TEXT = '{"type":"object","properties":{"é":{"type":"integer"}}}'
RULES = 'root ::= "a"'


def uds(asked: dict[str, Any]) -> Generate:
    return JsonDialect(LIMITS, keep_alive=True).receive(json.dumps({"id": "1", "prompt": "Hi", **asked}).encode())


def openai(asked: dict[str, Any]) -> Generate:
    return chat_request(json.dumps({"messages": TURNS, **asked}).encode(), LIMITS, None, "1").choices[0]


def completion(asked: dict[str, Any]) -> Generate:
    return completion_request(json.dumps({"prompt": "Hi", **asked}).encode(), LIMITS, "1").choices[0]


def config(asked: dict[str, Any]) -> Generate:
    return read_config(Fields({"prompt": "Hi", "parameters": asked}), LIMITS, [], "1")[0]


def rest(asked: dict[str, Any]) -> Generate:
    return read_body(Fields({"prompt": "Hi", **asked}), LIMITS, [], "1")[0]


def chat(asked: dict[str, Any]) -> Generate:
    return read_request(Fields({"messages": TURNS, "generation": asked}), LIMITS, None, "1").request


DIALECTS = {uds: "", openai: "", completion: "", config: "parameters.", rest: "", chat: "generation."}
"""Each with what precedes a field's name."""

READ = [
    ({"json_schema": SCHEMA}, Grammar(Syntax.JSON_SCHEMA, SCHEMA_TEXT, "json_schema")),
    ({"guided_json": SCHEMA}, Grammar(Syntax.JSON_SCHEMA, SCHEMA_TEXT, "guided_json")),
    ({"guided_json": SCHEMA_TEXT}, Grammar(Syntax.JSON_SCHEMA, SCHEMA_TEXT, "guided_json")),
    ({"structured_outputs": {"json": SCHEMA}}, Grammar(Syntax.JSON_SCHEMA, SCHEMA_TEXT, "structured_outputs.json")),
    ({"regex": "a+"}, Grammar(Syntax.REGEX, "a+", "regex")),
    ({"guided_regex": "a+"}, Grammar(Syntax.REGEX, "a+", "guided_regex")),
    ({"structured_outputs": {"regex": "a+"}}, Grammar(Syntax.REGEX, "a+", "structured_outputs.regex")),
    ({"guided_choice": ["a.", "b"]}, Grammar(Syntax.REGEX, r"a\.|b", "guided_choice")),
    ({"structured_outputs": {"choice": ["a.", "b"]}}, Grammar(Syntax.REGEX, r"a\.|b", "structured_outputs.choice")),
    ({"grammar": RULES}, Grammar(Syntax.GBNF, RULES, "grammar")),
    ({"grammar": RULES, "grammar_syntax": "gbnf"}, Grammar(Syntax.GBNF, RULES, "grammar")),
    ({"grammar": "start: /a/", "grammar_syntax": "lark"}, Grammar(Syntax.LARK, "start: /a/", "grammar")),
    ({"guided_grammar": RULES}, Grammar(Syntax.GBNF, RULES, "guided_grammar")),
    ({"guided_grammar": "start: /a/", "grammar_syntax": "lark"}, Grammar(Syntax.LARK, "start: /a/", "guided_grammar")),
    ({"structured_outputs": {"grammar": RULES}}, Grammar(Syntax.GBNF, RULES, "structured_outputs.grammar")),
    (
        {"structured_outputs": {"grammar": "start: /a/"}, "grammar_syntax": "lark"},
        Grammar(Syntax.LARK, "start: /a/", "structured_outputs.grammar"),
    ),
    (
        {"structured_outputs": {"json_object": True, "structural_tag": None, "disable_fallback": False}},
        Grammar(Syntax.JSON_SCHEMA, '{"type":"object"}', "structured_outputs.json_object"),
    ),
    ({"structured_outputs": {"json_object": False, "json": None}}, None),
    ({"structured_outputs": {}}, None),
    ({}, None),
]


@pytest.mark.parametrize("read", DIALECTS, ids=lambda read: read.__name__)
@pytest.mark.parametrize(("asked", "grammar"), READ, ids=str)
def test_every_dialect_reads_every_form(read: Any, asked: dict[str, Any], grammar: Grammar | None):
    found = read(asked).sampling.grammar
    assert found == grammar
    assert found is None or found.field == DIALECTS[read] + grammar.field


REFUSED = [
    ({"guided_json": 5}, "guided_json: expected a JSON schema, as an object or as its text, got a whole number"),
    ({"guided_json": ""}, "guided_json: expected a non-empty string of at most 262144 bytes"),
    ({"guided_json": {"a": "x" * 262144}}, "guided_json: expected an object of at most 262144 bytes"),
    ({"regex": "a" * 65537}, "regex: expected a non-empty string of at most 65536 bytes, got 65537 bytes"),
    ({"guided_choice": []}, "guided_choice: expected an array of 1 to 500 strings, got 0"),
    ({"guided_choice": ["a"] * 501}, "guided_choice: expected an array of 1 to 500 strings, got 501"),
    ({"guided_choice": ["a", 5]}, "guided_choice[1]: expected a non-empty string, got a whole number"),
    ({"guided_choice": ["é" * 32768, "a"]}, "guided_choice: expected at most 65536 bytes in all, got 65537"),
    ({"grammar": RULES, "grammar_syntax": "ebnf"}, 'grammar_syntax: expected "gbnf" or "lark"'),
    ({"grammar_syntax": "lark"}, "grammar_syntax: expected to be absent where no grammar is given"),
    ({"regex": "a", "grammar_syntax": "lark"}, "grammar_syntax: expected to be absent where no grammar is given"),
    ({"structured_outputs": "json"}, "structured_outputs: expected an object, got a string"),
    (
        {"structured_outputs": {"structural_tag": "{}"}},
        "structured_outputs.structural_tag: expected to be absent: this server knows json, regex, choice, grammar, ",
    ),
    ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern: expected to be"),
    ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object: expected true or false"),
]


@pytest.mark.parametrize("read", DIALECTS, ids=lambda read: read.__name__)
@pytest.mark.parametrize(("asked", "message"), REFUSED, ids=range(len(REFUSED)))
def test_every_dialect_refuses_what_is_wrong_by_its_name(read: Any, asked: dict[str, Any], message: str):
    with pytest.raises(RequestError) as caught:
        read(asked)
    assert caught.value.fault is Fault.BAD_REQUEST
    assert caught.value.message.startswith(DIALECTS[read] + message)


ONES = [next(asked for asked, found in READ if found and found.field.startswith(name)) for name in grammars.FIELDS[:-1]]


@pytest.mark.parametrize("read", DIALECTS, ids=lambda read: read.__name__)
@pytest.mark.parametrize("index", range(len(ONES) - 1))
def test_an_answer_is_bound_to_one_grammar_at_most(read: Any, index: int):
    first, second = ONES[index : index + 2]
    with pytest.raises(RequestError) as caught:
        read({**second, **first})
    (one,), (other,) = first, second
    prefix = DIALECTS[read]
    assert caught.value.message.startswith(prefix + other)
    assert f"absent where {prefix}{one} is given, got both" in caught.value.message


def test_two_forms_in_one_object_are_refused_by_both_names():
    with pytest.raises(RequestError, match=r"^structured_outputs\.choice: expected to be absent where structured_out"):
        uds({"structured_outputs": {"choice": ["a"], "regex": "a"}})


def test_the_response_format_is_one_of_them():
    wanted = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    for one in ONES:
        with pytest.raises(
            RequestError, match=rf"^response_format\.json_schema\.schema: expected .* where {next(iter(one))}"
        ):
            openai({**one, "response_format": wanted})
        assert openai({**one, "response_format": {"type": "text"}}).sampling.grammar is not None


@given(st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=9, unique=True), st.text(max_size=9))
def test_the_answer_is_one_of_the_choices(choices: list[str], other: str):
    grammar = uds({"guided_choice": choices}).sampling.grammar
    assert grammar is not None
    matches = allows(lark_of(grammar), grammar.field)
    assert all(map(matches, choices))
    assert matches(other) is (other in choices)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"regex": "(?=a)b"}, "regex: expected a grammar that llguidance can follow, but: .*look-around"),
        ({"guided_regex": "a("}, "guided_regex: expected a grammar that llguidance can follow, but: .*unclosed group"),
        ({"guided_json": {"not": {}}}, r"guided_json\.not: expected to be absent"),
        ({"guided_json": "{"}, "guided_json: expected a JSON schema"),
        ({"structured_outputs": {"json": {"type": "x"}}}, r"structured_outputs\.json\.type: expected one or more of"),
        ({"grammar": "start: x", "grammar_syntax": "lark"}, "grammar: expected a grammar that llguidance .* unknown"),
        ({"guided_grammar": "start: /a/"}, "guided_grammar: expected .*grammar_syntax"),
    ],
    ids=str,
)
def test_what_can_not_be_followed_is_refused_by_the_name_of_its_field(asked: dict[str, Any], message: str):
    grammar = uds(asked).sampling.grammar
    assert grammar is not None
    with pytest.raises(RequestError, match=f"^{message}"):
        allows(lark_of(grammar), grammar.field)
