"""Promises KV cells to each session: for its tokens so far, and for as many more as its answer is likely to get."""

from __future__ import annotations

import bisect
from collections import deque

from umaserve.kvcache.slots import Slots
from umaserve.sessions.session import Session

REMEMBERED = 128
"""The number of latest answers whose lengths are known."""
QUANTILE = 0.9
"""The share of answers that should end within the cells promised at their start."""
UNKNOWN = 256
"""Tokens promised for an answer before any has ended."""
STEP = 64
"""Tokens that a stream is promised ahead as it grows, and the least that it starts with."""


class AnswerLengths:
    """Predicts the lengths of answers, in tokens."""

    def __init__(self) -> None:
        self._last: deque[int] = deque(maxlen=REMEMBERED)
        self._sorted: list[int] = []

    def observe(self, tokens: int) -> None:
        """Learn from an answer that has ended."""
        self._last.append(tokens)
        self._sorted = sorted(self._last)

    def more(self, generated: int) -> int:
        """How many more tokens an answer of ``generated`` tokens is likely to get, by past answers that got longer."""
        if not self._last:
            return max(STEP, UNKNOWN - generated)
        first = bisect.bisect_right(self._sorted, generated)
        longer = len(self._sorted) - first
        return max(STEP, self._sorted[first + int(QUANTILE * longer)] - generated) if longer else STEP


def step(length: int, promised: int, most: int) -> int:
    """The cells to promise to a stream of ``length`` tokens: more, up to ``most``, once it is near its promise."""
    return promised if promised >= min(most, length + STEP // 4) else min(most, length + STEP)


class Reservations:
    """Promises cells to sessions; ``slots`` keeps count. No running session uses more than it was promised."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._lengths = AnswerLengths()

    def to_start(self, session: Session) -> int:
        """The cells with which it starts, or resumes after preemption."""
        return min(_most(session), session.length + self._lengths.more(len(session.generated)))

    def soon(self, session: Session) -> int:
        """The cells that a running session has, or is to be promised in the next tick."""
        return step(session.length, session.cells, _most(session))

    def extend(self, session: Session) -> int:
        """Promise a stream its next cells before it needs them, as far as cells are free. Returns how many it then has
        beyond those that its next token needs; below 0: how many it lacks."""
        length, cells = session.length, session.cells
        # Far from its promise, a stream needs no look at what it may have at most.
        if cells < length + STEP // 4 and (wanted := step(length, cells, _most(session))) > cells:
            most = min(cells + self._slots.free_cells, self._slots.max_cells)
            self._slots.promise(session, min(wanted, most))
        return session.cells - length

    def give_lacking(self, session: Session) -> None:
        """Promise what its next token needs; the plan has made sure that it is free."""
        if not self._slots.promise(session, max(session.cells, session.length)):
            raise RuntimeError(f"session {session.id}: a stream was planned without cells")

    def cut(self, session: Session) -> None:
        """Take back cells that it can't need any more: its ``max_tokens`` may be lower now."""
        self._slots.promise(session, min(session.cells, _most(session)))

    def ended(self, session: Session) -> None:
        """Learn from how long its answer was."""
        if session.generated:
            self._lengths.observe(len(session.generated))


def _most(session: Session) -> int:
    """The most cells that it can need."""
    assert session.prepared is not None
    return len(session.prepared.tokens) + session.prepared.max_tokens
