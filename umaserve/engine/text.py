"""From tokens to text: whole characters only, and never a part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """The text of one generation.

    ``pieces`` are the bytes of each token id. Characters split over tokens are held until they are whole, and text
    that may still become one of ``stops`` is held until it is decided.
    """

    def __init__(self, pieces: Sequence[bytes], stops: Sequence[str]) -> None:
        self._pieces = pieces
        self._stops = stops
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def set_stops(self, stops: Sequence[str]) -> None:
        """Stop at ``stops`` from now on. What is held and contains one already ends with the next call."""
        self._stops = stops

    def push(self, token: int) -> tuple[str, bool]:
        """The text that ``token`` releases, and whether a stop string was reached (then the text ends before it)."""
        return self._release(self._decoder.decode(self._pieces[token]))

    def finish(self) -> str:
        """All that is still held, up to a stop string in it; afterwards nothing is held."""
        text, _stopped = self._release(self._decoder.decode(b"", final=True))
        text, self._held = text + self._held, ""
        return text

    def _release(self, new: str) -> tuple[str, bool]:
        text = self._held + new
        if not self._stops:
            self._held = ""
            return text, False
        # The stop that is complete first ends the text, and not the one that begins first: a stream whose tokens are
        # shorter would have seen only that one.
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _end, at = min(found)
            self._held = ""
            self._decoder.reset()
            return text[:at], True
        keep = max(_border(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False


def _border(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a proper beginning of ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
