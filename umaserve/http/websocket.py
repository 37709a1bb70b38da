"""A WebSocket client: a connection that pings, says goodbye, and may leave its generation for another to resume."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from umaserve.connection import Connection, Lost
from umaserve.detached import ResumableDialect
from umaserve.errors import Fault, RequestError
from umaserve.http.gate import Gate
from umaserve.messages import Generate, Reattach
from umaserve.net.channel import Channel
from umaserve.protocol.websocket import WebSocketCodec
from umaserve.services import Services
from umaserve.serving.sessions import Hold, Origin

log = logging.getLogger(__name__)

GOING_AWAY, POLICY_VIOLATION, INTERNAL_ERROR = 1001, 1008, 1011
"""Close codes (RFC 6455, 7.4.1)."""

MISSED_PER_TURN = 64

Authenticate = Callable[[str], bool]


class WebSocketConnection(Connection):
    """Handler of a channel after its upgrade.

    One that is not ``authenticated`` has shown no key yet: its first message must bring one, within
    ``header_timeout``.
    """

    _codec: WebSocketCodec
    _dialect: ResumableDialect

    def __init__(
        self,
        services: Services,
        channel: Channel,
        codec: WebSocketCodec,
        new_dialect: Callable[[Authenticate | None], ResumableDialect],
        origin: Origin,
        lost: Lost,
        gate: Gate,
        *,
        authenticated: bool,
    ) -> None:
        self._gate = gate
        self._authenticated = authenticated
        self._watched: str | None = None
        self._missed: Iterator[bytes] | None = None
        self._parted = False
        """Whether the generation is nobody's to resume, or kept for that already."""
        dialect = new_dialect(None if authenticated else self._authenticate)
        super().__init__(services, channel, codec, dialect, origin, lost)
        if not authenticated:
            self._idle.cancel()
            self._idle = self._loop.call_later(services.config.header_timeout, self._on_idle)
        self._heard = True
        self._pinged = False
        self._ping = self._loop.call_later(services.config.ping_interval, self._on_ping_due)

    def _authenticate(self, presented: str) -> bool:
        origin = self._gate.origin_by_key(presented, self._origin.dialect, self._origin.peer)
        if origin is None:
            return False
        self._authenticated = True
        self._origin = self._session.origin = origin
        self._idle.cancel()
        self._idle = self._loop.call_later(self._idle_timeout, self._on_idle)
        return True

    # -- from the channel ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._heard, self._pinged = True, False
        super().data_received(data)

    def connection_lost(self) -> None:
        self._ping.cancel()
        self._part(keep=True)
        super().connection_lost()

    def _input_handled(self) -> None:
        self.channel.write(self._codec.take_output())
        if self._codec.closed:
            # Neither a goodbye nor a breach of the protocol is a lost connection.
            self._part(keep=not (self._codec.left or self._codec.closing))
            self.channel.close()
        elif self._codec.more and not self._backlog:
            self._backlog = True
            self._loop.call_soon(self._handle_payloads)

    def _part(self, *, keep: bool) -> None:
        if self._parted:
            return
        self._parted = True
        self._watch(None)
        if keep:
            self._services.detached.keep(self._dialect, self._session)
            self._session = self._sessions.open(self._deliver, self._origin)
        else:
            self._sessions.abandon(self._session)

    # -- requests ------------------------------------------------------------------------------------------------

    def _request(self, request: Generate, *, admitted: bool = False) -> None:
        if not self._gate.still_knows(self._origin):
            self._authenticated = False
            self._reply(self._dialect.fail(RequestError(Fault.UNAUTHORIZED, "auth: the key was revoked")))
            self.close()
            return
        self._watch(request.id)
        super()._request(request, admitted=admitted)

    def _watch(self, request_id: str | None) -> None:
        """One at a time is this connection's."""
        self._services.detached.unwatch(self._watched)
        self._watched = request_id
        if request_id is not None:
            self._services.detached.watch(request_id, self._origin.tenant, self.channel.abort)

    # -- resuming, closing, pinging ------------------------------------------------------------------------------

    def _reattach(self, command: Reattach) -> None:
        self._watch(None)
        try:
            dialect, session, missed = self._services.detached.take(
                command.request_id, self._origin.tenant, command.position
            )
        except RequestError as error:
            self._reply(self._dialect.refuse(error))
            return
        self._sessions.abandon(self._session)
        self._dialect, self._session, self._missed = dialect, session, missed
        session.origin = self._origin
        self._watch(command.request_id)
        self._tell_missed()

    def _tell_missed(self) -> None:
        """What the lost connection's client has not seen, as fast as it reads; meanwhile the dialect remembers."""
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
        session = self._session
        if session.ended and not session.outbox:
            self._session = self._sessions.open(self._deliver, self._origin)
            return
        session.sink = self._deliver
        self._sessions.release(session, Hold.DETACHED)

    def drained(self) -> None:
        super().drained()
        self._loop.call_soon(self._tell_missed)

    def close(self) -> None:
        self._close(GOING_AWAY if self._authenticated else POLICY_VIOLATION)

    def abort(self) -> None:
        self._close(INTERNAL_ERROR)

    def _close(self, code: int) -> None:
        self._part(keep=False)
        self.channel.write(self._codec.close(code))
        self.channel.close()

    def _on_ping_due(self) -> None:
        interval = self._services.config.ping_interval
        # While the peer's input waits for it to read, its pongs wait too.
        if self._heard or self.channel.overfull:
            self._heard = False
        elif self._pinged:
            log.info("%s: closed, since it did not answer a ping for %g s", self._origin.peer, interval)
            self.channel.abort()
            return
        else:
            self._pinged = True
            self.channel.write(self._codec.ping())
        self._ping = self._loop.call_later(interval, self._on_ping_due)
