"""An HTTP request for text: its sessions, and one reply or a stream of events."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from umaserve.core.errors import ModelAwaited, RequestError
from umaserve.core.events import Finished, Output, Placed, Prefilled, Started
from umaserve.daemon.http.responder import AS_IT_COMES, JSON_TYPE, Responder
from umaserve.daemon.services import Services
from umaserve.dialects.http import Body, miss_header
from umaserve.dialects.parameters import with_headers
from umaserve.net.input_budget import InputShare
from umaserve.net.timers import Timer
from umaserve.sessions.caller import Caller
from umaserve.sessions.session import Hold, Session
from umaserve.stages.stages import Stage, stages_of

log = logging.getLogger(__name__)

PING_S = 15.0
"""After how many seconds of silence a stream gets a ping: clients give up after some minutes without a byte."""


class TextExchange:
    """Runs the requests of one body. The head of a stream is sent once all of them have a slot, or with the first event
    or ping. An error before the head makes an error reply; later it is an event that ends the stream."""

    def __init__(
        self,
        services: Services,
        responder: Responder,
        body: Body,
        caller: Caller,
        memory: InputShare,
        headers: Mapping[str, str],
    ) -> None:
        """``memory`` counts the body until its images and sounds are no longer needed. ``headers``: the request's."""
        self._models = services.models
        self._speech = services.speech
        self._recordings = services.recordings
        self._loop = services.loop
        self._responder = responder
        self._body = body
        self._caller = caller
        self._memory = memory
        self._request_headers = headers
        self._unplaced = 0
        """Sessions that have no slot yet."""
        self._sessions: list[Session] = []
        self._stages: list[Stage] = []
        """Stages of all answers."""
        self._unsent: list[bytes] = []
        """Events not yet sent."""
        self._headers: list[tuple[str, str]] = []
        """Headers of the reply besides the body's."""
        self._begun = self._ended = False
        self._ping: Timer | None = None
        self._arrived_at: float | None = None
        self._forget: Callable[[], None] | None = None
        """While it waits for a model, without which its body can't be read."""

    def start(self, content: bytes) -> None:
        """Read the request's body and start what it asks for."""
        now = self._loop.now()
        self._arrived_at = now if self._arrived_at is None else self._arrived_at
        try:
            requests = [with_headers(request, self._request_headers) for request in self._body.receive(content)]
            if not requests:
                self._models.admit(self._caller, now)
                self.abandon()
                self._respond()
                return
            self._unplaced = len(requests)
            self._memory.keep(len(content))
            # One request of its sender's, whatever the number of choices that it asks for.
            for index, request in enumerate(requests):
                session = self._models.start(
                    replace(request, spoken=None),
                    functools.partial(self._deliver, index),
                    self._caller,
                    now,
                    admitted=index > 0,
                    arrived_at=self._arrived_at,
                )
                self._sessions.append(session)
                session.sink, stages = stages_of(request, session.sink, self._speech, self._recordings)
                self._stages += stages
            self._ping_later()
        except ModelAwaited as awaited:
            self._memory.keep(len(content))
            loaded = functools.partial(self._loaded, content)
            self._forget = self._models.when_loaded(awaited.model, loaded, self._caller)
        except RequestError as error:
            self._fail(0, error)

    def _loaded(self, content: bytes, error: RequestError | None) -> None:
        self._forget = None
        if error is None:
            self.start(content)
        else:
            self._fail(0, error)

    def _ping_later(self) -> None:
        if self._body.streaming:
            self._ping = self._loop.call_later(PING_S, self._send_ping)

    def _send_ping(self) -> None:
        self._ping = None
        # A reader that is behind has something to read.
        if not self._responder.congested:
            self._begin()
            self._responder.write(self._body.ping())
        self._ping_later()

    def release(self) -> None:
        """The reader is below the low-water mark again."""
        for session in self._sessions:
            session.manager.release(session, Hold.READER)
        for stage in self._stages:
            stage.release()

    def abandon(self) -> None:
        """The client has disconnected, or has its error."""
        self._end()
        for session in self._sessions:
            session.manager.abandon(session)
        for stage in self._stages:
            stage.abandon()

    def _deliver(self, index: int, output: Output | RequestError) -> None:
        """The sessions' sink."""
        if self._ended:
            return
        try:
            self._take(index, output)
        except RequestError as error:
            self._fail(index, error)
        except Exception:
            log.exception(
                "request %s: closed: internal error while writing the reply", self._sessions[index].request.id
            )
            self.abandon()
            self._responder.abort()

    def _take(self, index: int, output: Output | RequestError) -> None:
        if isinstance(output, RequestError):
            self._fail(index, output)
            return
        if isinstance(output, Placed):
            self._unplaced -= 1
            if output.miss is not None and not self._headers:
                self._headers.append(miss_header(output.miss))
            if not self._unplaced:
                self._memory.keep(0)
                if self._body.streaming:
                    self._begin()
        self._unsent += self._body.send(index, output)
        if self._body.streaming and not isinstance(output, Started | Placed | Prefilled):
            self._flush()
        if isinstance(output, Finished) and self._body.done:
            self._end()
            if self._body.streaming:
                self._end_stream()
            else:
                self._respond()

    def _respond(self) -> None:
        whole = self._body.result()
        kind = ("Content-Type", self._body.whole_type)
        self._responder.respond(200, [kind, *self._body.headers, *self._headers], whole)

    def _fail(self, index: int, error: RequestError) -> None:
        self.abandon()
        if self._begun:
            self._unsent += self._body.fail(index, error)
            self._flush()
            self._end_stream()
        else:
            status, body, headers = self._body.error(error)
            self._responder.respond(status, [JSON_TYPE, *headers], body)

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            own = [("Content-Type", self._body.stream_type), *AS_IT_COMES]
            self._responder.begin(200, [*own, *self._body.headers, *self._headers])

    def _flush(self) -> None:
        if not self._unsent:
            return
        self._begin()
        self._responder.write(b"".join(map(self._body.frame, self._unsent)))
        self._unsent.clear()
        if self._ping is not None:
            self._ping.postpone(self._loop.now() + PING_S)
        if self._responder.congested:
            for session in self._sessions:
                session.manager.hold(session, Hold.READER)
            for stage in self._stages:
                stage.hold()

    def _end(self) -> None:
        self._ended = True
        if self._forget is not None:
            self._forget()
        if self._ping is not None:
            self._ping.cancel()
        self._memory.keep(0)

    def _end_stream(self) -> None:
        if self._body.end is not None:
            self._responder.write(self._body.frame(self._body.end))
        self._responder.end()
