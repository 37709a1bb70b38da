"""OpenAI's WebSocket mode of the Responses API: one response after another on a connection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, Output
from umaserve.core.requests import Generate
from umaserve.core.server_tools import ServerTool
from umaserve.dialects.dialect import Reply
from umaserve.dialects.facts import Facts
from umaserve.dialects.openai.errors import error_body
from umaserve.dialects.parameters import with_model
from umaserve.dialects.responses.body import ResponseBody
from umaserve.dialects.responses.kept import KeptEntries, StoredResponse, TenantsEntries
from umaserve.dialects.responses.output import Event
from umaserve.dialects.responses.websocket_schemas import ResponseCreate, WarmUp
from umaserve.wire.fields import MAX_VALUES, Fields, bad_request, parse_json

UNSTORED_BYTES = 2 << 20
"""Memory of a connection for responses that aren't stored, with all items before them: mostly the latest one."""
KEEPALIVE_S = 15.0
"""After how many seconds of silence, while a prompt is computed, an event says that the response is in progress."""

Unstored = TenantsEntries[StoredResponse]


class ResponsesDialect:
    """A WebSocket's responses. An error ends at most the response.

    A response that is not stored may be followed all the same, as long as the connection lasts and keeps it. Where what
    follows fails, it is forgotten, as by OpenAI's service.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        kept = KeptEntries[StoredResponse]("response", facts.clock, 4 * UNSTORED_BYTES, math.inf)
        self._unstored = kept.of("")
        self._response: _Response | None = None

    @property
    def ready(self) -> bool:
        """Whether the next response may be asked for."""
        return self._response is None

    def receive(self, payload: bytes) -> Generate:
        """The request in ``payload``; raises ``RequestError``."""
        self._response = _Response(self._facts, self._unstored)
        return self._response.read(payload)

    def send(self, output: Output) -> Reply | None:
        """The events for ``output``; all but the last are in ``Reply.before``."""
        response = self._response
        if response is None:
            raise RuntimeError("output without a request")
        if isinstance(output, Finished):
            self._response = None
        return _reply(response.take(output))

    def refuse(self, error: RequestError) -> Reply:
        return self.fail(error)

    def fail(self, error: RequestError) -> Reply:
        """The event that ends the response, or else that tells of the error."""
        response, self._response = self._response, None
        reply = None if response is None else _reply(response.ended(error))
        return reply or Reply(_error(error, {}))


class _Response(ResponseBody):
    """One response, whose events are messages."""

    streaming = True

    def __init__(self, facts: Facts, unstored: Unstored) -> None:
        super().__init__(replace(facts, server_tools=facts.server_tools and _no_server_tools))
        self._unstored = unstored
        self._previous = ""
        self._lane: dict[str, str] = {}
        """The client's name for the stream, if it has one: each event repeats it."""
        self._generates = True
        self._sent_at = facts.clock()

    def read(self, payload: bytes) -> Generate:
        """The request in a message of the client's; raises ``RequestError``."""
        values = parse_json(payload, MAX_VALUES)
        if not isinstance(values, dict):
            raise bad_request("payload", "an object", values)
        given = ResponseCreate.view(with_model(Fields(values), self._facts.asked_model))
        given.required_one_of("type", ("response.create",))
        if given.stream_id is not None:
            self._lane = {"stream_id": given.stream_id}
        self._previous = given.previous_response_id or ""
        self._generates = given.generate
        if given.background:
            raise RequestError(Fault.BAD_REQUEST, "background", "expected false on a WebSocket, got true")
        if self._generates:
            return replace(self.begin(given, len(payload), self._unstored), wants_progress=True)
        request = self.begin(WarmUp(given.values), len(payload), self._unstored)
        if not request.prompt:
            problem = "expected instructions or an item where generate is false, got neither"
            raise RequestError(Fault.BAD_REQUEST, "input", problem)
        # One token, which nobody sees: without any, the prompt would not be computed.
        return replace(request, wants_progress=True, max_tokens=1)

    def take(self, output: Output) -> list[bytes]:
        """The messages for an output."""
        if self._generates:
            return self._messages(self.send(0, output))
        if not isinstance(output, Finished):
            return self._messages([])
        self._end("completed", usage=replace(output.usage, completion_tokens=0, reasoning_tokens=0))
        return self._messages([self._data(self._event("completed"))])

    def ended(self, error: RequestError) -> list[bytes]:
        """The messages for the error that ends the response."""
        self._unstored.drop(self._previous)
        return self._messages(self.fail(0, error)) if self._n_events else [_error(error, self._lane)]

    def _messages(self, events: Sequence[bytes]) -> list[bytes]:
        now = self._facts.clock()
        if not events and now - self._sent_at >= KEEPALIVE_S:
            events = [self._data(self._event("in_progress"))]
        if events:
            self._sent_at = now
        return [message for data in events for message in self.numbered(data)]

    @staticmethod
    def _data(event: Event) -> bytes:
        return orjson.dumps(event)[:-1]

    def _numbered(self, data: bytes) -> bytes:
        return data + b"," + orjson.dumps({"sequence_number": self._next_number(), **self._lane})[1:]


def _no_server_tools(_name: str, field: str) -> Sequence[ServerTool]:
    problem = "expected no tool of an MCP server on a WebSocket: POST /v1/responses has them called"
    raise RequestError(Fault.BAD_REQUEST, field, problem)


def _reply(messages: Sequence[bytes]) -> Reply | None:
    return Reply(messages[-1], before=messages[:-1]) if messages else None


def _error(error: RequestError, lane: dict[str, str]) -> bytes:
    """The event for an error before the first one of its response, or outside of all."""
    status, body, headers = error_body(error)
    told: dict[str, Any] = orjson.loads(body)["error"]
    # Open Responses wants a code in each.
    told["code"] = told["code"] or told["type"]
    if headers:
        told["headers"] = dict(headers)
    return orjson.dumps({"type": "error", "status": status, **lane, "error": told})
