"""Has compute threads sleep at llama.cpp's barriers while other programs need the cores, and spin otherwise.

A barrier where a thread sleeps costs two switches to the kernel, some hundred times a token. One where it spins costs
nothing, unless another program has the core of the thread that is waited for: then spinning burns the core on which
that could go on (figures in docs/results/reasons.md).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable

from umaserve.system import program
from umaserve.system.cores import CoreCounter, CoreUse
from umaserve.system.openmp import Barriers
from umaserve.system.threads import be_called

log = logging.getLogger(__name__)

TAKEN_CORES = 0.5
"""Cores that others use from which on barriers sleep. With less, spinning is faster."""
LOOKS = 2
"""Looks in a row at which others use that much: a program that starts takes a core for one."""
IDLE_CORES = 0.7
"""With so many idle, nobody needs the core of a thread that spins."""
WATCHED_S = 60.0
"""Seconds after a tick for which the use of the cores is watched: longer than a decode takes."""


class Spinning:
    """Watches the use of the cores while an engine computes."""

    def __init__(
        self, threads: int, barriers: Barriers | None = None, core_use: Callable[[], CoreUse | None] | None = None
    ) -> None:
        """``threads``: those that compute."""
        self._barriers = Barriers(threads) if barriers is None else barriers
        self._core_use = core_use or CoreCounter(time.monotonic, children=_of_the_daemon)
        self._until = 0.0
        self._computing = threading.Event()
        self._closed = self._complained = False
        if self._barriers.may_sleep:
            threading.Thread(target=self._watch, name="spinning", daemon=True).start()

    def watch(self) -> None:
        """Watch for the next ``WATCHED_S``: something will be computed now."""
        self._until = time.monotonic() + WATCHED_S
        self._computing.set()

    def close(self) -> None:
        """End the watch."""
        self._closed = True
        self._computing.set()

    def _watch(self) -> None:
        be_called("spinning")
        while not self._closed:
            self._computing.wait()
            taken = 0
            while time.monotonic() < self._until and not self._closed:
                use = self._core_use()
                is_taken = use is not None and use.others >= TAKEN_CORES and use.idle < IDLE_CORES
                taken = taken + 1 if is_taken else 0
                self._sleep(taken >= LOOKS)
                time.sleep(CoreCounter.WINDOW_S)
            self._sleep(False)
            self._computing.clear()

    def _sleep(self, wanted: bool) -> None:
        try:
            self._barriers.sleep(wanted)
        except RuntimeError as error:
            if not self._complained:
                log.warning("compute threads spin at barriers, although other programs need the cores: %s", error)
            self._complained = True


def _of_the_daemon() -> list[int]:
    """The processes that are no other programs: the daemon, which has started this one, and its engines, which take
    turns."""
    daemon = os.getppid()
    with contextlib.suppress(OSError):
        return [daemon, *program.running("umaserve.engine", parent=daemon)]
    return [daemon]
