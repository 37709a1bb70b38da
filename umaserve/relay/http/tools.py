"""The relay as a server of the Model Context Protocol: it tells of itself, and workers answer calls of its tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from umaserve import __version__
from umaserve.core.errors import Fault, RequestError
from umaserve.dialects import sse
from umaserve.dialects.mcp.messages import Message
from umaserve.dialects.mcp.methods import answer_message
from umaserve.dialects.mcp.results import failed, found
from umaserve.dialects.mcp.tools import STATUS, Tool
from umaserve.http.connection import JSON, HttpConnection
from umaserve.relay.http.exchange import RelayExchange
from umaserve.relay.http.intake import Intake
from umaserve.relay.pool.accounts import Accounts
from umaserve.relay.pool.pool import Pool
from umaserve.relay.pool.request import Client, RelayedRequest
from umaserve.wire.http_head import Request


class Tools:
    """The tools of all workers."""

    def __init__(self, pool: Pool, intake: Intake, accounts: Accounts | None) -> None:
        self._pool = pool
        self._intake = intake
        self._accounts = accounts

    def serve(self, connection: HttpConnection, request: Request, client_name: str) -> None:
        """Answer a message of the client whose key has this name, if it has one."""
        exchange = RelayExchange(connection, self._pool)

        def call(message: Message, tool: Tool, arguments: dict[str, Any]) -> bytes | RelayedRequest:
            try:
                tool.check_names(arguments)
                if tool.name == STATUS:
                    return self._status(message, client_name)
                if self._accounts is not None:
                    self._accounts.admit(client_name)
                reply = CallReply(exchange, message)
                return self._intake.call(request, message, tool, arguments, client_name, reply)
            except RequestError as error:
                return failed(message, error)

        # Which tools a worker's models can serve, a relay doesn't know.
        answer = answer_message(request, lambda _tool: True, call)
        if isinstance(answer, RelayedRequest):
            connection.pending = exchange
            exchange.start(answer)
        else:
            connection.respond(*answer)

    def _status(self, message: Message, client_name: str) -> bytes:
        workers = self._pool.workers
        models = workers.models()
        if self._accounts is not None:
            models = self._accounts.visible(client_name, models)
        default = self._intake.model_for(None)
        told = {
            "version": __version__,
            "models": [
                {"name": name, "default": name == default}
                | ({"context_tokens": tokens} if (tokens := workers.context(name)) else {})
                for name in models
            ],
            "workers": len(workers),
            "answers_in_progress": len(self._pool.in_flight),
        }
        return found(message, orjson.dumps(told))


class CallReply:
    """Implements ``relay.pool.request.Client``: passes all on to another client, but a failure as the call's result."""

    def __init__(self, client: Client, message: Message) -> None:
        self._client = client
        # Without the arguments, so as not to keep a recording in memory.
        self._message = replace(message, params={})
        self._begun = False

    def respond(self, status: int, headers: Mapping[str, str], body: str | bytes) -> None:
        self._client.respond(status, headers, body)

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self._begun = True
        self._client.begin(status, headers)

    def write(self, chunk: str | bytes) -> None:
        self._client.write(chunk)

    def end(self) -> None:
        self._client.end()

    def fail(self, _status: int, error: str) -> None:
        result = failed(self._message, RequestError.of_text(Fault.DECODE_FAILED, error))
        if self._begun:
            self._client.write(sse.event(result))
            self._client.end()
        else:
            self._client.respond(200, dict([JSON]), result)
