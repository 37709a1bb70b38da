"""An exchange over HTTP: outputs become one reply, or a stream of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from umaserve.core.errors import RequestError
from umaserve.core.events import Finished, Output, Placed, Prefilled, Started
from umaserve.daemon.exchange import Exchange
from umaserve.daemon.services import Services
from umaserve.dialects.http import AS_IT_COMES, HttpReply, miss_header
from umaserve.net.input_budget import InputShare
from umaserve.net.timers import Timer
from umaserve.sessions.caller import Caller

PING_S = 15.0
"""After how many seconds of silence a stream gets a ping: clients give up after some minutes without a byte."""


_QUIET = (Started, Placed, Prefilled)
"""Outputs whose events are sent with those of the next one."""

JSON_TYPE = ("Content-Type", "application/json")


class Responder(Protocol):
    """Takes the reply to one HTTP request, whole or in parts: an HTTP connection, or a relay."""

    @property
    def congested(self) -> bool: ...

    def respond(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None: ...

    def begin(self, status: int, headers: Sequence[tuple[str, str]]) -> None: ...

    def write(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def abort(self) -> None: ...


class HttpExchange(Exchange):
    """Replies as ``reply`` renders it. The head of a stream is sent once all sessions have a slot, or with the first
    event or ping. An error before the head makes an error reply; later it is an event that ends the stream."""

    def __init__(
        self, services: Services, responder: Responder, reply: HttpReply, caller: Caller, share: InputShare
    ) -> None:
        super().__init__(services, caller, share, self._abort)
        self._loop = services.loop
        self._responder = responder
        self._reply = reply
        self._unsent: list[bytes] = []
        """Events not yet sent."""
        self._headers: list[tuple[str, str]] = []
        """Headers of the reply besides its own."""
        self._begun = False
        self._ping: Timer | None = None
        """Sends a ping after a silence; ``None``: nothing does."""

    def _take(self, index: int, output: Output | RequestError) -> None:
        """Take an output of request number ``index``."""
        if isinstance(output, RequestError):
            self._fail(index, output)
            return
        if isinstance(output, Placed):
            if output.miss is not None and not self._headers:
                self._headers.append(miss_header(output.miss))
            if not self._unplaced and self._reply.streaming:
                self._begin()
        try:
            self._unsent += self._reply.send(index, output)
        except RequestError as error:
            self._fail(index, error)
            return
        if self._reply.streaming and not isinstance(output, _QUIET):
            self._flush()
        if isinstance(output, Finished):
            self._end_request()

    def _end_request(self) -> None:
        """Note that one of the requests has ended."""
        if self._reply.done:
            self._finish()

    def _finish(self) -> None:
        """End the reply, which is complete."""
        self.end()
        if self._reply.streaming:
            self._end_stream()
        else:
            self._respond()

    def _respond(self) -> None:
        whole = self._reply.result()
        kind = ("Content-Type", self._reply.whole_type)
        self._responder.respond(200, [kind, *self._reply.headers, *self._headers], whole)

    def _fail(self, index: int, error: RequestError) -> None:
        self.abandon()
        if not self._begun:
            status, body, headers = self._reply.error(error)
            self._responder.respond(status, [JSON_TYPE, *headers], body)
        elif (events := self._reply.fail(index, error)) is None:
            self._responder.abort()
        else:
            self._unsent += events
            self._flush()
            self._end_stream()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            own = [("Content-Type", self._reply.stream_type), *AS_IT_COMES]
            self._responder.begin(200, [*own, *self._reply.headers, *self._headers])

    def _flush(self) -> None:
        if not self._unsent:
            return
        self._begin()
        self._responder.write(b"".join(map(self._reply.frame, self._unsent)))
        self._unsent.clear()
        if self._ping is not None:
            self._ping.postpone(self._loop.now() + PING_S)
        if self._responder.congested:
            self.hold()

    def _end_stream(self) -> None:
        self._begin()
        if self._reply.end is not None:
            self._responder.write(self._reply.frame(self._reply.end))
        self._responder.end()

    def end(self) -> None:
        super().end()
        if self._ping is not None:
            self._ping.cancel()

    def _abort(self) -> None:
        """Cut the reply off, after a bug of ours."""
        self._responder.abort()
