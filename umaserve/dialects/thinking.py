"""A model's thoughts, which some write at the beginning of an answer, told from the answer itself."""

from __future__ import annotations

import enum

OPEN, CLOSE = "<think>", "</think>"


class _Place(enum.Enum):
    BEFORE = enum.auto()
    THOUGHTS = enum.auto()
    AFTER = enum.auto()
    """Behind thoughts, where white space is not yet the answer's."""
    ANSWER = enum.auto()


class WithoutThinking:
    """A stream of text without the thoughts that it may begin with, the same for every way of cutting it into pieces.

    They stand between ``<think>`` and ``</think>``; white space around them goes with them.
    """

    def __init__(self) -> None:
        self._place = _Place.BEFORE
        self._held = ""

    def push(self, text: str) -> str:
        """What ``text`` releases of the answer."""
        if self._place is _Place.ANSWER:
            return text
        self._held += text
        if self._place is _Place.BEFORE:
            begun = self._held.lstrip()
            if begun.startswith(OPEN):
                self._place = _Place.THOUGHTS
                self._held = begun[len(OPEN) :]
            elif not OPEN.startswith(begun):
                return self._answer(self._held)
        if self._place is _Place.THOUGHTS:
            _, closed, rest = self._held.partition(CLOSE)
            if closed:
                self._place = _Place.AFTER
                self._held = rest
            else:
                # Only an end that may be the beginning of the tag is needed.
                self._held = self._held[1 - len(CLOSE) :]
        if self._place is _Place.AFTER:
            return self._answer(self._held.lstrip())
        return ""

    def finish(self) -> str:
        """What is left when no more text comes; nothing of thoughts that have no end."""
        return self._held if self._place is _Place.BEFORE else ""

    def _answer(self, text: str) -> str:
        if text:
            self._place = _Place.ANSWER
        self._held = ""
        return text
