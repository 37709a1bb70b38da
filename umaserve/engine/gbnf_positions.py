"""A grammar's rules in llama.cpp's form: groups and repetitions are rules too, and elements have positions."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from umaserve.engine.gbnf import Alternatives, GbnfError, Item

MAX_CHARACTERS = 4096
"""Ranges of characters that a grammar distinguishes."""

_MAX_REPEAT = 2000
"""llama.cpp treats a larger maximum as none."""

_LETTERS = [(ord("A"), ord("Z")), (ord("a"), ord("z")), (0x80, 0x10FFFF)]
_CHARACTER = re.compile(r"\\x(?P<x>..)|\\u(?P<u>.{4})|\\U(?P<U>.{8})|\\(?P<escaped>.)|(?P<plain>.)", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r"}

Ranges = list[tuple[int, int]]
"""(first, last) code points, both included."""
Stack = tuple[int, ...]
"""Positions: the last one is where llama.cpp reads next, those before it are where it returns to, innermost last."""


@dataclass(slots=True, eq=False)
class Rule:
    """A rule of llama.cpp, which makes rules of groups and repetitions too. ``name``: the grammar's rule that it is
    part of."""

    name: str
    starts: list[int] = field(default_factory=list)
    """The first position of each alternative."""
    first: set[Stack] | None = None
    """The stacks at its beginning, with ``()`` where it may be empty; ``None`` until they are computed."""
    returns: list[tuple[Rule, int]] = field(default_factory=list)
    """(rule, position) after each reference to this rule, except references that end an alternative."""
    ends: list[Rule] = field(default_factory=list)
    """The rules with an alternative that ends in a reference to this one."""
    shorter: bool = False
    """Whether another rule is the same repetition with a higher maximum; there are no more ways from here than from it.
    """


Element = Rule | int | None
"""A reference, a set of characters as an integer's bits, or ``None`` for the end of an alternative."""


class Positions:
    """The elements of all rules, one after another."""

    def __init__(self, rules: Mapping[str, Alternatives]) -> None:
        self.elements: list[Element] = []
        self.rules: list[Rule] = []
        self.named = {name: self._new_rule(name) for name in rules}
        queue = [(self.named[name], alternatives) for name, alternatives in rules.items()]
        for rule, alternatives in queue:
            groups = [item.group for sequence in alternatives.sequences for item in sequence]
            queue += [(self._new_rule(rule.name), group) for group in groups if group is not None]
        of_group = {id(alternatives): rule for rule, alternatives in queue}
        self.alphabet = Alphabet(
            ranges
            for _rule, alternatives in queue
            for sequence in alternatives.sequences
            for item in sequence
            for _negated, ranges in _terminals(item)
        )
        for rule, alternatives in queue:
            for sequence in alternatives.sequences:
                self._add(rule, [one for item in sequence for one in self._of_item(item, rule.name, of_group)])
        for rule in self.rules:
            for position in self._references(rule):
                self._note_return(rule, position)

    def inner(self, rule: Rule) -> Iterator[int]:
        """The positions of ``rule`` that are reached by reading or returning: all but the first of each alternative."""
        for position in rule.starts:
            while self.elements[position] is not None:
                position += 1
                if self.elements[position] is not None:
                    yield position

    def _references(self, rule: Rule) -> Iterator[int]:
        for position in rule.starts:
            while self.elements[position] is not None:
                if isinstance(self.elements[position], Rule):
                    yield position
                position += 1

    def _note_return(self, rule: Rule, position: int) -> None:
        used = self.elements[position]
        assert isinstance(used, Rule)
        if self.elements[position + 1] is None:
            if used is not rule:
                used.ends.append(rule)
        elif not rule.shorter:
            used.returns.append((rule, position + 1))

    def _new_rule(self, name: str) -> Rule:
        self.rules.append(Rule(name))
        return self.rules[-1]

    def _add(self, rule: Rule, elements: Sequence[Element]) -> None:
        rule.starts.append(len(self.elements))
        self.elements += [*elements, None]

    def _of_item(self, item: Item, name: str, of_group: Mapping[int, Rule]) -> list[Element]:
        elements: list[Element]
        if item.name is not None:
            if item.name not in self.named:
                raise GbnfError(f"a rule for {item.name[:64]!r}")
            elements = [self.named[item.name]]
        elif item.group is not None:
            elements = [of_group[id(item.group)]]
        else:
            elements = [self.alphabet.set_of(ranges, negated=negated) for negated, ranges in _terminals(item)]
        for low, high in item.repeats:
            most = None if high is None or high > _MAX_REPEAT else high - low
            elements = elements * low + self._optional(elements, most, name)
        return elements

    def _optional(self, elements: Sequence[Element], most: int | None, name: str) -> list[Element]:
        """A reference to a rule for at most ``most`` copies; ``None`` for any number."""
        if most is None:
            rule = self._new_rule(name)
            self._add(rule, [*elements, rule])
            self._add(rule, [])
            return [rule]
        more: list[Element] = []
        for left in range(most, 0, -1):
            rule = self._new_rule(name)
            rule.shorter = left > 1
            self._add(rule, [*elements, *more])
            self._add(rule, [])
            more = [rule]
        return more


class Alphabet:
    """The ranges of characters that a grammar distinguishes, one bit of an integer for each."""

    def __init__(self, told_apart: Iterable[Ranges]) -> None:
        begins = {0, *(edge for low, high in _LETTERS for edge in (low, high + 1))}
        for ranges in told_apart:
            begins.update(edge for low, high in ranges for edge in (low, high + 1))
            if len(begins) > MAX_CHARACTERS:
                raise GbnfError(f"at most {MAX_CHARACTERS} characters and ranges of them")
        self._begins = sorted(begins)
        self.all = (1 << len(begins)) - 1
        self.letters = self.set_of(_LETTERS)

    def set_of(self, ranges: Ranges, *, negated: bool = False) -> int:
        """The bits of all characters in ``ranges``, or of all others."""
        found = 0
        for low, high in ranges:
            found |= (1 << bisect_left(self._begins, high + 1)) - (1 << bisect_left(self._begins, low))
        return self.all & ~found if negated else found


def _terminals(item: Item) -> Iterator[tuple[bool, Ranges]]:
    """For each character that an item of text reads: (whether negated, ranges)."""
    if item.literal:
        for code, _plain in _codes(item.text):
            yield False, [(code, code)]
    elif item.text == ".":
        yield True, []
    elif item.text:
        negated = item.text.startswith("[^")
        codes = list(_codes(item.text[1 + negated : -1]))
        ranges = []
        at = 0
        while at < len(codes):
            low = high = codes[at][0]
            if codes[at + 1 : at + 2] == [(ord("-"), True)] and at + 2 < len(codes):
                high = codes[at + 2][0]
                at += 2
            if low <= high:
                ranges.append((low, high))
            at += 1
        yield negated, ranges


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
