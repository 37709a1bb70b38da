"""How many KV cells each session is promised: for what it has, and for as many more tokens as answers often take."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterable

from umaserve.serving.sessions import Session
from umaserve.serving.slots import Slots
from umaserve.serving.states import State

REMEMBERED = 128
"""Answers, the latest ones, that say how long answers get."""
QUANTILE = 0.9
"""The share of answers that shall end within what they were promised when they started."""
UNKNOWN = 256
"""Tokens promised for an answer before the first one has ended."""
STEP = 64
"""Tokens that a stream is promised ahead as it grows, and the least that it starts with."""


class AnswerLengths:
    """What is learned of the lengths of answers, in tokens."""

    def __init__(self) -> None:
        self._last: deque[int] = deque(maxlen=REMEMBERED)
        self._sorted: list[int] = []

    def observe(self, tokens: int) -> None:
        """An answer has ended with so many tokens."""
        self._last.append(tokens)
        self._sorted = sorted(self._last)

    def more(self, generated: int) -> int:
        """How many tokens an answer that has ``generated`` ones may well get beyond them, by those that got longer."""
        if not self._last:
            return max(STEP, UNKNOWN - generated)
        first = bisect.bisect_right(self._sorted, generated)
        longer = len(self._sorted) - first
        return max(STEP, self._sorted[first + int(QUANTILE * longer)] - generated) if longer else STEP


def step(length: int, promised: int, most: int) -> int:
    """The cells to promise to a stream that has ``length`` tokens: more where it has come near to the promise."""
    return promised if promised >= min(most, length + STEP // 4) else min(most, length + STEP)


class Promises:
    """Promises cells to sessions, with the books of ``slots``. No session that runs needs more than it was promised."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._lengths = AnswerLengths()

    def to_start(self, session: Session) -> int:
        """The cells with which it starts, or goes on after it lost its place."""
        return min(_most(session), session.length + self._lengths.more(len(session.generated)))

    def lacks(self, session: Session) -> int:
        """The cells that the next token of a stream needs beyond those promised."""
        return max(0, session.length - session.cells)

    def spare(self, session: Session) -> int:
        """The cells promised to a stream beyond those that its next token needs."""
        return max(0, session.cells - session.length)

    def extend(self, sessions: Iterable[Session]) -> None:
        """Promise the streams among ``sessions`` their next cells before they need them, as far as cells are free."""
        for session in sessions:
            if session.state is State.DECODE and session.slot is not None:
                wanted = step(session.length, session.cells, _most(session))
                self._slots.promise(session, min(wanted, session.cells + self._slots.free_cells))

    def give_lacking(self, session: Session) -> None:
        """Promise what its next token needs; the plan has made sure that it is there."""
        if not self._slots.promise(session, max(session.cells, session.length)):
            raise RuntimeError(f"session {session.id}: a stream was planned without cells")

    def cut(self, session: Session) -> None:
        """Its answer may have become shorter: take back what it can't need any more."""
        self._slots.promise(session, min(session.cells, _most(session)))

    def ended(self, session: Session) -> None:
        """Learn from how long its answer was."""
        if session.generated:
            self._lengths.observe(len(session.generated))


def _most(session: Session) -> int:
    """What it can need at most."""
    assert session.prepared is not None
    return len(session.prepared.tokens) + session.prepared.max_tokens
