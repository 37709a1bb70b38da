"""llama-server's ``/lora-adapters``."""

from __future__ import annotations

import orjson

from umaserve.core.events import ModelInfo


def lora_adapters(info: ModelInfo) -> bytes:
    """The body of ``GET /lora-adapters``: each with its number, by which requests may name it. Files' paths are not
    for clients, and scales are each request's own."""
    return orjson.dumps(
        [
            {"id": number, "name": name, "path": "", "scale": 1.0, "task_name": "", "prompt_prefix": ""}
            for number, name in enumerate(info.adapters)
        ]
    )
