"""A progress bar for whoever watches a terminal."""

from __future__ import annotations

from typing import TextIO

WIDTH = 30


class ProgressBar:
    """Draws on one line of ``stream``; draws nothing where that is no terminal."""

    def __init__(self, label: str, stream: TextIO) -> None:
        self._label = label
        self._stream = stream
        self._active = stream.isatty()

    def show(self, fraction: float) -> None:
        """``fraction`` from 0.0 to 1.0."""
        if self._active:
            done = round(WIDTH * fraction)
            bar = "█" * done + "░" * (WIDTH - done)
            # The cursor goes back, so that a line of the log takes the bar's place.
            self._stream.write(f"{self._label} {bar} {fraction:4.0%}\r")
            self._stream.flush()

    def clear(self) -> None:
        """Take the line away, so that the log goes on where it was."""
        if self._active:
            self._stream.write("\x1b[K")
            self._stream.flush()
