"""The prefix cache against a dict of tokens by holder."""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.kvcache.prefix_cache import Match, PrefixCache, _Node

TOKENS = st.lists(st.integers(0, 2), max_size=8)
OWNERS = st.sampled_from(["one", "two"])
HOLDERS = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.just("put"), HOLDERS, OWNERS, TOKENS),
    st.tuples(st.just("remove"), HOLDERS),
    st.tuples(st.just("match"), OWNERS, TOKENS),
)


def common(one: list[int], other: list[int]) -> int:
    return max(at for at in range(min(len(one), len(other)) + 1) if one[:at] == other[:at])


def nodes(node: _Node) -> list[_Node]:
    return [node, *(found for child in node.children.values() for found in nodes(child))]


def check_tree(cache: PrefixCache, held: dict[int, tuple[str, list[int]]]) -> None:
    """It holds what is held, in no more nodes than that takes."""
    assert len(cache) == len(held)
    assert cache._roots.keys() == {scope for scope, _tokens in held.values()}
    for scope, root in cache._roots.items():
        assert root.children
        for node in nodes(root)[1:]:
            assert node.edge
            assert node.holders
            assert all(first == child.edge[0] for first, child in node.children.items())
            for child in node.children.values():
                assert child.holders.keys() <= node.holders.keys()
            if len(node.children) == 1:
                (child,) = node.children.values()
                assert child.holders.keys() < node.holders.keys(), "two nodes that could be one"
        found = {holder for child in root.children.values() for holder in child.holders}
        assert found == {holder for holder, (whose, _tokens) in held.items() if whose == scope}


@settings(max_examples=examples(300))
@given(st.lists(STEPS, max_size=40))
def test_it_finds_the_longest_beginning_that_an_owner_holds(steps: list[tuple]) -> None:
    cache, held = PrefixCache(), {}
    for name, *arguments in steps:
        match name:
            case "put":
                holder, scope, tokens = arguments
                cache.put(holder, scope, tokens)
                held.pop(holder, None)
                if tokens:
                    held[holder] = (scope, tokens)
            case "remove":
                cache.remove(arguments[0])
                held.pop(arguments[0], None)
            case "match":
                scope, tokens = arguments
                lengths = {one: common(tokens, theirs) for one, (whose, theirs) in held.items() if whose == scope}
                longest = max(lengths.values(), default=0)
                # The dict is in the order in which they were put.
                last = [holder for holder, length in lengths.items() if length == longest][-1:]
                assert cache.match(scope, tokens) == (Match(last[0], longest) if longest else None)
        check_tree(cache, held)
    for holder in range(6):
        scope, tokens = held.get(holder, ("", []))
        assert cache.held(holder) == (scope, tuple(tokens))
        cache.remove(holder)
    check_tree(cache, {})
    assert cache._roots == {}


@pytest.mark.parametrize("length", [1, 2, 3, 511, 1000])
def test_long_beginnings_are_measured_to_the_token(length: int) -> None:
    cache = PrefixCache()
    cache.put(1, "", range(1000))
    assert cache.match("", [*range(length), -1]) == Match(1, length)
    assert cache.match("", range(length)) == Match(1, length)


def test_what_the_caller_changes_afterwards_is_not_held() -> None:
    cache, tokens = PrefixCache(), [1, 2, 3]
    cache.put(1, "", tokens)
    tokens[0] = 9
    assert cache.match("", [1, 2, 3]) == Match(1, 3)
