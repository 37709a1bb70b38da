"""The paths of OpenAI's Responses API."""

from __future__ import annotations

from importlib import resources

from umaserve.dialects.http import HttpDialect, KeptTextReply, Page, Route
from umaserve.dialects.openai.errors import ERRORS
from umaserve.dialects.responses import pages
from umaserve.dialects.responses.body import ResponseBody

DIALECT = HttpDialect(
    "responses",
    {
        pages.PATH: Route("POST", KeptTextReply(ResponseBody, media=True)),
        f"{pages.PATH}/{{response_id}}": Route("GET", Page(pages.retrieve), also=Route("DELETE", Page(pages.delete))),
        f"{pages.PATH}/{{response_id}}/input_items": Route("GET", Page(pages.input_items)),
        f"{pages.PATH}/{{response_id}}/cancel": Route("POST", Page(pages.cancel)),
    },
    ERRORS,
    resources.files(__package__).joinpath("openapi.json").read_bytes(),
)
