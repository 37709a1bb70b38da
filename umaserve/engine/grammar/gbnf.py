"""GBNF, llama.cpp's format of grammars, as a Lark grammar for llguidance.

Syntax: llama.cpp, grammars/README.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from umaserve.engine.grammar.rules import NOTHING, GrammarError, Rules

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


def to_lark(grammar: str) -> str:
    """Lark for the same texts as ``grammar``, beginning at the rule ``start``; raises ``GrammarError``."""
    rules = Rules()
    for kind, text in _tokens(grammar):
        _read(rules, kind, text)
    made = rules.as_lark("root")
    return f"start: {made.root}\n{made.lines}"


def _read(rules: Rules, kind: str, text: str) -> None:
    if kind == "define":
        rules.define(text)
        return
    if not rules.begun:
        raise GrammarError("rules of the form: name ::= what it stands for, or grammar_syntax lark for Lark")
    match kind, text:
        case "is", _:
            pass
        case "repeat", _:
            rules.repeat(text)
        case "mark", "|":
            rules.add("|", NOTHING)
        case "mark", "(":
            rules.begin_group()
        case "mark", ")":
            rules.end_group()
        case "name", _:
            rules.add(rules.number(text))
        case _:
            rules.add(_terminals(kind, text))


def _tokens(grammar: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(grammar):
        match = _TOKEN.match(grammar, at)
        if match is None:
            line = grammar.count("\n", 0, at) + 1
            raise GrammarError(f"GBNF without token rules; line {line} goes wrong at {grammar[at : at + 16]!r}")
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
        raise GrammarError(f"at least one character in each class, got {text[:64]}")
    return f"/[{'^' * negated}{ranges}]/"


def _escaped(code: int) -> str:
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise GrammarError(f"Unicode characters, got U+{code:04X}")
    return f"\\x{{{code:x}}}"


def _codes(text: str) -> Iterator[tuple[int, bool]]:
    """Pairs of a code point, and whether it is written without an escape, for each character of ``text``."""
    for match in _CHARACTER.finditer(text):
        digits = match["x"] or match["u"] or match["U"]
        if digits is not None:
            if not re.fullmatch("[0-9a-fA-F]+", digits):
                raise GrammarError(f"hexadecimal digits after the backslash in {match[0]!r}")
            yield int(digits, 16), False
        elif match["escaped"]:
            yield ord(_CONTROL.get(match["escaped"], match["escaped"])), False
        else:
            yield ord(match["plain"]), True
