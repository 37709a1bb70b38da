"""How many examples hypothesis makes for a test."""

from __future__ import annotations

from hypothesis import settings

DEFAULT = 100


def examples(number: int) -> int:
    """``number`` of examples, for a test that wants others than the default; fewer in a profile that has fewer."""
    return max(1, number * settings().max_examples // DEFAULT)
