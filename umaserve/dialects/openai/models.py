"""The loaded model in the form of OpenAI's API."""

from __future__ import annotations

from typing import Any

import orjson

from umaserve.outputs import ModelInfo


def models(info: ModelInfo, created: int) -> bytes:
    """The body of ``GET /v1/models``; ``created`` in seconds since 1970."""
    # Codex reads ``models``: without it an error, and what it is told there replaces its own instructions.
    return orjson.dumps({"object": "list", "data": [_model(info, created)], "models": []})


def model(info: ModelInfo, created: int) -> bytes:
    """The body of ``GET /v1/models/{name}``."""
    return orjson.dumps(_model(info, created))


def _model(info: ModelInfo, created: int) -> dict[str, Any]:
    return {
        "id": info.name,
        "aliases": [info.name],
        "tags": [],
        "object": "model",
        "created": created,
        "owned_by": "umaserve",
        "meta": {
            "n_vocab": info.vocabulary,
            "n_ctx_train": info.training_tokens,
            "n_embd": info.embedding_length,
            "n_params": info.parameters,
            "size": info.size_bytes,
        },
    }
