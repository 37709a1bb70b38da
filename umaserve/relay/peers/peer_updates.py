"""PublishedState that a relay has to tell other relays, and what of it they were not told yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

LOOK_S = 0.02
"""How often ours is looked at for changes: for as long, two relays may give a worker, or a key, the same place."""
TELL_S = 1.0
"""Interval at which news is told without changes, in seconds: who says nothing is forgotten."""
REFILLED_S = 60.0
"""Time after which a key's bucket is full again, in seconds, whatever was taken, unless that was too much."""
RETRY_S = 1.0
"""Delay of the next attempt after what could not be told or heard, in seconds."""

Used = Mapping[str, tuple[int, int]]
"""Requests and tokens of each key since the start."""


class PublishedState(Protocol):
    """PublishedState: what a relay has to tell."""

    @property
    def changes(self) -> int:
        """Number that differs after each change."""

    def loads(self) -> Mapping[str, int]:
        """Load given to each worker, by its ``instance``."""

    def used(self) -> Used: ...


class UnackedUsage:
    """Usage of keys since it was told last. After a time in which nothing could be told, that is what the last minute
    or two have used: what was used before would be in no bucket any more. A key may be charged twice for what was told
    without an answer, but its rate holds."""

    def __init__(self, used: Callable[[], Used], now: Callable[[], float]) -> None:
        """``now``: in seconds."""
        self._used = used
        self._now = now
        self._told: Used = {}
        self._lately: Used = {}
        """Usage of keys, as ``_told``, but of a later time while nothing can be told."""
        self._lately_at = now()
        self._telling: Used = {}

    def take(self) -> Used:
        """Take what is to be told now."""
        self._telling = self._used()
        fresh = {name: _minus(used, self._told.get(name, (0, 0))) for name, used in self._telling.items()}
        return {name: new for name, new in fresh.items() if any(new)}

    def was_told(self) -> None:
        """Record that what was taken has arrived."""
        self._told = self._lately = self._telling
        self._lately_at = self._now()

    def was_lost(self) -> None:
        """Record that what was taken may not have arrived."""
        if self._now() - self._lately_at >= REFILLED_S:
            self._told, self._lately, self._lately_at = self._lately, self._used(), self._now()


def _minus(now: tuple[int, int], before: tuple[int, int]) -> tuple[int, int]:
    return now[0] - before[0], now[1] - before[1]
