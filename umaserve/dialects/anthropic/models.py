"""Models in the form of Anthropic's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from umaserve.core.errors import ModelNotFound
from umaserve.core.events import ListedModel
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import JSON
from umaserve.dialects.listing import find_model
from umaserve.dialects.schemas import MAX_ID_BYTES
from umaserve.wire.fields import out_of_range, string
from umaserve.wire.http_head import Request

PATH = "/v1/models"
MAX_LIMIT = 1000
_CURSORS = ("before_id", "after_id")
_ALIASES = "claude"
"""Beginning of names that programs know, and that stand for the default model."""


def models(facts: Facts, request: Request) -> tuple[int, str, bytes]:
    """The page of ``GET /v1/models``."""
    return 200, JSON, page([_model(one, facts) for one in facts.models()], request.query)


def page(all_: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> bytes:
    """The part of a list of models that a query wants: after ``after_id``, before ``before_id``, at most ``limit``.
    Names that are not in the list cut nothing off. Raises ``RequestError``."""
    text = query.get("limit", "20")
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MAX_LIMIT:
        raise out_of_range("limit", f"a whole number from 1 to {MAX_LIMIT}", f'"{text[:32]}"')
    limit, ids = int(text), [model["id"] for model in all_]
    before, after = (string(query[key], key, max_bytes=MAX_ID_BYTES) if key in query else None for key in _CURSORS)
    start = ids.index(after) + 1 if after in ids else 0
    rest = all_[start : ids.index(before) if before in ids else None]
    # Before a model come those that are next to it.
    data = rest[-limit:] if before in ids and after is None else rest[:limit]
    told = {
        "data": data,
        "has_more": len(data) < len(rest),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }
    return orjson.dumps(told)


def model(facts: Facts, request: Request) -> tuple[int, str, bytes]:
    """The page of ``GET /v1/models/{name}``."""
    all_ = facts.models()
    name = request.path.removeprefix(f"{PATH}/")
    one = find_model(all_, name)
    if one is None:
        if not name.startswith(_ALIASES):
            raise ModelNotFound(name)
        # Which raises it where names are strict.
        facts.model(name)
        one = all_[0]
    return 200, JSON, orjson.dumps(_model(one, facts))


def described(name: str, since: int, context_tokens: int, max_tokens: int | None = None) -> dict[str, Any]:
    """A model; ``since``: seconds since 1970; ``context_tokens``: 0 where nobody knows."""
    most = max_tokens or context_tokens
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        **({"max_input_tokens": context_tokens} if context_tokens else {}),
        **({"max_tokens": most} if most else {}),
    }


def _model(one: ListedModel, facts: Facts) -> dict[str, Any]:
    return described(one.name, facts.started_at, one.context_tokens, facts.limits.max_tokens)
