"""What requests are told that wait for a slot: their positions in the line of their class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from umaserve.core.events import Waiting
from umaserve.scheduler.policy.snapshot import is_background
from umaserve.scheduler.readiness import resumes
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.session import Session

PATIENCE_S = 1.0
"""Seconds that a request has waited before it is told."""


def tell_positions(sessions: SessionManager, waits: Callable[[Session], bool], each_s: float, now: float) -> None:
    """Tell each request that ``waits``, and has for ``PATIENCE_S``, its position. ``each_s``: seconds after which the
    next one leaves the line, on average; 0: unknown.

    Streams that go on have a line of their own, before all who have not started. Whoever comes is the last of a
    line, and whoever pauses before it has started keeps its place, so that a position grows with the class only.
    """
    placed = [(_line(session, now), session) for session in sessions.running() if _stands_in_line(session)]
    placed.sort(key=lambda one: (one[0], one[1].waits_since if resumes(one[1]) else 0.0))
    lengths, ahead = Counter(line for line, _ in placed), Counter[tuple[bool, bool]]()
    for number, (line, session) in enumerate(placed, 1):
        ahead[line] += 1
        if waits(session) and now - session.waits_since >= PATIENCE_S:
            eta = round(number * each_s, 1) if each_s else None
            sessions.put(session, Waiting(ahead[line], lengths[line], eta))


def _stands_in_line(session: Session) -> bool:
    """Whether others are told that they wait behind it."""
    return session.slot is None and not (session.holds and resumes(session))


def _line(session: Session, now: float) -> tuple[bool, bool]:
    """The line in which it waits, the first ones served first."""
    return is_background(session.request.priority, session.requested_at, now), not resumes(session)
