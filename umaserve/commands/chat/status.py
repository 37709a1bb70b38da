"""The status line of ``umaserve chat``, shown while there is no answer yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

AFTER_S = 1.0
"""Shorter work isn't shown."""


class Status:
    """One line on ``stream`` if that is a terminal; otherwise only a note when the request is queued."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._active = stream.isatty()
        self._what = ""
        self._since = 0.0
        self._queued = self._shown = False

    def __enter__(self) -> Status:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def begin(self, what: str) -> None:
        """Show ``what`` as the current work from now on."""
        self.clear()
        self._what, self._since = what, self._clock()

    def tick(self, how_far: str = "") -> None:
        """Update the line, about every second, with ``how_far``, or else with the seconds so far."""
        seconds = self._clock() - self._since
        if self._what and seconds >= AFTER_S:
            self._show(f"{self._what}: {how_far or f'{seconds:.0f} s'}")

    def queued(self, position: int, length: int, wait_s: float | None) -> None:
        """Show the request's queue position: ``position``, from 1, of ``length``."""
        self._what = ""
        about = "" if wait_s is None else f", about {wait_s:.0f} s"
        text = f"waiting for a slot, queue position {position} of {length}{about}"
        if self._active:
            self._show(text)
        elif not self._queued:
            self._queued = True
            self._stream.write(f"{text}\n")

    def clear(self) -> None:
        """Erase the line."""
        self._what = ""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False

    def _show(self, text: str) -> None:
        if self._active:
            self._stream.write(f"\r{text}\x1b[K")
            self._stream.flush()
            self._shown = True
