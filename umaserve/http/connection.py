"""One HTTP connection: passes its requests in turn to the site that answers them, with a timeout for each phase."""

from __future__ import annotations

import email.utils
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from umaserve.core.errors import RequestError
from umaserve.dialects.http import ErrorReply
from umaserve.net.backlog import Backlog
from umaserve.net.channel import READ_PER_TURN, Channel, Handler
from umaserve.net.input_budget import InputBudget
from umaserve.net.loop import Loop
from umaserve.net.timers import Timer
from umaserve.system import logs
from umaserve.wire.http11 import HttpCodec, Phase
from umaserve.wire.http_head import Headers, Refusal, Request
from umaserve.wire.websocket_handshake import handshake, wants_websocket

log = logging.getLogger(__name__)

JSON = ("Content-Type", "application/json")
MAX_HEAD_BYTES = 16 * 1024
REQUESTS_PER_TURN = 8
MAX_LOGGED = 128


class Client(Protocol):
    """A connected client, before and after an upgrade."""

    channel: Channel

    def close(self) -> None: ...


class Upgraded(Client, Handler, Protocol):
    """The handler of a channel after its upgrade."""


class Pending(Protocol):
    """A request in progress, until its reply is complete."""

    def release(self) -> None:
        """The client has read the queued output: go on."""

    def abandon(self) -> None:
        """The client has left."""


Serve = Callable[["HttpConnection", Request], None]
"""Answers a whole request through the connection, at once or later as its ``pending``. May raise what ``Site.judge``
raises."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of each connection. Times are in seconds; ``idle_timeout`` is between two requests."""

    body_bytes: int
    header_timeout: float
    body_timeout: float
    idle_timeout: float
    bodies: Mapping[str, int] = field(default_factory=dict)
    """Limits by path, instead of ``body_bytes``."""


class Site(Protocol):
    """Answers the requests of all connections."""

    @property
    def limits(self) -> HttpLimits: ...

    @property
    def input_budget(self) -> InputBudget: ...

    def judge(self, head: Request, peer: str) -> Serve:
        """What will serve the request, decided by its head, so that a refused client's body isn't read. Raises
        ``Refusal`` or ``RequestError``."""

    def error_reply(self, path: str, headers: Collection[str], error: RequestError | Refusal) -> ErrorReply:
        """The reply for an error of a request at ``path`` with ``headers``, which are their names; both are empty if
        they aren't known."""

    def cors_headers(self, head: Request) -> Headers:
        """The headers that allow a browser's page to read the reply, also to a refused request."""


class HttpConnection:
    """Handler of one channel. A bug of ours in handling it ends this client's connection, and no other."""

    def __init__(
        self,
        loop: Loop,
        site: Site,
        channel: Channel,
        peer: str,
        replaced: Callable[[Client, Client], None],
        lost: Callable[[Client], None],
    ) -> None:
        """``replaced`` is called with this handler and the one that replaces it after an upgrade."""
        self.channel = channel
        self.peer = peer
        self.lost = lost
        self.input = site.input_budget.share(channel)
        self.pending: Pending | None = None
        self._loop = loop
        self._site = site
        self._replaced = replaced
        self._codec = HttpCodec(MAX_HEAD_BYTES, site.limits.body_bytes, site.limits.bodies)
        self._begun = False
        """Whether a part of the current reply is written."""
        self._cors: Headers = ()
        self._served = 0
        self._leaving = False
        self._path = ""
        self._headers: Collection[str] = ()
        """The names of the request's headers."""
        self._serve: Serve | None = None
        """What serves the current request."""
        self._backlog = Backlog(loop, channel, self._handle_requests, REQUESTS_PER_TURN)
        self._phase: Phase | None = None
        self._deadline: Timer | None = None
        self._watch_phase()
        channel.handler = self

    # -- from the channel ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._codec.receive_data(data)
        self._handle_requests()

    def input_ended(self) -> None:
        self._codec.receive_eof()
        self._handle_requests()

    def wants_data(self) -> bool:
        if self._backlog.waiting or not self.input.may_grow:
            return False
        return self._codec.phase is not Phase.RESPONSE or self._codec.buffered < READ_PER_TURN

    def drained(self) -> None:
        self._loop.call_soon(self._on_drained)

    def _on_drained(self) -> None:
        if self.pending is not None:
            self.pending.release()
        self._handle_requests()

    def connection_lost(self) -> None:
        self._stop_deadline()
        self.input.close()
        if self.pending is not None:
            self.pending.abandon()
        self.lost(self)

    def close(self) -> None:
        """Write what is queued, then close."""
        self.channel.close()

    def leave(self) -> None:
        """Take at most one more request: its client is told to make another connection then."""
        self._leaving = True

    @property
    def idle(self) -> bool:
        """Whether there is no request."""
        return self._codec.phase is Phase.IDLE

    @property
    def receiving(self) -> bool:
        """Whether a part of a request has come."""
        return self._codec.phase in (Phase.HEAD, Phase.BODY)

    # -- requests ------------------------------------------------------------------------------------------------

    def _handle_requests(self) -> None:
        try:
            self._backlog.run(self._handle_one)
        except Exception:
            log.exception(
                "%s: closed: internal error while handling its request for %s", self.peer, self._path[:MAX_LOGGED]
            )
            self.abort()
            return
        self.input.hold(self._codec.buffered)
        if not self.channel.open or self.channel.handler is not self:
            return
        self._watch_phase()
        if not self._codec.keep_alive:
            self.channel.close()
        elif self.channel.ended:
            # On TCP a client that has left looks like one that only finished sending, until something is sent.
            self.channel.write(self._codec.probe())

    def _may_go_on(self) -> bool:
        return self.channel.open and self.channel.handler is self and not self.channel.overfull

    def _handle_one(self) -> bool:
        """Handle the next request; returns whether another one may be handled after it."""
        if not self._may_go_on():
            return False
        try:
            request = self._codec.next_request()
            head = request or self._codec.head
            if head is not None and self._serve is None:
                self._begin_request(head)
                self._serve = self._site.judge(head, self.peer)
            self.channel.write(self._codec.take_output())
            if request is None:
                if self._codec.more:
                    self._backlog.continue_later()
                return False
            assert self._serve is not None
            self._serve(self, request)
        except Refusal as refusal:
            if self._codec.refused is not None:
                self._begin_request(self._codec.refused)
            self._refuse(refusal)
        except RequestError as error:
            self._refuse(error)
        return True

    def _begin_request(self, head: Request) -> None:
        self._served += 1
        self._path = head.path
        self._headers = frozenset(name for name, _value in head.headers)
        self._cors = self._site.cors_headers(head)

    def _refuse(self, error: RequestError | Refusal) -> None:
        """Reply to a request that is refused."""
        path = self._path[:MAX_LOGGED]
        status = self._fail(error)
        logs.requests.info("request refused", extra={"fields": {"peer": self.peer, "path": path, "status": status}})

    def _fail(self, error: RequestError | Refusal) -> int:
        """Reply with an error in the form of the path's dialect; returns its status."""
        status, body, headers = self._site.error_reply(self._path, self._headers, error)
        self.respond(status, [JSON, *headers], body)
        return status

    def upgrade(self, request: Request, subprotocols: Sequence[str]) -> bytes:
        """Answer a WebSocket handshake; returns the bytes received after it, for the handler that takes over.

        Raises ``Refusal`` for any other request, or a malformed handshake.
        """
        if not wants_websocket(request):
            raise Refusal(426, "Upgrade: expected websocket", [("Upgrade", "websocket")])
        response, rest = self._codec.upgrade(handshake(request, subprotocols))
        self._stop_deadline()
        self.channel.write(response)
        return rest

    def hand_over(self, handler: Upgraded, rest: bytes) -> None:
        """Hand the channel over to ``handler``, with the bytes ``rest``."""
        self.input.close()
        self._replaced(self, handler)
        if rest:
            handler.data_received(rest)
        if self.channel.ended and self.channel.open:
            handler.input_ended()

    # -- replies -------------------------------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        return self.channel.congested

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send the whole reply to the current request."""
        self._begun = True
        self.channel.write(self._codec.respond(status, [*self._common(), *headers], body))
        self._complete()

    def begin(self, status: int, headers: Headers) -> None:
        """Begin a reply that is sent in parts."""
        self._begun = True
        self.channel.write(self._codec.begin(status, [*self._common(), *headers]))

    def write(self, data: bytes) -> None:
        self.channel.write(self._codec.chunk(data))

    def end(self) -> None:
        self.channel.write(self._codec.end())
        self._complete()

    def abort(self) -> None:
        """Close after a bug of ours; with an error reply, unless another reply has begun."""
        if not self._codec.answering or self._begun:
            self.channel.abort()
            return
        if self.pending is not None:
            self.pending.abandon()
        self._fail(Refusal(500, "request: internal error; see the server's log", [("Connection", "close")]))

    def _common(self) -> Headers:
        last = [("Connection", "close")] if self._leaving else []
        return [("Date", email.utils.formatdate(time.time(), usegmt=True)), *self._cors, *last]

    def _complete(self) -> None:
        self.pending = None
        self._begun = False
        self._cors = ()
        self._path = ""
        self._headers = ()
        self._serve = None
        # The next request has its own deadline, even if it has arrived already.
        self._stop_deadline()
        self._phase = None
        if not self._codec.keep_alive:
            self.input.close()
            self.channel.close()
        else:
            self._loop.call_soon(self._handle_requests)

    # -- timeouts ------------------------------------------------------------------------------------------------

    def _watch_phase(self) -> None:
        """One deadline for each phase, counted from its start, so that single bytes don't keep a connection open."""
        phase = self._codec.phase
        if phase is self._phase:
            return
        self._phase = phase
        self._stop_deadline()
        limits = self._site.limits
        seconds = {
            # A new connection must begin its first request.
            Phase.IDLE: limits.idle_timeout if self._served else limits.header_timeout,
            Phase.HEAD: limits.header_timeout,
            Phase.BODY: limits.body_timeout,
        }.get(phase)
        if seconds is not None:
            self._deadline = self._loop.call_later(seconds, self._on_deadline)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        self._deadline = None
        if not self.channel.open:
            return
        if waited := self.input.take_waited():
            # While it waited for the input budget, we didn't read what the client sent.
            self._deadline = self._loop.call_later(waited, self._on_deadline)
            return
        if self._phase is Phase.IDLE:
            self.channel.close()
            return
        part = "header" if self._phase is Phase.HEAD else "body"
        log.info("%s: closed: the %s of its request did not arrive in time", self.peer, part)
        self._fail(Refusal(408, f"request: its {part} did not arrive in time"))
