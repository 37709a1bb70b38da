"""Generations whose connection was lost: kept for a while, paused, for a new connection to take over, be it in this
process or in the next one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Output
from umaserve.daemon.handover_file import Left
from umaserve.dialects.dialect import Dialect, Reply
from umaserve.dialects.generate.generation import Kept
from umaserve.models.registry import Models
from umaserve.net.loop import Loop
from umaserve.net.timers import Timer
from umaserve.sessions.caller import Caller
from umaserve.sessions.resumed import Resumed
from umaserve.sessions.session import Hold, Session

log = logging.getLogger(__name__)

LOST_BYTES = 16 * 1024
"""Memory in bytes of a generation besides its text: session, sampler and the like."""


class ResumableDialect(Dialect, Protocol):
    """A dialect that keeps its generation so that it can be replayed."""

    @property
    def request_id(self) -> str | None:
        """Id of the current generation, or of the last one."""

    @property
    def finished(self) -> bool:
        """Whether no generation runs."""

    @property
    def held_bytes(self) -> int:
        """Estimated memory of the generation in bytes."""

    @property
    def kept(self) -> Kept | None:
        """What another process needs to go on with it; ``None`` where none can."""

    def take_over(self, kept: Kept) -> None:
        """Go on with what another process kept."""

    def replay(self, position: int) -> Iterator[bytes]:
        """Payloads from token ``position`` on; raises ``RequestError`` where that token does not exist."""


@dataclass(slots=True)
class Lost:
    """A generation whose connection was lost."""

    dialect: ResumableDialect
    session: Session | None
    """``None``: all of its outputs have come."""
    caller: Caller
    expiry: Timer
    n_bytes: int


class Detached:
    """Keeps each for ``window`` seconds, and at most ``max_bytes`` of them: the oldest goes first."""

    def __init__(self, loop: Loop, models: Models, window: float, max_bytes: int, *, leaves: bool = False) -> None:
        """``leaves``: whether there will be a process after this one to leave them to."""
        self._loop = loop
        self._models = models
        self._window = window
        self._max_bytes = max_bytes
        self._lost: dict[str, Lost] = {}
        self._bytes = 0
        self._watched: dict[str, tuple[str, Callable[[], None], Callable[[], None]]] = {}
        self._leaves = leaves
        self._leaving = False
        self._left: list[tuple[Left, float]] = []
        """For the next process, with the seconds of their window that are left."""

    @property
    def enabled(self) -> bool:
        return self._window > 0

    def __len__(self) -> int:
        return len(self._lost)

    def watch(self, request_id: str, tenant: str, abort: Callable[[], None], restart: Callable[[], None]) -> None:
        """A connection has this generation. Its client may know of its loss long before we do, and resume it: then
        ``abort`` ends the old connection. ``restart`` has it part with what the next process can go on with."""
        if self.enabled:
            self._watched[request_id] = (tenant, abort, restart)

    def unwatch(self, request_id: str | None) -> None:
        if request_id is not None:
            self._watched.pop(request_id, None)

    def keep(self, dialect: ResumableDialect, session: Session | None, caller: Caller) -> None:
        """Take over a generation from the connection of ``caller`` that was lost; its stream is paused and costs no
        computing. ``session``: ``None`` if all of its outputs have come."""
        if not self.enabled or dialect.request_id is None:
            self._abandon(session)
            return
        if self._leaving or self._models.draining:
            self._leave(dialect, session, caller, self._window)
            return
        if session is not None:
            session.sink = _recorder(dialect)
            session.manager.hold(session, Hold.DETACHED)
            # The reader that was behind is gone, and the next one may never be.
            session.manager.release(session, Hold.READER)
        self._add(dialect.request_id, dialect, session, caller, self._window)

    def _add(
        self, request_id: str, dialect: ResumableDialect, session: Session | None, caller: Caller, window: float
    ) -> None:
        expiry = self._loop.call_later(window, lambda: self._drop(request_id))
        n_bytes = LOST_BYTES + dialect.held_bytes
        self._lost[request_id] = Lost(dialect, session, caller, expiry, n_bytes)
        self._bytes += n_bytes
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._lost)))

    def take(
        self, request_id: str, tenant: str, position: int
    ) -> tuple[ResumableDialect, Session | None, Iterator[bytes]]:
        """The generation, its session unless all of its outputs have come, and what its client has missed; raises
        ``RequestError`` and keeps it where it isn't this tenant's or the position isn't right."""
        owner, abort, _restart = self._watched.get(request_id, ("", None, None))
        if abort is not None and owner == tenant:
            abort()
        lost = self._lost.get(request_id)
        if lost is None or lost.caller.tenant != tenant:
            raise RequestError(
                Fault.NOT_FOUND,
                "request_id",
                "expected the id of a generation that is still kept after its connection was lost",
            )
        missed = lost.dialect.replay(position)
        self._forget(request_id)
        session = lost.session
        nothing_comes = session is None or (session.ended and not session.outbox)
        return lost.dialect, None if nothing_comes else session, missed

    # -- the next process ----------------------------------------------------------------------------------------

    @property
    def left(self) -> list[Left]:
        """For the next process, those that were lost first at the front. Their time goes on from now: nobody can have
        resumed them meanwhile."""
        now = time.time()
        return [replace(left, expires_at=now + window) for left, window in self._left]

    @property
    def leaving(self) -> bool:
        """Whether they are to be resumed at the next process only."""
        return self._leaves and self._leaving

    def leave_all(self) -> None:
        """The daemon ends: leave all of them to the next process, for what is left of their time by then. Those that
        can't be left are dropped."""
        self._leaving = True
        for request_id in list(self._lost):
            lost = self._forget(request_id)
            self._leave(lost.dialect, lost.session, lost.caller, lost.expiry.at - self._loop.now())

    def restart_all(self) -> None:
        """Have the connections part with their generations."""
        self._leaving = True
        for _tenant, _abort, restart in list(self._watched.values()):
            restart()

    def can_leave(self, dialect: ResumableDialect, session: Session | None) -> bool:
        """Whether the next process can go on with it, and its client knows its id."""
        return dialect.kept is not None and self._can_leave(session)

    def _can_leave(self, session: Session | None) -> bool:
        return self._leaves and self.enabled and (session is None or session.announced or not session.running)

    def _leave(self, dialect: ResumableDialect, session: Session | None, caller: Caller, window: float) -> None:
        record = _recorder(dialect)
        for output in session.outbox if session is not None else ():
            record(output)
        kept = dialect.kept
        if kept is not None and self._can_leave(session):
            begun = _begun(session, kept, self._loop.now()) if session is not None and session.running else None
            self._left.append((Left(caller, kept, begun, 0.0), window))
            self._abandon(session, "left")
        else:
            self._abandon(session)

    def _abandon(self, session: Session | None, end: str = "abandoned") -> None:
        if session is not None:
            session.manager.abandon(session, end)

    def take_over(self, left: Left, dialect: ResumableDialect) -> None:
        """Keep what the process before this one left, paused."""
        kept, window = left.kept, min(left.expires_at - time.time(), self._window)
        if not window > 0 or kept.request.id in self._lost or (left.begun is None and not kept.ending):
            return
        dialect.take_over(kept)
        session = None
        if left.begun is not None:
            record, now = _recorder(dialect), self._loop.now()
            try:
                session = self._models.take_over(kept.request, left.begun, record, left.caller, now)
            except RequestError as error:
                log.warning("request %s can't be restored: %s", kept.request.id, error)
                return
        self._add(kept.request.id, dialect, session, left.caller, window)

    def _drop(self, request_id: str) -> None:
        self._abandon(self._forget(request_id).session)

    def _forget(self, request_id: str) -> Lost:
        lost = self._lost.pop(request_id)
        lost.expiry.cancel()
        self._bytes -= lost.n_bytes
        return lost


def _recorder(dialect: Dialect) -> Callable[[Output | RequestError], None]:
    """A sink that only feeds the dialect, for a later replay."""

    def record(output: Output | RequestError) -> None:
        _unsent: Reply | None = dialect.fail(output) if isinstance(output, RequestError) else dialect.send(output)

    return record


def _begun(session: Session, kept: Kept, now: float) -> Resumed:
    held_s = session.held_s + (now - session.held_at if session.holds else 0.0)
    took_s = now - session.requested_at - held_s
    timing = session.timing(now)
    return Resumed(
        model=session.model,
        generated=session.generated,
        text=kept.text,
        thoughts=kept.thoughts,
        reused=session.reused,
        paused=Hold.PAUSE in session.holds,
        took_s=took_s,
        started_s=None if session.started_at is None else min(timing.started_s, took_s),
        first_token_s=None if session.first_made_at is None else min(timing.first_token_s, took_s),
    )
