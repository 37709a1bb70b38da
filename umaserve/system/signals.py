"""The signals of a program: SIGTERM and SIGINT end it, SIGHUP has it read its files again, others do it no harm."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)


class SignalLoop(Protocol):
    """A loop that sleeps until somebody writes to ``wake_fd``, or calls ``wake`` from any thread."""

    @property
    def wake_fd(self) -> int: ...

    def wake(self) -> None: ...

    def call_soon(self, callback: Callable[[], None]) -> None: ...


class Signals:
    """Counts SIGTERM and SIGINT, of which the second ends the process at once; calls ``reread`` on the loop for SIGHUP;
    and logs SIGUSR1 and SIGUSR2, which would otherwise end the process. Each of them wakes the loop."""

    def __init__(self, loop: SignalLoop, last_words: Callable[[], None], reread: Callable[[], None]) -> None:
        """``last_words`` is called, in a signal handler, before the second signal to end does so."""
        self.count = 0
        """Signals to end that have come."""
        self._loop = loop
        self._last_words = last_words
        self._reread = reread
        self._handling = False

    def handle(self) -> None:
        try:
            signal.set_wakeup_fd(self._loop.wake_fd, warn_on_full_buffer=False)
        except ValueError:
            return  # Signals are the main thread's; in another one we are somebody's library.
        self._handling = True
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_end)
        signal.signal(signal.SIGHUP, lambda _number, _frame: self._loop.call_soon(self._reread))
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._on_unused)

    def restore(self) -> None:
        """The loop is about to close."""
        if self._handling:
            signal.set_wakeup_fd(-1)

    def stop(self) -> None:
        """As the first signal does; safe from any thread."""
        self.count += 1
        self._loop.wake()

    def _on_end(self, number: int, _frame: object) -> None:
        self.count += 1
        if self.count > 1:
            self._last_words()
            os._exit(128 + number)

    def _on_unused(self, number: int, _frame: object) -> None:
        # On the loop, since a handler may have interrupted the very writing of a line of the log.
        name = signal.Signals(number).name
        self._loop.call_soon(lambda: log.warning("%s means nothing here: SIGTERM ends, SIGHUP reads files again", name))
