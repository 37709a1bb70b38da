"""Removes a model's thoughts, which some models write at the beginning of an answer."""

from __future__ import annotations

import enum

OPEN, CLOSE = "<think>", "</think>"


class _Place(enum.Enum):
    BEFORE = enum.auto()
    THOUGHTS = enum.auto()
    AFTER = enum.auto()
    """After the thoughts, where leading white space is still dropped."""
    ANSWER = enum.auto()


class WithoutThinking:
    """Filters leading thoughts out of a stream of text; the result doesn't depend on how the text is split.

    Thoughts are enclosed in ``<think>`` and ``</think>``; white space around them is removed too.
    """

    def __init__(self) -> None:
        self._place = _Place.BEFORE
        self._held = ""

    def push(self, text: str) -> str:
        """The part of the answer that is known after ``text``."""
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
                # Keep only the last characters, which may be the start of the tag.
                self._held = self._held[1 - len(CLOSE) :]
        if self._place is _Place.AFTER:
            return self._answer(self._held.lstrip())
        return ""

    def finish(self) -> str:
        """The rest of the answer at the end of the text; unfinished thoughts are dropped."""
        return self._held if self._place is _Place.BEFORE else ""

    def _answer(self, text: str) -> str:
        if text:
            self._place = _Place.ANSWER
        self._held = ""
        return text
