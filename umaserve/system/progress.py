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
        done = round(WIDTH * fraction)
        bar = "█" * done + "░" * (WIDTH - done)
        # The cursor goes back, so that a line of the log takes the bar's place.
        self._draw(f"{self._label} {bar} {fraction:4.0%}\r")

    def clear(self) -> None:
        """Take the line away, so that the log goes on where it was."""
        self._draw("\x1b[K")

    def _draw(self, text: str) -> None:
        if not self._active:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            # The terminal was closed, and nobody watches any more.
            self._active = False
