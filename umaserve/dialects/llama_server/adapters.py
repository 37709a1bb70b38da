"""llama-server's ``/lora-adapters``."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from umaserve.core.events import ModelInfo
from umaserve.dialects.llama_server.requests import named_adapters
from umaserve.wire.fields import MAX_VALUES, bad_request, parse_json


def lora_adapters(info: ModelInfo, scales: Sequence[tuple[str, float]] | None = None) -> bytes:
    """The body of ``GET /lora-adapters``: each with its number, by which requests may name it. Files' paths are not
    for clients. ``scales``: of requests that name none; ``None``: all at 1."""
    known = dict.fromkeys(info.adapters, 1.0) if scales is None else dict(scales)
    return orjson.dumps(
        [
            {
                "id": number,
                "name": name,
                "path": "",
                "scale": known.get(name, 0.0),
                "task_name": "",
                "prompt_prefix": "",
            }
            for number, name in enumerate(info.adapters)
        ]
    )


def read_scales(body: bytes, info: ModelInfo) -> tuple[tuple[str, float], ...]:
    """The scales in a body of ``POST /lora-adapters``, without those that are 0; raises ``RequestError``."""
    values = parse_json(body, MAX_VALUES)
    if not isinstance(values, list):
        raise bad_request("body", "an array of adapters", values)
    return tuple((name, scale) for name, scale in named_adapters(values, info.adapters, "body").items() if scale)
