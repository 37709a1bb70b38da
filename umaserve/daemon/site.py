"""The daemon's site: requests through the gate to their routes."""

from __future__ import annotations

import functools

from umaserve.access.gate import SUBPROTOCOL, Gate, check_json
from umaserve.daemon.exchange import Exchange, Inquiry, Reading
from umaserve.daemon.routes import ROUTES, Echo, Page, Question, Route, Socket, Sound, Stream, find, max_body_bytes
from umaserve.daemon.services import Services
from umaserve.http.connection import HttpConnection, HttpLimits, Serve
from umaserve.http.echo import EchoConnection
from umaserve.serving.sessions import Caller
from umaserve.wire.http_head import Headers, Refusal, Request
from umaserve.wire.websocket import WebSocketCodec


class DaemonSite:
    """Answers by the route table, on the daemon's sessions."""

    def __init__(self, services: Services, gate: Gate) -> None:
        config = services.config
        self.limits = HttpLimits(
            config.max_frame_bytes,
            config.header_timeout,
            config.body_timeout,
            config.idle_timeout,
            {path: max_body_bytes(route, config) for path, route in ROUTES.items() if route.method == "POST"},
        )
        self.input_budget = services.input_budget
        self._services = services
        self._gate = gate

    def cors_headers(self, head: Request) -> Headers:
        return self._gate.cors_headers(head)

    def judge(self, head: Request, peer: str) -> Serve:
        self._gate.check_names(head, by_file=peer.startswith("uid:"))
        if head.path == "*" and head.method == "OPTIONS":
            return functools.partial(self._tell_methods, None)
        route = find(head.path, self._services.config)
        if route is None:
            raise Refusal(404, f"path: there is no {head.path[:64]} here")
        if head.method == "OPTIONS":
            return functools.partial(self._tell_methods, route)
        allowed = route.methods
        if head.method not in allowed:
            got = f"method: expected {' or '.join(allowed)}, got {head.method}"
            raise Refusal(405, got, [("Allow", ", ".join(allowed))])
        if isinstance(route.endpoint, Question | Stream | Sound):
            check_json(head)
        return functools.partial(self._serve, route, self._caller(head, route, peer))

    def _caller(self, head: Request, route: Route, peer: str) -> Caller:
        unproven = isinstance(route.endpoint, Socket) and self._gate.presented_key(head) is None
        if route.public or unproven:  # A browser's page can't send it with a handshake: its first message does.
            return Caller(route.dialect, peer)
        return self._gate.caller(head, route.dialect, peer)

    def _tell_methods(self, route: Route | None, connection: HttpConnection, request: Request) -> None:
        allow = [("Allow", ", ".join([*route.methods, "OPTIONS"]))] if route is not None else []
        connection.respond(204, [*allow, *self._gate.preflight_headers(request)], b"")

    def _serve(self, route: Route, caller: Caller, connection: HttpConnection, request: Request) -> None:
        match route.endpoint:
            case Page() as page:
                status, content_type, body = page.make(self._services, request)
                connection.respond(status, [("Content-Type", content_type)], body)
            case Question() as question:
                connection.pending = inquiry = Inquiry(self._services, connection, question.parse, caller)
                inquiry.start(request.body)
            case Stream() as stream:
                new_body = stream.new_body(self._services)
                connection.pending = exchange = Exchange(self._services, connection, new_body, caller, connection.input)
                exchange.start(request.body)
            case Sound():
                connection.pending = reading = Reading(self._services, connection, caller)
                reading.start(request.body)
            case Socket() | Echo() as endpoint:
                self._upgrade(endpoint, caller, connection, request)

    def _upgrade(self, endpoint: Socket | Echo, caller: Caller, connection: HttpConnection, request: Request) -> None:
        rest = connection.upgrade(request, [SUBPROTOCOL])
        config = self._services.config
        if isinstance(endpoint, Echo):
            codec = WebSocketCodec(config.max_frame_bytes, binary=True)
            echo = EchoConnection(self._services.loop, connection.channel, codec, connection.lost)
            connection.hand_over(echo, rest)
            return
        authenticated = bool(caller.key) or not self._gate.keyed
        conversation = endpoint.connection(
            self._services,
            connection.channel,
            # A large message is for those who have shown a key with the handshake.
            WebSocketCodec(endpoint.max_bytes(config) if authenticated else config.max_frame_bytes),
            lambda authenticate: endpoint.new_dialect(self._services, authenticate),
            caller,
            connection.lost,
            self._gate,
            authenticated=authenticated,
        )
        connection.hand_over(conversation, rest)
