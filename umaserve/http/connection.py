"""One HTTP client: its requests in turn through the gate to their routes, and the timeouts of each phase."""

from __future__ import annotations

import email.utils
import logging
import time
from collections.abc import Callable
from typing import Protocol

from umaserve.errors import RequestError
from umaserve.http.echo import EchoConnection
from umaserve.http.exchange import JSON, Exchange
from umaserve.http.gate import SUBPROTOCOL, Gate
from umaserve.http.routes import Echo, Page, Question, Socket, Stream, find
from umaserve.http.websocket import WebSocketConnection
from umaserve.messages import Answer
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
        self._exchange: Exchange | None = None
        self._cors: Headers = ()
        self._served = 0
        self._path = ""
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
            log.exception("%s: closed, since handling its request failed", self._peer)
            self.channel.abort()
            return
        if self.channel.handler is self:
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
            self.channel.write(self._codec.take_output())
            if request is None:
                if self._codec.more:
                    self._continue_later()
                return False
            self._served += 1
            self._path = request.path
            self._route(request)
        except Refusal as refusal:
            self.respond(refusal.status, [JSON, *refusal.headers], http_error(refusal.status, refusal.message))
        return True

    def _route(self, request: Request) -> None:
        self._gate.check_names(request)
        self._cors = self._gate.cors_headers(request)
        if request.path == "*" and request.method == "OPTIONS":
            self.respond(204, [], b"")
            return
        route = find(request.path, self._services.config)
        if route is None:
            raise Refusal(404, f"path: there is no {request.path[:64]} here")
        allowed = ["GET", "HEAD"] if route.method == "GET" else [route.method]
        if request.method == "OPTIONS":
            self._cors = self._gate.preflight_headers(request)
            self.respond(204, [("Allow", ", ".join([*allowed, "OPTIONS"]))], b"")
            return
        if request.method not in allowed:
            raise Refusal(
                405, f"method: expected {' or '.join(allowed)}, got {request.method}", [("Allow", ", ".join(allowed))]
            )
        endpoint = route.endpoint
        if isinstance(endpoint, Socket | Echo):
            self._upgrade(request, endpoint, route.dialect)
            return
        origin = Origin(route.dialect, self._peer)
        if not route.public:
            origin = self._gate.origin(request, route.dialect, self._peer)
        match endpoint:
            case Page():
                status, content_type, body = endpoint.make(self._services, request)
                self.respond(status, [("Content-Type", content_type)], body)
            case Question():
                _check_json(request)
                self._ask(endpoint, request, origin)
            case Stream():
                _check_json(request)
                self._exchange = Exchange(self._services, self, endpoint.new_body(self._services), origin)
                self._exchange.start(request.body)

    def _ask(self, question: Question, request: Request, origin: Origin) -> None:
        def fail(error: RequestError) -> None:
            status, body, headers = error_body(error)
            self.respond(status, [JSON, *headers], body)

        def answered(answer: Answer | RequestError) -> None:
            try:
                if isinstance(answer, RequestError):
                    fail(answer)
                else:
                    self.respond(200, [JSON], render(answer))
            except Exception:
                log.exception("%s: closed, since a reply could not be made", self._peer)
                self.channel.abort()

        try:
            self._services.sessions.admit(origin, self._services.loop.now())
            query, render = question.parse(request.body, self._services)
        except RequestError as error:
            fail(error)
        else:
            self._services.ask(query, answered)

    def _upgrade(self, request: Request, endpoint: Socket | Echo, dialect: str) -> None:
        if not wants_websocket(request):
            raise Refusal(426, "Upgrade: expected websocket", [("Upgrade", "websocket")])
        headers = handshake(request, [SUBPROTOCOL])
        # A browser's page can't send the header: its first message brings the key then.
        waits_for_key = self._gate.keyed and self._gate.presented_key(request) is None and isinstance(endpoint, Socket)
        origin = Origin(dialect, self._peer) if waits_for_key else self._gate.origin(request, dialect, self._peer)
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
                self._gate if waits_for_key else None,
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
        if status >= 400:
            log.info(
                "request refused",
                extra={"fields": {"peer": self._peer, "path": self._path[:MAX_LOGGED], "status": status}},
            )
        self.channel.write(self._codec.respond(status, [*self._common(), *headers], body))
        self._complete()

    def begin(self, status: int, headers: Headers) -> None:
        """A reply that comes in parts."""
        self.channel.write(self._codec.begin(status, [*self._common(), *headers]))

    def write(self, data: bytes) -> None:
        self.channel.write(self._codec.chunk(data))

    def end(self) -> None:
        self.channel.write(self._codec.end())
        self._complete()

    def abort(self) -> None:
        self.channel.abort()

    def _common(self) -> Headers:
        return [("Date", email.utils.formatdate(time.time(), usegmt=True)), *self._cors]

    def _complete(self) -> None:
        self._exchange = None
        self._cors = ()
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
