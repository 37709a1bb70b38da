"""What a JSON object says whose text is cut off."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.wire.cut_json import whole_members

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just('\\",}]{['),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def is_part(part: Any, whole: Any) -> bool:
    """Whether ``part`` has nothing that ``whole`` has not, as far as it goes."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and is_part(part[key], whole[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and all(map(is_part, part, whole)) and len(part) <= len(whole)
    return bool(part == whole)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), st.data())
def test_the_beginning_of_an_object_is_a_part_of_it(whole: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(whole, ensure_ascii=data.draw(st.booleans()))
    assert whole_members(text) == whole
    sizes = [len(json.dumps(whole_members(text[:end]))) for end in range(len(text))]
    assert all(is_part(whole_members(text[:end]), whole) for end in range(len(text)))
    # More text never says less.
    assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1, "b": [2, "c', {"a": 1, "b": [2]}),
        ('{"a": 12', {}),
        ('{"a": "x"', {"a": "x"}),
        ('{"a": {"b": {}', {"a": {"b": {}}}),
        ("", {}),
        ("run it", {}),
        ("[1]", {}),
        ('{"a": 1]', {}),
        ('{"a":' * 100_000, {}),
        ('{"a":"' + "\\\\" * 100_000, {}),
    ],
)
def test_what_is_complete_is_taken(text: str, found: dict[str, Any]) -> None:
    assert whole_members(text) == found
