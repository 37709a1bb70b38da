"""OpenAI's embeddings."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from umaserve.core.queries import Embed, Embedded
from umaserve.core.requests import MixedText, TokenIds
from umaserve.dialects.openai import schemas
from umaserve.dialects.openai.requests import inputs, size_of
from umaserve.dialects.openai.schemas import TextPart
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes, refuse_unknown_constraints
from umaserve.wire.declared import array, by_type
from umaserve.wire.fields import Fields, string

MAX_INPUTS = 256
_PARTS = array(by_type(TextPart), 1, MAX_INPUTS, of="parts")


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """The texts, whether to send their vectors as base64 of little-endian float32, and how many of their numbers."""

    query: Embed
    as_base64: bool
    dimensions: int | None = None


def parse_embeddings(fields: Fields, limits: RequestLimits, length: int) -> EmbeddingsRequest:
    """Parse a body of ``POST /v1/embeddings``; raises ``RequestError``. A prompt's cap applies to all texts together.
    ``length``: of the model's vectors."""
    refuse_unknown_constraints(fields)
    given = schemas.EmbeddingsRequest.view(fields)
    dimensions = given.integer("dimensions", 1, length)
    texts = embedded_texts(given, "input", limits)
    return EmbeddingsRequest(Embed(texts), given.encoding_format == "base64", dimensions)


def embedded_texts(fields: Fields, key: str, limits: RequestLimits) -> tuple[str | TokenIds | MixedText, ...]:
    """``inputs``, which may also be in objects of llama-server's forms; raises ``RequestError``."""
    value = fields.values.get(key)
    if isinstance(value, list):
        value = [_out_of_object(item, fields.name(f"{key}[{index}]")) for index, item in enumerate(value)]
    else:
        value = _out_of_object(value, fields.name(key))
    texts = inputs(Fields({key: value}), key, limits, MAX_INPUTS)
    check_prompt_bytes(sum(map(size_of, texts)), limits, key)
    return texts


def _out_of_object(value: object, path: str) -> object:
    """The text in ``{"prompt_string": TEXT}`` or ``{"content": [{"type": "text", "text": TEXT}, ...]}``."""
    if not isinstance(value, dict):
        return value
    if "content" in value:
        return "".join(part.text for part in _PARTS.read(value["content"], f"{path}.content"))
    return string(value.get("prompt_string"), f"{path}.prompt_string", empty=True)


def shortened(vectors: Sequence[Sequence[float]], dimensions: int | None) -> list[Sequence[float]]:
    """The first ``dimensions`` numbers of each vector, of unit length again; ``None``: all. Of use where the model was
    trained for it (Matryoshka Representation Learning, Kusupati et al. 2022)."""
    if dimensions is None:
        return list(vectors)
    parts = [vector[:dimensions] for vector in vectors]
    lengths = [math.hypot(*part) or 1.0 for part in parts]
    return [[number / length for number in part] for part, length in zip(parts, lengths, strict=True)]


def embeddings_result(answer: Embedded, asked: EmbeddingsRequest, model: str) -> bytes:
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(vector) if asked.as_base64 else list(vector)}
        for index, vector in enumerate(shortened(answer.vectors, asked.dimensions))
    ]
    usage = {"prompt_tokens": answer.prompt_tokens, "total_tokens": answer.prompt_tokens}
    return orjson.dumps({"object": "list", "data": data, "model": model, "usage": usage})


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
