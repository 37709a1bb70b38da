"""Signals: SIGTERM and SIGINT stop the program, SIGHUP makes it read its files again, others are only logged."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)


class SignalLoop(Protocol):
    """A loop that is woken by a write to ``wake_fd``, or by ``wake`` from any thread."""

    @property
    def wake_fd(self) -> int: ...

    def wake(self) -> None: ...

    def call_soon(self, callback: Callable[[], None]) -> None: ...


class _Early:
    """Handles SIGTERM and SIGHUP of a program that is not up yet, and would end of them without a word."""

    def __init__(self) -> None:
        self.hung_up = False

    def __call__(self, number: int, _frame: object) -> None:
        if number == signal.SIGHUP:
            self.hung_up = True
            return
        # What it interrupts may be a write to the log, and threads may be there already.
        os.write(2, f"umaserve: ended by {signal.Signals(number).name} before startup was complete\n".encode())
        os._exit(os.EX_OK)


def handle_early() -> None:
    """Have SIGTERM end the program until ``Signals.handle``, which reads files again if a SIGHUP came before it."""
    if threading.current_thread() is threading.main_thread():
        early = _Early()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, early)


class Signals:
    """Counts SIGTERM and SIGINT; the second one ends the process at once. Calls ``reread`` on the loop for SIGHUP. Logs
    SIGUSR1 and SIGUSR2, which would otherwise end the process. Each signal wakes the loop."""

    def __init__(self, loop: SignalLoop, last_words: Callable[[], None], reread: Callable[[], None]) -> None:
        """``last_words`` is called in the signal handler before the second SIGTERM or SIGINT ends the process."""
        self.count = 0
        """Number of SIGTERM and SIGINT received, and of calls of ``stop``."""
        self._loop = loop
        self._last_words = last_words
        self._reread = reread
        self._handling = False

    def handle(self) -> None:
        try:
            signal.set_wakeup_fd(self._loop.wake_fd, warn_on_full_buffer=False)
        except ValueError:
            return  # Only the main thread can handle signals; in another one, we run as a library.
        self._handling = True
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_end)
        early = signal.signal(signal.SIGHUP, lambda _number, _frame: self._loop.call_soon(self._reread))
        if isinstance(early, _Early) and early.hung_up:
            self._loop.call_soon(self._reread)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._on_unused)

    def restore(self) -> None:
        """Call it before the loop closes: no signal may write to its ``wake_fd`` afterwards."""
        if self._handling:
            signal.set_wakeup_fd(-1)

    def stop(self) -> None:
        """Does the same as the first signal; safe from any thread."""
        self.count += 1
        self._loop.wake()

    def _on_end(self, number: int, _frame: object) -> None:
        self.count += 1
        if self.count > 1:
            self._last_words()
            os._exit(128 + number)

    def _on_unused(self, number: int, _frame: object) -> None:
        # On the loop: the handler may have interrupted a write to the log.
        name = signal.Signals(number).name
        self._loop.call_soon(
            lambda: log.warning("ignored %s (SIGTERM stops the program, SIGHUP reloads its files)", name)
        )
