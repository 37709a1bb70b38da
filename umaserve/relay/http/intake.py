"""Makes the pool's requests from clients' HTTP requests and first WebSocket messages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.mcp.messages import Message
from umaserve.dialects.mcp.tools import STATUS, Tool
from umaserve.dialects.parameters import PRIORITY_HEADER
from umaserve.dialects.responses.keeping import RELAY_HEADER
from umaserve.relay.http.bodies import JSON, JsonBody, read_form_body, read_json, read_message, written
from umaserve.relay.pool.accounts import Accounts, Tally
from umaserve.relay.pool.affinity_key import affinity_key_of
from umaserve.relay.pool.registry import Registry
from umaserve.relay.pool.request import Client, RelayedRequest
from umaserve.wire.fields import Fields, string
from umaserve.wire.forwarding import end_to_end, joined, via
from umaserve.wire.http_head import Request
from umaserve.wire.relay_messages import BYTES, FORMS, MCP, REALTIME, WEBSOCKET

MESSAGES, SHOW, SPEECH = "/v1/messages", "/api/show", "/v1/audio/speech"
FORM_PATHS = ("/v1/audio/transcriptions", "/audio/transcriptions", "/v1/audio/translations")
"""Whose bodies are forms with files."""
STREAMS_BY_DEFAULT = ("/api/chat", "/api/generate")
LATEST = ":latest"
"""What Ollama's clients may add to a name."""
ALIASES = "claude"
"""How names begin that Anthropic's clients ask for, whatever the models are called."""
ANTHROPIC_HEADER = "anthropic-version"
DEFAULT = "default"
"""The model name by which clients ask for the default model."""
MAX_NAME_BYTES = 256
_STEERING = ("control", "feedback")
"""Messages of a WebSocket about what runs."""
CLIENT_HEADER = "x-relay-client"
"""Tells a worker the client's name, so that it separates the cached prefixes of clients."""
_WEBSOCKET_HEADERS = frozenset({"sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions"})
# accept-encoding: some workers treat a compressed body as text.
_NOT_PASSED = _WEBSOCKET_HEADERS | {CLIENT_HEADER, RELAY_HEADER, "host", "expect", "accept-encoding"}
_KEY_HEADERS = frozenset(("authorization", "x-api-key", "sec-websocket-protocol"))


class Intake:
    """Raises ``RequestError`` for requests that can't be relayed. With ``accounts``, clients' keys are not passed on;
    ``by_prefix``: whether the turns of a conversation go to the same worker."""

    def __init__(self, workers: Registry, default_model: str, accounts: Accounts | None, *, by_prefix: bool) -> None:
        self._workers = workers
        self._accounts = accounts
        self._default_model = default_model
        self._by_prefix = by_prefix
        self._not_passed = _NOT_PASSED | _KEY_HEADERS if accounts else _NOT_PASSED
        self._ids = itertools.count(1)

    def model_for(self, name: str | None, *, aliases: bool = False) -> str | None:
        """The model that a client means by ``name``. For "default" or ``None``: the configured default, or the only
        model there is, else ``None``. "default" is a name like any other where a worker has a model of that name; so
        are, with ``aliases``, names that begin with "claude"."""
        default = self._default_model or self._workers.only_model()
        if name is None:
            return default
        models = self._workers.models()
        if name == DEFAULT and DEFAULT not in models:
            return default
        if aliases and name.startswith(ALIASES) and not self._workers.knows(name):
            return default or name
        bare = name.removesuffix(LATEST)
        return bare if bare in models and name not in models else name

    def request(self, request: Request, client_name: str, client: Client) -> RelayedRequest:
        """A request from an HTTP request with a JSON body or a form; ``client_name`` is its key's name, or empty."""
        if request.path in FORM_PATHS:
            return self._form(request, client_name, client)
        return self.of_json(request, read_json(request.body), client_name, client)

    def of_json(
        self,
        request: Request,
        body: JsonBody,
        client_name: str,
        client: Client,
        changed: Mapping[str, Any] | None = None,
        turns: Iterable[Mapping[str, Any]] | None = None,
    ) -> RelayedRequest:
        """A request from its JSON body; ``changed``: the fields that the worker gets in place of its own; ``turns``:
        those of its conversation, where they are not in its messages."""
        fields = body.fields
        named = fields.string("model", max_bytes=MAX_NAME_BYTES, empty=request.path == SHOW)
        if request.path == SHOW and not named:
            named = fields.string("name", max_bytes=MAX_NAME_BYTES)  # As older clients call it, and the one in Go.
        model = self._model(named, client_name, aliases=request.path.startswith(MESSAGES))
        if model != named:
            # Backends other than umaserve don't know the name "default".
            changed = {**(fields.values if changed is None else changed), "model": model}
        return RelayedRequest(
            id=self._new_id(),
            model=model,
            path=request.path,
            is_streaming=fields.boolean("stream", request.path in STREAMS_BY_DEFAULT),
            body=body.text if changed is None else written(changed),
            headers=self._headers(request, client_name, JSON),
            client=client,
            needs=BYTES if request.path == SPEECH else "",
            beginning=self._beginning(fields.values, (client_name, model), turns),
            tally=self._tally(client_name),
        )

    def _beginning(
        self, values: Mapping[str, Any], scope: tuple[str, str], turns: Iterable[Mapping[str, Any]] | None = None
    ) -> int | None:
        return affinity_key_of(values, scope, turns) if self._by_prefix else None

    def _form(self, request: Request, client_name: str, client: Client) -> RelayedRequest:
        form = read_form_body(request.body, request.header("content-type") or "")
        values = form.values
        named = string(values["model"], "model", max_bytes=MAX_NAME_BYTES) if "model" in values else None
        model = self._model(named, client_name)
        content_type, body = form.for_worker(model)
        return RelayedRequest(
            id=self._new_id(),
            model=model,
            path=request.path,
            is_streaming=values.get("stream", "").strip().lower() in ("true", "1"),
            body=body,
            headers=self._headers(request, client_name, content_type),
            client=client,
            needs=FORMS,
            tally=self._tally(client_name),
        )

    def call(
        self,
        request: Request,
        message: Message,
        tool: Tool,
        arguments: Mapping[str, Any],
        client_name: str,
        client: Client,
    ) -> RelayedRequest:
        """A request from a call of a tool with these arguments, in which its worker finds the model that was chosen."""
        model = ""
        if "model" in tool.arguments.field_names():
            named = Fields(arguments).string("model", max_bytes=MAX_NAME_BYTES)
            model = self._model(named, client_name, known_by=f"the tool {STATUS}")
            arguments = {**arguments, "model": model}
        params = {**message.params, "arguments": arguments}
        return RelayedRequest(
            id=self._new_id(),
            model=model,
            path=request.path,
            is_streaming=message.streams,
            body=written({"jsonrpc": "2.0", "id": message.id, "method": message.method, "params": params}),
            headers=self._headers(request, client_name, JSON),
            client=client,
            needs=MCP,
            beginning=self._beginning(arguments, (client_name, model)),
            tally=self._tally(client_name),
        )

    def _tally(self, client_name: str) -> Tally | None:
        return self._accounts.tally(client_name) if self._accounts else None

    def _model(
        self, named: str | None, client_name: str, *, aliases: bool = False, known_by: str = "GET /v1/models"
    ) -> str:
        """The model of a request that names this one; raises ``RequestError`` where it is not certain, or not the
        client's. ``known_by``: what lists the models."""
        model = self.model_for(named, aliases=aliases) or named
        if self._accounts and model is not None:
            self._accounts.check_model(client_name, model)
        if model is None:
            expected = f"a name that {known_by} lists, since there is not exactly one model"
            raise RequestError(Fault.BAD_REQUEST, "model", f"expected {expected}, got null")
        return model

    def conversation(self, handshake: Request, client_name: str) -> Callable[[str, Client], RelayedRequest]:
        """A function that makes a WebSocket's request from its first message. Messages that name no model, or the
        default one, mean that of the handshake."""
        headers = self._headers(handshake, client_name)
        asked = _shortened(handshake.query.get("model", ""))

        def request(text: str, client: Client) -> RelayedRequest:
            message = read_message(text)
            values = message.fields.values
            self._check_message(values, client_name, first=True)
            if asked and self._accounts:
                self._accounts.check_model(client_name, self.model_for(asked))
            named = values.get("model")
            if asked and named in (None, "", DEFAULT):
                named = asked
            # Empty means any model.
            model = self.model_for(_shortened(named) if named and isinstance(named, str) else None) or ""
            return RelayedRequest(
                id=self._new_id(),
                model=model,
                path=handshake.path,
                is_streaming=True,
                body=message.text,
                headers=headers,
                client=client,
                needs=WEBSOCKET,
                beginning=self._beginning(values, (client_name, model)),
                tally=self._tally(client_name),
            )

        return request

    def session(self, handshake: Request, client_name: str) -> Callable[[str, Client], RelayedRequest]:
        """A function that makes the request of a session of the Realtime API, whose worker is told which models its
        key may use, if not all: one of them writes down what is said. Raises ``RequestError``."""
        model = self._model(_shortened(handshake.query.get("model", "")) or None, client_name)
        granted = self._accounts.granted(client_name) if self._accounts else ()
        headers = self._headers(handshake, client_name)

        def request(_text: str, client: Client) -> RelayedRequest:
            return RelayedRequest(
                id=self._new_id(),
                model=model,
                path=handshake.path,
                is_streaming=True,
                body=written({"models": granted} if granted else {}),
                headers=headers,
                client=client,
                needs=REALTIME,
                tally=self._accounts.session_tally(client_name) if self._accounts else None,
            )

        return request

    def later_message(self, text: str, client_name: str) -> str:
        """A later message of a WebSocket as its worker gets it. One that asks for a model which is not the client's, or
        for more answers than its key allows, is refused."""
        message = read_message(text)
        self._check_message(message.fields.values, client_name, first=False)
        return message.text

    def _check_message(self, values: Mapping[str, Any], client_name: str, *, first: bool) -> None:
        # A worker reads the model in the message, and in one without means its own default.
        if not self._accounts:
            return
        configures = first or values.get("type") not in _STEERING
        if not (configures or values.get("action") == "regenerate"):
            return
        if configures and self._accounts.granted(client_name):
            named = values.get("model")
            self._accounts.check_model(client_name, named if isinstance(named, str) else None)
        if not first:  # That was counted with the handshake.
            self._accounts.admit(client_name)

    def _new_id(self) -> str:
        return f"r-{next(self._ids)}"

    def _headers(self, request: Request, client_name: str, content_type: str | None = None) -> dict[str, str]:
        """The headers passed on to the worker: none of this connection's, the key's name instead of the key, and the
        type of the body that the worker gets."""
        fields = end_to_end(request.headers)
        if any(len(name) > MAX_NAME_BYTES for name, _ in fields):
            # A worker would treat the whole message as a protocol error.
            raise RequestError(Fault.BAD_REQUEST, "header", f"expected a name of at most {MAX_NAME_BYTES} bytes")
        passed = joined(field for field in fields if field[0] not in self._not_passed)
        if content_type is not None:
            passed["content-type"] = content_type
        passed["via"] = via(request.version, passed.get("via"))
        if client_name:
            passed[CLIENT_HEADER] = client_name
        if self._accounts and self._accounts.in_background(client_name):
            passed[PRIORITY_HEADER] = "background"
        return passed


def _shortened(name: str) -> str:
    return name.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
