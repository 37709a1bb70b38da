"""Threads for calls that block. A thread owns nothing: it takes a job, does it, and wakes the loop."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

Job = Callable[[], Any]
Done = Callable[[Any], None]


class WorkerThread:
    """Runs jobs in the order of their submission. ``collect``, on the loop's thread, calls back with the results."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._jobs: queue.SimpleQueue[tuple[Job, Done] | None] = queue.SimpleQueue()
        self._results: deque[tuple[Done, Any]] = deque()
        # A daemon thread: a decode that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run ``job`` on the thread; ``done`` gets its result, or the exception it raised."""
        self._jobs.put((job, done))

    def collect(self) -> None:
        """Call back for the jobs that have finished; one that finishes meanwhile has its own wake-up."""
        for _ in range(len(self._results)):
            done, result = self._results.popleft()
            done(result)

    def stop(self, timeout: float) -> bool:
        """Let the jobs that are queued finish; whether they did within ``timeout`` seconds."""
        self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            try:
                result = job()
            except BaseException as error:
                result = error
            self._results.append((done, result))
            # Idle, the thread must not keep the last job's sessions and samplers alive.
            del item, job, done, result
            self._wake()
