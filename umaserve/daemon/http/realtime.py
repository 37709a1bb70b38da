"""A client of OpenAI's Realtime API: one session on a WebSocket."""

from __future__ import annotations

import orjson

from umaserve.access.gate import Gate
from umaserve.core.commands import Command
from umaserve.core.errors import RequestError
from umaserve.core.events import Output
from umaserve.daemon.connection import Lost
from umaserve.daemon.http.realtime_steps import MAX_EVENT_BYTES, RealtimeSteps
from umaserve.daemon.http.websocket import WebSocketConnection
from umaserve.daemon.services import Services
from umaserve.dialects.dialect import Reply
from umaserve.dialects.realtime.session import RealtimeSession
from umaserve.net.channel import Channel
from umaserve.sessions.caller import Caller
from umaserve.wire.websocket import CloseCode, WebSocketCodec


class RealtimeConnection(WebSocketConnection):
    """Passes the client's events on to the session's steps, and theirs to the client."""

    def __init__(
        self,
        services: Services,
        channel: Channel,
        session: RealtimeSession,
        caller: Caller,
        lost: Lost,
        gate: Gate,
    ) -> None:
        max_bytes = min(services.config.max_chat_bytes, MAX_EVENT_BYTES)
        codec = WebSocketCodec(max_bytes)
        super().__init__(
            services, channel, codec, lambda _none: _Errors(session), caller, lost, gate, authenticated=True
        )
        self._steps = RealtimeSteps(services, session, caller, self)

    # -- from the channel ----------------------------------------------------------------------------------------

    def drained(self) -> None:
        self._steps.release()
        super().drained()

    def _handle_one(self) -> bool:
        if self.channel.overfull or self._steps.detecting:
            self._backlog.wait()  # until the channel has drained, or what was said is known
            return False
        payload = self._codec.next_payload() if self.channel.open else None
        if payload is None:
            return False
        self._idle.postpone(self._loop.now() + self._idle_timeout)
        self._steps.receive(payload)
        return True

    def _on_idle(self) -> None:
        if self._steps.running:
            self._idle = self._loop.call_later(self._idle_timeout, self._on_idle)
        else:
            super()._on_idle()

    # -- from the steps ------------------------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        return self.channel.congested

    def send_event(self, payload: bytes) -> None:
        self.channel.write(self._codec.send(payload))

    def caught_up(self) -> None:
        if self.channel.open:
            self._backlog.continue_later()

    def renewed(self, caller: Caller) -> Caller | None:
        return self._gate.renewed(caller)

    def answered(self) -> None:
        self._idle.postpone(self._loop.now() + self._idle_timeout)

    def fail(self) -> None:
        self.abort()

    def dismiss(self) -> None:
        self._end(CloseCode.POLICY_VIOLATION)

    # -- the end -------------------------------------------------------------------------------------------------

    def connection_lost(self) -> None:
        super().connection_lost()
        self._steps.close()

    def _abandon(self) -> None:
        self._steps.abandon()


class _Errors:
    """The dialect of a connection whose session has the events: only errors of the connection itself are left."""

    ready = True

    def __init__(self, session: RealtimeSession) -> None:
        self._session = session

    def receive(self, payload: bytes) -> Command | None:
        raise NotImplementedError

    def send(self, output: Output) -> Reply | None:
        raise NotImplementedError

    def refuse(self, error: RequestError) -> Reply:
        return self.fail(error)

    def fail(self, error: RequestError) -> Reply:
        return Reply(orjson.dumps(self._session.named(self._session.error(error))))
