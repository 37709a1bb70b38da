"""A progress bar for a terminal."""

from __future__ import annotations

from typing import TextIO

WIDTH = 30


class ProgressBar:
    """Draws on one line of ``stream``, if that is a terminal."""

    def __init__(self, label: str, stream: TextIO) -> None:
        self._label = label
        self._stream = stream
        self._active = stream.isatty()

    def show(self, fraction: float) -> None:
        """Draw the bar; ``fraction`` is from 0.0 to 1.0."""
        done = round(WIDTH * fraction)
        bar = "█" * done + "░" * (WIDTH - done)
        # The cursor returns to the start, so that a log line overwrites the bar.
        self._draw(f"{self._label} {bar} {fraction:4.0%}\r")

    def clear(self) -> None:
        """Erase the line, so that the log continues there."""
        self._draw("\x1b[K")

    def _draw(self, text: str) -> None:
        if not self._active:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            # The terminal was closed.
            self._active = False
