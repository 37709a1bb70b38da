"""Finds the longest computed prefix of a prompt: a radix tree of token sequences for each scope."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MIN_REUSED = 4
"""The shortest prefix that is reused: computing fewer tokens again is as fast."""

Tokens = tuple[int, ...]


class Match(NamedTuple):
    """The holder of a sequence whose first ``length`` tokens are those looked for."""

    holder: int
    length: int


@dataclass(slots=True, eq=False)
class _Node:
    """An edge of the tree and the subtree behind it."""

    edge: Tokens
    holders: dict[int, None] = field(default_factory=dict)
    """Holders of the whole edge, the one added last at the end."""
    children: dict[int, _Node] = field(default_factory=dict)
    """By the first token of their edges."""


class PrefixCache:
    """Token sequences by holder, a number that the caller chooses. Prefixes are only found within their scope."""

    def __init__(self) -> None:
        self._roots: dict[str, _Node] = {}
        self._held: dict[int, tuple[str, Tokens]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def put(self, holder: int, scope: str, tokens: Sequence[int]) -> None:
        """``holder`` now holds exactly ``tokens``."""
        self.remove(holder)
        whole = tuple(tokens)
        if not whole:
            return
        self._held[holder] = (scope, whole)
        node = self._roots.setdefault(scope, _Node(()))
        at = 0
        while at < len(whole):
            child = node.children.get(whole[at])
            if child is None:
                node.children[whole[at]] = _Node(whole[at:], {holder: None})
                return
            common = _common(child.edge, whole, at)
            if common < len(child.edge):
                child = _split(node, child, common)
            child.holders[holder] = None
            node, at = child, at + common

    def held(self, holder: int) -> tuple[str, Tokens]:
        """The scope and the tokens of ``holder``; both empty if it holds nothing."""
        return self._held.get(holder, ("", ()))

    def match(self, scope: str, tokens: Sequence[int], *, entire: bool = False) -> Match | None:
        """The longest prefix of ``tokens`` in this scope; of several holders, the one added last. ``entire``: only
        holders of nothing else."""
        whole = tuple(tokens)
        node = self._roots.get(scope)
        found, at = None, 0
        while node is not None and at < len(whole):
            node = node.children.get(whole[at])
            if node is None:
                break
            common = _common(node.edge, whole, at)
            at += common
            if not entire:
                found = Match(next(reversed(node.holders)), at)
            if common < len(node.edge):
                break
            if entire and (holder := self._ending(node, at)) is not None:
                found = Match(holder, at)
        return found

    def _ending(self, node: _Node, at: int) -> int | None:
        return next((holder for holder in reversed(node.holders) if len(self._held[holder][1]) == at), None)

    def remove(self, holder: int) -> None:
        """``holder`` holds nothing any more."""
        scope, tokens = self._held.pop(holder, ("", ()))
        if not tokens:
            return
        for parent, child in reversed(list(self._path(scope, tokens))):
            del child.holders[holder]
            if not child.holders:
                del parent.children[child.edge[0]]
            elif len(child.children) == 1:
                _join(child)
        if not self._roots[scope].children:
            del self._roots[scope]

    def _path(self, scope: str, tokens: Tokens) -> Iterator[tuple[_Node, _Node]]:
        node, at = self._roots[scope], 0
        while at < len(tokens):
            child = node.children[tokens[at]]
            yield node, child
            node, at = child, at + len(child.edge)


def _common(edge: Tokens, tokens: Tokens, at: int) -> int:
    """Length of the common prefix of ``edge`` and ``tokens[at:]``."""
    if tokens[at : at + len(edge)] == edge:
        return len(edge)
    low, high = 0, min(len(edge), len(tokens) - at)
    while low < high:
        middle = (low + high + 1) // 2
        if edge[low:middle] == tokens[at + low : at + middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _split(parent: _Node, child: _Node, at: int) -> _Node:
    upper = _Node(child.edge[:at], dict(child.holders), {child.edge[at]: child})
    child.edge = child.edge[at:]
    parent.children[upper.edge[0]] = upper
    return upper


def _join(node: _Node) -> None:
    """Merge ``node`` with its only child if both have the same holders."""
    (child,) = node.children.values()
    if child.holders.keys() == node.holders.keys():
        node.edge += child.edge
        node.children = child.children
