"""The thread on which a detector of speech looks at what the clients of the Realtime API say."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from umaserve.dialects.realtime.speech_model import SpeechModel
from umaserve.speech import silero
from umaserve.system.threads import MEDIA_NICE, JobThread

log = logging.getLogger(__name__)

T = TypeVar("T")


class TurnDetection:
    """The detector that is there, if one is, and its thread."""

    def __init__(self, model: SpeechModel | None, thread: JobThread | None) -> None:
        self.model = model
        self.pending = 0
        """Jobs whose results were not collected yet."""
        self._thread = thread

    @classmethod
    def installed(cls, wake: Callable[[], None]) -> TurnDetection:
        """The detector that is installed, if one is. ``wake``: wakes the loop when a job is done."""
        found = silero.load()
        return cls(found, None if found is None else JobThread("turns", wake, nice=MEDIA_NICE))

    @property
    def threads(self) -> list[JobThread]:
        """The thread, if there is one."""
        return [] if self._thread is None else [self._thread]

    def tell(self) -> None:
        """Say in the log what finds turns."""
        log.info("turns of speech are found by %s", "their loudness" if self.model is None else "silero")

    def submit(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run ``job`` on the thread; ``done`` gets its result, or the exception it raised."""
        assert self._thread is not None

        def collected(result: T | BaseException) -> None:
            self.pending -= 1
            done(result)

        self.pending += 1
        self._thread.submit(job, collected)

    def collect(self) -> None:
        """Have the results taken that are there."""
        assert self._thread is not None
        self._thread.collect()

    def stop(self, timeout: float) -> bool:
        """Wait for the job in work; returns whether it ended within ``timeout`` seconds."""
        return self._thread is None or self._thread.stop(timeout)
