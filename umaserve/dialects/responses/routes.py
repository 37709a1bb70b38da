"""The paths of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.queries import CountPrompt
from umaserve.dialects.facts import Facts
from umaserve.dialects.openai.errors import ERRORS
from umaserve.dialects.parameters import json_body
from umaserve.dialects.responses import conversations, pages
from umaserve.dialects.responses.body import ResponseBody
from umaserve.dialects.responses.compaction import CompactionBody
from umaserve.dialects.responses.kept import TenantsKept
from umaserve.dialects.responses.reference import REFERENCE
from umaserve.dialects.responses.requests import response_request
from umaserve.dialects.responses.schemas import ResponseRequest
from umaserve.dialects.responses.websocket import ResponsesDialect
from umaserve.dialects.routes import (
    Asked,
    Authenticate,
    Conversation,
    EngineQuestion,
    HttpDialect,
    KeptTextReply,
    Page,
    Route,
    TextReply,
    ask,
)
from umaserve.wire.http_head import Request


def _count(body: bytes, facts: Facts) -> Asked:
    given = ResponseRequest.view(json_body(body))
    tools = facts.server_tools
    request = response_request(given, len(body), facts.limits, "", facts.kept, server_tools=tools).request
    return ask(
        CountPrompt(request),
        lambda answer: orjson.dumps({"object": "response.input_tokens", "input_tokens": answer.tokens}),
        request.model,
    )


def _conversation(facts: Facts, _authenticate: Authenticate | None) -> ResponsesDialect:
    return ResponsesDialect(facts)


def _page(make: Callable[[TenantsKept, Request], pages.Reply]) -> Page:
    return Page(lambda facts, request: make(_kept(facts, "response_id"), request))


def _conversation_page(make: Callable[[conversations.Asked], pages.Reply]) -> Page:
    def made(facts: Facts, request: Request) -> pages.Reply:
        kept = _kept(facts, "conversation_id")
        return make(conversations.Asked(kept, request, facts.new_id(""), facts.now()))

    return Page(made)


def _kept(facts: Facts, field: str) -> TenantsKept:
    if facts.kept is None:
        raise RequestError(Fault.NOT_FOUND, field, "expected none: this relay stores nothing")
    return facts.kept


def _conversation_route(by_method: Mapping[str, Callable[[conversations.Asked], pages.Reply]]) -> Route:
    """The route of a path, from what answers each of its methods."""
    (method, make), *others = by_method.items()
    also = _conversation_route(dict(others)) if others else None
    return Route(method, _conversation_page(make), also=also)


DIALECT = HttpDialect(
    "responses",
    {
        pages.PATH: Route(
            "POST", KeptTextReply(ResponseBody, media=True), also=Route("GET", Conversation(_conversation, media=True))
        ),
        f"{pages.PATH}/input_tokens": Route("POST", EngineQuestion(_count, media=True)),
        f"{pages.PATH}/compact": Route("POST", TextReply(CompactionBody, media=True)),
        f"{pages.PATH}/{{response_id}}": Route("GET", _page(pages.retrieve), also=Route("DELETE", _page(pages.delete))),
        f"{pages.PATH}/{{response_id}}/input_items": Route("GET", _page(pages.input_items)),
        f"{pages.PATH}/{{response_id}}/cancel": Route("POST", _page(pages.cancel)),
        **{path: _conversation_route(by_method) for path, by_method in conversations.METHODS.items()},
    },
    ERRORS,
    REFERENCE,
    {"/responses": pages.PATH, "/responses/input_tokens": f"{pages.PATH}/input_tokens"},
)
