"""A WebSocket client: a connection that pings, and closes with a close code."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from umaserve.access.gate import Gate
from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Generate
from umaserve.daemon.connection import Connection, Lost
from umaserve.daemon.services import Services
from umaserve.dialects.dialect import Dialect
from umaserve.net.channel import READ_PER_TURN, Channel
from umaserve.net.pings import Pings
from umaserve.sessions.caller import Caller
from umaserve.wire.websocket import CloseCode, State, WebSocketCodec

Authenticate = Callable[[str], bool]


class WebSocketConnection(Connection):
    """Handler of a channel after its upgrade.

    One that is not ``authenticated`` has shown no key yet: its first message must bring one, within
    ``header_timeout``.
    """

    _codec: WebSocketCodec
    _explains = True
    """Whether an error message precedes the close frame when the codec or a timer ends the connection."""

    def __init__(
        self,
        services: Services,
        channel: Channel,
        codec: WebSocketCodec,
        new_dialect: Callable[[Authenticate | None], Dialect],
        caller: Caller,
        lost: Lost,
        gate: Gate,
        *,
        authenticated: bool,
    ) -> None:
        self._gate = gate
        self._authenticated = authenticated
        self._ahead: deque[bytes] = deque()
        """Messages that came while the dialect was not ready for them."""
        dialect = new_dialect(None if authenticated else self._authenticate)
        super().__init__(services, channel, codec, dialect, caller, lost)
        if not authenticated:
            self._idle.cancel()
            self._idle = self._loop.call_later(services.config.header_timeout, self._on_idle)
        self._pings = Pings(self._loop, channel, services.config.ping_interval, codec.ping, caller.peer)

    def _authenticate(self, presented: str) -> bool:
        caller = self._gate.with_key(self._caller, presented)
        if caller is None:
            return False
        self._authenticated = True
        self._caller = caller
        self._idle.cancel()
        self._idle = self._loop.call_later(self._idle_timeout, self._on_idle)
        return True

    # -- from the channel ----------------------------------------------------------------------------------------

    def connection_lost(self) -> None:
        self._pings.cancel()
        self._part(lost=True)
        super().connection_lost()

    def _handle_one(self) -> bool:
        if self._dialect.ready or self._read_ahead >= READ_PER_TURN:
            return super()._handle_one()
        # Pings and the client's close frame don't wait for the answer that runs.
        payload = self._codec.next_payload()
        if payload is None:
            return False
        self._ahead.append(payload)
        return True

    @property
    def _read_ahead(self) -> int:
        return sum(map(len, self._ahead))

    def _next_payload(self) -> bytes | None:
        return self._ahead.popleft() if self._ahead else super()._next_payload()

    def _buffered(self) -> int:
        return super()._buffered() + self._read_ahead

    def _input_handled(self) -> None:
        if self._codec.mistake is not None and self._explains:
            self._codec.explain(self._dialect.fail(self._codec.mistake).payload)
        self.channel.write(self._codec.take_output())
        if self._codec.closed:
            # Browsers close so when a page is left or loaded again: it may want to go on.
            went_away = self._codec.close_code == CloseCode.GOING_AWAY
            self._part(lost=self._codec.state is State.LOST or went_away)
            self.channel.close()
        elif self._codec.more and not self._backlog.waiting:
            self._backlog.continue_later()

    def _part(self, *, lost: bool) -> None:
        """The connection ends; ``lost``: without a close frame, or by a client that goes away. May be called more
        than once."""
        self._abandon()

    # -- requests ------------------------------------------------------------------------------------------------

    def _request(self, request: Generate, *, admitted: bool = False) -> None:
        caller = self._gate.renewed(self._caller)
        if caller is None:
            self._authenticated = False
            self._reply(self._dialect.fail(RequestError(Fault.UNAUTHORIZED, "auth", "the key was revoked")))
            self.close()
            return
        self._caller = caller
        super()._request(request, admitted=admitted)

    # -- closing -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._close(CloseCode.GOING_AWAY if self._authenticated else CloseCode.POLICY_VIOLATION)

    def _end_idle(self) -> None:
        if self._explains:
            error = RequestError(Fault.TIMED_OUT, "request", "it did not arrive in time")
            self.channel.write(self._codec.send(self._dialect.fail(error).payload))
        self.close()

    def _end(self, code: int) -> None:
        self._close(code)

    def abort(self) -> None:
        self._close(CloseCode.INTERNAL_ERROR)

    def _close(self, code: int, reason: str = "") -> None:
        self._part(lost=False)
        self._input.close()
        self.channel.write(self._codec.close(code, reason))
        self.channel.close()
