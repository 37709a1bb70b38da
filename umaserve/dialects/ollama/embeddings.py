"""Ollama's embeddings."""

from __future__ import annotations

import orjson

from umaserve.core.events import ModelInfo
from umaserve.core.queries import Embed, Embedded
from umaserve.dialects.ollama.answers import nanoseconds
from umaserve.dialects.ollama.models import full_name
from umaserve.dialects.ollama.options import check_load_options, unloads
from umaserve.dialects.openai.embeddings import shortened
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes
from umaserve.wire.fields import Fields, bad_request, out_of_range, string

MAX_INPUTS = 256


def parse_embed(fields: Fields, limits: RequestLimits, info: ModelInfo) -> tuple[Embed, int | None]:
    """Parse a body of ``POST /api/embed``; returns also how many numbers of each vector are wanted, if not all. Raises
    ``RequestError``. A prompt's cap applies to all texts together."""
    _check_options(fields, info)
    dimensions = fields.integer("dimensions", 1, info.embedding_length)
    fields.boolean("truncate", False)  # Not used: a text that is too long is refused, never cut.
    value = fields.values.get("input")
    if isinstance(value, list):
        if not 1 <= len(value) <= MAX_INPUTS:
            raise out_of_range("input", f"1 to {MAX_INPUTS} texts", len(value))
        texts = tuple(string(item, f"input[{i}]") for i, item in enumerate(value))
    elif isinstance(value, str):
        texts = (string(value, "input"),)
    else:
        raise bad_request("input", "a string or an array of strings", value)
    check_prompt_bytes(sum(len(text.encode()) for text in texts), limits, "input")
    return Embed(texts), dimensions


def embed_result(answer: Embedded, dimensions: int | None, info: ModelInfo, total_s: float) -> bytes:
    return orjson.dumps(
        {
            "model": full_name(info),
            "embeddings": [list(vector) for vector in shortened(answer.vectors, dimensions)],
            "total_duration": nanoseconds(total_s),
            "load_duration": 0,
            "prompt_eval_count": answer.prompt_tokens,
        }
    )


def parse_embeddings(fields: Fields, limits: RequestLimits, info: ModelInfo) -> Embed:
    """Parse a body of ``POST /api/embeddings``, which has one text; raises ``RequestError``."""
    _check_options(fields, info)
    text = string(fields.values.get("prompt"), "prompt")
    check_prompt_bytes(len(text.encode()), limits)
    return Embed((text,))


def embeddings_result(answer: Embedded) -> bytes:
    return orjson.dumps({"embedding": list(answer.vectors[0])})


def _check_options(fields: Fields, info: ModelInfo) -> None:
    check_load_options(fields.object("options") or Fields({}), info)
    unloads(fields)
