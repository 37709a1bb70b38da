"""What the HTTP API says of the loaded model: OpenAI's model objects and llama.cpp's properties."""

from __future__ import annotations

from typing import Any

import orjson

from umaserve.dialects.openai.requests import DEFAULTS
from umaserve.messages import ModelInfo


def models(info: ModelInfo, created: int) -> bytes:
    """The body of ``GET /v1/models``; ``created`` in seconds since 1970."""
    return orjson.dumps({"object": "list", "data": [_model(info, created)]})


def model(info: ModelInfo, created: int) -> bytes:
    """The body of ``GET /v1/models/{name}``."""
    return orjson.dumps(_model(info, created))


def props(info: ModelInfo, total_slots: int) -> bytes:
    """The body of llama.cpp's ``GET /props``, without the model's path, which is nobody's business."""
    return orjson.dumps(
        {
            "default_generation_settings": {
                "n_ctx": info.context_tokens,
                "params": {
                    "temperature": DEFAULTS.temperature,
                    "top_k": DEFAULTS.top_k,
                    "top_p": DEFAULTS.top_p,
                    "min_p": DEFAULTS.min_p,
                    "repeat_penalty": DEFAULTS.repeat_penalty,
                    "presence_penalty": DEFAULTS.presence_penalty,
                    "frequency_penalty": DEFAULTS.frequency_penalty,
                },
            },
            "total_slots": total_slots,
            "model_alias": info.name,
            "chat_template": info.chat_template or "",
            "bos_token": info.bos,
            "eos_token": info.eos,
            "modalities": {"vision": False, "audio": False},
        }
    )


def _model(info: ModelInfo, created: int) -> dict[str, Any]:
    return {
        "id": info.name,
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
