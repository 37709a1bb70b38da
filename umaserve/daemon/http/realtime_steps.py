"""What a session of OpenAI's Realtime API asks for, done: its answers, transcripts and warm-ups are run."""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Iterator
from typing import Protocol

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Usage
from umaserve.daemon.http.realtime_answer import AnswerExchange, TranscriptExchange
from umaserve.daemon.http.realtime_warm_up import WarmUpExchange
from umaserve.daemon.services import Services
from umaserve.dialects.realtime.ahead import Drop, WarmUp
from umaserve.dialects.realtime.answer import Answer, Event
from umaserve.dialects.realtime.input_sound import Detect
from umaserve.dialects.realtime.listening import Transcript
from umaserve.dialects.realtime.session import RealtimeSession, Start, Step, Stop, Write
from umaserve.sessions.caller import Caller

log = logging.getLogger(__name__)

MAX_EVENT_BYTES = 4 << 20


class Client(Protocol):
    """The session's client."""

    @property
    def congested(self) -> bool:
        """Whether it reads slowly."""

    def send_event(self, payload: bytes) -> None: ...

    def caught_up(self) -> None:
        """Speech has been looked for in all sound: the next events may come."""

    def renewed(self, caller: Caller) -> Caller | None:
        """The caller with what its key grants by now; ``None`` if it is no longer valid."""

    def answered(self) -> None:
        """An answer has ended."""

    def dismiss(self) -> None:
        """End the session: its key is no longer valid."""

    def fail(self) -> None:
        """End the session after a bug of ours."""


class RealtimeSteps:
    """Does what the session's steps say. Several answers may run at a time, besides the client's next events."""

    def __init__(self, services: Services, session: RealtimeSession, caller: Caller, client: Client) -> None:
        self._services = services
        self._session = session
        self._caller = caller
        self._client = client
        self._kept = services.input_budget.share(None)
        """What the conversation takes, while the connection's own share counts what comes."""
        self._running: dict[str, AnswerExchange | TranscriptExchange | WarmUpExchange] = {}
        """By the ids of their answers, transcripts and warm-ups."""
        self.detecting = False
        """Whether speech is looked for in the last sound: the next events wait, so that all comes in order."""
        self._waiting: deque[bytes] = deque()
        self.waiting_bytes = 0
        """Bytes of events that wait."""
        self._closed = False
        self._send(session.opened())

    @property
    def running(self) -> bool:
        """Whether something is being answered."""
        return bool(self._running)

    def receive(self, payload: bytes) -> None:
        """Take an event of the client's."""
        if self.detecting:
            self._waiting.append(payload)
            self.waiting_bytes += len(payload)
        else:
            self._do(self._session.receive(payload))

    def tell(self, error: RequestError) -> None:
        """Send an error of none of the client's events."""
        self._send(self._session.error(error))

    def release(self) -> None:
        """Go on: the client has caught up."""
        for exchange in self._running.values():
            self._services.loop.call_soon(exchange.release)

    def abandon(self) -> None:
        """Drop what is being answered."""
        running, self._running = self._running, {}
        for exchange in running.values():
            exchange.abandon()

    def close(self) -> None:
        """The client is gone."""
        self._closed = True
        self.abandon()
        self._waiting.clear()
        self._kept.close()

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
                case Detect():
                    self.detecting = True
                    self._services.turns.submit(step.levels, functools.partial(self._detected, step))
                case event:
                    self._send(event)
        self._kept.keep(self._session.held_bytes + self.waiting_bytes)

    def _detected(self, detect: Detect, levels: list[float] | BaseException) -> None:
        if self._closed:
            return
        self.detecting = False
        try:
            if isinstance(levels, BaseException):
                log.error("%s: speech detection failed", self._caller.peer, exc_info=levels)
                error = RequestError(Fault.DECODE_FAILED, "audio", "internal error; see the server's log")
                self._send(self._session.error(error, detect.event_id))
            else:
                self._do(self._session.detected(detect, levels))
            while self._waiting and not self.detecting:
                payload = self._waiting.popleft()
                self.waiting_bytes -= len(payload)
                self._do(self._session.receive(payload))
        except Exception:
            log.exception("%s: closed: internal error while handling a spoken turn", self._caller.peer)
            self._client.fail()
        else:
            if not self.detecting:
                self._client.caught_up()

    def _start(self, start: Start) -> None:
        answer = start.answer
        exchange = AnswerExchange(
            self._services, self._caller, answer, self._send_all, self._end_answer, self._client.fail
        )
        self._running[answer.id] = exchange
        try:
            self._renew()
            exchange.start(start.request)
        except RequestError as error:
            exchange.abandon()
            self._end_answer(answer, answer.fail(error))
            if error.fault is Fault.UNAUTHORIZED:
                self._client.dismiss()

    def _write(self, write: Write) -> None:
        transcript = write.transcript
        exchange = TranscriptExchange(
            self._services, self._caller, transcript, self._send_all, self._end_transcript, self._client.fail
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

        exchange = WarmUpExchange(self._services, self._caller, over, self._client.fail)
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
        caller = self._client.renewed(self._caller)
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
        self._client.answered()
        self._do(self._session.ended(answer, events))

    def _send_all(self, events: Iterator[Event]) -> None:
        for event in events:
            self._send(event)

    def _send(self, event: Event) -> None:
        self._client.send_event(orjson.dumps(self._session.named(event)))
        if self._client.congested:
            for exchange in self._running.values():
                exchange.hold()
