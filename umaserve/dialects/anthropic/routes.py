"""The paths of Anthropic's API."""

from __future__ import annotations

import orjson

from umaserve.dialects.anthropic import models
from umaserve.dialects.anthropic.errors import ERRORS
from umaserve.dialects.anthropic.messages import MessageBody
from umaserve.dialects.anthropic.reference import REFERENCE
from umaserve.dialects.anthropic.requests import count_request
from umaserve.dialects.facts import Facts
from umaserve.dialects.routes import (
    Absent,
    Asked,
    EngineQuestion,
    HttpDialect,
    Page,
    Route,
    SharedPaths,
    TextReply,
    ask,
)


def _message(facts: Facts) -> MessageBody:
    return MessageBody(facts.limits, facts.model, facts.new_id(""))


def _count(body: bytes, facts: Facts) -> Asked:
    query = count_request(body, facts.limits)
    return ask(query, lambda answer: orjson.dumps({"input_tokens": answer.tokens}), query.request.model)


_FILES = "/v1/files"
_NO_FILES = Route(
    "GET", Absent("no files are kept for this API: send images, and documents as text, in the messages of /v1/messages")
)

DIALECT = HttpDialect(
    "anthropic",
    {
        "/v1/messages": Route("POST", TextReply(_message, media=True)),
        "/v1/messages/count_tokens": Route("POST", EngineQuestion(_count, media=True)),
    },
    ERRORS,
    REFERENCE,
    # Not by x-api-key, which clients of other APIs send too.
    shared=SharedPaths(
        "anthropic-version",
        {
            models.PATH: Route("GET", Page(models.models)),
            f"{models.PATH}/{{model}}": Route("GET", Page(models.model)),
            _FILES: _NO_FILES,
            f"{_FILES}/{{file_id}}": _NO_FILES,
        },
    ),
)
