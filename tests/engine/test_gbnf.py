"""GBNF means what llama.cpp says it means; what is malformed is refused, and what is hard refused or answered."""

from __future__ import annotations

import pytest
from grammars import BYTES, allows

from umaserve.core.errors import RequestError
from umaserve.engine.grammar.grammar import of_gbnf, of_lark, of_regex
from umaserve.engine.sampling.constraint import Constraint

JSON = r"""
root ::= value
value ::= "{" ws (pair ("," ws pair)*)? "}" ws | "[" ws (value ("," ws value)*)? "]" ws | text ws | number ws
    | ("true" | "false" | "null") ws
pair ::= text ":" ws value
text ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\nt] | "u" [0-9a-f]{4}))* "\""
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)?
ws ::= | " " | "\n" [ \t]{0,20}
"""

MEANT: list[tuple[str, list[str], list[str]]] = [
    ('root ::= "a"', ["a"], ["", "aa", "b"]),
    ('root ::= ("yes" | "no") "." [0-9]{3}', ["yes.123", "no.000"], ["yes.12", "yes"]),
    ('root ::= item+ # a comment ((((\nitem ::= "- " [^\\n"\\]]* "\\n"', ["- a\n- b/\n"], ["- a", '- "\n', ""]),
    ('root ::= (\n  "a" |\n  "b"\n)? . {2,} x{0,3}\nx ::= "(" | ")"', ["a日\n)", "xy"], ["x"]),
    ('root ::= "a" root | ""', ["", "aaa"], ["ab"]),
    ('root ::= a{3} b*\na ::= "\\"" b\nb ::= [\\]]', ['"]"]"]]]'], ['"]"]']),
    ("root ::= " + "(" * 900 + '"a"' + ")" * 900, ["a"], ["b"]),
    ("root ::= " + "(" * 900 + '"a"' + ")" * 900 + ' | "x" root', ["a", "xxa"], ["x"]),
    ('root ::= "日本" | ""\n', ["日本", ""], ["日"]),
    ('root ::= "a"{2}{2}{2}', ["a" * 8], ["a" * 7]),
    ('root ::= "ab"{2} "c"{0} "d"{0,0} "e"{0,}', ["abab", "ababee"], ["abb", "ababc", "ababd"]),
    # Terminals would be read too far here.
    ('root ::= [a-z]* "b"', ["b", "aab"], ["a"]),
    ('root ::= ("a" | "ab") "b" root | "."', ["ab.", "abb.", "ababb."], ["a."]),
    ('root ::= root "x" | "y"', ["y", "yxx"], ["x"]),
    ('root ::= e root "x" | "y"\ne ::= ""', ["y", "yx"], ["x"]),
    ('root ::= | "a" ("" | "b")*', ["", "abb"], ["b"]),
    ('root ::= "x" | "y"\nroot ::= "z"', ["z"], ["x"]),
    ('root ::= "\\u0041\\x42[/]" [\\]-] [-a] [\\U0001F600-\\U0001F64F]', ["AB[/]--😀", "AB[/]]a🙂"], ["AB[/]b-😀"]),
    ("root ::= [z-a0]", ["0"], ["z", "a"]),
    (JSON, ['{"a b": [1, 2.5, "c\\n", {"d": null}]}', "-7"], ['{"a":}', "[1 2]", '{"a": [}']),
]

BAD = {
    "": "root",
    'root ::= "a': "line 1",
    'root ::= ("a"': "closing",
    'root ::= "a")': "opening",
    'root ::= ( "b"\nx ::= "a" )': "closing",
    "root ::= *": "repeat",
    'root ::= "a" | *': "repeat",
    "root ::= x": "a rule 'x'",
    'root ::= "H" !<[0]>': "without token rules",
    "root ::= <think>": "without token rules",
    "root ::= [^]": "at least one character in each class",
    "root ::= [z-a]": "at least one character in each class",
    'root ::= "a"{5,2}': r"not below the smallest in \{5,2\}",
    'root ::= "\\ud800"': r"Unicode characters, got U\+D800",
    "root ::= [\\U00110000]": "Unicode characters",
    'root ::= "a"{' + "9" * 5000 + "}": "counts of at most 40 digits",
    'root ::= "\\xzz"': "hexadecimal digits",
    '"a"': "rules of the form",
    "root ::= " + "(" * 5000 + '"a"' + ' "b")*' * 5000: "nested at most 100 deep",
}


@pytest.mark.parametrize(("grammar", "inside", "outside"), MEANT, ids=range(len(MEANT)))
def test_a_grammar_allows_its_texts_and_no_others(grammar: str, inside: list[str], outside: list[str]):
    matches = allows(of_gbnf(grammar))
    assert [text for text in [*inside, *outside] if matches(text)] == inside


@pytest.mark.parametrize("grammar", BAD, ids=range(len(BAD)))
def test_bad_grammars_are_refused(grammar: str):
    with pytest.raises(RequestError, match=f"^grammar: expected .*{BAD[grammar]}"):
        of_gbnf(grammar)


LETTERS = "internationalization"
HARD = [
    'root ::= (" "|" "|" "){64}',
    'root ::= ([a-z ]?){0,300} "."',
    'root ::= ([a-z ]? ){0,300} "."',
    "root ::= " + " ".join(f'("{letter}"|"{letter}"|"{letter}")' for letter in LETTERS),
    "\n".join(f'r{n} ::= " " r{n + 1} | " " r{n + 1}' for n in range(40)) + '\nr40 ::= "."\nroot ::= r0',
    'root ::= "x" root "y" | " " root | " " root | "z"',
    'root ::= "a"{0000000009999999999}',
    'root ::= ("a"{1000}){1000}{1000}',
    'root ::= x{0,500} root | "."\nx ::= "a"? "b"? "c"? [a-z]?',
    "root ::= e0" + "".join(f"\ne{i} ::= e{i + 1}" for i in range(4000)) + '\ne4000 ::= "" | root',
    "root ::= " + "(" * 90 + '"a"' + ")?" * 90,
    "root ::= " + "(" * 40 + '"a"' + ' "b")*' * 40,
]


def layered(rule: str, levels: int, each: int) -> str:
    """Rules of which each has another as its only alternative, many times; the last one leads back."""
    layers = [f"a{n} {rule} " + " | ".join([f"a{n + 1}"] * each) for n in range(levels)]
    return "\n".join([*layers, f'a{levels} {rule} "a" | "(" a0 ")"\n'])


@pytest.mark.parametrize("levels", [1, 40])
def test_rules_with_too_many_alternatives_are_refused_where_they_recur(levels: int):
    each = 130 if levels == 1 else 40
    for made in (
        lambda: of_gbnf("root ::= a0\n" + layered("::=", levels, each), "x"),
        lambda: of_lark("start: a0\n" + layered(":", levels, each), "x"),
        lambda: of_lark("start: a0\n" + layered(":", levels, each).replace(" | ", "\n  | "), "x"),
    ):
        with pytest.raises(RequestError, match=r"^x: expected at most 66 alternatives with rules in one rule"):
            made()


def test_many_alternatives_are_followed_where_they_are_texts_or_nothing_recurs():
    texts = " | ".join(f'"{n}|"' for n in range(200))
    for lark in (
        of_gbnf(f'root ::= ({texts}) | "(" root ")"'),
        of_gbnf("root ::= a\na ::= " + " | ".join(["b"] * 200) + '\nb ::= "7|"'),
        of_lark(f'start: {texts} | "(" start ")"'),
    ):
        assert allows(lark)("7|")
    assert allows(of_gbnf("root ::= a0\n" + layered("::=", 1, 60)))("((a))")


@pytest.mark.parametrize("grammar", HARD, ids=range(len(HARD)))
def test_a_hard_grammar_is_refused_or_answered(grammar: str):
    try:
        matches = allows(of_gbnf(grammar))
        matches("a" * 20)
        matches(" " * 20)
        said = "grammar: expected"
    except RequestError as error:
        said = error.message
    assert said.startswith("grammar: expected")


# -- Lark and regular expressions ------------------------------------------------------------------------------------


def test_a_schema_in_lark_is_reduced_like_any_other():
    matches = allows(of_lark('start: "<" %json {"properties": {"a": {"const": 1}}, "uniqueItems": false} ">"'))
    assert [text for text in ('<{"a":1}>', '<{"a": 1}>', '<{"b":1}>', '{"a":1}') if matches(text)] == [
        '<{"a":1}>',
        '<{"a": 1}>',
    ]


@pytest.mark.parametrize(
    ("lark", "said"),
    [
        ('start: %json {"not": {}}', r"^grammar\.%json\.not: expected to be absent"),
        ("start: %json {", "^grammar: expected a JSON schema after %json"),
        ('%llguidance {"no_forcing": false}\nstart: "a"', "^grammar: expected Lark without %llguidance"),
        ("\n".join(f'r{n}: "a"' for n in range(301)), "^grammar: expected at most 300 lines of rules"),
        ("start: x", "^grammar: expected a grammar that llguidance can follow, but: unknown name"),
        ("start: start", "^grammar: expected a grammar of at least one text"),
        ("start: " + "(" * 5000 + '"a"' + ")" * 5000, "^grammar: expected a grammar that llguidance can follow, but"),
    ],
)
def test_lark_that_is_wrong_is_refused(lark: str, said: str):
    with pytest.raises(RequestError, match=said):
        allows(of_lark(lark))


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        (r"[a-z]+/\d\n", ["ab/7\n"], ["ab/\n", "ab/7"]),
        (r"( | | ){64}", [" " * 64], [" " * 63]),
        (r"(a{1000}){1000}", [], ["a" * 100]),
        (r"^(yes|no)$", ["yes"], ["yesno"]),
    ],
)
def test_a_regular_expression_matches_the_whole_text(pattern: str, inside: list[str], outside: list[str]):
    matches = allows(of_regex(pattern))
    assert [text for text in [*inside, *outside] if matches(text)] == inside


def test_a_text_of_too_many_readings_is_given_up():
    constraint = Constraint(BYTES, of_gbnf('root ::= s\ns ::= s s | [a-z] | ""'), "grammar", nested=True)
    with pytest.raises(RequestError, match="with fewer ways to read one text"):
        all(map(constraint.accept, b"a" * 500))
