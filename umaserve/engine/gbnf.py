"""Checks GBNF before llama.cpp parses it: its parser crashes or hangs the process on some grammars.

llama.cpp's parser recurses for each parenthesis, copies the repeated elements for each repetition, searches for left
recursion along every path, misses left recursion behind rules that may be empty, and aborts on token rules. Grammars
that could cause any of these are refused here, in time linear in the grammar's length.

Syntax: llama.cpp, grammars/README.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_NESTING = 1000
MAX_ELEMENTS = 100_000
"""Characters, classes and references, with all repetitions written out."""
MAX_PATHS = 10_000
"""Paths through references to the first character of a rule."""

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


_BOUNDS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class GbnfError(ValueError):
    """The grammar is malformed or beyond the limits; the message says what was expected."""


@dataclass(slots=True)
class Item:
    """One element of a sequence: a rule's name, a group, or text (neither)."""

    text: str = ""
    """The characters of a literal with their escapes, a class with its brackets, or the dot."""
    literal: bool = False
    unit: int = 1
    """Elements that a repetition copies; for a group, which is a rule of its own, one reference."""
    copies: int = 0
    """Elements that repetitions add."""
    nullable: bool = False
    name: str | None = None
    group: Alternatives | None = None
    repeats: list[tuple[int, int | None]] = field(default_factory=list)
    """(fewest, most) times of each repetition, ``None`` for no limit; each applies to the result of those before."""

    @property
    def size(self) -> int:
        return self.unit + self.copies


@dataclass(slots=True)
class Alternatives:
    sequences: list[list[Item]] = field(default_factory=lambda: [[]])

    @property
    def size(self) -> int:
        return sum(1 + sum(item.size for item in sequence) for sequence in self.sequences)


def check(grammar: str) -> dict[str, Alternatives]:
    """The rules of ``grammar``; raises ``GbnfError`` unless llama.cpp can parse and expand them safely."""
    rules = _parse(grammar)
    if "root" not in rules:
        raise GbnfError('a rule "root"')
    if sum(rule.size for rule in rules.values()) > MAX_ELEMENTS:
        raise GbnfError(f"at most {MAX_ELEMENTS} elements once repetitions are written out")
    _mark_nullable(rules)
    _check_first(rules)
    return rules


def prefixed(grammar: str, prefix: str) -> str:
    """``grammar`` with ``prefix`` before the name of each rule, so that it can be joined with others."""
    parts: list[str] = []
    for kind, text in _tokens(grammar):
        parts += [
            "\n" if kind == "define" else " ",
            prefix + text if kind in ("define", "name") else text,
        ]
    return "".join(parts) + "\n"


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


def _parse(grammar: str) -> dict[str, Alternatives]:
    rules: dict[str, Alternatives] = {}
    stack: list[Alternatives] = []
    for kind, text in _tokens(grammar):
        if kind == "define":
            if len(stack) > 1:
                raise GbnfError("a closing parenthesis before the next rule")
            stack = [rules.setdefault(text, Alternatives([]))]
            stack[0].sequences.append([])
            continue
        if not stack:
            raise GbnfError("rules of the form: name ::= what it stands for")
        sequence = stack[-1].sequences[-1]
        match kind, text:
            case "is", _:
                continue
            case "name", _:
                sequence.append(Item(name=text))
            case "literal", _:
                inner = text[1:-1]
                sequence.append(Item(unit=max(1, len(inner)), nullable=not inner, text=inner, literal=True))
            case "class", "[]" | "[^]":
                # llama.cpp treats them as empty.
                raise GbnfError(f"at least one character in each class, got {text}")
            case ("class", _) | ("mark", "."):
                sequence.append(Item(text=text))
            case "mark", "|":
                stack[-1].sequences.append([])
            case "mark", "(":
                group = Alternatives()
                sequence.append(Item(group=group))
                stack.append(group)
                if len(stack) > MAX_NESTING:
                    raise GbnfError(f"parentheses nested at most {MAX_NESTING} deep")
            case "mark", ")":
                if len(stack) == 1:
                    raise GbnfError("an opening parenthesis for each closing one")
                size = stack.pop().size
                stack[-1].sequences[-1][-1].copies += size
            case "repeat", _:
                if not sequence:
                    raise GbnfError(f"something to repeat before {text}")
                _repeat(sequence[-1], text)
    if len(stack) > 1:
        raise GbnfError("a closing parenthesis for each opening one")
    return rules


def _repeat(item: Item, text: str) -> None:
    low, high = _bounds(text)
    if high is not None and high < low:
        # llama.cpp's counter would underflow, and fill the memory.
        raise GbnfError(f"a largest count that is not below the smallest in {text[:64]}")
    item.repeats.append((low, high))
    # llama.cpp makes a rule of each optional copy: the copy, a reference to the next such rule, and an end.
    item.copies += (item.unit + 2) * max(low + 1, high or 0)
    item.unit = item.unit * low + 1
    item.nullable = item.nullable or low == 0
    if item.size > MAX_ELEMENTS:
        raise GbnfError(f"at most {MAX_ELEMENTS} elements once repetitions are written out")


def _bounds(text: str) -> tuple[int, int | None]:
    """The fewest and the most times of a repetition; ``None`` for no limit."""
    if text in _BOUNDS:
        return _BOUNDS[text]
    low, *high = map(int, re.findall("[0-9]+", text))
    if high:
        return low, high[0]
    return low, None if "," in text else low


def _mark_nullable(rules: dict[str, Alternatives]) -> None:
    """Set ``nullable`` of all items, each at most once."""
    parts = list(rules.values())
    uses: dict[int, list[tuple[Item, list[Item], Alternatives]]] = {}
    """For a rule or group: the items that refer to it, with the sequence and the part that each is in."""
    left: dict[int, int] = {}
    """For a sequence, how many of its items may not be empty, as far as is known."""
    empty: list[Alternatives] = []
    for part in parts:
        parts += [item.group for sequence in part.sequences for item in sequence if item.group is not None]
        for sequence in part.sequences:
            full = [item for item in sequence if not item.nullable]
            left[id(sequence)] = len(full)
            if not full:
                empty.append(part)
            for item in full:
                used = item.group if item.name is None else rules.get(item.name)
                if used is not None:
                    uses.setdefault(id(used), []).append((item, sequence, part))
    while empty:
        # A part may come here once for each of its sequences; only the first time has uses left.
        for item, sequence, part in uses.pop(id(empty.pop()), []):
            item.nullable = True
            left[id(sequence)] -= 1
            if not left[id(sequence)]:
                empty.append(part)


def _first_names(alternatives: Alternatives) -> Iterator[str]:
    """The rules that ``alternatives`` may begin with, once per reference."""
    pending = [alternatives]
    while pending:
        for sequence in pending.pop().sequences:
            for item in sequence:
                if item.name is not None:
                    yield item.name
                if item.group is not None:
                    pending.append(item.group)
                if not item.nullable:
                    break


def _check_first(rules: dict[str, Alternatives]) -> None:
    paths: dict[str, int] = {}
    open_rules: set[str] = set()
    for start in rules:
        stack = [start]
        while stack:
            name = stack[-1]
            if name in paths:
                stack.pop()
                continue
            if name not in rules:
                raise GbnfError(f"a rule for {name[:64]!r}")
            first = list(_first_names(rules[name]))
            if name in open_rules:
                stack.pop()
                open_rules.discard(name)
                paths[name] = 1 + sum(paths[used] for used in first)
                if paths[name] > MAX_PATHS:
                    raise GbnfError(f"at most {MAX_PATHS} ways to begin the rule {name[:64]!r}")
                continue
            open_rules.add(name)
            for used in first:
                if used in open_rules:
                    raise GbnfError(f"no left recursion; {used[:64]!r} may begin with itself")
                if used not in paths:
                    stack.append(used)
