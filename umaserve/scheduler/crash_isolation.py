"""Isolation of crashes: after the loss of an engine, the requests that may have caused it run one at a time, alone,
until they are past that place. Whoever loses it again fails; the others wait, and lose nothing."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from umaserve.core.errors import Fault, RequestError
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.session import Session

log = logging.getLogger(__name__)

MAX_CRASHES = 2
MAX_KILLS = 2
"""Kills by another program that count as a crash: one says nothing about a request; so many in a row, without progress
in between, do."""
TOKENS = 3
"""Tokens after which a request is past the place: those of the tick that was lost and of the one behind it."""


def count_loss(in_work: Iterable[Session], *, blamed: bool) -> list[Session]:
    """Count the loss of an engine for those that it had in work, and return those that may be why. ``blamed``: it was
    not another program that ended it."""
    suspects = []
    for session in in_work:
        if len(session.generated) >= session.innocent_at:
            session.crashes = session.kills = 0
        session.kills += not blamed
        session.crashes += blamed or session.kills >= MAX_KILLS
        session.innocent_at = len(session.generated) + TOKENS
        if session.crashes:
            suspects.append(session)
    return suspects


class CrashIsolation:
    """Trials of the requests that may have lost an engine: each runs alone. ``suspects``: as ``count_loss`` returns
    them."""

    def __init__(self, sessions: SessionManager, suspects: Iterable[Session] = ()) -> None:
        self._sessions = sessions
        self._suspects: deque[Session] = deque()
        self._waiting: list[Session] = []
        """Sessions that may not be prepared yet."""
        tried = list(suspects)
        for session in sessions.running():
            if session not in tried:
                # Whoever was suspected of an earlier crash and not tried yet: that was another one.
                session.crashes = 0
        for session in tried:
            if session.running:
                self._suspect(session)

    def _suspect(self, session: Session) -> None:
        if session.crashes >= MAX_CRASHES:
            log.error("request %s failed: the engine has crashed again while the request ran alone", session.request.id)
            problem = "llama.cpp crashed or was killed while it computed this request, also when the request ran alone"
            self._sessions.fail(session, RequestError(Fault.DECODE_FAILED, "request", problem))
        else:
            self._suspects.append(session)

    @property
    def current(self) -> Session | None:
        """The session that has to run alone now, if any. One that is held is tried when it goes on."""
        for _ in range(len(self._suspects)):
            session = self._suspects[0]
            if not session.running or len(session.generated) >= session.innocent_at:
                session.crashes = 0
                self._suspects.popleft()
            elif session.holds:
                self._suspects.rotate(-1)
            else:
                return session
        return None

    def may_begin(self, arrived: Iterable[Session]) -> list[Session]:
        """The sessions that may be prepared, of those that have ``arrived`` now or earlier."""
        self._waiting += arrived
        current = self.current
        if current is None:
            waiting, self._waiting = self._waiting, []
            return waiting
        ready = [current] if current in self._waiting else []
        self._waiting = [session for session in self._waiting if session is not current]
        return ready
