"""llama-server's own embeddings."""

from __future__ import annotations

import orjson

from umaserve.dialects.openai.embeddings import embedded_texts
from umaserve.dialects.parameters import RequestLimits
from umaserve.queries import Embed, Embedded
from umaserve.wire.fields import Fields, out_of_range

_EUCLIDEAN = 2


def parse_embedding(fields: Fields, limits: RequestLimits) -> Embed:
    """Parse a body of ``POST /embedding``; raises ``RequestError``. A prompt's cap applies to all texts together."""
    key = "input" if fields.values.get("content") is None and fields.values.get("input") is not None else "content"
    texts = embedded_texts(fields, key, limits)
    norm = fields.integer("embd_normalize", -1)
    if norm not in (None, _EUCLIDEAN):
        raise out_of_range("embd_normalize", f"{_EUCLIDEAN}, vectors of unit length", norm)
    return Embed(texts)


def embedding_result(answer: Embedded) -> bytes:
    """One object for each text; where texts are pooled, each has one vector."""
    return orjson.dumps([{"index": i, "embedding": [list(vector)]} for i, vector in enumerate(answer.vectors)])
