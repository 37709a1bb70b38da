"""How many cores programs that are no part of a measurement used meanwhile."""

from __future__ import annotations

import math
import os
import time

from umaserve.system.cores import CoreCounter


class OtherPrograms:
    """Counts from its making on. Processes of the measurement count as the measurement's once they have ended."""

    def __init__(self) -> None:
        self._counter = CoreCounter(time.monotonic)
        self._begun, self._children_s = time.monotonic(), _children_s()

    def cores(self) -> float:
        """The average since then, of all of the machine's cores; NaN where the kernel's counters can't be read."""
        use = self._counter()
        if use is None:
            return math.nan
        ours = (_children_s() - self._children_s) / (time.monotonic() - self._begun)
        return max(0.0, use.others - ours)


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system
