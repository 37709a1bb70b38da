"""What an HTTP request set going: text from its sessions, as JSON or as server-sent events; an answer; or speech."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from umaserve.daemon.services import Services
from umaserve.dialects.openai.errors import error_body
from umaserve.dialects.openai.requests import body_fields
from umaserve.dialects.openai.speech import text_to_speech
from umaserve.errors import Fault, RequestError
from umaserve.http.connection import JSON
from umaserve.messages import (
    Answer,
    Finished,
    FinishReason,
    Generate,
    Output,
    Placed,
    Prefilled,
    Query,
    Speaking,
    Spoken,
    Started,
    Token,
    Usage,
)
from umaserve.net.input_budget import InputShare
from umaserve.serving.questions import Question as AskedQuestion
from umaserve.serving.sessions import Caller, Hold, Session
from umaserve.stages.spoken import SpokenAnswer
from umaserve.wire.pcm import UNKNOWN_SIZE, pcm16, wav, wav_header

log = logging.getLogger(__name__)

AS_IT_COMES = (
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),  # or nginx would hold tokens back
)
EVENT_STREAM = (("Content-Type", "text/event-stream"), *AS_IT_COMES)
_PROMPT = re.compile("^prompt(?=:)")
"""What the content filter calls any text."""


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

    def __init__(
        self, services: Services, responder: Responder, body: Body, caller: Caller, memory: InputShare
    ) -> None:
        """``memory`` is told of the body for as long as its images and sounds are needed."""
        self._manager = services.sessions
        self._speech = services.speech
        self._now = services.loop.now
        self._responder = responder
        self._body = body
        self._caller = caller
        self._memory = memory
        self._unplaced = 0
        """Sessions that have no place yet."""
        self._sessions = [self._manager.open(functools.partial(self._deliver, 0), caller)]
        self._spoken: list[SpokenAnswer] = []
        self._unsent: list[bytes] = []
        """Events that may still give way to an error reply."""
        self._begun = self._ended = False

    def start(self, content: bytes) -> None:
        """Read the request's body and start what it asks for."""
        try:
            requests = self._body.receive(content)
            self._unplaced = len(requests)
            self._memory.keep(len(content))
            for index in range(1, len(requests)):
                sink = functools.partial(self._deliver, index)
                self._sessions.append(self._manager.open(sink, self._caller))
            # One request of its sender's, whatever the number of choices that it asks for.
            for index, (session, request) in enumerate(zip(self._sessions, requests, strict=True)):
                self._manager.request(session, replace(request, spoken=None), self._now(), admitted=index > 0)
                if request.spoken is not None:
                    self._speak(session, request.spoken)
        except RequestError as error:
            self._fail(0, error)

    def _speak(self, session: Session, speaking: Speaking) -> None:
        spoken = self._speech.answer(session.sink, speaking)
        session.sink = spoken.take
        self._spoken.append(spoken)

    def release(self) -> None:
        """The reader has caught up."""
        for session in self._sessions:
            self._manager.release(session, Hold.READER)
        for spoken in self._spoken:
            spoken.release()

    def abandon(self) -> None:
        """The client is gone, or has its error."""
        self._end()
        for session in self._sessions:
            self._manager.abandon(session)
        for spoken in self._spoken:
            spoken.abandon()

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
        if isinstance(output, Placed):
            self._unplaced -= 1
            if not self._unplaced:
                self._memory.keep(0)
        self._unsent += self._body.send(index, output)
        if self._body.streaming and not isinstance(output, Started | Placed | Prefilled):
            self._flush()
        if isinstance(output, Finished) and self._body.done:
            self._end()
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
            for spoken in self._spoken:
                spoken.hold()

    def _end(self) -> None:
        self._ended = True
        self._memory.keep(0)

    def _end_stream(self) -> None:
        if self._body.end is not None:
            self._responder.write(b"data: %b\n\n" % self._body.end)
        self._responder.end()


class Inquiry:
    """Puts one question to the engine, and its answer into one reply."""

    def __init__(self, services: Services, responder: Responder, parse: Parse, caller: Caller) -> None:
        self._services = services
        self._responder = responder
        self._parse = parse
        self._caller = caller
        self._asked_at = services.loop.now()
        self._question: AskedQuestion | None = None

    def start(self, content: bytes) -> None:
        try:
            _info, questions = self._services.loaded()
            self._services.sessions.admit(self._caller, self._asked_at)
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
            log.exception("%s: closed, since a reply could not be made", self._caller.peer)
            self._responder.abort()

    def _reply(self, answer: bytes | RequestError) -> None:
        status, body, headers = error_body(answer) if isinstance(answer, RequestError) else (200, answer, [])
        took_ms = round((self._services.loop.now() - self._asked_at) * 1000, 1)
        caller = self._caller
        about = {"dialect": caller.dialect, "peer": caller.peer, "key": caller.key, "status": status}
        log.info("question answered", extra={"fields": {**about, "total_ms": took_ms}})
        self._responder.respond(status, [JSON, *headers], body)


class Reading:
    """Reads one text aloud into one reply. An error before the first sound makes an error reply; later it cuts the
    connection."""

    def __init__(self, services: Services, responder: Responder, caller: Caller) -> None:
        self._services = services
        self._responder = responder
        self._caller = caller
        self._asked_at = services.loop.now()
        self._as_wav = False
        self._spoken: SpokenAnswer | None = None
        self._begun = False

    def start(self, content: bytes) -> None:
        speech, content_filter = self._services.speech, self._services.content_filter
        try:
            self._services.loaded()
            asked = text_to_speech(body_fields(content), speech.voice)
            speech.check_room(self._services.config.max_queue)
            self._services.sessions.admit(self._caller, self._asked_at)
        except RequestError as error:
            self._refuse(error)
            return
        self._as_wav = asked.as_wav
        self._spoken = speech.answer(self._deliver, Speaking())
        if content_filter is None:
            self._read(self._spoken, asked.text)
        else:
            # Away from the loop, since patterns may take their time.
            check = functools.partial(content_filter.check_prompt, asked.text)
            speech.submit(check, functools.partial(self._checked, asked.text))

    def _checked(self, text: str, error: BaseException | None) -> None:
        """What the operator's filter says of the text."""
        if self._spoken is None:  # The client has gone, or the daemon's time to drain is over.
            return
        if error is None:
            self._read(self._spoken, text)
        elif isinstance(error, RequestError):
            error.message = _PROMPT.sub("input", error.message)
            self._spoken.take(error)
        else:
            log.error("%s: the content filter failed", self._caller.peer, exc_info=error)
            self._spoken.take(RequestError(Fault.DECODE_FAILED, "input: the server failed on it"))

    def _read(self, spoken: SpokenAnswer, text: str) -> None:
        # The voice hears it as an answer that a model gave in one piece.
        spoken.take(Token(text, 0))
        spoken.take(Finished(FinishReason.STOP, Usage(0, 0)))

    def release(self) -> None:
        """The reader has caught up."""
        if self._spoken is not None:
            self._spoken.release()

    def abandon(self) -> None:
        """The client is gone."""
        if self._spoken is not None:
            self._spoken.abandon()
            self._ended("abandoned")

    def _deliver(self, output: Output | RequestError) -> None:
        """The speech's sink."""
        try:
            self._take(output)
        except Exception:
            log.exception("%s: closed, since its speech could not be sent", self._caller.peer)
            self.abandon()
            self._responder.abort()

    def _take(self, output: Output | RequestError) -> None:
        match output:
            case Spoken():
                self._write(pcm16(output.pcm))
            case Finished():
                self._ended("done")
                if self._begun:
                    self._responder.end()
                else:  # There was nothing to say.
                    self._responder.respond(200, [self._content_type], wav(b"") if self._as_wav else b"")
            case RequestError():
                self._refuse(output)

    def _write(self, sound: bytes) -> None:
        if not self._begun:
            self._begun = True
            self._responder.begin(200, [self._content_type, *AS_IT_COMES])
            if self._as_wav:
                self._responder.write(wav_header(UNKNOWN_SIZE))
        self._responder.write(sound)
        if self._responder.congested and self._spoken is not None:
            self._spoken.hold()

    @property
    def _content_type(self) -> tuple[str, str]:
        return "Content-Type", "audio/wav" if self._as_wav else "audio/pcm"

    def _refuse(self, error: RequestError) -> None:
        self._ended(error.fault.name.lower())
        if self._begun:
            self._responder.abort()
        else:
            status, body, headers = error_body(error)
            self._responder.respond(status, [JSON, *headers], body)

    def _ended(self, end: str) -> None:
        self._spoken = None
        took_ms = round((self._services.loop.now() - self._asked_at) * 1000, 1)
        caller = self._caller
        about = {"dialect": caller.dialect, "peer": caller.peer, "key": caller.key, "end": end}
        log.info("text read aloud", extra={"fields": {**about, "total_ms": took_ms}})
