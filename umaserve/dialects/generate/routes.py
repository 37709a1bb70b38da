"""The paths of ``/generate``: the contract's WebSocket, and its REST call."""

from __future__ import annotations

from umaserve.dialects.facts import Facts
from umaserve.dialects.generate.conversation import GenerateDialect
from umaserve.dialects.generate.reference import REFERENCE
from umaserve.dialects.generate.rest import ERRORS, GenerateBody
from umaserve.dialects.routes import Authenticate, Conversation, HttpDialect, Route, TextReply

_ID_PREFIX = "gen_"


def conversation(facts: Facts, authenticate: Authenticate | None = None) -> GenerateDialect:
    """The dialect of one connection."""

    def new_id() -> str:
        return facts.new_id(_ID_PREFIX)

    return GenerateDialect(
        facts.limits,
        facts.model,
        facts.models,
        new_id,
        resumable=facts.resumable,
        authenticate=authenticate,
        asked_model=facts.asked_model,
    )


def _body(facts: Facts) -> GenerateBody:
    return GenerateBody(facts.limits, facts.model, facts.models, facts.new_id(_ID_PREFIX))


DIALECT = HttpDialect(
    "generate",
    {"/generate": Route("GET", Conversation(conversation, key_in_message=True, resumable=True, media=True))},
    ERRORS,
    REFERENCE,
)
REST_DIALECT = HttpDialect(
    "rest",
    {"/v1/generate": Route("POST", TextReply(_body, media=True))},
    ERRORS,
)
