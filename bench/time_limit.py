"""A limit on what a measurement may take, wherever it waits."""

from __future__ import annotations

import contextlib
import signal
import types
from collections.abc import Iterator


class OutOfTime(Exception):
    """The time is over. What was started is stopped on the way out."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise ``OutOfTime`` after so many seconds, if the block still runs then; 0: never. On the main thread only."""

    def over(_signal: int, _frame: types.FrameType | None) -> None:
        raise OutOfTime(f"{seconds:.0f} s are over")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
