"""A text that is still coming: steps that read its beginning, and wait where they need more.

Each step is a generator, which yields when all that has come so far leaves open what it is to give.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence

from umaserve.chat_format.call_atoms import CUT, Atoms, match, skip

MAX_NAME = 256
"""Most characters of a name, an id or a key."""


class ComingText:
    """Text that is still coming: more is added to ``buffer`` from outside; steps take from its beginning."""

    def __init__(self, begun: str) -> None:
        self.buffer = begun
        """Text that has come and is not taken."""
        self.ended = False
        """Whether nothing more will come."""
        self.taken: list[str] = []
        """Texts that were taken since this was emptied last."""

    def closed(self, closing: Atoms, more: Atoms) -> Generator[None, None, bool]:
        """Whether ``closing`` follows, which isn't taken; or its beginning, if the text ends there and that can't be
        ``more`` arguments."""
        while True:
            end = match(closing, self.buffer) if closing else (None if self.buffer.strip() else CUT)
            if end != CUT:
                return end is not None
            if self.ended:
                begun = bool(self.buffer.strip()) and (not more or match(more, self.buffer) is None)
                return begun or not closing
            yield

    def any(self, ways: Sequence[Atoms], *, may_be_cut: bool = False) -> Generator[None, None, int | None]:
        """Take the one of ``ways`` that follows, and give its index. ``may_be_cut``: also one that the text's end cuts
        off."""
        while True:
            ends = [match(way, self.buffer) if way else None for way in ways]
            if CUT not in ends or self.ended:
                for index, end in enumerate(ends):
                    if end == CUT and may_be_cut:
                        end = len(self.buffer)
                    if end is not None and end != CUT:
                        self.take(end)
                        return index
                return None
            yield

    def prefix(self, text: str) -> Generator[None, None, bool]:
        """Take ``text`` if it follows exactly."""
        while len(self.buffer) < len(text) and text.startswith(self.buffer) and not self.ended:
            yield
        follows = bool(text) and self.buffer.startswith(text)
        self.take(len(text) if follows else 0)
        return follows

    def matching(self, pattern: re.Pattern[str]) -> Generator[None, None, str]:
        """Take the longest text that matches ``pattern``, and give it."""
        while True:
            found = pattern.match(self.buffer, skip(self.buffer, 0))
            assert found is not None
            if found.end() < len(self.buffer) or self.ended or found.end() > MAX_NAME:
                self.take(found.end())
                return found[0]
            yield

    @property
    def at_end(self) -> bool:
        """Whether nothing more comes but white space."""
        return self.ended and not self.buffer.strip()

    def take(self, length: int) -> None:
        self.taken.append(self.buffer[:length])
        self.buffer = self.buffer[length:]
