"""The paths of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.queries import CountPrompt
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import Asked, EngineQuestion, HttpDialect, KeptTextReply, Page, Route, TextReply, ask
from umaserve.dialects.openai.errors import ERRORS
from umaserve.dialects.responses import pages
from umaserve.dialects.responses.body import ResponseBody
from umaserve.dialects.responses.compaction import CompactionBody
from umaserve.dialects.responses.kept import TenantsResponses
from umaserve.dialects.responses.reference import REFERENCE
from umaserve.dialects.responses.requests import response_request
from umaserve.wire.http_head import Request


def _count(body: bytes, facts: Facts) -> Asked:
    request = response_request(body, facts.limits, "", facts.kept).request
    return ask(
        CountPrompt(request),
        lambda answer: orjson.dumps({"object": "response.input_tokens", "input_tokens": answer.tokens}),
        request.model,
    )


def _page(make: Callable[[TenantsResponses, Request], tuple[int, str, bytes]]) -> Page:
    def made(facts: Facts, request: Request) -> tuple[int, str, bytes]:
        if facts.kept is None:
            raise RequestError(Fault.NOT_FOUND, "response_id", "expected none: this relay stores no responses")
        return make(facts.kept, request)

    return Page(made)


DIALECT = HttpDialect(
    "responses",
    {
        pages.PATH: Route("POST", KeptTextReply(ResponseBody, media=True)),
        f"{pages.PATH}/input_tokens": Route("POST", EngineQuestion(_count, media=True)),
        f"{pages.PATH}/compact": Route("POST", TextReply(CompactionBody, media=True)),
        f"{pages.PATH}/{{response_id}}": Route("GET", _page(pages.retrieve), also=Route("DELETE", _page(pages.delete))),
        f"{pages.PATH}/{{response_id}}/input_items": Route("GET", _page(pages.input_items)),
        f"{pages.PATH}/{{response_id}}/cancel": Route("POST", _page(pages.cancel)),
    },
    ERRORS,
    REFERENCE,
    {"/responses": pages.PATH},
)
