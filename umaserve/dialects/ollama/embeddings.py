"""Ollama's embeddings."""

from __future__ import annotations

import orjson

from umaserve.core.events import ModelInfo
from umaserve.core.queries import Embed, Embedded
from umaserve.dialects.ollama.answers import nanoseconds
from umaserve.dialects.ollama.models import full_name
from umaserve.dialects.ollama.options import check_load_options
from umaserve.dialects.ollama.schemas import (
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaLoadOptions,
)
from umaserve.dialects.openai.embeddings import shortened
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes
from umaserve.wire.fields import Fields


def parse_embed(fields: Fields, limits: RequestLimits, info: ModelInfo) -> tuple[Embed, int | None]:
    """Parse a body of ``POST /api/embed``; returns also how many numbers of each vector are wanted, if not all. Raises
    ``RequestError``. A prompt's cap applies to all texts together."""
    given = OllamaEmbedRequest.view(fields)
    _check(given)
    dimensions = given.integer("dimensions", 1, info.embedding_length)
    _ = given.truncate  # Checked only: a text that is too long is refused, never cut.
    texts = given.input
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
    given = OllamaEmbeddingsRequest.view(fields)
    _check(given)
    text = given.prompt
    check_prompt_bytes(len(text.encode()), limits)
    return Embed((text,))


def embeddings_result(answer: Embedded) -> bytes:
    return orjson.dumps({"embedding": list(answer.vectors[0])})


def _check(given: OllamaEmbedRequest | OllamaEmbeddingsRequest) -> None:
    """Check what is not used."""
    check_load_options(given.options or OllamaLoadOptions({}))
    _ = given.keep_alive
