"""What draft tokens cost, as measured: how long a draft model takes for one, and how long ticks of a stream alone take
that verify some.

The rows of these ticks don't tell: matrix kernels compute tiles of rows. With Qwen2.5 0.5B on an EPYC without AVX-512,
two rows take twice as long as one, three three times, four no longer than three, and eight less than twice as long as
four.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping

from umaserve.sessions.cost_model import MIN_TICK_S

SIZES = (2, 4, 8, 16)
"""Rows of tiles: ticks with as many, or fewer down to the next size, are taken to cost the same."""
TRIED = 2
"""Ticks after which a size is known: the shorter one counts, since others may have delayed one."""
LATEST = 5
"""Ticks of each size whose median counts."""
FORGOTTEN = 64
"""Ticks without a size, after which it is to be tried again."""
REFRESHED = 32
"""Ticks with draft tokens, after which one without shows what these are compared with: it grows with the text."""

DRAFTING_LEARNED = 0.1
"""Weight of the latest tick in the average time for a draft token of the draft model."""

DRAFTING_FORGOTTEN = 0.99
"""Factor on that average for each tick without such draft tokens."""


class DraftCosts:
    """Durations that are learned from ticks."""

    def __init__(self) -> None:
        self.drafting_s = 0.0
        """Average time for one draft token of the draft model."""
        self._alone: deque[float] = deque(maxlen=2)
        """Seconds of the latest ticks of one row, of which the shorter one counts."""
        self._alone_at = 0
        self._factors: dict[int, float] = {}
        """How many times as long as one row a size takes, for those that are known."""
        self._found: dict[int, deque[float]] = {size: deque(maxlen=LATEST) for size in SIZES}
        self._at = dict.fromkeys(SIZES, 0)
        """Number of the latest tick of each size."""
        self._ticks = 0

    @property
    def seconds(self) -> Mapping[int, float]:
        """Seconds of a tick by its size, 1 or of ``SIZES``, for those that are known; empty where that of one row isn't
        any more."""
        if not self._alone or self._ticks - self._alone_at >= REFRESHED:
            return {}
        alone_s = max(min(self._alone), MIN_TICK_S)
        return {1: alone_s} | {size: factor * alone_s for size, factor in self._factors.items()}

    def drafted(self, draft_tokens: int, seconds: float) -> None:
        """Learn how long the draft model took for so many draft tokens."""
        if draft_tokens:
            before = self.drafting_s or seconds / draft_tokens
            self.drafting_s = before + DRAFTING_LEARNED * (seconds / draft_tokens - before)
        else:
            # A draft model that was slow once is tried again later.
            self.drafting_s *= DRAFTING_FORGOTTEN

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a tick of one stream, without prefill."""
        self._ticks += 1
        if rows == 1:
            self._alone.append(seconds)
            self._alone_at = self._ticks
        elif 1 < rows <= SIZES[-1] and self._alone:
            size = next(size for size in SIZES if rows <= size)
            found = self._found[size]
            found.append(seconds / max(min(self._alone), MIN_TICK_S))
            if len(found) >= TRIED:
                self._factors[size] = statistics.median_low(found)
            self._at[size] = self._ticks
        if self._ticks % FORGOTTEN == 0:
            for size in SIZES:
                if self._at[size] <= self._ticks - FORGOTTEN:
                    self._factors.pop(size, None)
                    self._found[size].clear()
