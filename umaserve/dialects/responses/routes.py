"""The paths of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources

import orjson

from umaserve.dialects.http import EngineQuestion, Facts, HttpDialect, KeptTextReply, Page, Route
from umaserve.dialects.openai.errors import ERRORS
from umaserve.dialects.responses import pages
from umaserve.dialects.responses.body import ResponseBody
from umaserve.dialects.responses.requests import response_request
from umaserve.messages import CountPrompt, Query
from umaserve.outputs import Answer, Counted


def _count(body: bytes, facts: Facts) -> tuple[Query, Callable[[Answer], bytes]]:
    def render(answer: Answer) -> bytes:
        assert isinstance(answer, Counted)
        return orjson.dumps({"object": "response.input_tokens", "input_tokens": answer.tokens})

    return CountPrompt(response_request(body, facts.limits, "", facts.kept).request), render


DIALECT = HttpDialect(
    "responses",
    {
        pages.PATH: Route("POST", KeptTextReply(ResponseBody, media=True)),
        f"{pages.PATH}/input_tokens": Route("POST", EngineQuestion(_count, media=True)),
        f"{pages.PATH}/{{response_id}}": Route("GET", Page(pages.retrieve), also=Route("DELETE", Page(pages.delete))),
        f"{pages.PATH}/{{response_id}}/input_items": Route("GET", Page(pages.input_items)),
        f"{pages.PATH}/{{response_id}}/cancel": Route("POST", Page(pages.cancel)),
    },
    ERRORS,
    resources.files(__package__).joinpath("openapi.json").read_bytes(),
    {"/responses": pages.PATH},
)
