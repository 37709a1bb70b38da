"""llama-server's ``/props``."""

from __future__ import annotations

import orjson

from umaserve.core.events import ModelInfo
from umaserve.dialects.llama_server.schemas import RANDOM_SEED
from umaserve.dialects.sampling_schemas import DEFAULTS


def props(info: ModelInfo) -> bytes:
    """The body of llama-server's ``GET /props``, with the name of the model's file instead of its path, which is not
    for clients."""
    return orjson.dumps(
        {
            "default_generation_settings": {
                "n_ctx": info.context_tokens,
                "params": {
                    "seed": RANDOM_SEED,
                    "temperature": DEFAULTS.temperature,
                    "top_k": DEFAULTS.top_k,
                    "top_p": DEFAULTS.top_p,
                    "min_p": DEFAULTS.min_p,
                    "repeat_penalty": DEFAULTS.repeat_penalty,
                    "presence_penalty": DEFAULTS.presence_penalty,
                    "frequency_penalty": DEFAULTS.frequency_penalty,
                },
            },
            "total_slots": info.parallel,
            "model_alias": info.name,
            "model_path": f"{info.name}.gguf",
            "chat_template": info.chat_template or "",
            "bos_token": info.bos,
            "eos_token": info.eos,
            "modalities": {"vision": info.sees, "audio": info.hears},
            "lacks": list(info.lacks),
        }
    )
