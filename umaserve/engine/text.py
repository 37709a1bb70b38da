"""From tokens to text: only whole characters, and no part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """The text of one generation.

    ``pieces`` are the bytes of each token id. Characters split across tokens are held until they are complete, and
    text that may become one of ``stops`` is held until that is decided.
    """

    def __init__(self, pieces: Sequence[bytes], stops: Sequence[str]) -> None:
        self._pieces = pieces
        self._stops = stops
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stop_string: str | None = None
        """The stop string that was reached."""

    def set_stops(self, stops: Sequence[str]) -> None:
        """Stop at ``stops`` from now on. If the text held contains one, the next call stops there."""
        self._stops = stops

    def push(self, token: int) -> tuple[str, bool]:
        """The text that ``token`` completes, and whether a stop string was reached (then the text ends before it)."""
        return self._release(self._decoder.decode(self._pieces[token]))

    def finish(self) -> str:
        """The text still held, up to a stop string in it; afterwards nothing is held."""
        text, _stopped = self._release(self._decoder.decode(b"", final=True))
        text, self._held = text + self._held, ""
        return text

    def _release(self, new: str) -> tuple[str, bool]:
        text = self._held + new
        if not self._stops:
            self._held = ""
            return text, False
        # The stop string that is complete first ends the text, not the one that begins first: with shorter tokens, only
        # the former would have been seen.
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _end, at, self.stop_string = min(found)
            self._held = ""
            self._decoder.reset()
            return text[:at], True
        keep = max(_border(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False


def _border(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
