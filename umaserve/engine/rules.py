"""The rules of a grammar of characters, and Lark for them.

llguidance reads a text in two stages: it splits it into terminals, always the longest that may come next, and parses
these. So all rules become one terminal, which is fast, or, where a rule contains itself and therefore can't be in a
terminal, each character becomes one, which reads every text that the rules stand for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import groupby

MAX_CUBES = 300_000
"""Where rules contain themselves: the cubes of the numbers of alternatives with rules, added up for all rules.
llguidance may compare each alternative with two others, which takes 200 ms for a million."""
MAX_NESTING = 100
"""Of rules that don't contain themselves: llguidance takes a minute for thousands of terminals one in another."""

NOTHING = '""'
"""Lark for the empty text, with which each alternative begins: Lark has no alternative without an element."""


class GrammarError(ValueError):
    """The grammar is malformed; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class LarkRules:
    """Lines of Lark, of which ``root`` is the rule or, unless ``recursive``, the terminal that stands for all."""

    root: str
    lines: str
    recursive: bool


class Rules:
    """Rules in the making. ``bodies``: each rule, group and repetition as Lark, with the numbers of those it refers to.
    Groups are rules, since Lark's may not be nested deeply."""

    def __init__(self) -> None:
        self.bodies: list[list[int | str]] = []
        self._numbers: dict[str, int] = {}
        self._defined: set[str] = set()
        self._open: list[int] = []
        """The rule that is being read, and the groups in it that are not closed yet."""

    @property
    def begun(self) -> bool:
        """Whether there is a rule to which something can be added."""
        return bool(self._open)

    def new(self, *parts: int | str) -> int:
        self.bodies.append([*parts])
        return len(self.bodies) - 1

    def number(self, name: str) -> int:
        """The number of the rule ``name``, which may be defined later."""
        if name not in self._numbers:
            self._numbers[name] = self.new()
        return self._numbers[name]

    def define(self, name: str) -> None:
        """Begin the rule ``name``. Of several of one name, the last one counts."""
        self._check_closed()
        self._open = [self.number(name)]
        self._defined.add(name)
        self.bodies[self._open[0]] = [NOTHING]

    def defines(self, name: str) -> bool:
        return name in self._defined

    def add(self, *parts: int | str) -> None:
        self.bodies[self._open[-1]] += parts

    def take(self) -> int | str:
        """Take the last part off again."""
        return self.bodies[self._open[-1]].pop()

    def begin_group(self) -> None:
        self._open.append(self.new(NOTHING))

    def end_group(self) -> None:
        if len(self._open) == 1:
            raise GrammarError("an opening parenthesis for each closing one")
        group = self._open.pop()
        first, *rest = self.bodies[group]
        self.add(rest[0] if first == NOTHING and len(rest) == 1 else group)

    def repeat(self, text: str) -> None:
        """Have the last part repeated: ``*``, ``+``, ``?``, ``{3}``, ``{3,}`` or ``{3,5}``."""
        part = self.take()
        if part == NOTHING:
            raise GrammarError(f"something to repeat before {text}")
        low, _comma, high = "".join(text.strip("{}").split()).partition(",")
        if high and int(high) < int(low):
            raise GrammarError(f"a largest count that is not below the smallest in {text[:64]}")
        # A rule of its own, since Lark has no repetition of a repetition.
        self.add(self.new(part, "".join(text.split())))

    def as_lark(self, root: str, prefix: str = "r") -> LarkRules:
        """Lark for all rules, each with a name that begins with ``prefix``. Raises ``GrammarError``."""
        self._check_closed()
        for name in (root, *self._numbers):
            if name not in self._defined:
                raise GrammarError(f"a rule {name[:64]!r}")
        recursive = self._is_recursive()
        if recursive:
            check_alternatives(map(_alternatives, self.bodies))
            self._flatten()
        prefix = prefix if recursive else prefix.upper()
        lines = (
            f"{prefix}{number}: {' '.join(f'{prefix}{part}' if isinstance(part, int) else part for part in body)}\n"
            for number, body in enumerate(self.bodies)
        )
        return LarkRules(f"{prefix}{self._numbers[root]}", "".join(lines), recursive)

    def _flatten(self) -> None:
        """Make ``(a | b+)*`` ``(a | b)*``: the former has a reading for each way to divide what ``b`` stands for."""
        for number, (group, *times) in enumerate(list(self.bodies)):
            if isinstance(group, int) and times in (["*"], ["+"]):
                parts = [NOTHING, *(part for part in self.bodies[group] if part != NOTHING)]
                flat: list[int | str] = []
                for before, part, after in zip(["|", *parts], parts, [*parts[1:], "|"], strict=False):
                    alone = isinstance(part, int) and before in ("|", NOTHING) and after == "|"
                    flat.append(self._repeated(part, times) if alone else part)
                if flat != parts:
                    self.bodies[number] = [self.new(*flat), *times]

    def _repeated(self, part: int | str, times: list[int | str]) -> int | str:
        """What ``part`` repeats, if that is all it does and ``times`` may stand for both; else ``part``."""
        inner = part
        while isinstance(inner, int):
            match [each for each in self.bodies[inner] if each != NOTHING]:
                case [only]:
                    inner = only
                case [repeated, "+"]:
                    return repeated
                case [repeated, "*"] if times == ["*"]:
                    return repeated
                case _:
                    break
        return part

    def _check_closed(self) -> None:
        if len(self._open) > 1:
            raise GrammarError("a closing parenthesis for each opening one")

    def _is_recursive(self) -> bool:
        uses = {number: {part for part in body if isinstance(part, int)} for number, body in enumerate(self.bodies)}
        depths: dict[int, int] = {}
        try:
            for number in TopologicalSorter(uses).static_order():
                depths[number] = 1 + max((depths[used] for used in uses[number]), default=0)
        except CycleError:
            return True
        if max(depths.values()) > MAX_NESTING:
            raise GrammarError(f"rules, groups and repetitions nested at most {MAX_NESTING} deep")
        return False


def check_alternatives(alternatives: Iterable[int]) -> None:
    """Refuse more than llguidance can follow in time; ``alternatives``: how many with rules each rule has. Raises
    ``GrammarError``."""
    if sum(n**3 for n in alternatives) > MAX_CUBES:
        most = int(MAX_CUBES ** (1 / 3))
        raise GrammarError(f"at most {most} alternatives with rules in one rule, and fewer in several, or no recursion")


def _alternatives(body: list[int | str]) -> int:
    """How many alternatives have rules in them."""
    marks = (part for part in body if part == "|" or isinstance(part, int))
    return sum(not isinstance(key, str) for key, _same in groupby(marks, key=lambda part: part if part == "|" else 0))
