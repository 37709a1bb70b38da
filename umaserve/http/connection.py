"""One HTTP client: its requests in turn through the gate to their routes, and the timeouts of each phase."""

from __future__ import annotations

import email.utils
import logging
import time
from collections.abc import Callable
from typing import Protocol

from umaserve.errors import RequestError
from umaserve.http.echo import EchoConnection
from umaserve.http.exchange import JSON, Exchange, Inquiry
from umaserve.http.gate import SUBPROTOCOL, Gate
from umaserve.http.routes import Echo, Page, Question, Route, Socket, Stream, find
from umaserve.http.websocket import WebSocketConnection
from umaserve.net.channel import READ_PER_TURN, Channel
from umaserve.net.timers import Timer
from umaserve.protocol.http11 import HttpCodec, Phase
from umaserve.protocol.http_head import Headers, Refusal, Request
from umaserve.protocol.openai_errors import error_body, http_error
from umaserve.protocol.websocket import WebSocketCodec, handshake, wants_websocket
from umaserve.services import Services
from umaserve.serving.sessions import Origin

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 16 * 1024
REQUESTS_PER_TURN = 8
MAX_LOGGED = 128


class Client(Protocol):
    """What the daemon keeps of whoever is connected, before and after an upgrade."""

    channel: Channel

    def close(self) -> None: ...


class HttpConnection:
    """Handler of one channel. A mistake of ours in handling it costs this client its connection, and nobody else."""

    def __init__(
        self,
        services: Services,
        gate: Gate,
        channel: Channel,
        peer: str,
        replaced: Callable[[Client, Client], None],
        lost: Callable[[Client], None],
    ) -> None:
        """``replaced`` is told of the handler that an upgrade puts in this one's place."""
        self.channel = channel
        self._services = services
        self._gate = gate
        self._peer = peer
        self._replaced = replaced
        self._lost = lost
        self._codec = HttpCodec(MAX_HEAD_BYTES, services.config.max_frame_bytes)
        self._exchange: Exchange | Inquiry | None = None
        self._begun = False
        """Whether a part of the present reply is written."""
        self._cors: Headers = ()
        self._served = 0
        self._path = ""
        self._judged: tuple[Route | None, Origin] | None = None
        """What was found of the present request's head."""
        self._backlog = False
        self._phase: Phase | None = None
        self._deadline: Timer | None = None
        self._watch_phase()
        channel.handler = self

    # -- from the channel ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._codec.receive_data(data)
        self._handle_requests()

    def input_ended(self) -> None:
        """Over TCP, a client that has left looks like one that only finished sending: it is taken to have left."""
        self._codec.receive_eof()
        if self._exchange is not None:
            self.channel.abort()
            return
        self._handle_requests()
        if self._exchange is None:
            self.channel.close()

    def wants_data(self) -> bool:
        return not self._backlog and (self._codec.phase is not Phase.RESPONSE or self._codec.buffered < READ_PER_TURN)

    def drained(self) -> None:
        self._services.loop.call_soon(self._on_drained)

    def _on_drained(self) -> None:
        if self._exchange is not None:
            self._exchange.release()
        self._handle_requests()

    def connection_lost(self) -> None:
        self._stop_deadline()
        if self._exchange is not None:
            self._exchange.abandon()
        self._lost(self)

    def close(self) -> None:
        """Say what is queued, and end."""
        self.channel.close()

    # -- requests ------------------------------------------------------------------------------------------------

    def _handle_requests(self) -> None:
        self._backlog = False
        try:
            for _ in range(REQUESTS_PER_TURN):
                if not self._may_go_on() or not self._handle_one():
                    break
            else:
                self._continue_later()
        except Exception:
            log.exception("%s: closed, since handling its request for %s failed", self._peer, self._path[:MAX_LOGGED])
            self.abort()
            return
        if self.channel.open and self.channel.handler is self:
            self._watch_phase()

    def _may_go_on(self) -> bool:
        return self.channel.open and self.channel.handler is self and not self.channel.overfull

    def _continue_later(self) -> None:
        if not self._backlog:
            self._backlog = True
            self._services.loop.call_soon(self._handle_requests)

    def _handle_one(self) -> bool:
        try:
            request = self._codec.next_request()
            head = request or self._codec.head
            if head is not None and self._judged is None:
                self._served += 1
                self._path = head.path
                self._judged = self._judge(head)
            self.channel.write(self._codec.take_output())
            if request is None:
                if self._codec.more:
                    self._continue_later()
                return False
            assert self._judged is not None
            self._serve(request, *self._judged)
        except Refusal as refusal:
            self._refuse(refusal.status, http_error(refusal.status, refusal.message), refusal.headers)
        except RequestError as error:
            status, body, headers = error_body(error)
            self._refuse(status, body, headers)
        return True

    def _refuse(self, status: int, body: bytes, headers: Headers) -> None:
        """The reply to a request that set nothing going."""
        fields = {"peer": self._peer, "path": self._path[:MAX_LOGGED], "status": status}
        log.info("request refused", extra={"fields": fields})
        self.respond(status, [JSON, *headers], body)

    def _judge(self, head: Request) -> tuple[Route | None, Origin]:
        """The route of a request and who asks, by its head alone: a body is taken from nobody who is refused."""
        self._gate.check_names(head, by_file=self._peer.startswith("uid:"))
        self._cors = self._gate.cors_headers(head)
        nobody = Origin("http", self._peer)
        if head.path == "*" and head.method == "OPTIONS":
            return None, nobody
        route = find(head.path, self._services.config)
        if route is None:
            raise Refusal(404, f"path: there is no {head.path[:64]} here")
        if head.method == "OPTIONS":
            return route, nobody
        allowed = route.methods
        if head.method not in allowed:
            got = f"method: expected {' or '.join(allowed)}, got {head.method}"
            raise Refusal(405, got, [("Allow", ", ".join(allowed))])
        if isinstance(route.endpoint, Question | Stream):
            _check_json(head)
        if isinstance(route.endpoint, Socket) and self._gate.presented_key(head) is None:
            return route, Origin(route.dialect, self._peer)  # A browser's page can't send it: its first message does.
        if route.public:
            return route, Origin(route.dialect, self._peer)
        return route, self._gate.origin(head, route.dialect, self._peer)

    def _serve(self, request: Request, route: Route | None, origin: Origin) -> None:
        if route is None or request.method == "OPTIONS":
            allow = [("Allow", ", ".join([*route.methods, "OPTIONS"]))] if route is not None else []
            self._cors = self._gate.preflight_headers(request)
            self.respond(204, allow, b"")
            return
        match route.endpoint:
            case Page() as page:
                status, content_type, body = page.make(self._services, request)
                self.respond(status, [("Content-Type", content_type)], body)
            case Question() as question:
                self._exchange = Inquiry(self._services, self, question.parse, origin)
                self._exchange.start(request.body)
            case Stream() as stream:
                self._exchange = Exchange(self._services, self, stream.new_body(self._services), origin)
                self._exchange.start(request.body)
            case Socket() | Echo() as endpoint:
                self._upgrade(request, endpoint, origin)

    def _upgrade(self, request: Request, endpoint: Socket | Echo, origin: Origin) -> None:
        if not wants_websocket(request):
            raise Refusal(426, "Upgrade: expected websocket", [("Upgrade", "websocket")])
        headers = handshake(request, [SUBPROTOCOL])
        response, rest = self._codec.upgrade(headers)
        self._stop_deadline()
        self.channel.write(response)
        codec = WebSocketCodec(self._services.config.max_frame_bytes, binary=isinstance(endpoint, Echo))
        handler: WebSocketConnection | EchoConnection
        if isinstance(endpoint, Echo):
            handler = EchoConnection(self._services.loop, self.channel, codec, self._lost)
        else:
            handler = WebSocketConnection(
                self._services,
                self.channel,
                codec,
                lambda authenticate: endpoint.new_dialect(self._services, authenticate),
                origin,
                self._lost,
                self._gate,
                authenticated=bool(origin.key) or not self._gate.keyed,
            )
        self._replaced(self, handler)
        if rest:
            handler.data_received(rest)

    # -- replies -------------------------------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        return self.channel.congested

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """The whole reply to the present request."""
        self._begun = True
        self.channel.write(self._codec.respond(status, [*self._common(), *headers], body))
        self._complete()

    def begin(self, status: int, headers: Headers) -> None:
        """A reply that comes in parts."""
        self._begun = True
        self.channel.write(self._codec.begin(status, [*self._common(), *headers]))

    def write(self, data: bytes) -> None:
        self.channel.write(self._codec.chunk(data))

    def end(self) -> None:
        self.channel.write(self._codec.end())
        self._complete()

    def abort(self) -> None:
        """End after a mistake of ours: with an error reply where none has begun."""
        if self._codec.phase is not Phase.RESPONSE or self._begun:
            self.channel.abort()
            return
        if self._exchange is not None:
            self._exchange.abandon()
        self.respond(500, [JSON, ("Connection", "close")], http_error(500, "request: the server failed on it"))

    def _common(self) -> Headers:
        return [("Date", email.utils.formatdate(time.time(), usegmt=True)), *self._cors]

    def _complete(self) -> None:
        self._exchange = None
        self._begun = False
        self._cors = ()
        self._path = ""
        self._judged = None
        # The next request has a deadline of its own, also where it has come already.
        self._stop_deadline()
        self._phase = None
        if not self._codec.keep_alive:
            self.channel.close()
        else:
            self._services.loop.call_soon(self._handle_requests)

    # -- timeouts ------------------------------------------------------------------------------------------------

    def _watch_phase(self) -> None:
        """One deadline for each phase, from its beginning: a byte now and then keeps nobody's connection open."""
        phase = self._codec.phase
        if phase is self._phase:
            return
        self._phase = phase
        self._stop_deadline()
        config = self._services.config
        seconds = {
            # A client that has only connected has its first request still to begin.
            Phase.IDLE: config.idle_timeout if self._served else config.header_timeout,
            Phase.HEAD: config.header_timeout,
            Phase.BODY: config.body_timeout,
        }.get(phase)
        if seconds is not None:
            self._deadline = self._services.loop.call_later(seconds, self._on_deadline)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        self._deadline = None
        if not self.channel.open:
            return
        if self._phase is Phase.IDLE:
            self.channel.close()
            return
        part = "header" if self._phase is Phase.HEAD else "body"
        log.info("%s: closed, since its request's %s did not come in time", self._peer, part)
        self.respond(408, [JSON], http_error(408, f"request: its {part} did not come in time"))


def _check_json(request: Request) -> None:
    content_type = request.header("content-type")
    # Requiring it also keeps pages from sending what a browser takes for a plain form.
    if content_type is None or content_type.partition(";")[0].strip().lower() != "application/json":
        raise Refusal(415, f"Content-Type: expected application/json, got {(content_type or 'none')[:64]}")
