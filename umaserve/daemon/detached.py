"""Generations whose connection was lost: kept for a while, paused, for a new connection to take over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from umaserve.daemon.model_sessions import ModelSessions
from umaserve.dialects.dialect import Dialect, Reply
from umaserve.errors import Fault, RequestError
from umaserve.net.loop import Loop
from umaserve.net.timers import Timer
from umaserve.outputs import Output
from umaserve.serving.session import Hold, Session

LOST_BYTES = 16 * 1024
"""Memory in bytes of a generation besides its text: session, sampler and the like."""


class ResumableDialect(Dialect, Protocol):
    """A dialect that keeps its generation so that it can be replayed."""

    @property
    def request_id(self) -> str | None:
        """Id of the current generation, or of the last one."""

    @property
    def held_bytes(self) -> int:
        """Estimated memory of the generation in bytes."""

    def replay(self, position: int) -> Iterator[bytes]:
        """Payloads from token ``position`` on; raises ``RequestError`` where that token does not exist."""


@dataclass(slots=True)
class Lost:
    """A generation whose connection was lost."""

    dialect: ResumableDialect
    session: Session
    expiry: Timer
    n_bytes: int


class Detached:
    """Keeps each for ``window`` seconds, and at most ``max_bytes`` of them: the oldest goes first."""

    def __init__(self, loop: Loop, sessions: ModelSessions, window: float, max_bytes: int) -> None:
        self._loop = loop
        self._sessions = sessions
        self._window = window
        self._max_bytes = max_bytes
        self._lost: dict[str, Lost] = {}
        self._bytes = 0
        self._watched: dict[str, tuple[str, Callable[[], None]]] = {}

    @property
    def enabled(self) -> bool:
        return self._window > 0

    def __len__(self) -> int:
        return len(self._lost)

    def watch(self, request_id: str, tenant: str, abort: Callable[[], None]) -> None:
        """A connection has this generation. Its client may know of its loss long before we do, and resume it: then
        ``abort`` ends the old connection."""
        if self.enabled:
            self._watched[request_id] = (tenant, abort)

    def unwatch(self, request_id: str | None) -> None:
        if request_id is not None:
            self._watched.pop(request_id, None)

    def keep(self, dialect: ResumableDialect, session: Session) -> None:
        """Take over a generation from the connection that was lost; its stream is paused and costs no computing."""
        request_id = dialect.request_id
        if not self.enabled or self._sessions.draining or request_id is None:
            self._sessions.abandon(session)
            return
        session.sink = _recorder(dialect)
        self._sessions.hold(session, Hold.DETACHED)
        # The reader that was behind is gone, and the next one may never be.
        self._sessions.release(session, Hold.READER)
        expiry = self._loop.call_later(self._window, lambda: self._drop(request_id))
        n_bytes = LOST_BYTES + dialect.held_bytes
        self._lost[request_id] = Lost(dialect, session, expiry, n_bytes)
        self._bytes += n_bytes
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._lost)))

    def take(self, request_id: str, tenant: str, position: int) -> tuple[ResumableDialect, Session, Iterator[bytes]]:
        """The generation and what its client has missed; raises ``RequestError`` and keeps it where it isn't this
        tenant's or the position isn't right."""
        owner, abort = self._watched.get(request_id, ("", None))
        if abort is not None and owner == tenant:
            abort()
        lost = self._lost.get(request_id)
        if lost is None or lost.session.caller.tenant != tenant:
            raise RequestError(
                Fault.NOT_FOUND,
                "request_id",
                "expected the id of a generation whose connection was lost lately and that is still kept",
            )
        missed = lost.dialect.replay(position)
        self._forget(request_id)
        session = lost.session
        if session.ended and not session.outbox:
            # Nothing more comes of it: the connection's next request needs another.
            session = self._sessions.open(session.sink, session.caller)
        return lost.dialect, session, missed

    def drop_all(self) -> None:
        """Drop all of them: the daemon ends."""
        for request_id in list(self._lost):
            self._drop(request_id)

    def _drop(self, request_id: str) -> None:
        self._sessions.abandon(self._forget(request_id).session)

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
