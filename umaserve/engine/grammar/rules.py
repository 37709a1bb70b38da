"""The rules of a grammar of characters, and Lark for them.

llguidance reads a text in two stages: it splits it into terminals, always the longest that may come next, and parses
these. So all rules become one terminal, which is fast, or, where a rule contains itself and therefore can't be in a
terminal, each character becomes one, which reads every text that the rules stand for. Where the grammar names terminals
and none can be taken for the beginning of a longer one, they stay, since they make for fewer readings of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import groupby

MAX_CUBES = 300_000
"""Largest sum, for all rules, of the cubes of their numbers of alternatives with rules, where rules contain themselves.
llguidance may compare each alternative with two others, which takes 200 ms for a million."""
MAX_NESTING = 100
"""Deepest nesting of rules that don't contain themselves: llguidance takes a minute for thousands of terminals one in
another."""

MAX_COUNT_DIGITS = 40
"""Most digits of both counts of a repetition together; Python doesn't read numbers of thousands of digits."""

NOTHING = '""'
"""Lark for the empty text, with which each alternative begins: Lark has no alternative without an element."""


class GrammarError(ValueError):
    """Raised for a malformed grammar; the message says what was expected."""


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
        self.terminals: set[int] = set()
        """Rules that the grammar names as terminals: a text is split into the longest."""
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
        low, comma, high = "".join(text.strip("{}").split()).partition(",")
        if len(low + high) > MAX_COUNT_DIGITS:
            raise GrammarError(f"counts of at most {MAX_COUNT_DIGITS} digits, got {text[:64]}")
        if high and int(high) < int(low):
            raise GrammarError(f"a largest count that is not below the smallest in {text[:64]}")
        if (most := high if comma else low).isdigit() and not int(most):
            self.add(self.new(NOTHING))
            return
        # A rule of its own, since Lark has no repetition of a repetition.
        self.add(self.new(part, "".join(text.split())))

    def as_lark(
        self, root: str, prefix: str = "r", are_apart: Callable[[str, str], bool] = lambda _which, _lines: False
    ) -> LarkRules:
        """Lark for all rules, each with a name that begins with ``prefix``; raises ``GrammarError``.

        ``are_apart``: whether each of the terminals can be told from the beginning of a longer one by the character
        that follows it; asked with Lark for one of them, and the lines for that.
        """
        self._check_closed()
        for name in (root, *self._numbers):
            if name not in self._defined:
                raise GrammarError(f"a rule {name[:64]!r}")
        start = self._numbers[root]
        upper = set(range(len(self.bodies)))
        recursive = not self._can_be_terminals(upper)
        if recursive:
            self._flatten()
            terminals = self.terminals & self._reached([start], self.terminals)
            upper = self._reached(terminals)
            which = " | ".join(f"{prefix.upper()}{number}" for number in sorted(terminals))
            if not (upper and self._can_be_terminals(upper) and are_apart(which, self._lines(upper, upper, prefix))):
                upper = set()
        used = self._reached([start])
        if recursive:
            check_alternatives(_alternatives(self.bodies[number]) for number in used - upper)
        if any(part in ("&", "~") for number in used - upper for part in self.bodies[number]):
            raise GrammarError("no & and ~ where a rule contains itself and terminals begin alike")
        first = prefix if recursive else prefix.upper()
        return LarkRules(f"{first}{start}", self._lines(used, upper, prefix), recursive)

    def _lines(self, numbers: Iterable[int], upper: set[int], prefix: str) -> str:
        """Lark for the rules ``numbers``, of which those in ``upper`` are terminals."""

        def named(part: int | str) -> str:
            return part if isinstance(part, str) else f"{prefix.upper() if part in upper else prefix}{part}"

        return "".join(f"{named(number)}: {' '.join(map(named, self.bodies[number]))}\n" for number in sorted(numbers))

    def _reached(self, first: Iterable[int], last: Collection[int] = ()) -> set[int]:
        """The rules ``first``, and those that they refer to, though not by way of one in ``last``."""
        found, waiting = set[int](), [*first]
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                waiting += [part for part in self.bodies[number] if isinstance(part, int) and number not in last]
        return found

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
        inner, is_terminal = part, False
        while isinstance(inner, int):
            is_terminal |= inner in self.terminals
            match [each for each in self.bodies[inner] if each != NOTHING]:
                case [only]:
                    inner = only
                case [repeated, sign] if sign == "+" or [sign] == times == ["*"]:
                    if isinstance(repeated, str):
                        repeated = self.new(repeated)
                    if is_terminal:
                        self.terminals.add(repeated)
                    return repeated
                case _:
                    break
        return part

    def _check_closed(self) -> None:
        if len(self._open) > 1:
            raise GrammarError("a closing parenthesis for each opening one")

    def _can_be_terminals(self, numbers: set[int]) -> bool:
        """Whether none of the rules ``numbers`` contains itself; raises ``GrammarError`` for others of too many."""
        uses = {number: {part for part in self.bodies[number] if isinstance(part, int)} for number in numbers}
        depths: dict[int, int] = {}
        try:
            for number in TopologicalSorter(uses).static_order():
                depths[number] = 1 + max((depths[used] for used in uses[number]), default=0)
        except CycleError:
            return False
        if max(depths.values()) > MAX_NESTING:
            raise GrammarError(f"rules, groups and repetitions nested at most {MAX_NESTING} deep")
        return True


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
