"""Models in the form of OpenAI's API, with what llama-server says of them besides."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

import orjson

from umaserve.core.events import ListedModel, ModelState
from umaserve.core.model_names import DEFAULT
from umaserve.dialects.content import MAX_MEDIA
from umaserve.dialects.openai import codex
from umaserve.dialects.parameters import RequestLimits

_STATUS = {ModelState.LOADED: "loaded", ModelState.LOADING: "loading"}
"""llama-server's words for all states but its "unloaded"."""


def status_value(one: ListedModel) -> str:
    """The state of a model by llama-server's name."""
    return _STATUS.get(one.state, "unloaded")


def models(
    all_: Sequence[ListedModel],
    created: int,
    limits: RequestLimits,
    query: Container[str] = (),
    others: Iterable[dict[str, Any]] = (),
) -> bytes:
    """The body of ``GET /v1/models``; ``created`` in seconds since 1970. ``others``: what else is in the list."""
    return orjson.dumps(
        {
            "object": "list",
            "data": [*(_model(one, created, limits) for one in all_), *others],
            "models": codex.models(_names(all_)) if codex.ASKS in query else [],
            "limits": {"message_bytes": limits.max_message_bytes, "media": MAX_MEDIA},
        }
    )


def _names(all_: Sequence[ListedModel]) -> Iterator[tuple[str, int, Sequence[str]]]:
    """Each name that a request may have, with the model's context and what it takes."""
    for one in all_:
        for name in (one.name, *one.aliases, *([DEFAULT] if one.default else ())):
            yield name, one.context_tokens, one.takes or ()


def model(one: ListedModel, created: int, limits: RequestLimits) -> bytes:
    """The body of ``GET /v1/models/{name}``."""
    return orjson.dumps(_model(one, created, limits))


def context(tokens: int, max_tokens: int | None = None) -> dict[str, int]:
    """The context by the names of OpenRouter and of vLLM, which agents plan by; nothing where it is 0, unknown."""
    answer = {"max_tokens": most} if (most := max_tokens or tokens) else {}
    return {"context_length": tokens, "max_model_len": tokens, **answer} if tokens else answer


def _model(one: ListedModel, created: int, limits: RequestLimits) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": one.name,
        "aliases": [one.name, *one.aliases],
        "tags": list(one.tags),
        "object": "model",
        "created": created,
        "owned_by": "umaserve",
        "size": one.size_bytes,
        "needed": one.needed_bytes,
        "status": {"value": status_value(one)},
        **context(one.context_tokens, limits.max_tokens),
    }
    if one.state is ModelState.FAILED:
        told["status"]["failed"] = True
    if one.state is ModelState.LOADING:
        told["status"]["progress"] = round(one.progress, 3)
    if one.takes is not None:
        # As OpenRouter tells it.
        told["architecture"] = {"input_modalities": ["text", *one.takes]}
    if one.room_bytes is not None:
        told["available"] = one.room_bytes
    if one.last_used_at is not None:
        told["last_used"] = int(one.last_used_at)
    if one.description:
        told["description"] = one.description
    if one.info is not None:
        told["meta"] = {
            "n_vocab": one.info.vocabulary,
            "n_ctx": one.info.context_tokens,
            "n_ctx_train": one.info.training_tokens,
            "n_embd": one.info.embedding_length,
            "n_params": one.info.parameters,
            "size": one.info.size_bytes,
        }
    return told
