"""The daemon as a worker's backend: relayed requests go straight to its routes and sessions, without HTTP."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from umaserve.core.errors import RequestError
from umaserve.core.requests import Priority
from umaserve.daemon.connection import Connection
from umaserve.daemon.exchange import Exchange
from umaserve.daemon.http.exchanges.new_exchange import new_exchange
from umaserve.daemon.http.routes import DIALECTS, Routes, max_body_bytes
from umaserve.daemon.services import Services
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import ErrorShape
from umaserve.dialects.parameters import PRIORITY_HEADER
from umaserve.dialects.responses.keeping import relay_fields
from umaserve.dialects.routes import (
    Conversation,
    Dispatch,
    Handed,
    OperatorsPage,
    Page,
    Posted,
    RealtimeSessions,
)
from umaserve.net.channel import Channel, Handler
from umaserve.net.loop import Loop
from umaserve.sessions.caller import Caller
from umaserve.wire.fields import Fields, parse_json
from umaserve.wire.http_head import TRACE_HEADER, Headers
from umaserve.wire.http_head import Request as HttpRequest
from umaserve.wire.relay_codec import MAX_MODELS, MAX_NAME_BYTES
from umaserve.wire.relay_messages import FEATURES, Request
from umaserve.worker.backend import Job, Reply, is_text

log = logging.getLogger(__name__)

CLIENT_HEADER = "x-relay-client"
"""The relay's client, the tenant whose cached prefixes the request may reuse."""
_JSON = {"content-type": "application/json"}


class DaemonBackend:
    """Implements ``worker.backend.Backend`` on the daemon's services."""

    features = FEATURES

    def __init__(self, services: Services) -> None:
        self._services = services
        self._routes = Routes(DIALECTS)

    @property
    def models(self) -> Sequence[str]:
        models = self._services.models
        return () if models.default.info is None else [model.name for model in models.listed()]

    @property
    def contexts(self) -> Mapping[str, int]:
        return {one.name: one.context_tokens for one in self._services.models.listed() if one.context_tokens}

    @property
    def load(self) -> int:
        return sum(1 for _ in self._services.models.running())

    def refresh(self, done: Callable[[], None]) -> None:
        done()

    def start(self, request: Request, reply: Reply) -> Job | None:
        path = request.endpoint_path
        errors = self._routes.errors(path)
        found = self._routes.find(path)
        if found is None:
            reply.complete(
                404, _JSON, errors.of_http(404, f"path: there is no {path[:64]}: see /openapi.json").decode()
            )
            return None
        headers = {name.lower(): value for name, value in (request.headers or {}).items()}
        client = headers.get(CLIENT_HEADER, "")
        trace = headers.get(TRACE_HEADER, "")
        background = headers.get(PRIORITY_HEADER) == "background"
        priority = Priority.BACKGROUND if background else Priority.INTERACTIVE
        caller = Caller(found.dialect.name, f"relay:{client}", priority=priority, several=not client, traceparent=trace)
        max_bytes = max_body_bytes(found.route, self._services.config)
        too_large = errors.of_http(413, f"body: expected at most {max_bytes} bytes, got more").decode()
        content = request.body.encode() if isinstance(request.body, str) else request.body
        if len(content) > max_bytes:
            reply.complete(413, _JSON, too_large)
            return None
        # Nobody can come back: a relay gives each connection and each request a worker anew.
        facts = replace(self._services.facts(), resumable=False, kept_by_relay=relay_fields(headers))
        match found.route.endpoint:
            case Posted() as endpoint:
                return self._post(Handed(endpoint, errors), facts, reply, caller, headers, content)
            case Dispatch() as dispatch:
                try:
                    asked = dispatch.read(facts, HttpRequest("POST", path, {}, tuple(headers.items()), content))
                except RequestError as error:
                    reply.complete(*_refused(errors, error))
                    return None
                if isinstance(asked, Handed):
                    return self._post(asked, facts, reply, caller, headers, content)
                reply.complete(asked[0], _mapping(asked[1]), asked[2].decode())
                return None
            case Conversation() as endpoint:
                wire = _Wire(self._services.loop, reply)
                dialect = endpoint.new_dialect(replace(facts, asked_model=request.model), None)
                # As far as a connection uses its channel, the wire is one.
                Connection(self._services, cast(Channel, wire), _Frames(), dialect, caller, _forget)
                conversation = _Conversation(wire, max_bytes, too_large)
                conversation.receive(content)
                return conversation
            case RealtimeSessions():
                return self._talk(request.model, caller, errors, reply, content)
            case Page() as page if found.route.method == "POST" and not isinstance(page, OperatorsPage):
                reply.complete(*_answered(page, errors, facts, path, content))
                return None
        reply.complete(404, _JSON, errors.of_http(404, f"path: {path[:64]} is not served through a relay").decode())
        return None

    def _talk(self, model: str, caller: Caller, errors: ErrorShape, reply: Reply, content: bytes) -> Job | None:
        # Only where it is used.
        from umaserve.daemon.relays.relay_realtime import RelayedSession
        from umaserve.dialects.realtime.session import RealtimeSession

        try:
            # The relay checks the session's model; another one may write down what is said.
            models = Fields.of(parse_json(content), "body").strings(
                "models", max_items=MAX_MODELS, max_bytes=MAX_NAME_BYTES
            )
            caller = replace(caller, models=models)
            session = RealtimeSession(self._services.facts(caller), model, {})
            session.opened()
        except RequestError as error:
            reply.complete(*_refused(errors, error))
            return None
        return RelayedSession(self._services, session, caller, reply)

    def _post(
        self,
        handed: Handed,
        facts: Facts,
        reply: Reply,
        caller: Caller,
        headers: Mapping[str, str],
        content: bytes,
    ) -> Job | None:
        responder = _Responder(reply)
        share = self._services.input_budget.share(None)
        exchange = new_exchange(
            self._services, facts, handed.endpoint, handed.errors, responder, caller, share, headers
        )
        exchange.start(content)
        return None if responder.ended else _Posted(responder, exchange)


class _Responder:
    """Implements ``daemon.http.exchange.Responder`` on a reply."""

    def __init__(self, reply: Reply) -> None:
        self.congested = False
        self.ended = False
        self._reply = reply
        self._head: tuple[int, Mapping[str, str]] = 200, {}
        self._text = True

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        head = _mapping(headers)
        self._end(status, head, body.decode() if is_text(head) else body)

    def begin(self, status: int, headers: Headers) -> None:
        self._head = status, _mapping(headers)
        self._text = is_text(self._head[1])

    def write(self, data: bytes) -> None:
        # Text comes in whole events, so that no character is split.
        self._reply.chunk(data.decode() if self._text else data, *self._head)

    def end(self) -> None:
        self._end(200, {}, "")

    def abort(self) -> None:
        """End the reply with an error, after a bug of ours."""
        self._end(500, _JSON, "")

    def _end(self, status: int, headers: Mapping[str, str], body: str | bytes) -> None:
        self.ended = True
        self._reply.complete(status, headers, body)


class _Posted:
    """The job of one HTTP request."""

    def __init__(self, responder: _Responder, exchange: Exchange) -> None:
        self._responder = responder
        self._exchange = exchange

    def abort(self) -> None:
        self._exchange.abandon()

    def pause(self, paused: bool) -> None:
        self._responder.congested = paused
        if not paused:
            self._exchange.release()

    def frame(self, text: str) -> None:
        log.info("dropped a relay's message: its request is not a WebSocket conversation")

    def leave(self) -> None:
        """Do nothing: it ends with its answer."""


class _Conversation:
    """The job of one WebSocket."""

    def __init__(self, wire: _Wire, max_bytes: int, too_large: str) -> None:
        self._wire = wire
        self._max_bytes = max_bytes
        self._too_large = too_large

    def abort(self) -> None:
        self._wire.lose()

    def pause(self, paused: bool) -> None:
        self._wire.congested = paused
        if not paused and self._wire.open:
            self._wire.handler.drained()

    def frame(self, text: str) -> None:
        self.receive(text.encode())

    def leave(self) -> None:
        if self._wire.open:
            self._wire.ended = True
            self._wire.handler.input_ended()

    def receive(self, data: bytes) -> None:
        """Take a message from the client."""
        if len(data) > self._max_bytes:
            self._wire.refuse(413, self._too_large)
        elif self._wire.open:
            self._wire.handler.data_received(data)


class _Wire:
    """The channel of a connection whose frames are relayed: each write is one frame."""

    overfull = False
    ended = False
    peer_gone = False

    def __init__(self, loop: Loop, reply: Reply) -> None:
        self.handler: Handler
        self.open = True
        self.congested = False
        self._loop = loop
        self._reply = reply

    def write(self, data: bytes) -> None:
        if self.open:
            self._reply.chunk(data.decode(), 200, {})

    def reconsider(self) -> None:
        """Do nothing: relayed input is handled at once."""

    def close(self) -> None:
        self._end(200)

    def abort(self) -> None:
        """End the reply with an error, after a bug of ours."""
        self._end(500)

    def refuse(self, status: int, error: str) -> None:
        """End it with an error for its client."""
        self._end(status, error)

    def lose(self) -> None:
        """The client has disconnected."""
        if self.open:
            self.open = False
            self._loop.call_soon(self.handler.connection_lost)

    def _end(self, status: int, error: str = "") -> None:
        if self.open:
            self.lose()
            self._reply.complete(status, _JSON if error else {}, error)


class _Frames:
    """Implements ``connection.Codec`` where a frame is a payload already."""

    def __init__(self) -> None:
        self._received: deque[bytes] = deque()

    @property
    def buffered(self) -> int:
        return sum(map(len, self._received))

    def receive_data(self, data: bytes) -> None:
        self._received.append(data)

    def receive_eof(self) -> None:
        """A relayed conversation ends by being lost."""

    def next_payload(self) -> bytes | None:
        return self._received.popleft() if self._received else None

    def send(self, payload: bytes) -> bytes:
        return payload


def _answered(
    page: Page, errors: ErrorShape, facts: Facts, path: str, content: bytes
) -> tuple[int, Mapping[str, str], str]:
    """Status, headers and body of a page that answers a body."""
    try:
        status, content_type, body = page.make(facts, HttpRequest("POST", path, {}, (), content))
    except RequestError as error:
        return _refused(errors, error)
    return status, {"content-type": content_type}, body.decode()


def _refused(errors: ErrorShape, error: RequestError) -> tuple[int, Mapping[str, str], str]:
    """Status, headers and body of the reply to a request that is refused."""
    refused = errors.reply(error)
    return refused.status, {**_JSON, **_mapping(refused.headers)}, refused.body.decode()


def _mapping(headers: Headers) -> Mapping[str, str]:
    return {name.lower(): value for name, value in headers}


def _forget(_connection: Connection) -> None:
    """Relayed connections are not counted as clients."""
