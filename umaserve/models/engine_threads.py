"""The threads that call engines: those of all models, so that one tick runs at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from umaserve.system.threads import DISK_NICE, MEDIA_NICE, JobThread

MAX_TICK_S = 300.0
"""Bound on one decode, or on a long job between two yield points: a long text to embed, weights on a slow disk."""
MAX_PREPARING_S = 60.0
MAX_MEDIA_S = 600.0
"""A media decoder may start after up to 120 s and is killed after 300 s more; then its output is laid out."""


class EngineThreads:
    """Threads of all models. The time limits are those of one call to an engine."""

    def __init__(self, wake: Callable[[], None], *, keeps: bool) -> None:
        """``keeps``: whether computed prompts are kept on disk."""
        self.compute = JobThread("compute", wake, max_s=MAX_TICK_S, urgent=True)
        self.preparing = JobThread("preparing", wake, max_s=MAX_PREPARING_S)
        self.media = JobThread("media", wake, nice=MEDIA_NICE, max_s=MAX_MEDIA_S)
        self.disk = JobThread("disk", wake, nice=DISK_NICE) if keeps else None

    @property
    def calling(self) -> Sequence[JobThread]:
        """Threads whose calls are to return in time."""
        return self.compute, self.preparing, self.media

    @property
    def all(self) -> Sequence[JobThread]:
        return self.calling if self.disk is None else (*self.calling, self.disk)
