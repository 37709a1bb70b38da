"""The paths of OpenAI's Responses API."""

from __future__ import annotations

from importlib import resources

from umaserve.dialects.http import HttpDialect, Route, TextReply
from umaserve.dialects.openai.errors import ERRORS
from umaserve.dialects.responses.body import ResponseBody

DIALECT = HttpDialect(
    "responses",
    {"/v1/responses": Route("POST", TextReply(ResponseBody, media=True))},
    ERRORS,
    resources.files(__package__).joinpath("openapi.json").read_bytes(),
)
