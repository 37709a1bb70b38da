"""What an HTTP request set going: text from its sessions, as one JSON reply or as server-sent events, or an answer."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from umaserve.errors import RequestError
from umaserve.http.connection import JSON
from umaserve.messages import Answer, Finished, Generate, Output, Placed, Prefilled, Query, Started
from umaserve.protocol.openai_errors import error_body
from umaserve.services import Services
from umaserve.serving.questions import Question as AskedQuestion
from umaserve.serving.sessions import Hold, Origin

log = logging.getLogger(__name__)

EVENT_STREAM = (
    ("Content-Type", "text/event-stream"),
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),  # or nginx would hold tokens back
)


Parse = Callable[[bytes, Services], tuple[Query, Callable[[Answer], bytes]]]
"""A question out of a body, and how its answer is rendered; raises ``RequestError``."""


class Body(Protocol):
    """A dialect of one HTTP request: its body in, the reply's parts out."""

    @property
    def streaming(self) -> bool: ...

    @property
    def end(self) -> bytes | None:
        """What a stream of events ends with."""

    @property
    def done(self) -> bool: ...

    def receive(self, body: bytes) -> Sequence[Generate]: ...

    def send(self, index: int, output: Output) -> list[bytes]:
        """Events for an output of the request number ``index``; none where the reply comes in one piece."""

    def fail(self, index: int, error: RequestError) -> list[bytes]:
        """The last events of a stream that has begun."""

    def result(self) -> bytes:
        """The reply in one piece."""

    def error(self, error: RequestError) -> tuple[int, bytes, list[tuple[str, str]]]:
        """Status, body and headers of the reply where no stream has begun."""


class Responder(Protocol):
    """The HTTP connection, as far as an exchange sees it."""

    @property
    def congested(self) -> bool: ...

    def respond(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None: ...

    def begin(self, status: int, headers: Sequence[tuple[str, str]]) -> None: ...

    def write(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def abort(self) -> None: ...


class Exchange:
    """Runs the requests of one body. An error before the first event makes an error reply; later it ends the stream."""

    def __init__(self, services: Services, responder: Responder, body: Body, origin: Origin) -> None:
        self._manager = services.sessions
        self._now = services.loop.now
        self._responder = responder
        self._body = body
        self._origin = origin
        self._sessions = [self._manager.open(functools.partial(self._deliver, 0), origin)]
        self._unsent: list[bytes] = []
        """Events that may still give way to an error reply."""
        self._begun = self._ended = False

    def start(self, content: bytes) -> None:
        """Read the request's body and start what it asks for."""
        try:
            requests = self._body.receive(content)
            for index in range(1, len(requests)):
                sink = functools.partial(self._deliver, index)
                self._sessions.append(self._manager.open(sink, self._origin))
            # One request of its sender's, whatever the number of choices that it asks for.
            for index, (session, request) in enumerate(zip(self._sessions, requests, strict=True)):
                self._manager.request(session, request, self._now(), admitted=index > 0)
        except RequestError as error:
            self._fail(0, error)

    def release(self) -> None:
        """The reader has caught up."""
        for session in self._sessions:
            self._manager.release(session, Hold.READER)

    def abandon(self) -> None:
        """The client is gone, or has its error."""
        self._ended = True
        for session in self._sessions:
            self._manager.abandon(session)

    def _deliver(self, index: int, output: Output | RequestError) -> None:
        """The sessions' sink."""
        if self._ended:
            return
        try:
            self._take(index, output)
        except Exception:
            log.exception("request %s: closed, since a reply could not be made", self._sessions[index].request_id)
            self.abandon()
            self._responder.abort()

    def _take(self, index: int, output: Output | RequestError) -> None:
        if isinstance(output, RequestError):
            self._fail(index, output)
            return
        self._unsent += self._body.send(index, output)
        if self._body.streaming and not isinstance(output, Started | Placed | Prefilled):
            self._flush()
        if isinstance(output, Finished) and self._body.done:
            self._ended = True
            if self._body.streaming:
                self._end_stream()
            else:
                self._responder.respond(200, [JSON], self._body.result())

    def _fail(self, index: int, error: RequestError) -> None:
        self.abandon()
        if self._begun:
            self._unsent += self._body.fail(index, error)
            self._flush()
            self._end_stream()
        else:
            status, body, headers = self._body.error(error)
            self._responder.respond(status, [JSON, *headers], body)

    def _flush(self) -> None:
        if not self._unsent:
            return
        if not self._begun:
            self._begun = True
            self._responder.begin(200, EVENT_STREAM)
        self._responder.write(b"".join(b"data: %b\n\n" % event for event in self._unsent))
        self._unsent.clear()
        if self._responder.congested:
            for session in self._sessions:
                self._manager.hold(session, Hold.READER)

    def _end_stream(self) -> None:
        if self._body.end is not None:
            self._responder.write(b"data: %b\n\n" % self._body.end)
        self._responder.end()


class Inquiry:
    """Puts one question to the engine, and its answer into one reply."""

    def __init__(self, services: Services, responder: Responder, parse: Parse, origin: Origin) -> None:
        self._services = services
        self._responder = responder
        self._parse = parse
        self._origin = origin
        self._asked_at = services.loop.now()
        self._question: AskedQuestion | None = None

    def start(self, content: bytes) -> None:
        try:
            _info, questions = self._services.loaded()
            self._services.sessions.admit(self._origin, self._asked_at)
            query, render = self._parse(content, self._services)
            self._question = questions.ask(query, render, self._answered)
        except RequestError as error:
            self._reply(error)

    def release(self) -> None:
        """Nothing waits for the reader."""

    def abandon(self) -> None:
        if self._question is not None:
            self._question.forgotten = True

    def _answered(self, answer: bytes | RequestError) -> None:
        try:
            self._reply(answer)
        except Exception:
            log.exception("%s: closed, since a reply could not be made", self._origin.peer)
            self._responder.abort()

    def _reply(self, answer: bytes | RequestError) -> None:
        status, body, headers = error_body(answer) if isinstance(answer, RequestError) else (200, answer, [])
        took_ms = round((self._services.loop.now() - self._asked_at) * 1000, 1)
        origin = self._origin
        about = {"dialect": origin.dialect, "peer": origin.peer, "key": origin.key, "status": status}
        log.info("question answered", extra={"fields": {**about, "total_ms": took_ms}})
        self._responder.respond(status, [JSON, *headers], body)
