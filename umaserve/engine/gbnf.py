"""GBNF, llama.cpp's format of grammars, as a Lark grammar for llguidance.

Syntax: llama.cpp, grammars/README.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import groupby

MAX_CUBES = 300_000
"""Where rules contain themselves: the cubes of the numbers of alternatives with rules, added up for all rules.
llguidance may compare each alternative with two others, which takes 200 ms for a million."""
MAX_NESTING = 100
"""Of rules that don't contain themselves: llguidance takes a minute for thousands of terminals one in another."""

_TOKEN = re.compile(
    r"""
      (?P<space> (?: \s | \#[^\n]* )+ )
    | (?P<define> [A-Za-z0-9_-]+ (?= \s* ::= ) )
    | (?P<is> ::= )
    | (?P<name> [A-Za-z0-9_-]+ )
    | (?P<literal> " (?: [^"\\\n] | \\. )* " )
    | (?P<class> \[ (?: [^\]\\\n] | \\. )* \] )
    | (?P<repeat> [*+?] | \{ \s* [0-9]+ \s* (?: , \s* [0-9]* \s* )? \} )
    | (?P<mark> [().|] )
    """,
    re.VERBOSE,
)
_CHARACTER = re.compile(r"\\x(?P<x>..)|\\u(?P<u>.{4})|\\U(?P<U>.{8})|\\(?P<escaped>.)|(?P<plain>.)", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r"}
_NOTHING = '""'
"""Lark for the empty text, with which each alternative begins: Lark has no alternative without an element."""


class GbnfError(ValueError):
    """The grammar is malformed; the message says what was expected."""


def to_lark(grammar: str) -> str:
    """Lark for the same texts as ``grammar``, beginning at the rule ``start``; raises ``GbnfError``.

    llguidance reads a text in two stages: it splits it into terminals, always the longest that may come next, and
    parses these. GBNF knows characters only. So all rules become one terminal, which is fast, or, where a rule contains
    itself and therefore can't be in a terminal, each character becomes one, which reads every text that GBNF reads.
    """
    reader = _Reader(grammar)
    recursive = _is_recursive(reader.bodies)
    if recursive:
        check_alternatives(map(_alternatives, reader.bodies))
    prefix = "r" if recursive else "R"
    lines = [f"start: {prefix}{reader.root}"]
    for number, body in enumerate(reader.bodies):
        lines.append(f"{prefix}{number}: " + " ".join(f"{prefix}{x}" if isinstance(x, int) else x for x in body))
    return "\n".join(lines) + "\n"


def check_alternatives(alternatives: Iterable[int]) -> None:
    """Refuse more than llguidance can follow in time; ``alternatives``: how many with rules each rule has. Raises
    ``GbnfError``."""
    if sum(n**3 for n in alternatives) > MAX_CUBES:
        most = int(MAX_CUBES ** (1 / 3))
        raise GbnfError(f"at most {most} alternatives with rules in one rule, and fewer in several, or no recursion")


def _alternatives(body: list[int | str]) -> int:
    """How many alternatives have rules in them."""
    marks = (part for part in body if part == "|" or isinstance(part, int))
    return sum(not isinstance(key, str) for key, _same in groupby(marks, key=lambda part: part if part == "|" else 0))


def _is_recursive(bodies: list[list[int | str]]) -> bool:
    uses = {number: {part for part in body if isinstance(part, int)} for number, body in enumerate(bodies)}
    depths: dict[int, int] = {}
    try:
        for number in TopologicalSorter(uses).static_order():
            depths[number] = 1 + max((depths[used] for used in uses[number]), default=0)
    except CycleError:
        return True
    if max(depths.values()) > MAX_NESTING:
        raise GbnfError(f"rules, groups and repetitions nested at most {MAX_NESTING} deep")
    return False


class _Reader:
    """Reads a grammar into ``bodies``: each rule, group and repetition as Lark, with the numbers of those it refers to.
    Groups are rules, since Lark's may not be nested deeply."""

    def __init__(self, grammar: str) -> None:
        self.bodies: list[list[int | str]] = []
        self._numbers: dict[str, int] = {}
        self._defined: set[str] = set()
        self._open: list[int] = []
        """The rule that is being read, and the groups in it that are not closed yet."""
        for kind, text in _tokens(grammar):
            self._read(kind, text)
        if len(self._open) > 1:
            raise GbnfError("a closing parenthesis for each opening one")
        for name in ("root", *self._numbers):
            if name not in self._defined:
                raise GbnfError(f"a rule {name[:64]!r}")
        self.root = self._numbers["root"]

    def _read(self, kind: str, text: str) -> None:
        if kind == "define":
            if len(self._open) > 1:
                raise GbnfError("a closing parenthesis before the next rule")
            self._open = [self._number(text)]
            self._defined.add(text)
            # Of several rules of one name, llama.cpp takes the last.
            self.bodies[self._open[0]] = [_NOTHING]
            return
        if not self._open:
            raise GbnfError("rules of the form: name ::= what it stands for, or grammar_syntax lark for Lark")
        match kind, text:
            case "is", _:
                pass
            case "repeat", _:
                self._repeat(text)
            case "mark", "|":
                self._add("|", _NOTHING)
            case "mark", "(":
                self._open.append(self._new(_NOTHING))
            case "mark", ")":
                if len(self._open) == 1:
                    raise GbnfError("an opening parenthesis for each closing one")
                group = self._open.pop()
                first, *rest = self.bodies[group]
                self._add(rest[0] if first == _NOTHING and len(rest) == 1 else group)
            case "name", _:
                self._add(self._number(text))
            case _:
                self._add(_terminals(kind, text))

    def _new(self, *parts: int | str) -> int:
        self.bodies.append([*parts])
        return len(self.bodies) - 1

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = self._new()
        return self._numbers[name]

    def _add(self, *parts: int | str) -> None:
        self.bodies[self._open[-1]] += parts

    def _repeat(self, text: str) -> None:
        body = self.bodies[self._open[-1]]
        if body[-1] == _NOTHING:
            raise GbnfError(f"something to repeat before {text}")
        low, _comma, high = "".join(text.strip("{}").split()).partition(",")
        if high and int(high) < int(low):
            raise GbnfError(f"a largest count that is not below the smallest in {text[:64]}")
        # A rule of its own, since Lark has no repetition of a repetition.
        body.append(self._new(body.pop(), "".join(text.split())))


def _tokens(grammar: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(grammar):
        match = _TOKEN.match(grammar, at)
        if match is None:
            line = grammar.count("\n", 0, at) + 1
            raise GbnfError(f"GBNF without token rules; line {line} goes wrong at {grammar[at : at + 16]!r}")
        at = match.end()
        kind = match.lastgroup or ""
        if kind != "space":
            yield kind, match[0]


def _terminals(kind: str, text: str) -> str:
    """Lark for a literal, a class or the dot, each character a terminal."""
    if kind == "mark":
        return "/(?s:.)/"
    if kind == "literal":
        return f"({' '.join(f'/{_escaped(code)}/' for code, _plain in _codes(text[1:-1]))})" if text != '""' else '("")'
    negated = text.startswith("[^")
    codes = list(_codes(text[1 + negated : -1]))
    ranges = ""
    at = 0
    while at < len(codes):
        low = high = codes[at][0]
        if codes[at + 1 : at + 2] == [(ord("-"), True)] and at + 2 < len(codes):
            high = codes[at + 2][0]
            at += 2
        if low <= high:
            ranges += f"{_escaped(low)}-{_escaped(high)}"
        at += 1
    if not ranges:
        raise GbnfError(f"at least one character in each class, got {text[:64]}")
    return f"/[{'^' * negated}{ranges}]/"


def _escaped(code: int) -> str:
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise GbnfError(f"Unicode characters, got U+{code:04X}")
    return f"\\x{{{code:x}}}"


def _codes(text: str) -> Iterator[tuple[int, bool]]:
    """(code point, whether written without an escape) of each character of ``text``."""
    for match in _CHARACTER.finditer(text):
        digits = match["x"] or match["u"] or match["U"]
        if digits is not None:
            if not re.fullmatch("[0-9a-fA-F]+", digits):
                raise GbnfError(f"hexadecimal digits after the backslash in {match[0]!r}")
            yield int(digits, 16), False
        elif match["escaped"]:
            yield ord(_CONTROL.get(match["escaped"], match["escaped"])), False
        else:
            yield ord(match["plain"]), True
