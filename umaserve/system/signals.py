"""The signals that end a program: the first asks it to, the second does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Protocol


class Wakeable(Protocol):
    """A loop that sleeps until somebody writes to ``wake_fd`` or calls ``wake``, from any thread or signal handler."""

    @property
    def wake_fd(self) -> int: ...

    def wake(self) -> None: ...


class StopSignals:
    """Counts SIGTERM and SIGINT, and wakes the loop for each; with the second one the process ends at once."""

    def __init__(self, loop: Wakeable, last_words: Callable[[], None]) -> None:
        """``last_words`` is called, in a signal handler, before the second signal ends the process."""
        self.count = 0
        self._loop = loop
        self._last_words = last_words
        self._handling = False

    def handle(self) -> None:
        try:
            signal.set_wakeup_fd(self._loop.wake_fd, warn_on_full_buffer=False)
        except ValueError:
            return  # Signals are the main thread's; in another one we are somebody's library.
        self._handling = True
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def restore(self) -> None:
        """The loop is about to close."""
        if self._handling:
            signal.set_wakeup_fd(-1)

    def stop(self) -> None:
        """As the first signal does; safe from any thread."""
        self.count += 1
        self._loop.wake()

    def _on_signal(self, number: int, _frame: object) -> None:
        self.count += 1
        if self.count > 1:
            self._last_words()
            os._exit(128 + number)
