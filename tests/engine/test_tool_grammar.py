"""Grammars for calls of tools: whole, and bound to each tool's own schema."""

from __future__ import annotations

import json
import re

import pytest

from umaserve.engine import gbnf
from umaserve.engine.grammar import gbnf_of_tools
from umaserve.errors import RequestError
from umaserve.messages import Tool


def tool(parameters: object, name: str = "f") -> Tool:
    return Tool(name, "", json.dumps(parameters))


def test_rules_get_their_prefix_wherever_they_are_named_and_nothing_else_does():
    grammar = 'root ::= a "a" [a-z]{1,3} # a\n  | (b a)*\na ::= "\\"root ::= \\\\"\nb::=a\n'
    assert gbnf.prefixed(grammar, "p-").split("\n") == [
        "",
        'p-root ::= p-a "a" [a-z] {1,3} | ( p-b p-a ) *',
        'p-a ::= "\\"root ::= \\\\"',
        "p-b ::= p-a",
        "",
    ]


@pytest.mark.parametrize("must_call", [True, False])
def test_tools_that_people_use_pass(must_call: bool):
    reference = {"type": "object", "properties": {"u": {"$ref": "#/$defs/u"}}, "$defs": {"u": {"enum": ["C", "F"]}}}
    tools = [tool({}), tool({"type": "object"}), tool(reference, 'odd "name"\\'), tool({"properties": {"ws": {}}})]
    grammar = gbnf_of_tools(tools, must_call=must_call)
    gbnf.check(grammar)
    assert ('root ::= "<tool_call>" call\n' in grammar) is must_call


@pytest.mark.parametrize(
    ("parameters", "path"),
    [
        ({"$ref": "https://example.com/schema"}, r"tools\[1\]\.function\.parameters\.\$ref: expected"),
        ({"type": "nonsense"}, r"tools\[1\]\.function\.parameters\.type: expected"),
        ({"minItems": 100000}, r"tools\[1\]\.function\.parameters\.minItems: expected"),
        ([[[]]], r"tools\[1\]\.function\.parameters: expected a schema"),
    ],
)
def test_a_refusal_names_the_tool(parameters: object, path: str):
    with pytest.raises(RequestError, match=path):
        gbnf_of_tools([tool({}), tool(parameters)], must_call=True)


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_parameters_that_are_no_json_are_refused(text: str):
    with pytest.raises(RequestError, match=r"tools\[0\]\.function\.parameters: expected a JSON schema"):
        gbnf_of_tools([Tool("f", "", text)], must_call=True)


def test_tools_that_are_small_alone_and_large_together_are_refused():
    one = tool({"type": "object", "properties": {"s": {"type": "string", "maxLength": 500}}})
    gbnf_of_tools([one], must_call=True)
    with pytest.raises(RequestError, match="tools: expected at most"):
        gbnf_of_tools([one] * 200, must_call=True)


@pytest.mark.parametrize("name", ["rest", "root", "call", "space", "name"])
def test_no_property_takes_the_place_of_another_rule(name: str):
    grammar = gbnf_of_tools([tool({"properties": {name: {"enum": ["x"]}}})], must_call=True)
    defined = re.findall("^([a-z0-9-]+) ::=", grammar, re.MULTILINE)
    assert sorted(defined) == sorted(set(defined))
