"""Clocks that a test moves."""

from __future__ import annotations

import time


class Clock:
    """Stands still until the test sets ``now``, in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class RunningClock:
    """The real one, and the seconds that the test puts it ahead: for tests that wait for sockets or threads as well."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead
