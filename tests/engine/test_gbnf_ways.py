"""Grammars that llama.cpp would take seconds a token for are refused; those that people write, and our own, are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from umaserve.engine import gbnf, gbnf_ways
from umaserve.engine.gbnf_positions import Positions, Rule, Stack
from umaserve.engine.grammar import check_gbnf, gbnf_of_schema, gbnf_of_tools
from umaserve.errors import RequestError
from umaserve.messages import Tool

LETTERS = "internationalization"

EXPENSIVE = [
    'root ::= (" "|" "|" "){12}',
    'root ::= (" "|" "|" "){64}',
    'root ::= ([a-z ]?){0,300} "."',
    'root ::= ([a-z ]? ){0,300} "."',
    'root ::= ("    " | "    "){64}',
    'root ::= ([a-z]+ " "?)+',
    'root ::= line+\nline ::= [^\\n]+ "\\n"?',
    "root ::= (a+)*\na ::= [ab]",
    # Written out, by rules, by recursion, in another script, and at the ends of rules one in another.
    "root ::= " + " ".join(['(" "|" "|" ")'] * 64),
    "root ::= " + " ".join(f'("{letter}"|"{letter}"|"{letter}")' for letter in LETTERS),
    "\n".join(f'r{n} ::= " " r{n + 1} | " " r{n + 1}' for n in range(30)) + '\nr30 ::= "."\nroot ::= r0',
    'root ::= "x" root "y" | " " root | " " root | "z"',
    'root ::= [a-z] root "x" | [a-z] root "y" | "."',
    'root ::= ("日" | "日")*',
    "\n".join(f'r{n} ::= "({{[x" r{n + 1} d' for n in range(30)) + '\nr30 ::= d\nd ::= " "|" "\nroot ::= r0',
    'root ::= ws ws ws ws "."\nws ::= [ \\t\\n]*',
    # The width of one place alone.
    "root ::= " + " | ".join(f'"word {number}"' for number in range(600)),
    "root ::= (" + " | ".join(f'"word {number}"' for number in range(600)) + ")*",
    "root ::= " + " ".join(['"a"?'] * 600),
]

CHEAP = [
    # llama.cpp itself sees that these are read in one way.
    'root ::= line+\nline ::= [^\\n]* "\\n"?',
    "root ::= (a*)*\na ::= [ab]",
    'root ::= (" "|" "|" "){3}',
    'root ::= ([a-z ]?){0,5} "."',
    'root ::= [a-z]{0,1000} [a-z0-9]{0,1000} "."{0,2000}',
    'root ::= ws ws ws "."\nws ::= [ \\t\\n]*',
    'root ::= ("apple" | "apricot" | "ape" " "?)+',
    'root ::= ("- " [^\\n]+ "\\n")+',
    'root ::= "#" ([^*] | "*" [^/])* "*/"',
    'root ::= word (" " word)* "."\nword ::= [a-zA-Z]+ ("\'" [a-z])?',
    'root ::= (sum "=" number "\\n")+\nsum ::= term ([-+] term)*\nterm ::= number | name | "(" sum ")"\n'
    "number ::= [0-9]+\nname ::= [a-z] [a-z0-9_]*",
    'root ::= statement*\nstatement ::= name "=" sum ";" | name "(" sum ")" ";" | "if" "(" sum ")" statement\n'
    'sum ::= name ("+" name)*\nname ::= [a-z]+',
    # JSON, whose numbers begin in two ways.
    'root ::= value\nvalue ::= "{" ws (pair ("," ws pair)*)? "}" ws | "[" ws (value ("," ws value)*)? "]" ws | text ws'
    ' | number ws | ("true" | "false" | "null") ws\npair ::= text ":" ws value\n'
    'text ::= "\\"" ([^"\\\\\\x00-\\x1f] | "\\\\" (["\\\\nt] | "u" [0-9a-f]{4}))* "\\""\n'
    'number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)?\nws ::= | " " | "\\n" [ \\t]{0,20}',
    'root ::= move (" " move)*\nmove ::= [NBRQK]? [a-h]? [1-8]? "x"? [a-h] [1-8] | "O-O" "-O"?',
]


@pytest.mark.parametrize("grammar", EXPENSIVE, ids=range(len(EXPENSIVE)))
def test_what_is_read_in_too_many_ways_is_refused(grammar: str):
    gbnf.check(grammar)
    with pytest.raises(RequestError, match=r"^grammar: expected rules that read each text in few ways"):
        check_gbnf(grammar)


@pytest.mark.parametrize("grammar", CHEAP, ids=range(len(CHEAP)))
def test_what_people_write_passes(grammar: str):
    assert check_gbnf(grammar) == grammar


@pytest.mark.parametrize("field", ["json_schema", r"tools\[0\]\.function\.parameters"])
def test_a_pattern_in_a_schema_is_refused_by_its_field(field: str):
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "string", "pattern": "^( | | ){64}$"}}})
    with pytest.raises(RequestError, match=f"^{field}: expected rules that read each text in few ways"):
        gbnf_of_schema(schema) if field == "json_schema" else gbnf_of_tools([Tool("f", "", schema)], must_call=True)


ITEM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "price": {"type": "number", "minimum": -3, "maximum": 70000},
        "note": {"anyOf": [{"type": "string", "maxLength": 10}, {"type": "null"}, {"type": "integer"}]},
        "kind": {"enum": ["x", "y", "xyz"]},
        "when": {"type": "string", "format": "date-time"},
    },
}
SCHEMAS: list[dict[str, Any]] = [
    {},
    {"type": "object", "properties": {f"property_{n}": {"type": "string"} for n in range(500)}},
    {"type": "object", "properties": {f"property_{n}": {} for n in range(50)}, "additionalProperties": True},
    {"type": "array", "items": ITEM, "minItems": 1, "maxItems": 1000},
    {"type": "array", "items": ITEM, "minItems": 1000},
    {"type": "object", "properties": {f"p{n}": {"type": "array", "items": ITEM, "maxItems": 100} for n in range(20)}},
    {"type": "array", "items": {"type": ["integer", "number", "string"]}},
    {"type": "array", "items": {"anyOf": [{"properties": {"t": {"const": f"t{n}"}, "x": {}}} for n in range(60)]}},
    {"type": "string", "maxLength": 1000},
    {"enum": list(range(3000))},
    {"anyOf": [{"const": f"word {n}"} for n in range(2000)]},
    {"items": {"$ref": "#/$defs/node"}}
    | {"$defs": {"node": {"properties": {"v": {}, "kids": {"items": {"$ref": "#/$defs/node"}}}}}},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_our_own_grammars_pass(schema: dict[str, Any]):
    assert "root ::=" in gbnf_of_schema(json.dumps(schema))


def test_a_long_enumeration_begins_in_few_ways():
    words = [f"{word} {number * 7919}" for word in ("above", "Below") for number in range(1000)]
    positions = Positions(gbnf.check(gbnf_of_schema(json.dumps({"type": "array", "items": {"enum": words}}))))
    gbnf_ways._Check(positions).run()
    assert max(len(rule.first or ()) for rule in positions.rules) <= 11


# Two classes that have a character in common are two ways, and in a repetition too many.
@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("[a-c]", "[c-e]", True),
        ("[a-c]", "[d-f]", False),
        ("[^a]", "[a]", False),
        ("[^a-y]", "[z]", True),
        (r"[\x41]", '"A"', True),
        (r"[\u0041-\U00000043]", '"C"', True),
        (r"[\]-]", '"-"', True),
        (r"[\]-]", '"^"', False),
        (r"[\n\t\\]", '"\\n"', True),
        (r"[\n]", '"n"', False),
        ('["]', r'"\""', True),
        (".", '"é"', True),
        ("[é-ü]", '"ö"', True),
        ("[z-a]", '"m"', False),
        ('"ab"', '"ac"', False),
    ],
)
def test_classes_are_read_as_llama_cpp_reads_them(one: str, other: str, alike: bool):
    grammar = f"root ::= ({one} | {other})*"
    if alike:
        with pytest.raises(RequestError):
            check_gbnf(grammar)
    else:
        check_gbnf(grammar)


# -- what llama.cpp does, as it does it ------------------------------------------------------------------------------


class Reader:
    """Follows stacks as llama.cpp does: those of one stack each once, and those of several each for itself."""

    def __init__(self, grammar: str) -> None:
        self.positions = Positions(gbnf.check(grammar))
        self.elements = self.positions.elements
        root = self.positions.named["root"]
        self.stacks = {s for start in root.starts for s in self.advanced((start,))}

    def advanced(self, stack: Stack) -> set[Stack]:
        todo, seen = [stack], set[Stack]()
        while todo:
            *below, top = one = todo.pop()
            element = self.elements[top]
            if one in seen or element is None:
                continue
            seen.add(one)
            if isinstance(element, Rule):
                after = [top + 1] if self.elements[top + 1] is not None else []
                for start in element.starts:
                    inside = [start] if self.elements[start] is not None else []
                    if rest := (*below, *after, *inside):
                        todo.append(rest)
        return {one for one in seen if isinstance(self.elements[one[-1]], int)}

    def read(self, stack: Stack, character: str) -> set[Stack]:
        *below, top = stack
        element = self.elements[top]
        assert isinstance(element, int)
        if not element & self.positions.alphabet.set_of([(ord(character), ord(character))]):
            return set()
        rest = (*below, top + 1) if self.elements[top + 1] is not None else tuple(below)
        return self.advanced(rest) if rest else set()

    def accept(self, text: str) -> None:
        for character in text:
            self.stacks = {after for stack in self.stacks for after in self.read(stack, character)}

    def ways(self, text: str) -> int:
        """The most stacks that are tried at once while ``text`` is read; stops beyond the limit."""
        stacks, most = list(self.stacks), len(self.stacks)
        for character in text:
            stacks = [after for stack in stacks for after in self.read(stack, character)]
            most = max(most, len(stacks))
            if most > gbnf_ways.MAX_SHORT_WAYS:
                break
        return most


GRAMMARS = st.recursive(
    st.sampled_from(['"a"', '"b"', '" "', '"ab"', "[ab]", "[a ]"]),
    lambda inner: (
        st.lists(inner, min_size=2, max_size=3).map(" ".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({' | '.join(parts)})")
        | st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,4}", "{3,}", "{9}"])).map(
            lambda p: f"({p[0]}){p[1]}"
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(GRAMMARS, st.text("ab ", max_size=6), st.sampled_from(["a" * 16, " " * 16, "ab" * 8, "aab" * 5]))
@example('("a" | "a"){9}', "", "a" * 16)
@example('(("a")* (" ")?)*', "a", "a" * 16)
def test_no_text_is_read_in_more_ways_than_the_limit(inner: str, before: str, text: str):
    grammar = f'root ::= "." | {inner}'
    try:
        gbnf_ways.check(gbnf.check(grammar))
    except gbnf.GbnfError:
        return
    reader = Reader(grammar)
    reader.accept(before)
    assert reader.ways(text) <= gbnf_ways.MAX_SHORT_WAYS
