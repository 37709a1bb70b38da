"""The paths of Anthropic's API."""

from __future__ import annotations

from importlib import resources

from umaserve.dialects.anthropic.errors import ERRORS
from umaserve.dialects.anthropic.messages import MessageBody
from umaserve.dialects.http import Facts, HttpDialect, Route, TextReply


def _message(facts: Facts) -> MessageBody:
    return MessageBody(facts.limits, facts.model, facts.new_id(""))


DIALECT = HttpDialect(
    "anthropic",
    {"/v1/messages": Route("POST", TextReply(_message, media=True))},
    ERRORS,
    resources.files(__package__).joinpath("openapi.json").read_bytes(),
)
