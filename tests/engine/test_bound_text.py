"""Lark and regular expressions for a tool's text: each form of calls takes the texts that match, and no others, and a
reader of the calls gets them back as they are."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import pytest
from grammars import BYTES, END
from llama_templates import NAMES, needs_templates, template_source
from tool_forms import FORMS

from umaserve.chat_format.tool_calls import ToolCallParser, short_ids
from umaserve.chat_format.written_calls import written
from umaserve.core.errors import RequestError
from umaserve.core.requests import Grammar, Syntax, Tool, ToolCall
from umaserve.core.tool_call_format import ToolForm
from umaserve.engine.grammar.tool_grammar import of_tools
from umaserve.engine.sampling.constraint import Constraint
from umaserve.engine.template.template import Template

ONE_TEXT = '{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}'
OTHER = Tool("other", "", '{"type":"object","properties":{"n":{"type":"integer"}}}')
JSON, TAGS, PYTHON = FORMS["json"], FORMS["tags"], FORMS["python"]

PATCH = r"""
// Edits of files, line by line.
start: begin hunk+ end
begin: "*** Begin" NL
end: "*** End" NL?  # the last line may lack its end

hunk: add_file | remove_file
    // or, most often:
    | edit_file
add_file: "*** Add: " path NL added+
remove_file: "*** Remove: " path NL
edit_file: "*** Edit: " path NL ["*** To: " path NL] change+
?change: place? line+ -> change
place: "@@" (" " /[^\n]+/)? NL
added: "+" /(.*)/ NL
line: ("+" | "-" | " ") REST NL
path: /(.+)/
REST.2: /.*?/
%import common.LF -> NL
"""
PATCHES = [
    "*** Begin\n*** Remove: a.py\n*** End",
    '*** Begin\n*** Remove: C:\\new\\"b" c.py\n*** Add: x\n+"""\\n"""\n+\n+\ttab, é, 🙂, \x01\x7f\r\n*** End\n',
    "*** Begin\n*** Edit: a\n*** To: b\n@@ def f(\n-'a' = \"\\\\\"\n+</p> </parameter\n \n@@\n \u2028\n*** End",
]
NO_PATCHES = [
    "",
    "*** Begin\n*** End",
    "*** Begin\n*** Add: a\n*** End",
    "*** Begin\n*** Remove: \n*** End",
    "*** Begin\n*** Edit: a\n/b\n*** End",
    "*** Begin\\n*** Remove: a.py\\n*** End",
    PATCHES[0] + "\n\n",
    PATCHES[0].replace("\n", "\r\n"),
]
TREE = r"""
start: value
value: list | TEXT | NUMBER | ("yes"i | "no") -> word
list: "[" [value ("," value)*] "]"
TEXT: "\"" /[^"\n]/* "\""
NUMBER: "-"? "0".."9" ~ 1..3
%ignore /[ \n\t]+/
"""
TREES = ['"a\\"', " [1,\n\t-23 ,[ ],YeS] ", '[["é\\n", 7 ],no]\n']
NO_TREES = ["[1", "[1 2]", '"a\nb"', "1234", "No", "1 2", ""]
LISP = r"""
start: list
list: "(" item* ")"
item: list | WORD | STRING
WORD: /[a-z]+/ & ~"nil"
STRING: "\"" /(?:[^"\\\n]|\\.)*/ "\""
%import common.WS
%ignore WS
"""
ELEMENTS = r"""
start: element
element: "<" NAME ">" (element | TEXT)* "</" NAME ">"
NAME: /[a-z]+/
TEXT: /[^<]+/
"""
LANGUAGES = {
    "patch": (PATCH, PATCHES, NO_PATCHES),
    "tree": (TREE, TREES, NO_TREES),
    "lisp": (
        LISP,
        ["()", '\n(ab cd ( e"a b\\"\\n" nils)\n)\t', "(" + "some words " * 100 + ")"],
        ["", "(nil)", "(ab", "(AB)", '("a)', '("\n")'],
    ),
    "elements": (
        ELEMENTS,
        ["<a></a>", "<a>" + 'x "y"\n\\' * 100 + "<b></b>\n</a>"],
        ["", "<a>", "<a><</a>", "<A></A>", "<a></a> "],
    ),
    "empty": ('start: "b"~0 /c{0,0}d?/ | ""', ["", "d"], ["a", "b", "cd", " ", "\n"]),
    "blank": ("start: /[ \\n]*/", ["", "\n", " \n\n "], ["a", "\\n"]),
    "sets": (
        'start: WORD (" " WORD)*\nWORD: /[a-z"\\\\\\n]+/ & ~("end" | ANY "\\\\" ANY)\nANY: /(?s:.*)/',
        ['a "b', "ends", 'a\n" e'],
        ["end", "a end b", "a\\b", "A", ""],
    ),
}


def bound(text: str, syntax: Syntax = Syntax.LARK) -> Tool:
    return Tool("patch", "", ONE_TEXT, Grammar(syntax, text, "definition"))


def call(form: ToolForm, text: str) -> str:
    """A call with ``text``, as a model writes it: where it stands in quotes, escaped."""
    inner = form.parameters
    if inner is None or len(inner.quote) != 1:
        return written(form, [ToolCall("abcdefgh1", "patch", json.dumps({"input": text}))])
    escaped = json.dumps(text, ensure_ascii=False)[1:-1].replace('\\"', '"').replace(inner.quote, f"\\{inner.quote}")
    return call(replace(form, parameters=replace(inner, quote="")), f"{inner.quote}{escaped}{inner.quote}")


def constraint(form: ToolForm, tool: Tool, *, must_call: bool = True) -> tuple[Constraint, bytes]:
    made = of_tools(form, [OTHER, tool], must_call=must_call)
    return Constraint(BYTES, made.lark, "tools", nested=made.nested), made.after


def accepts(form: ToolForm, given: tuple[Constraint, bytes], text: str) -> bool:
    whole, after = given
    data = text.removeprefix(form.opened).encode()
    left = whole.copy()
    return all(map(left.accept, [*data[data.index(after) + len(after) :], END]))


def read(form: ToolForm, tool: Tool, text: str, size: int) -> str:
    """The text that the parser gets out of a call that comes in pieces of ``size``."""
    parser = ToolCallParser(form, [OTHER, tool], short_ids("u"))
    told = [parser.push(text[at : at + size]) for at in range(len(form.opened), len(text), size)] + [parser.finish()]
    return json.loads("".join(piece.arguments for _content, pieces in told for piece in pieces))["input"]


def check(form: ToolForm, language: str) -> None:
    grammar, inside, outside = LANGUAGES[language]
    tool = bound(grammar)
    for must_call in (True, False):
        given = constraint(form, tool, must_call=must_call)
        assert [text for text in inside + outside if accepts(form, given, call(form, text))] == inside
        assert accepts(form, given, written(form, [ToolCall("abcdefgh1", "other", '{"n": 1}')]))
    for text in inside:
        assert read(form, tool, call(form, text), 1) == text
        assert read(form, tool, call(form, text), 5) == text


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", FORMS)
def test_each_form_takes_the_texts_of_a_grammar_and_gives_them_back(name: str, language: str):
    check(FORMS[name], language)


@needs_templates
@pytest.mark.parametrize("name", NAMES)
def test_the_forms_of_llama_cpps_templates(name: str):
    check(Template(template_source(name), "<s>", "</s>").tool_form, "patch")


@pytest.mark.parametrize("name", ["tags", "pairs", "typed", "quoted", "elements"])
def test_a_text_that_is_not_escaped_has_no_closing_mark_in_it(name: str):
    form = FORMS[name]
    assert form.parameters is not None
    mark = form.parameters.quote or form.parameters.closing("input").strip()
    given = constraint(form, bound(r"start: /[\s\S]*/"))
    assert accepts(form, given, call(form, f"a{mark[:-1]}b"))
    assert not accepts(form, given, call(form, f"a{mark}b"))


def test_a_text_is_escaped_in_one_way():
    given = constraint(JSON, bound(r'start: /[\s\S]/ "\n"'))
    for written_so, taken in {
        r"a\n": True,
        r"\u0001\n": True,
        r"\u0061\n": False,
        r"\/\n": False,
        r"a\u000a": False,
    }.items():
        assert accepts(JSON, given, call(JSON, "@").replace("@", written_so)) is taken


CHARACTERS = "ab\"'\\\n\t\x01é/<"
SMALL = r"""
start: (pair | /[^a]b?/ | /\s{2}|\x01[\\"]/)*
pair: "a" ("\n" | "\"" | "\\" | "'") [/(?i:B)/]
"""
SMALL_TEXT = r"(?:a[\n\"\\'][bB]?|[^a]b?|\s{2}|\x01[\\\"])*"


@pytest.mark.parametrize("recurs", [False, True])
@pytest.mark.parametrize("name", ["json", "tags", "python", "quoted"])
def test_random_texts_are_taken_as_python_takes_them(name: str, recurs: bool):
    choose = random.Random(1)
    form, tool = FORMS[name], bound(SMALL + 'pair2: "(" pair2? ")"\n' * recurs)
    given = constraint(form, tool)
    taken = 0
    for _ in range(300):
        text = "".join(choose.choices(CHARACTERS, k=choose.randrange(6)))
        matches = re.fullmatch(SMALL_TEXT, text) is not None
        assert accepts(form, given, call(form, text)) is matches, text
        if matches:
            taken += 1
            assert read(form, tool, call(form, text), 3) == text
    assert 30 < taken < 290


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("^(yes|no)!$", ["yes!", "no!"], ["yes", "^yes!$"]),
        (r"[^\d\s]+\$", ['a"\\$', "/$"], ["1$", "\n$", "$"]),
        (r"(?i)é(?-i:b)|(?s:.){2}", ["Éb", "éb", "\n\n"], ["éB\n", "é"]),
        (r"[]\"/-]+\.", [']"-/.'], ["a."]),
        (r"\p{Lu}\pL{1,2}?[[:digit:]&&[^3]]\x41\u{42}", ["Ää1AB", "Xyz1AB"], ["äa1AB", "Xy3AB"]),
        (r"(?P<name>a|b)+", ["abba"], ["", "c"]),
        ("a\nb", ["a\nb"], ["a\\nb"]),
    ],
)
@pytest.mark.parametrize("form", [JSON, TAGS, PYTHON], ids=["json", "tags", "python"])
def test_a_regular_expression_binds_the_whole_text(form: ToolForm, pattern: str, inside: list[str], outside: list[str]):
    given = constraint(form, bound(pattern, Syntax.REGEX))
    assert [text for text in inside + outside if accepts(form, given, call(form, text))] == inside


def test_every_terminal_of_the_library_can_be_imported():
    texts = {
        "INT": "12",
        "SIGNED_NUMBER": "-1.5e3",
        "DECIMAL": "1.",
        "HEXDIGIT": "F",
        "ESCAPED_STRING": '"a\\"b"',
        "CNAME": "_a1",
        "WORD": "aB",
        "WS": " \r\n\t",
        "WS_INLINE": " \t",
        "NEWLINE": "\r\n\n",
        "CR": "\r",
        "C_COMMENT": "/* a\n**/",
        "CPP_COMMENT": '// "a',
        "SH_COMMENT": "# a",
        "SQL_COMMENT": "-- a",
    }
    for form in (JSON, TAGS):
        for name, text in texts.items():
            given = constraint(form, bound(f"%import common ({name}, LF)\nstart: {name} LF"))
            assert accepts(form, given, call(form, text + "\n"))
            assert not accepts(form, given, call(form, f".{text}\n"))


@pytest.mark.parametrize(
    ("lark", "said"),
    [
        ("", "a rule 'start'"),
        ("begin: /a/", "a rule 'start'"),
        ("start: x", "a rule 'x'"),
        ('start: "a"\nstart: "b"', "one rule 'start', got two"),
        ('start: ("a"', "a closing bracket"),
        ('start: "a")', "an opening bracket"),
        ('start: ("a"]', "an opening bracket"),
        ('start: "a" |\n"b" x: "c"', "line 2 goes wrong at"),
        ('"a"', "line 1 goes wrong at '\"a\"'"),
        ("start: 'a'", "line 1 goes wrong at \"'a'\""),
        ('start: %json {"type": "string"}', "line 1 goes wrong at '%json"),
        ('%import other.X\nstart: "a"', "line 1 goes wrong at '%import other.X"),
        ("%import common.LETTERS\nstart: LETTERS", "one of the terminals DIGIT, .*got 'LETTERS'"),
        ('start[lazy]: "a"', "line 1 goes wrong at"),
        ("start: <|im_end|>", "line 1 goes wrong at '<"),
        ('%llguidance {}\nstart: "a"', "line 1 goes wrong at '%llg"),
        ('start: a{"x"}\na{x}: x', "line 1 goes wrong at"),
        ("start: *", r"something to repeat before \*"),
        ('start: "a"~3..2', "a largest count"),
        ('start: "\\d"', "the escapes of JSON"),
        ('start: "\\ud800"', "the escapes of JSON"),
        ('start: "ab".."c"', "a range from one character"),
        ('start: "b".."a"', "a class with a character in it"),
        ("start: /[b-a]/", r"a class with a character in it.* got '\[b-a\]'"),
        ("start: /[a&&b]/", "a class with a character in it"),
        (r"start: /\p{Nope}/", "a class with a character in it"),
        ("start: /[a/", "a closing bracket for each class"),
        ("start: /(a/", "a closing parenthesis"),
        ("start: /a)/", "an opening parenthesis"),
        ("start: /(?=a)/", r"without look-around.* goes wrong at '\(\?=a\)'"),
        (r"start: /a\b/", r"without look-around.* goes wrong at '\\\\b'"),
        ("start: /^a/", "without look-around, anchors"),
        ("start: /a/x", "without the flags l and x"),
        ('start: "a" & "b"', "& in terminals alone"),
        ('start: A\nA: ~\nB: "a"', "something after each ~"),
        ('start: A | "(" start ")"\nA: ~"a"', "no & and ~ where a rule contains itself"),
        ("start: " + "(" * 101 + '"a"' + ' "b")*' * 101, "nested at most 100 deep"),
        ("start: " + " ".join(f"/[a{chr(code)}]/" for code in range(0x4E00, 0x4EC9)), "at most 200 different classes"),
        ('start: "a"\n' + "".join(f'x{n}: "a"\n' for n in range(2000)), "at most 2000 rules"),
    ],
)
def test_lark_that_cant_be_taken_is_refused(lark: str, said: str):
    for form in (JSON, TAGS):
        with pytest.raises(RequestError, match=f"^definition: expected .*{said}"):
            constraint(form, bound(lark))


@pytest.mark.parametrize(
    "lark",
    [
        'start: ("a"{1000}){1000}{1000}',
        'start: ("" | "a"? "b"? /./?){0,500} "."',
        'start: "x" start "y" | " " start | " " start | "z"',
        "start: s\ns: s s | s s s | /[a-z]/ | ",
        "start: /(a|a|aa|.)*b.{12}/",
        "start: " + '"a" ' * 60000,
        "start: e0" + "".join(f"\ne{n}: e{n + 1}" for n in range(1500)) + '\ne1500: "a" | start',
    ],
    ids=range(7),
)
def test_hard_lark_is_refused_or_followed(lark: str):
    try:
        given = constraint(JSON, bound(lark))
        accepts(JSON, given, call(JSON, "a" * 40 + "."))
        said = "tools: expected"
    except RequestError as error:
        said = error.message
    assert said.startswith(("tools: expected", "definition: expected"))
