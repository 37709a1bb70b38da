"""A WebSocket client whose generation outlives a lost connection, so that a new one can resume it."""

from __future__ import annotations

from collections.abc import Iterator

from umaserve.core.commands import Reattach
from umaserve.core.errors import RequestError
from umaserve.core.requests import Generate
from umaserve.daemon.detached import ResumableDialect
from umaserve.daemon.http.websocket import WebSocketConnection
from umaserve.sessions.session import Hold, Session
from umaserve.wire.websocket import CloseCode

MISSED_PER_TURN = 64


class ResumableConnection(WebSocketConnection):
    """WebSocket connection whose dialect is a ``ResumableDialect``."""

    _dialect: ResumableDialect
    _explains = False  # Its contract's errors are of requests, and the connection goes on after them.
    _watched: str | None = None
    _missed: Iterator[bytes] | None = None
    _parted = False
    """Whether the generation has been dropped, or kept for a later resume."""

    @property
    def _session(self) -> Session | None:
        """The session of the current request."""
        return None if self._exchange is None else self._exchange.sessions[0]

    def drained(self) -> None:
        super().drained()
        self._loop.call_soon(self._tell_missed)

    def _part(self, *, lost: bool) -> None:
        if self._parted:
            return
        self._parted = True
        self._watch(None)
        if lost:
            self._services.detached.keep(self._dialect, self._session, self._caller)
            self._exchange = None
        else:
            super()._part(lost=lost)

    def _request(self, request: Generate, *, admitted: bool = False) -> None:
        self._watch(request.id)
        super()._request(request, admitted=admitted)

    def _watch(self, request_id: str | None) -> None:
        """Register the generation of this connection; there is one at a time."""
        self._services.detached.unwatch(self._watched)
        self._watched = request_id
        if request_id is not None:
            self._services.detached.watch(request_id, self._caller.tenant, self.channel.abort, self._restart)

    def _restart(self) -> None:
        """Part from the client, as the daemon ends: the next one has what the client has not got yet."""
        owes = not self._dialect.finished or bool(self.channel.queued)
        if owes and self._services.detached.can_leave(self._dialect, self._session):
            self._part(lost=True)
            self._tell_restart()

    def _tell_restart(self) -> None:
        self._close(CloseCode.SERVICE_RESTART, "the server restarts: resume the generation afterwards")

    def _reattach(self, command: Reattach) -> None:
        if self._services.detached.leaving:
            self._tell_restart()
            return
        self._watch(None)
        try:
            dialect, session, missed = self._services.detached.take(
                command.request_id, self._caller.tenant, command.position
            )
        except RequestError as error:
            self._reply(self._dialect.refuse(error))
            return
        self._abandon()
        self._dialect, self._missed = dialect, missed
        if session is not None:
            session.caller = self._caller
            self._exchange = self._new_exchange()
            self._exchange.sessions.append(session)
        self._watch(command.request_id)
        self._tell_missed()

    def _tell_missed(self) -> None:
        """Send what the lost connection's client missed, as fast as it reads; the dialect keeps new output."""
        for _ in range(MISSED_PER_TURN):
            if self._missed is None or not self.channel.open or self.channel.congested:
                return
            payload = next(self._missed, None)
            if payload is None:
                self._missed = None
                self._go_on()
                return
            self.channel.write(self._codec.send(payload))
        self._loop.call_soon(self._tell_missed)

    def _go_on(self) -> None:
        exchange, session = self._exchange, self._session
        if exchange is None or session is None or (session.ended and not session.outbox):
            self._exchange = None
            return
        session.sink = exchange.sink(self._take)
        session.manager.release(session, Hold.DETACHED)
