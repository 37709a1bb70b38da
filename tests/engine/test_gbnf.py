"""Grammars are refused before they can hurt llama.cpp, and what is let through is something it can parse."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from umaserve.engine import gbnf
from umaserve.engine.grammar import check_gbnf, gbnf_of_schema
from umaserve.errors import RequestError

GOOD = [
    'root ::= "a"',
    'root ::= ("yes" | "no") "." [0-9]{3}',
    'root ::= item+ # a comment ((((\nitem ::= "- " [^\\n"\\]]* "\\n"',
    'root ::= (\n  "a" |\n  "b"\n)? . {2,} x{0,3}\nx ::= "(" | ")"',
    'root ::= "a" root | ""',
    'root ::= a{3} b*\na ::= "\\"" b\nb ::= [\\]]',
    "root ::= " + "(" * 900 + '"a"' + ")" * 900,
    'root ::= "日本" | ""\n',
    'root ::= (("a"{99}){99}){99}',
]

BAD = {
    "": "root",
    'root ::= "a': "line 1",
    'root ::= ("a"': "closing",
    'root ::= "a")': "opening",
    'root ::= ( "b"\nx ::= "a" )': "closing",
    "root ::= *": "repeat",
    "root ::= x": "a rule for 'x'",
    "# " + ")" * 3000 + "\nroot ::= " + "(" * 3000 + '"a"' + ")" * 3000: "nested",
    'root ::= "H" !<[0]>': "without token rules",
    "root ::= <think>": "without token rules",
    'root ::= root "x" | "y"': "left recursion",
    'root ::= e root "x" | "y"\ne ::= f\nf ::= ""': "left recursion",
    'root ::= e root "x" | "y"\ne ::= f\nf ::= []': "at least one character in each class",
    "root ::= [^]": "at least one character in each class",
    'root ::= ("z"? | f) g\ng ::= ("a"* root)\nf ::= ""': "left recursion",
    "\n".join(f"a{n} ::= a{n + 1} | a{n + 1}" for n in range(40)) + '\na40 ::= "x"\nroot ::= a0': "ways to begin",
    'root ::= "' + "a" * 60000 + '"{1000}': "elements",
    'root ::= "a"{999}{999}': "elements",
    'root ::= "a"{5,2}': r"not below the smallest in \{5,2\}",
    'root ::= "a" ("b"{ 1, 0 })*': "not below the smallest",
    'root ::= "a"{0000000009999999999}': "elements",
}


@pytest.mark.parametrize("grammar", GOOD, ids=range(len(GOOD)))
def test_good_grammars_pass(grammar: str):
    gbnf.check(grammar)


@pytest.mark.parametrize("grammar", BAD, ids=range(len(BAD)))
def test_bad_grammars_are_refused(grammar: str):
    with pytest.raises(gbnf.GbnfError, match=BAD[grammar]):
        gbnf.check(grammar)


def lines_run(grammar: str) -> int:
    """How many lines of the module it takes to check ``grammar``."""
    lines = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace if frame.f_code.co_filename == gbnf.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        gbnf.check(grammar)
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize(
    "part",
    [
        lambda n: "root ::= " + "e " * n + '\ne ::= ""',
        lambda n: "root ::= " + " ".join(f"e{i}" for i in range(n)) + "".join(f'\ne{i} ::= ""' for i in range(n)),
        lambda n: "root ::= e0" + "".join(f"\ne{i} ::= e{i + 1}" for i in range(n)) + f'\ne{n} ::= ""',
        lambda n: "root ::= " + "(" * n + "e" + ")" * n + '\ne ::= ""',
        lambda n: "root ::= " + "e? " * n + '\ne ::= "a"{0,3}',
    ],
    ids=["one rule often", "many rules", "a chain", "groups", "repetitions"],
)
def test_what_may_be_empty_is_found_in_steps_linear_in_the_grammar(part: Callable[[int], str]):
    assert lines_run(part(400)) < 5 * lines_run(part(100))


@pytest.mark.parametrize(
    "schema",
    [
        '{"type": "string", "pattern": "^a{0,60000}$"}',
        '{"type": "string", "pattern": "^a{0000000009999999999}$"}',
        '{"type": "string", "pattern": "^(a{999}){999}$"}',
        '{"type": "array", "minItems": 100000}',
        '{"$ref": "https://example.com/schema"}',
        '{"$ref": "#/$defs/none"}',
        '{"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}',
        json.dumps({"properties": {f"p{n}": {"type": "string", "maxLength": 1000} for n in range(1000)}}),
        "[" * 100 + "]" * 100,
    ],
)
def test_schemas_that_would_grow_are_refused(schema: str):
    with pytest.raises(RequestError, match="json_schema"):
        gbnf_of_schema(schema)


def test_schemas_that_people_use_pass():
    properties = {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 5},
        "when": {"type": "string", "format": "date-time"},
        "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
        "text": {"type": "string", "maxLength": 500},
        "any": {},
        "either": {"anyOf": [{"type": "null"}, {"type": "number"}]},
        "maxLength": {"type": "integer"},
    }
    schema = {"type": "object", "$defs": {"tag": {"enum": ["a", "b"]}}, "properties": properties, "required": ["n"]}
    assert "root ::=" in gbnf_of_schema(json.dumps(schema))


def test_a_refusal_names_the_field():
    with pytest.raises(RequestError) as caught:
        check_gbnf("root ::= x")
    assert caught.value.message == "grammar: expected a rule for 'x'"
