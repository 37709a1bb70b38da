"""The daemon's HTTP site: passes requests through the gate to their routes."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import replace

from umaserve.access.client_secrets import ClientSecret
from umaserve.access.gate import REALTIME_SUBPROTOCOL, SUBPROTOCOL, Gate, check_form, check_json
from umaserve.core.errors import RequestError
from umaserve.daemon.http.exchanges.file_exchange import Download, keep_upload
from umaserve.daemon.http.exchanges.new_exchange import new_exchange
from umaserve.daemon.http.exchanges.text_exchange import TextExchange
from umaserve.daemon.http.later_page import LaterReply
from umaserve.daemon.http.model_stream import ModelStream
from umaserve.daemon.http.pages import own_pages
from umaserve.daemon.http.resuming import ResumableConnection
from umaserve.daemon.http.routes import DIALECTS, Found, Routes, max_body_bytes
from umaserve.daemon.http.status import Box
from umaserve.daemon.http.status_stream import StatusStream
from umaserve.daemon.http.websocket import WebSocketConnection
from umaserve.daemon.services import Services
from umaserve.dialects import sse
from umaserve.dialects.http import ErrorReply
from umaserve.dialects.routes import (
    Absent,
    Conversation,
    Dispatch,
    Document,
    Echo,
    FileContent,
    FileUpload,
    FormReply,
    Handed,
    KeptEvents,
    LaterPage,
    Page,
    Posted,
    RealtimeSessions,
    TextReply,
    Watch,
    WatchModels,
)
from umaserve.http.connection import HttpConnection, HttpLimits, Serve
from umaserve.http.echo import EchoConnection
from umaserve.sessions.caller import Caller
from umaserve.wire.http_head import TRACE_HEADER, Headers, Refusal, Request
from umaserve.wire.websocket import WebSocketCodec

_FOR_OPERATORS = (
    "request: only for operators: without API keys, clients on the daemon's own machine; with API keys, a key of the"
    " class operator (umaserve keys add --class operator)"
)


class DaemonSite:
    """Answers by the route table, on the daemon's sessions."""

    def __init__(self, services: Services, gate: Gate) -> None:
        config = services.config
        self._routes = Routes((*DIALECTS, own_pages(services)))
        self.limits = HttpLimits(
            config.max_frame_bytes,
            config.header_timeout,
            config.body_timeout,
            config.idle_timeout,
            self._routes.max_bodies(config),
        )
        self.input_budget = services.input_budget
        self._services = services
        self._gate = gate
        self._watchers = StatusStream(services.loop, Box(services))
        self._model_watchers = ModelStream(services.loop, services.models, services.downloads)

    def cors_headers(self, head: Request) -> Headers:
        return self._gate.cors_headers(head)

    def error_reply(self, path: str, headers: Collection[str], error: RequestError | Refusal) -> ErrorReply:
        return self._routes.errors(path, headers).reply(error)

    def judge(self, head: Request, peer: str) -> Serve:
        self._gate.check_names(head, by_file=peer.startswith("uid:"))
        if head.path == "*" and head.method == "OPTIONS":
            return functools.partial(self._tell_methods, None)
        found = self._routes.find(head.path, (name for name, _value in head.headers))
        instead = self._routes.instead(head.method, head.path)
        if found is not None and isinstance(found.route.endpoint, Absent):
            instead = found.route.endpoint.instead
            found = None
        if found is None:
            raise Refusal(404, f"path: there is no {head.path[:64]}: {instead or 'see /openapi.json'}")
        if head.method == "OPTIONS":
            return functools.partial(self._tell_methods, found)
        allowed = found.route.methods
        if head.method not in allowed:
            got = f"method: expected {' or '.join(allowed)}, got {head.method}"
            raise Refusal(405, f"{got}: {instead}" if instead else got, [("Allow", ", ".join(allowed))])
        found = found._replace(route=found.route.of(head.method))
        if isinstance(found.route.endpoint, FormReply | FileUpload):
            check_form(head)
        elif head.method == "POST":
            check_json(head)
        return functools.partial(self._serve, found, self._caller(head, found, peer))

    def _caller(self, head: Request, found: Found, peer: str) -> Caller:
        endpoint = found.route.endpoint
        proves_later = isinstance(endpoint, Conversation) and endpoint.key_in_message
        unproven = proves_later and self._gate.presented_key(head) is None
        if found.route.public or unproven:
            caller = Caller(found.dialect.name, peer)
        elif granted := self._by_secret(head, found, peer):
            caller = granted
        else:
            caller = self._gate.caller(head, found.dialect.name, peer)
            if found.route.operators and not caller.operator:
                raise Refusal(403, _FOR_OPERATORS)
        return replace(caller, traceparent=head.header(TRACE_HEADER) or "")

    def _by_secret(self, head: Request, found: Found, peer: str) -> Caller | None:
        """The caller of a realtime session that a client secret opens: its maker, for as long as that has its key."""
        secret = self._secret(head) if isinstance(found.route.endpoint, RealtimeSessions) else None
        return None if secret is None else self._gate.renewed(Caller(found.dialect.name, peer, secret.key))

    def _secret(self, head: Request) -> ClientSecret | None:
        presented = self._gate.presented_key(head)
        return None if presented is None else self._services.client_secrets.find(presented)

    def _tell_methods(self, found: Found | None, connection: HttpConnection, request: Request) -> None:
        allow = [("Allow", ", ".join([*found.route.methods, "OPTIONS"]))] if found is not None else []
        # 200, as llama-server says, where 204 would do: some programs look for it.
        connection.respond(200, [*allow, *self._gate.preflight_headers(request)], b"")

    def _serve(self, found: Found, caller: Caller, connection: HttpConnection, request: Request) -> None:
        match found.route.endpoint:
            case Page() as page:
                status, content_type, body = page.make(self._services.facts(caller), request)
                connection.respond(status, [("Content-Type", content_type)], body)
            case LaterPage() as page:
                connection.pending = later = LaterReply(connection, found.dialect.errors)
                page.begin(self._services.facts(caller), request, later.answer)
            case Document() as document:
                connection.respond(*document.make(request))
            case Posted() as endpoint:
                self._answer(Handed(endpoint, found.dialect.errors), caller, connection, request)
            case Dispatch() as dispatch:
                reply = dispatch.read(self._services.facts(caller), request)
                if isinstance(reply, Handed):
                    self._answer(reply, caller, connection, request)
                else:
                    connection.respond(*reply)
            case FileUpload():
                connection.pending = later = LaterReply(connection, found.dialect.errors)
                keep_upload(self._services, caller, request, later.answer)
            case FileContent():
                connection.pending = download = Download(self._services, caller, connection)
                download.start(request)
            case Conversation() as endpoint:
                self._converse(endpoint, found, caller, connection, request)
            case RealtimeSessions():
                self._talk(caller, connection, request)
            case Watch() if request.method == "HEAD":
                connection.respond(200, [("Content-Type", sse.CONTENT_TYPE)], b"")
            case WatchModels():
                self._model_watchers.add(connection, lambda: self._gate.is_still_operator(caller))
            case Watch():
                self._watchers.add(connection, lambda: self._gate.is_still_operator(caller))
            case KeptEvents() as endpoint:
                self._read_on(endpoint, caller, connection, request)
            case Echo():
                rest = connection.upgrade(request, [SUBPROTOCOL])
                config = self._services.config
                echo = EchoConnection(
                    self._services.loop,
                    connection.channel,
                    WebSocketCodec(config.max_frame_bytes, binary=True),
                    connection.peer,
                    connection.lost,
                    ping_interval=config.ping_interval,
                    idle_timeout=config.idle_timeout,
                )
                connection.hand_over(echo, rest)

    def _talk(self, caller: Caller, connection: HttpConnection, request: Request) -> None:
        # Only where it is used.
        from umaserve.daemon.http.realtime import RealtimeConnection
        from umaserve.dialects.realtime.session import RealtimeSession

        secret = self._secret(request)
        values = {} if secret is None else secret.settings
        session = RealtimeSession(self._services.facts(caller), request.query.get("model", ""), values)
        session.opened()
        rest = connection.upgrade(request, [REALTIME_SUBPROTOCOL])
        talk = RealtimeConnection(self._services, connection.channel, session, caller, connection.lost, self._gate)
        connection.hand_over(talk, rest)

    def _answer(self, handed: Handed, caller: Caller, connection: HttpConnection, request: Request) -> None:
        facts, headers = self._services.facts(caller), dict(request.headers)
        endpoint, errors = handed
        stream = self._services.streams.begin(caller, request) if isinstance(endpoint, TextReply) else None
        # What outlives its connection needs a share of its own.
        share = connection.input if stream is None else self._services.input_budget.share(None)
        exchange = new_exchange(self._services, facts, endpoint, errors, stream or connection, caller, share, headers)
        if stream is None:
            connection.pending = exchange
        elif isinstance(exchange, TextExchange):
            stream.source = exchange
            stream.add(connection)
        exchange.start(request.body)

    def _read_on(self, endpoint: KeptEvents, caller: Caller, connection: HttpConnection, request: Request) -> None:
        conversation, at = endpoint.place(request)
        stream = self._services.streams.find(caller.tenant, conversation)
        if request.method == "HEAD":
            connection.respond(200, [("Content-Type", sse.CONTENT_TYPE)], b"")
        else:
            stream.add(connection, at)

    def _converse(
        self, endpoint: Conversation, found: Found, caller: Caller, connection: HttpConnection, request: Request
    ) -> None:
        rest = connection.upgrade(request, [SUBPROTOCOL])
        config = self._services.config
        facts = replace(self._services.facts(caller), asked_model=request.query.get("model", ""))
        authenticated = bool(caller.key) or not self._gate.keyed
        new_connection = ResumableConnection if endpoint.resumable else WebSocketConnection
        conversation = new_connection(
            self._services,
            connection.channel,
            # A large message is for those who have shown a key with the handshake.
            WebSocketCodec(max_body_bytes(found.route, config) if authenticated else config.max_frame_bytes),
            lambda authenticate: endpoint.new_dialect(facts, authenticate),
            caller,
            connection.lost,
            self._gate,
            authenticated=authenticated,
        )
        connection.hand_over(conversation, rest)
