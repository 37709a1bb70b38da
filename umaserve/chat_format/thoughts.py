"""Tells a model's thoughts, its answer and the marks around them apart while the text streams."""

from __future__ import annotations

import copy
import enum
from collections.abc import Sequence

from umaserve.core.tool_call_format import ThoughtForm


class Part(enum.Enum):
    """Part of the text that a piece belongs to. ``MARK``: marks, and the white space around them."""

    THOUGHT = enum.auto()
    ANSWER = enum.auto()
    MARK = enum.auto()


Piece = tuple[Part, str]


class _Place(enum.Enum):
    BETWEEN = enum.auto()
    """Place at the beginning, or after a mark: another mark may follow, else the answer begins."""
    THOUGHT = enum.auto()
    ANSWER = enum.auto()


class ThoughtSplitter:
    """Splits a stream of text; together, the pieces of each part don't depend on how the text is cut, and all pieces
    together are the text.

    ``opened``: the text begins inside a thought. A thought that is never closed is all thought. Once an answer has
    begun that has no mark at its end, all that follows belongs to it.
    """

    def __init__(self, form: ThoughtForm, *, opened: bool = False) -> None:
        self._closes = form.closes.strip()
        self._answer_closes = form.answer_closes.strip()
        marks = [(form.opens, _Place.THOUGHT), (form.closes, _Place.BETWEEN), (form.turn, _Place.BETWEEN)]
        marks += [(mark, _Place.ANSWER) for mark in form.answers]
        self._marks = [(mark.strip(), place) for mark, place in marks if mark.strip()]
        self._place = _Place.THOUGHT if opened else _Place.BETWEEN
        self._after_mark = opened
        """Whether nothing but white space has followed a mark; it is dropped."""
        self._held = ""

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends inside a thought."""
        return self._place is _Place.THOUGHT

    @property
    def answering(self) -> bool:
        """Whether the answer has begun."""
        return self._place is _Place.ANSWER

    @property
    def held(self) -> str:
        """The end of the text so far that is in no piece yet."""
        return self._held

    def continuing(self, pieces: Sequence[bytes]) -> list[int]:
        """Indices of the ``pieces`` by which a mark may begin or go on, where none is whole."""
        begun = self._held.lstrip()
        rests = [mark[len(begun) :].encode() for mark, _place in self._marks if mark.startswith(begun)]
        beginnings = {rest[:length] for rest in rests for length in range(1, len(rest) + 1)}
        return [index for index, piece in enumerate(pieces) if piece in beginnings]

    def copy(self) -> ThoughtSplitter:
        """Copy the splitter in its present state, for another text that begins alike."""
        return copy.copy(self)

    def push(self, text: str) -> list[Piece]:
        """The pieces that ``text`` completes."""
        if self._place is _Place.ANSWER and not self._answer_closes and not self._after_mark:
            return [(Part.ANSWER, text)] if text else []
        self._held += text
        pieces: list[Piece] = []
        while self._held and self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """The rest, at the end of the text."""
        pieces: list[Piece] = []
        if self._after_mark:
            self._take(len(self._held) - len(self._held.lstrip()), Part.MARK, pieces)
        self._take(len(self._held), Part.THOUGHT if self.thinking else Part.ANSWER, pieces)
        return pieces

    def _step(self, pieces: list[Piece]) -> bool:
        """Take what is decided from the held text, and tell whether the place changed."""
        match self._place:
            case _Place.BETWEEN:
                return self._between(pieces)
            case _Place.THOUGHT:
                return self._up_to(self._closes, Part.THOUGHT, pieces)
            case _Place.ANSWER:
                return self._up_to(self._answer_closes, Part.ANSWER, pieces)

    def _between(self, pieces: list[Piece]) -> bool:
        begun = self._held.lstrip()
        blank = len(self._held) - len(begun)
        for mark, place in self._marks:
            if begun.startswith(mark):
                self._take(blank + len(mark), Part.MARK, pieces)
                self._place, self._after_mark = place, True
                return True
        if any(mark.startswith(begun) for mark, _place in self._marks):
            return False
        if self._after_mark:
            self._take(blank, Part.MARK, pieces)
        self._place, self._after_mark = _Place.ANSWER, False
        if not self._answer_closes:
            self._take(len(self._held), Part.ANSWER, pieces)
        return True

    def _up_to(self, mark: str, part: Part, pieces: list[Piece]) -> bool:
        """Take text of ``part`` up to ``mark``, and that too; what may be its beginning is held. White space around
        thoughts, and after any mark, isn't part of them."""
        if self._after_mark:
            begun = self._held.lstrip()
            self._take(len(self._held) - len(begun), Part.MARK, pieces)
            if not begun:
                return False
            self._after_mark = False
        at = self._held.find(mark) if mark else -1
        end = at if at >= 0 else len(self._held) - _border(self._held, mark)
        text = self._held[:end]
        inside = len(text.rstrip()) if part is Part.THOUGHT else len(text)
        self._take(inside, part, pieces)
        if at < 0:
            return False
        self._take(end - inside + len(mark), Part.MARK, pieces)
        self._place, self._after_mark = _Place.BETWEEN, True
        return True

    def _take(self, length: int, part: Part, pieces: list[Piece]) -> None:
        if length:
            pieces.append((part, self._held[:length]))
            self._held = self._held[length:]


def split(pieces: list[Piece]) -> tuple[str, str]:
    """The thoughts and the answer in ``pieces``."""
    thoughts = "".join(text for part, text in pieces if part is Part.THOUGHT)
    return thoughts, "".join(text for part, text in pieces if part is Part.ANSWER)


def _border(text: str, mark: str) -> int:
    """Length of the longest end of ``text`` that ``mark`` begins with and is longer than."""
    lengths = range(min(len(text), len(mark) - 1), 0, -1)
    return next((length for length in lengths if mark.startswith(text[-length:])), 0)
