"""What a client asks of the workers: a request for the pool, out of one of HTTP's or a WebSocket's first message."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import orjson

from umaserve.errors import Fault, RequestError
from umaserve.relay.registry import Registry
from umaserve.relay.request import Client, RelayedRequest
from umaserve.wire.fields import MAX_VALUES, Fields, parse_json
from umaserve.wire.forwarding import end_to_end, joined, via
from umaserve.wire.http_head import Request
from umaserve.wire.long_texts import as_string

DEFAULT = "default"
"""The model's name by which clients ask for whichever there is."""
MAX_NAME_BYTES = 256
CLIENT_HEADER = "x-relay-client"
"""Tells a worker whose request it is, so that it keeps one client's prompts from another's."""
_WEBSOCKET_HEADERS = frozenset({"sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions"})
# Some workers make text of a body, whatever its coding.
_NOT_PASSED = _WEBSOCKET_HEADERS | {CLIENT_HEADER, "host", "expect", "accept-encoding"}
_KEY_HEADERS = frozenset(("authorization", "x-api-key", "sec-websocket-protocol"))


class Intake:
    """Raises ``RequestError`` for what no worker is to see. With ``keyed`` the clients' keys stay here."""

    def __init__(self, workers: Registry, default_model: str, *, keyed: bool) -> None:
        self._workers = workers
        self._default_model = default_model
        self._not_passed = _NOT_PASSED | _KEY_HEADERS if keyed else _NOT_PASSED
        self._ids = itertools.count(1)

    def model_for(self, name: str | None) -> str | None:
        """The model that a client means by ``name``; for "default" or none the operator's, or the only one there is,
        or else ``None``."""
        if name is not None and (name != DEFAULT or DEFAULT in self._workers.models()):
            return name
        return self._default_model or self._workers.only_model()

    def request(self, request: Request, client_name: str, client: Client) -> RelayedRequest:
        """Of an HTTP request, whose body is JSON; ``client_name`` is its key's, or empty."""
        values = Fields.of(parse_json(request.body, MAX_VALUES), "body").values
        fields = Fields(values)
        named = fields.string("model", max_bytes=MAX_NAME_BYTES)
        model = self.model_for(named) or named
        if model is None:
            expected = "the name of one, since there is none or more than one (GET /v1/models)"
            raise RequestError(Fault.BAD_REQUEST, "model", f"expected {expected}, got null")
        body = request.body.decode()
        if model != named:
            # Other servers than a daemon know no default.
            body = orjson.dumps({**values, "model": model}, default=as_string).decode()
        return RelayedRequest(
            id=self._new_id(),
            model=model,
            path=request.path,
            is_streaming=fields.boolean("stream", False),
            body=body,
            headers=self._headers(request, client_name),
            client=client,
        )

    def conversation(self, handshake: Request, client_name: str) -> Callable[[str, Client], RelayedRequest]:
        """What makes the request of a WebSocket, out of its first message."""
        headers = self._headers(handshake, client_name)

        def request(text: str, client: Client) -> RelayedRequest:
            named = handshake.query.get("model") or _model_in(text)
            return RelayedRequest(
                id=self._new_id(),
                # Where it can't be told, any.
                model=self.model_for(_shortened(named) if named else None) or "",
                path=handshake.path,
                is_streaming=True,
                body=text,
                headers=headers,
                client=client,
                is_websocket=True,
            )

        return request

    def _new_id(self) -> str:
        return f"r-{next(self._ids)}"

    def _headers(self, request: Request, client_name: str) -> dict[str, str]:
        """Those that go on to the worker: none of this connection, and the key's name instead of the key."""
        fields = end_to_end(request.headers)
        if any(len(name) > MAX_NAME_BYTES for name, _ in fields):
            # A worker would take the whole message for a breach of the protocol.
            raise RequestError(Fault.BAD_REQUEST, "header", f"expected a name of at most {MAX_NAME_BYTES} bytes")
        passed = joined(field for field in fields if field[0] not in self._not_passed)
        passed["via"] = via(request.version, passed.get("via"))
        if client_name:
            passed[CLIENT_HEADER] = client_name
        return passed


def _model_in(text: str) -> str:
    """What a conversation's first message names; empty where it names none."""
    try:
        value = parse_json(text.encode(), MAX_VALUES)
    except RequestError:
        return ""  # The worker says what is wrong with it.
    model = value.get("model") if isinstance(value, dict) else None
    return model if isinstance(model, str) else ""


def _shortened(name: str) -> str:
    return name.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
