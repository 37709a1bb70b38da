"""Grammars for calls of tools: whole, and bound to each tool's own schema."""

from __future__ import annotations

import json

import pytest
from grammars import allows

from umaserve.engine.grammar import of_tools
from umaserve.errors import RequestError
from umaserve.messages import Tool


def tool(parameters: object, name: str = "f") -> Tool:
    return Tool(name, "", json.dumps(parameters))


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize("must_call", [True, False])
def test_tools_that_people_use_pass(must_call: bool):
    reference = {"type": "object", "properties": {"u": {"$ref": "#/$defs/u"}}, "$defs": {"u": {"enum": ["C", "F"]}}}
    odd = 'odd "name"\\é'
    tools = [tool({}), tool({"type": "object"}, "g"), tool(reference, odd), tool({"properties": {"ws": {}}}, "h")]
    matches = allows(of_tools(tools, must_call=must_call), "tools")
    start = 0 if must_call else len("<tool_call>")
    right = [call("f", '{"a": [1]}'), call("g", "{}"), call(odd, '{"u": "C"}'), call("h", '{"ws":2}')]
    wrong = [call("f", "1"), call("no", "{}"), call(odd, '{"u": "D"}'), call("h", '{"x":2}')]
    assert [text for text in [*right, *wrong] if matches(text[start:])] == right
    assert matches(f"{right[0]}\n{right[1]}\n"[start:]) is not must_call


@pytest.mark.parametrize(
    ("parameters", "path"),
    [
        ({"$ref": "https://example.com/schema"}, r"tools\[1\]\.function\.parameters\.\$ref: expected"),
        ({"type": "nonsense"}, r"tools\[1\]\.function\.parameters\.type: expected"),
        ({"uniqueItems": True}, r"tools\[1\]\.function\.parameters\.uniqueItems: expected"),
        ([[[]]], r"tools\[1\]\.function\.parameters: expected a JSON schema"),
    ],
)
def test_a_refusal_names_the_tool(parameters: object, path: str):
    with pytest.raises(RequestError, match=path):
        of_tools([tool({}), tool(parameters)], must_call=True)


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_parameters_that_are_no_json_are_refused(text: str):
    with pytest.raises(RequestError, match=r"tools\[0\]\.function\.parameters: expected a JSON schema"):
        of_tools([Tool("f", "", text)], must_call=True)


def test_tools_that_are_small_alone_and_large_together_are_refused():
    one = tool({"type": "object", "properties": {"s": {"enum": ["x" * 3000]}}})
    of_tools([one], must_call=True)
    with pytest.raises(RequestError, match="tools: expected schemas of at most"):
        of_tools([one] * 100, must_call=True)


@pytest.mark.parametrize("name", ["start", "call", "call_0", "SPACE"])
def test_no_property_takes_the_place_of_a_rule(name: str):
    matches = allows(of_tools([tool({"properties": {name: {"enum": ["x"]}}})], must_call=True), "tools")
    assert matches(call("f", json.dumps({name: "x"})))
    assert not matches(call("f", json.dumps({name: "y"})))
