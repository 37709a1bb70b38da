"""The jobs of one engine, on threads that outlive it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from umaserve.serving.ticks import EngineLost, JobQueue, YieldPoint

T = TypeVar("T")


class EngineJobs:
    """A ``JobQueue`` on ``queue``. Once the engine is lost nobody is called back: what was in work stays so, and is
    done again by whoever has another engine."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._over = False

    def end(self) -> None:
        self._over = True

    def submit(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._queue.submit(job, self._while_it_lives(done))

    def submit_lengthy(self, job: Callable[[YieldPoint], T], done: Callable[[T | BaseException], None]) -> None:
        self._queue.submit_lengthy(job, self._while_it_lives(done))

    def _while_it_lives(self, done: Callable[[T | BaseException], None]) -> Callable[[T | BaseException], None]:
        def told(result: T | BaseException) -> None:
            if not self._over and not isinstance(result, EngineLost):
                done(result)

        return told
