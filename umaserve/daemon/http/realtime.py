"""A client of OpenAI's Realtime API: one session on a WebSocket."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from umaserve.access.gate import Gate
from umaserve.core.commands import Command
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Output, Usage
from umaserve.daemon.connection import Lost
from umaserve.daemon.http.realtime_answer import AnswerExchange, TranscriptExchange
from umaserve.daemon.http.realtime_warm_up import WarmUpExchange
from umaserve.daemon.http.websocket import WebSocketConnection
from umaserve.daemon.services import Services
from umaserve.dialects.dialect import Reply
from umaserve.dialects.realtime.ahead import Drop, WarmUp
from umaserve.dialects.realtime.answer import Answer, Event
from umaserve.dialects.realtime.listening import Transcript
from umaserve.dialects.realtime.session import RealtimeSession, Start, Step, Stop, Write
from umaserve.net.channel import Channel
from umaserve.sessions.caller import Caller
from umaserve.wire.websocket import CloseCode, WebSocketCodec

MAX_EVENT_BYTES = 4 << 20


class RealtimeConnection(WebSocketConnection):
    """Does what the session's steps say. Several answers may run at a time, besides the client's next events."""

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
        self._session = session
        self._kept = services.input_budget.share(None)
        """What the conversation takes, while the connection's own share counts what comes."""
        self._running: dict[str, AnswerExchange | TranscriptExchange | WarmUpExchange] = {}
        """By the ids of their answers, transcripts and warm-ups."""
        self._send(session.opened())

    # -- from the channel ----------------------------------------------------------------------------------------

    def drained(self) -> None:
        for exchange in self._running.values():
            self._loop.call_soon(exchange.release)
        super().drained()

    def _handle_one(self) -> bool:
        if self.channel.overfull:
            self._backlog.wait()  # until the channel has drained
            return False
        payload = self._codec.next_payload() if self.channel.open else None
        if payload is None:
            return False
        self._idle.postpone(self._loop.now() + self._idle_timeout)
        self._do(self._session.receive(payload))
        return True

    def _on_idle(self) -> None:
        if self._running:
            self._idle = self._loop.call_later(self._idle_timeout, self._on_idle)
        else:
            super()._on_idle()

    # -- steps ---------------------------------------------------------------------------------------------------

    def _do(self, steps: Iterator[Step]) -> None:
        for step in steps:
            match step:
                case Start():
                    self._start(step)
                case Stop():
                    self._stop(step)
                case Write():
                    self._write(step)
                case WarmUp():
                    self._warm_up(step)
                case Drop():
                    self._drop(step)
                case event:
                    self._send(event)
        self._kept.keep(self._session.held_bytes)

    def _start(self, start: Start) -> None:
        answer = start.answer
        exchange = AnswerExchange(self._services, self._caller, answer, self._send_all, self._end_answer, self.abort)
        self._running[answer.id] = exchange
        try:
            self._renew()
            exchange.start(start.request)
        except RequestError as error:
            exchange.abandon()
            self._end_answer(answer, answer.fail(error))
            if error.fault is Fault.UNAUTHORIZED:
                self._end(CloseCode.POLICY_VIOLATION)

    def _write(self, write: Write) -> None:
        transcript = write.transcript
        exchange = TranscriptExchange(
            self._services, self._caller, transcript, self._send_all, self._end_transcript, self.abort
        )
        self._running[transcript.id] = exchange
        try:
            exchange.start(write.request)
        except RequestError as error:
            exchange.abandon()
            self._end_transcript(transcript, transcript.fail(error))

    def _end_transcript(self, transcript: Transcript, events: Iterator[Event]) -> None:
        self._running.pop(transcript.id, None)
        self._do(self._session.written(transcript, events))

    def _warm_up(self, step: WarmUp) -> None:
        limits = self._caller.limits
        own = None if limits is None else limits.requests_per_minute
        if self._services.config.rate_requests if own is None else own:
            return  # It would count, and leave fewer for answers.

        def over() -> None:
            self._running.pop(step.id, None)

        exchange = WarmUpExchange(self._services, self._caller, over, self.abort)
        try:
            self._renew()
            exchange.start(step.request)
        except RequestError:
            # Nobody has asked for it, and whoever asks for the answer is told.
            exchange.abandon()
        else:
            self._running[step.id] = exchange

    def _drop(self, step: Drop) -> None:
        exchange = self._running.get(step.id)
        if isinstance(exchange, WarmUpExchange):
            exchange.drop(answering=step.answering)

    def _renew(self) -> None:
        """See what the key grants by now; raises ``RequestError`` where it is no longer valid."""
        caller = self._gate.renewed(self._caller)
        if caller is None:
            raise RequestError(Fault.UNAUTHORIZED, "Authorization", "the key was revoked")
        self._caller = caller

    def _stop(self, stop: Stop) -> None:
        exchange, usage = self._running.get(stop.answer.id), Usage(0, 0)
        if isinstance(exchange, AnswerExchange):
            usage = exchange.usage
            exchange.abandon()
        self._end_answer(stop.answer, stop.answer.cancel(stop.reason, usage))

    def _end_answer(self, answer: Answer, events: Iterator[Event]) -> None:
        self._running.pop(answer.id, None)
        self._idle.postpone(self._loop.now() + self._idle_timeout)
        self._do(self._session.ended(answer, events))

    def _send_all(self, events: Iterator[Event]) -> None:
        for event in events:
            self._send(event)

    def _send(self, event: Event) -> None:
        self.channel.write(self._codec.send(orjson.dumps(self._session.named(event))))
        if self.channel.congested:
            for exchange in self._running.values():
                exchange.hold()

    # -- the end -------------------------------------------------------------------------------------------------

    def connection_lost(self) -> None:
        self._kept.close()
        super().connection_lost()

    def _abandon(self) -> None:
        running, self._running = self._running, {}
        for exchange in running.values():
            exchange.abandon()


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
