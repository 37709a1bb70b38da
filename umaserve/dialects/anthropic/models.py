"""The loaded model in the form of Anthropic's API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson

from umaserve.dialects.http import JSON, Facts
from umaserve.dialects.parameters import MAX_ID_BYTES
from umaserve.errors import Fault, RequestError
from umaserve.outputs import ModelInfo
from umaserve.wire.fields import out_of_range, string
from umaserve.wire.http_head import Request

PATH = "/v1/models"
MAX_LIMIT = 1000
_CURSORS = ("before_id", "after_id")
_ALIASES = "claude"
"""How names begin that programs know, and that stand for the loaded model."""


def models(facts: Facts, request: Request) -> tuple[int, str, bytes]:
    """The page of ``GET /v1/models``: one model, which is neither before nor after itself."""
    info = facts.loaded()
    limit = request.query.get("limit", "20")
    if not limit.isascii() or not limit.isdecimal() or not 1 <= int(limit[:9]) <= MAX_LIMIT:
        raise out_of_range("limit", f"a whole number from 1 to {MAX_LIMIT}", f'"{limit[:32]}"')
    beyond = [string(request.query[key], key, max_bytes=MAX_ID_BYTES) for key in _CURSORS if key in request.query]
    data = [] if info.name in beyond else [_model(info, facts)]
    ids = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return 200, JSON, orjson.dumps({"data": data, "has_more": False, **ids})


def model(facts: Facts, request: Request) -> tuple[int, str, bytes]:
    """The page of ``GET /v1/models/{name}``."""
    info = facts.loaded()
    name = request.path.removeprefix(f"{PATH}/")
    if name != info.name and not name.startswith(_ALIASES):
        got = f"expected {info.name}, or a name that begins with {_ALIASES}, got {name[:64] or 'an empty name'}"
        raise RequestError(Fault.NOT_FOUND, "model", got)
    return 200, JSON, orjson.dumps(_model(info, facts))


def _model(info: ModelInfo, facts: Facts) -> dict[str, Any]:
    return {
        "type": "model",
        "id": info.name,
        "display_name": info.name,
        "created_at": datetime.fromtimestamp(facts.started_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": info.context_tokens,
        "max_tokens": facts.limits.max_tokens or info.context_tokens,
    }
