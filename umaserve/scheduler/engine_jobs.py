"""The jobs of one engine, on threads that outlive it and that others use too."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

from umaserve.sessions.engine_api import EngineLost, JobQueue, YieldPoint

T = TypeVar("T")


class EngineJobs:
    """A ``JobQueue`` on ``queue``. Once the engine is lost nobody is called back: what was in work stays so, and is
    done again by whoever has another engine."""

    def __init__(self, queue: JobQueue, max_s: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        """``max_s``: how long a job, or a lengthy one between two pauses, may take."""
        self._queue = queue
        self._max_s = max_s
        self._clock = clock
        self._over = False
        self._advanced_at: float | None = None
        """When the engine's job in work began or last paused; ``None`` while there is none."""

    def end(self) -> None:
        self._over = True

    @property
    def stuck(self) -> bool:
        """Whether a job does not return in time."""
        since = self._advanced_at
        return since is not None and self._clock() - since > self._max_s

    def submit(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._queue.submit(lambda: self._timed(job), self._while_it_lives(done))

    def submit_lengthy(self, job: Callable[[YieldPoint], T], done: Callable[[T | BaseException], None]) -> None:
        def work(pause: YieldPoint) -> T:
            def pausing() -> None:
                # Whatever runs meanwhile counts for itself.
                self._advanced_at = None
                pause()
                self._advanced_at = self._clock()

            return self._timed(lambda: job(pausing))

        self._queue.submit_lengthy(work, self._while_it_lives(done))

    def _timed(self, job: Callable[[], T]) -> T:
        self._advanced_at = self._clock()
        try:
            return job()
        finally:
            self._advanced_at = None

    def _while_it_lives(self, done: Callable[[T | BaseException], None]) -> Callable[[T | BaseException], None]:
        def told(result: T | BaseException) -> None:
            if not self._over and not isinstance(result, EngineLost):
                done(result)

        return told
