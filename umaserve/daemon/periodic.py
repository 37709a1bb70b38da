"""Periodic jobs of the daemon."""

from __future__ import annotations

import logging
from collections.abc import Callable

from umaserve.daemon.store.store import Store
from umaserve.models.catalogue_watch import CatalogueWatch
from umaserve.models.registry import Models
from umaserve.net.loop import Loop
from umaserve.sessions.admission import Admission
from umaserve.stages.recordings import TIDY_S, Recordings
from umaserve.system.memory import MemoryPressure

log = logging.getLogger(__name__)

TELL_S = 1.0
EXPIRE_S = 1.0
FORGET_S = 60.0
WATCH_S = 5.0
"""How often threads are checked, so that the log reports a stuck one even if nobody asks for ``/health``."""
FILES_S = 2.0
"""How often files of models are looked at; two looks without a change in between mean that they are whole."""
KEEP_S = 300.0
"""How much of what models' ticks take a crash of the daemon may cost."""


class MemoryWatch:
    """When memory is short, drops the caches; while it stays short, new requests are refused."""

    def __init__(self, loop: Loop, models: Models, admission: Admission) -> None:
        self._pressure = MemoryPressure(loop.now)
        self._models = models
        self._admission = admission
        self._short = False

    def look(self) -> None:
        was_short = self._short
        self._short = self._pressure.short()
        if self._short:
            self._models.shed_caches()
        if self._short != was_short:
            log.warning("memory is %s", f"short: {self._pressure.reason}" if self._short else "enough again")
        self._admission.memory_short = self._short and was_short


def start_periodic(
    loop: Loop,
    models: Models,
    catalogue: CatalogueWatch,
    admission: Admission,
    recordings: Recordings,
    store: Store,
    look_at_threads: Callable[[], object],
    request_timeout: float,
) -> None:
    """Start all of them. ``request_timeout`` is in seconds, 0: none."""
    every(loop, TELL_S, models.tell_waiting)
    every(loop, MemoryPressure.READ_S, MemoryWatch(loop, models, admission).look)
    every(loop, WATCH_S, look_at_threads)
    every(loop, WATCH_S, models.end_if_one_hangs)
    every(loop, WATCH_S, catalogue.look)
    every(loop, FILES_S, models.look_at_files)
    every(loop, KEEP_S, models.keep_costs)
    every(loop, TIDY_S, recordings.tidy)
    every(loop, FORGET_S, store.tidy)
    if request_timeout:
        every(loop, min(EXPIRE_S, request_timeout / 2), lambda: models.expire(request_timeout))


def every(loop: Loop, seconds: float, do: Callable[[], object]) -> None:
    """Call ``do`` now, and again every ``seconds``."""

    def again() -> None:
        loop.call_later(seconds, again)
        do()

    again()
