"""A WebSocket client: a connection that pings, says goodbye, and may leave its generation for another to resume."""

from __future__ import annotations

import logging
from collections.abc import Callable

from umaserve.connection import Connection, Lost
from umaserve.detached import ResumableDialect
from umaserve.errors import RequestError
from umaserve.http.gate import Gate
from umaserve.messages import Reattach
from umaserve.net.channel import Channel
from umaserve.protocol.websocket import WebSocketCodec
from umaserve.services import Services
from umaserve.serving.sessions import Hold, Origin

log = logging.getLogger(__name__)

GOING_AWAY, POLICY_VIOLATION = 1001, 1008
"""Close codes (RFC 6455, 7.4.1)."""

Authenticate = Callable[[str], bool]


class WebSocketConnection(Connection):
    """Handler of a channel after its upgrade.

    With ``gate`` the client has shown no key yet: its first message must bring one, within ``header_timeout``.
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
        gate: Gate | None = None,
    ) -> None:
        self._gate = gate
        self._parted = False
        """Whether the generation is nobody's to resume, or kept for that already."""
        dialect = new_dialect(None if gate is None else self._authenticate)
        super().__init__(services, channel, codec, dialect, origin, lost)
        if gate is not None:
            self._idle.cancel()
            self._idle = self._loop.call_later(services.config.header_timeout, self._on_idle)
        self._heard = True
        self._pinged = False
        self._ping = self._loop.call_later(services.config.ping_interval, self._on_ping_due)

    def _authenticate(self, presented: str) -> bool:
        assert self._gate is not None
        origin = self._gate.origin_by_key(presented, self._origin.dialect, self._origin.peer)
        if origin is None:
            return False
        self._gate = None
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

    def _handle_payloads(self) -> None:
        super()._handle_payloads()
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
        if keep:
            self._services.detached.keep(self._dialect, self._session)
            self._session = self._sessions.open(self._deliver, self._origin)
        else:
            self._sessions.abandon(self._session)

    # -- resuming, closing, pinging ------------------------------------------------------------------------------

    def _reattach(self, command: Reattach) -> None:
        try:
            dialect, session, missed = self._services.detached.take(
                command.request_id, self._origin.tenant, command.position
            )
        except RequestError as error:
            self._reply(self._dialect.refuse(error))
            return
        self._sessions.abandon(self._session)
        self._dialect, self._session = dialect, session
        session.sink, session.origin = self._deliver, self._origin
        for payload in missed:
            self.channel.write(self._codec.send(payload))
        self._sessions.release(session, Hold.DETACHED)
        if self.channel.congested:
            self._sessions.hold(session, Hold.READER)

    def close(self) -> None:
        self._part(keep=False)
        code = GOING_AWAY if self._gate is None else POLICY_VIOLATION
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
