"""The paths of OpenAI's Realtime API."""

from __future__ import annotations

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import JSON
from umaserve.dialects.openai.errors import ERRORS
from umaserve.dialects.parameters import json_body
from umaserve.dialects.realtime.reference import REFERENCE
from umaserve.dialects.realtime.schemas import DEFAULT_SECRET_S, ClientSecretRequest
from umaserve.dialects.routes import HttpDialect, Page, RealtimeSessions, Route
from umaserve.wire.fields import dump_capped
from umaserve.wire.http_head import Request

PATH = "/v1/realtime"
MAX_SETTINGS_BYTES = 16 * 1024
"""Settings that are kept with a client secret."""


def _new_secret(facts: Facts, request: Request) -> tuple[int, str, bytes]:
    from umaserve.dialects.realtime.session import RealtimeSession  # Only where it is used.

    given = ClientSecretRequest.view(json_body(request.body))
    if facts.new_client_secret is None:
        raise RequestError(Fault.NOT_FOUND, "request", "a relay makes no client secrets")
    after = given.expires_after
    seconds = DEFAULT_SECRET_S
    if after is not None:
        _ = after.anchor
        seconds = DEFAULT_SECRET_S if after.seconds is None else after.seconds
    values = {} if given.session is None else dict(given.session.values)
    dump_capped(values, "session", MAX_SETTINGS_BYTES)
    session = RealtimeSession(facts, "", values).opened()["session"]
    value = facts.new_client_secret(values, seconds)
    reply = {"value": value, "expires_at": facts.now() + seconds, "session": session}
    return 200, JSON, orjson.dumps(reply)


DIALECT = HttpDialect(
    "realtime",
    {
        PATH: Route("GET", RealtimeSessions()),
        f"{PATH}/client_secrets": Route("POST", Page(_new_secret)),
    },
    ERRORS,
    REFERENCE,
    {"/realtime": PATH},
)
