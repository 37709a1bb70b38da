"""What draft tokens cost, as measured: how long a draft model takes for one, and how long ticks of so many streams take
that verify some.

The rows of these ticks don't tell: matrix kernels compute tiles of rows. With Qwen2.5 0.5B on an EPYC without AVX-512,
two rows take twice as long as one, three three times, four no longer than three, and eight less than twice as long as
four. With Gemma 3 270M on a Xeon, eight rows take 1.5 times as long as four, and seven 2.1 times.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping

from umaserve.sessions.cost_model import MIN_TICK_S

SIZES = (2, 4, 8, 16, 32, 64)
"""Rows of tiles: ticks with as many, or fewer down to the next size, are taken to cost the same."""
TRIED = 2
"""Ticks after which a size is known: the shorter one counts, since others may have delayed one."""
LATEST = 5
"""Ticks of each size whose median counts."""
FORGOTTEN = 64
"""Ticks without a size, after which it is to be tried again, times the streams: one that doesn't pay keeps them all
waiting."""
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
        self._ticks = 0
        self._of: dict[int, _Sizes] = {}
        """By numbers of streams."""

    def seconds(self, streams: int) -> Mapping[int, float]:
        """Seconds of a tick of so many streams, by its rows: as many as there are streams, or one of ``SIZES`` above,
        for those that are known; empty where that without draft tokens isn't any more."""
        sizes = self._of.get(streams)
        return {} if sizes is None or self._ticks - sizes.without_at >= REFRESHED else sizes.seconds

    def drafted(self, draft_tokens: int, seconds: float) -> None:
        """Learn how long the draft model took for so many draft tokens."""
        if draft_tokens:
            before = self.drafting_s or seconds / draft_tokens
            self.drafting_s = before + DRAFTING_LEARNED * (seconds / draft_tokens - before)
        else:
            # A draft model that was slow once is tried again later.
            self.drafting_s *= DRAFTING_FORGOTTEN

    def observe(self, streams: int, rows: int, seconds: float) -> None:
        """Learn from a tick of ``streams`` without prefill."""
        self._ticks += 1
        sizes = self._of.get(streams)
        if sizes is None:
            sizes = self._of[streams] = _Sizes(streams)
        if rows == streams:
            sizes.without.append(seconds)
            sizes.without_at = self._ticks
        elif streams < rows <= SIZES[-1] and sizes.without:
            sizes.observe(next(size for size in SIZES if rows <= size), seconds)
        sizes.ticks += 1
        if sizes.ticks % (FORGOTTEN * streams) == 0:
            sizes.forget()


class _Sizes:
    """Durations of ticks of as many streams, by their sizes."""

    def __init__(self, streams: int) -> None:
        self.without: deque[float] = deque(maxlen=2)
        """Seconds of the latest ticks without draft tokens, of which the shorter one counts."""
        self.without_at = -REFRESHED
        """Number of the latest of them, among all ticks."""
        self.ticks = 0
        """Ticks of as many streams."""
        self._streams = streams
        self._factors: dict[int, float] = {}
        """How many times as long as without draft tokens a size takes, for those that are known."""
        self._found: dict[int, deque[float]] = {size: deque(maxlen=LATEST) for size in SIZES}
        self._at = dict.fromkeys(SIZES, 0)
        """Number of the latest tick of each size, among those of as many streams."""

    @property
    def seconds(self) -> Mapping[int, float]:
        without_s = max(min(self.without), MIN_TICK_S)
        return {self._streams: without_s} | {size: factor * without_s for size, factor in self._factors.items()}

    def observe(self, size: int, seconds: float) -> None:
        found = self._found[size]
        found.append(seconds / max(min(self.without), MIN_TICK_S))
        if len(found) >= TRIED:
            self._factors[size] = statistics.median_low(found)
        self._at[size] = self.ticks

    def forget(self) -> None:
        for size in SIZES:
            if self._at[size] < self.ticks - FORGOTTEN * self._streams:
                self._factors.pop(size, None)
                self._found[size].clear()
