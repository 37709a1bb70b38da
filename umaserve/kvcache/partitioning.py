"""Chooses how the KV cells are divided: in equal parts of one sequence each, or shared by all sequences.

In shared cells, the attention of every row visits the cells of all sequences, masked or not; in parts, only those of
its own. But a sequence can't outgrow its part, there are no more sequences than parts, and dividing anew takes some
100 ms in which no stream gets a token.
"""

from __future__ import annotations

from collections.abc import Sequence

SETTLED_S = 10.0
"""Sessions that run in shared cells are moved into parts only if nothing was divided for this long."""

SHARED = 0


class Partitioning:
    """``ways``: parts, and the cells of each, the most parts first; the first is in force. Empty: always shared."""

    def __init__(self, ways: Sequence[tuple[int, int]], now: float) -> None:
        self._ways = ways
        self.parts = ways[0][0] if ways else SHARED
        self._divided_at = now

    @property
    def possible(self) -> bool:
        return bool(self._ways)

    @property
    def parted(self) -> bool:
        return self.parts != SHARED

    def choose(self, needs: Sequence[int], running: int, now: float) -> bool:
        """Choose for sessions that need so many cells each, of which some are ``running``; returns whether ``parts``
        has changed."""
        count, longest = len(needs), max(needs, default=0)
        fitting = [parts for parts, each in self._ways if parts >= count and each >= longest]
        if not self._ways or self.parts in fitting:
            return False
        wanted = fitting[0] if fitting else SHARED
        in_haste = self.parts != SHARED or not running
        if wanted == self.parts or not (in_haste or now - self._divided_at >= SETTLED_S):
            return False
        self.parts, self._divided_at = wanted, now
        return True
