"""OpenAI's embeddings."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from umaserve.dialects.openai.requests import inputs, size_of
from umaserve.dialects.parameters import MAX_ID_BYTES, RequestLimits, check_prompt_bytes, json_body
from umaserve.errors import Fault, RequestError
from umaserve.messages import Embed
from umaserve.outputs import Embedded

MAX_INPUTS = 256


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """The texts, and whether to send their vectors as base64 of little-endian float32."""

    query: Embed
    as_base64: bool


def parse_embeddings(body: bytes, limits: RequestLimits) -> EmbeddingsRequest:
    """Parse a body of ``POST /v1/embeddings``; raises ``RequestError``. A prompt's cap applies to all texts
    together."""
    fields = json_body(body)
    fields.string("model", max_bytes=MAX_ID_BYTES, empty=True)
    if fields.values.get("dimensions") is not None:
        raise RequestError(
            Fault.BAD_REQUEST,
            "dimensions",
            "expected to be absent, since the model determines the length of its vectors",
        )
    texts = inputs(fields, "input", limits, MAX_INPUTS)
    check_prompt_bytes(sum(map(size_of, texts)), limits, "input")
    as_base64 = fields.choice("encoding_format", {"float": False, "base64": True}, False)
    return EmbeddingsRequest(Embed(texts), as_base64)


def embeddings_result(answer: Embedded, model: str, *, as_base64: bool) -> bytes:
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(vector) if as_base64 else list(vector)}
        for index, vector in enumerate(answer.vectors)
    ]
    usage = {"prompt_tokens": answer.prompt_tokens, "total_tokens": answer.prompt_tokens}
    return orjson.dumps({"object": "list", "data": data, "model": model, "usage": usage})


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
