"""A tick that was submitted: to the compute thread, or to run ahead."""

from __future__ import annotations

import time

from umaserve.scheduler.work import Work
from umaserve.sessions.engine_api import Engine, RunAhead, TickResult


class Submitted:
    """A tick that waits for its turn, or runs."""

    def __init__(self, work: Work, ahead: RunAhead | None = None) -> None:
        """``ahead``: has the engine run it behind the tick before, without the compute thread."""
        self.work = work
        self.continued = False
        """Whether the tick behind it is planned, or can't be."""
        self.begun_at: float | None = None
        """Time at which it began, by ``time.monotonic``, in seconds; ``None`` while it waits, and once it has ended."""
        self._ahead = ahead

    def begins(self) -> None:
        """Note that it begins: the tick before has ended."""
        if self._ahead is not None:
            self.begun_at = time.monotonic()

    def take_back(self) -> bool:
        """Whether it was to run ahead and has not begun; then it never will."""
        return self._ahead is not None and self._ahead.take_back()

    def run(self, engine: Engine) -> TickResult:
        """Run the tick, on the compute thread."""
        self.begun_at = time.monotonic()
        try:
            return engine.run(self.work.tick)
        finally:
            self.begun_at = None
