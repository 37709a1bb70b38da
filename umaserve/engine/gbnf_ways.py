"""Bounds the ways that llama.cpp follows through a grammar at once, because each of them costs time in every tick.

To find which tokens may come next, llama.cpp tries each token in all ways in which the grammar can read it, and doesn't
merge ways that lead to the same stack: with ``(" " | " "){64}``, a token of 64 spaces is read in 2**64 ways. Here its
stacks are followed in advance, with the number of ways to each, from every position of the grammar and through all
texts like long tokens: a few characters of any kind, then a word or one character many times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from umaserve.engine.gbnf import Alternatives, GbnfError
from umaserve.engine.gbnf_positions import Positions, Rule, Stack

MAX_BEGINNINGS = 512
"""At the start of a token. The whole vocabulary is tried in each way, a millisecond where it is large."""
MAX_WORD_WAYS = 1000
"""Through letters, which most tokens consist of. A word split among three repetitions stays below."""
MAX_SHORT_WAYS = 20_000
"""Through other characters: few tokens of a vocabulary begin with the same ones."""
MAX_LONG_WAYS = 400_000
"""Through texts longer than words; a vocabulary has about a hundred such tokens."""
MAX_STEPS = 3_000_000
"""Steps of this check: some seconds."""

_OVERHEAD = 10
"""Steps that any set of ways counts for, however small it is."""
_ANY_LENGTH, _WORD_LENGTH, _RUN_LENGTH = 3, 16, 128
"""Lengths of the texts read: up to the first, any characters; up to the second, also letters after letters; up to the
third, only the same character again."""

Ways = Counter[Stack]
"""The number of ways to each stack; ``()`` is the end of the current rule."""


def check(rules: Mapping[str, Alternatives]) -> None:
    """Raise ``GbnfError`` if llama.cpp would follow too many ways through ``rules`` (from `gbnf.check`)."""
    _Check(Positions(rules)).run()


@dataclass(slots=True, eq=False)
class _Context:
    """The state shared by rules that return to the same positions."""

    name: str
    returns: list[tuple[Rule, int]]
    """(rule, position) to return to."""
    followed: dict[int, dict[Stack, list[tuple[dict[Stack, int], int]]]] = field(default_factory=dict)
    """Ways followed already, each with the text's length, by the characters that may come next and by each stack."""


class _Check:
    """Follows llama.cpp's stacks from each position of each rule. A stack begins at that rule; the rules that refer to
    it are put below only when its end is reached (``_lifted``)."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._elements = positions.elements
        self._at: dict[int, set[Stack]] = {}
        self._characters_at: dict[int, int] = {}
        self._contexts: dict[Rule, _Context] = {}
        self._interned: dict[frozenset[int], _Context] = {}
        self.steps = 0

    def run(self) -> None:
        for rule in self._positions.rules:
            self._find_first(rule)
        root = self._positions.named["root"]
        starts = [(self._context(root), Counter(root.first))]
        for rule in self._positions.rules:
            if not rule.shorter:
                for position in self._positions.inner(rule):
                    stacks = self._stacks_at(position)
                    if len(stacks) > 1 and (() in stacks or self._share_characters(stacks)):
                        starts += self._lifted(self._context(rule), Counter(stacks))
        # Those with the most stacks first: they often include the others.
        for context, ways in sorted(starts, key=lambda start: len(start[1]), reverse=True):
            del ways[()]
            self._follow(context, ways)

    # -- what llama.cpp does -------------------------------------------------------------------------------------

    def _find_first(self, rule: Rule) -> None:
        """Compute ``first`` of ``rule`` and of all rules that it may begin with."""
        waiting = [rule]
        while waiting:
            found: set[Stack] = set()
            for start in waiting[-1].starts:
                unknown = self._collect(start, found)
                # A repetition of something that may be empty begins with itself, which adds no stacks.
                if unknown is not None and unknown is not waiting[-1]:
                    waiting.append(unknown)
                    break
            else:
                self._count(len(found), len(found), waiting[-1].name)
                waiting.pop().first = found

    def _collect(self, position: int, found: set[Stack]) -> Rule | None:
        """Add the stacks at ``position`` to ``found``, or return a rule whose ``first`` must be computed before."""
        while isinstance(rule := self._elements[position], Rule):
            if rule.first is None:
                return rule
            if self._elements[position + 1] is None:
                found.update(rule.first)
                self._count(len(found), len(found), rule.name)
                return None
            found.update((position + 1, *stack) for stack in rule.first if stack)
            self._count(len(found), len(found), rule.name)
            if () not in rule.first:
                return None
            position += 1
        found.add(() if rule is None else (position,))
        return None

    def _stacks_at(self, position: int) -> set[Stack]:
        if position not in self._at:
            found: set[Stack] = set()
            self._collect(position, found)
            self._at[position] = found
            self._characters_at[position] = self._characters(found)
        return self._at[position]

    def _characters(self, stacks: Iterable[Stack]) -> int:
        """The characters that any of ``stacks`` may read next."""
        found = 0
        for stack in stacks:
            characters = self._elements[stack[-1]] if stack else 0
            assert isinstance(characters, int)
            found |= characters
        return found

    def _share_characters(self, stacks: Iterable[Stack]) -> bool:
        """Whether two of ``stacks`` can read the same character."""
        found = 0
        for stack in stacks:
            characters = self._characters([stack])
            if found & characters:
                return True
            found |= characters
        return False

    def _after(self, stack: Stack) -> set[Stack]:
        """The stacks after ``stack`` has read a character."""
        *rest, position = stack
        if self._elements[position + 1] is not None:
            rest.append(position + 1)
        found: set[Stack] = set()
        while rest:
            stacks = self._stacks_at(rest.pop())
            found.update((*rest, *further) for further in stacks if further)
            if () not in stacks:
                return found
        found.add(())
        return found

    def _context(self, rule: Rule) -> _Context:
        if rule not in self._contexts:
            returns: list[tuple[Rule, int]] = []
            # A rule at the end of another returns where that one does.
            todo, seen = [rule], {rule}
            while todo:
                one = todo.pop()
                returns += one.returns
                todo += [outer for outer in one.ends if outer not in seen]
                seen.update(one.ends)
            self._count(len(seen) + len(returns), 0, rule.name)
            key = frozenset(position for _rule, position in returns)
            self._contexts[rule] = self._interned.setdefault(key, _Context(rule.name, returns))
        return self._contexts[rule]

    def _lifted(self, context: _Context, ways: Ways) -> Iterator[tuple[_Context, Ways]]:
        """``ways``, with those that have reached the rule's end continued at each position that the rule returns to;
        only where there is more than one way."""
        todo = [(context, ways)]
        while todo:
            context, ways = todo.pop()
            if ways.total() < 2:
                continue
            if () not in ways or not context.returns:
                yield context, ways
                continue
            inside = self._characters(ways)
            apart = False
            for rule, position in context.returns:
                after = self._stacks_at(position)
                if ways[()] == 1 and not inside & self._characters_at[position]:
                    # No text can be read both inside and after the rule; ways from that position are followed anyway.
                    apart = True
                    after = after & {()}
                    if not after:
                        continue
                lifted = Counter({(position, *stack): number for stack, number in ways.items() if stack})
                for stack in after:
                    lifted[stack] += ways[()]
                self._count(_OVERHEAD + sum(map(len, lifted)), 0, rule.name)
                todo.append((self._context(rule), lifted))
            if apart:
                yield context, ways

    # -- through all texts ---------------------------------------------------------------------------------------

    def _follow(self, context: _Context, ways: Ways) -> None:
        todo = [(context, ways, self._positions.alphabet.all, 0)]
        while todo:
            context, ways, allowed, length = todo.pop()
            length += 1
            for characters, part in self._by_character(ways, allowed):
                further = self._further(characters, length)
                if self._is_followed(context, part, further, length):
                    continue
                following: Ways = Counter()
                for stack, number in part.items():
                    for after in self._after(stack):
                        following[after] += number
                for outer, lifted in self._lifted(context, following):
                    self._count(sum(map(len, lifted)), lifted.total(), outer.name, self._limit(characters, length))
                    del lifted[()]
                    if length < _RUN_LENGTH:
                        todo.append((outer, lifted, further, length))

    def _is_followed(self, context: _Context, ways: dict[Stack, int], further: int, length: int) -> bool:
        """Whether at least these ways were followed already; if not, they are noted."""
        index = context.followed.setdefault(further, {})
        for others, shorter in index.get(next(iter(ways)), ()):
            self.steps += 1
            if shorter <= length and all(others.get(stack, 0) >= number for stack, number in ways.items()):
                return True
        for stack in ways:
            index.setdefault(stack, []).append((ways, length))
        self._count(len(ways), 0, context.name)
        return False

    def _limit(self, characters: int, length: int) -> int:
        """The limit of ways through ``length`` characters, of which the last is one of ``characters``."""
        if length > _WORD_LENGTH:
            return MAX_LONG_WAYS
        return MAX_WORD_WAYS if characters & self._positions.alphabet.letters else MAX_SHORT_WAYS

    def _further(self, characters: int, length: int) -> int:
        """The characters to try after ``length`` characters, of which the last is one of ``characters``."""
        alphabet = self._positions.alphabet
        if length < _ANY_LENGTH:
            return alphabet.all
        if length < _WORD_LENGTH and characters & alphabet.letters:
            return characters | alphabet.letters
        return characters

    def _by_character(self, ways: Ways, allowed: int) -> Iterator[tuple[int, dict[Stack, int]]]:
        """``allowed`` split into sets of characters that the same stacks read, each with the ways to these stacks; only
        where there is more than one way."""
        waiting: dict[int, list[Stack]] = {}
        for stack in ways:
            characters = self._elements[stack[-1]]
            assert isinstance(characters, int)
            waiting.setdefault(characters, []).append(stack)
        parts: list[tuple[int, list[Stack]]] = [(allowed, [])]
        for characters, stacks in waiting.items():
            self.steps += len(parts)
            parts = [
                *((both, inside + stacks) for part, inside in parts if (both := part & characters)),
                *((others, inside) for part, inside in parts if (others := part & ~characters)),
            ]
        self.steps += _OVERHEAD + len(ways)
        for part, stacks in parts:
            some = {stack: ways[stack] for stack in stacks}
            if sum(some.values()) > 1:
                yield part, some

    def _count(self, steps: int, ways: int, name: str, limit: int = MAX_BEGINNINGS) -> None:
        self.steps += steps
        if ways > limit or self.steps > MAX_STEPS:
            expected = "rules that read each text in few ways, so in a repetition nothing that may be empty, and no"
            where = f"llama.cpp would follow too many in {name[:64]!r}"
            raise GbnfError(f"{expected} alternatives that match the same; {where}")
