"""What ``umaserve chat`` tells of while there is no answer yet: one line that goes when it comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

AFTER_S = 1.0
"""What takes less is not worth a word."""


class Status:
    """One line of ``stream``, where that is a terminal; elsewhere it only says when the request has to queue."""

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
        """``what`` is being done from now on."""
        self.clear()
        self._what, self._since = what, self._clock()

    def tick(self, how_far: str = "") -> None:
        """It still is; to be called every second or so. Without ``how_far`` its seconds are told."""
        seconds = self._clock() - self._since
        if self._what and seconds >= AFTER_S:
            self._show(f"{self._what}: {how_far or f'{seconds:.0f} s'}")

    def queued(self, position: int, length: int, wait_s: float | None) -> None:
        """The request waits for a place: ``position`` from 1 of ``length``."""
        self._what = ""
        about = "" if wait_s is None else f", about {wait_s:.0f} s"
        text = f"waiting for a place: {position} of {length}{about}"
        if self._active:
            self._show(text)
        elif not self._queued:
            self._queued = True
            self._stream.write(f"{text}\n")

    def clear(self) -> None:
        """Take the line away."""
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
