"""llama-server's own embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson

from umaserve.core.queries import Embed, Embedded
from umaserve.dialects.llama_server.schemas import EUCLIDEAN, MAX_ABSOLUTE, TAXICAB, NativeEmbeddingRequest
from umaserve.dialects.openai.embeddings import embedded_texts
from umaserve.dialects.parameters import RequestLimits
from umaserve.wire.fields import Fields

_MAX_INT16 = 32760.0
"""The largest number of a vector with ``MAX_ABSOLUTE``, as llama.cpp has it."""


def parse_embedding(fields: Fields, limits: RequestLimits) -> tuple[Embed, int]:
    """Parse a body of ``POST /embedding``, and how vectors are to be normalized; raises ``RequestError``. A prompt's
    cap applies to all texts together."""
    key = "input" if fields.values.get("content") is None and fields.values.get("input") is not None else "content"
    texts = embedded_texts(fields, key, limits)
    norm = NativeEmbeddingRequest.view(fields).embd_normalize
    norm = EUCLIDEAN if norm is None else norm
    return Embed(texts, raw=norm != EUCLIDEAN), norm


def embedding_result(answer: Embedded, norm: int) -> bytes:
    """One object for each text; where texts are pooled, each has one vector."""
    vectors = (_normalized(vector, norm) for vector in answer.vectors)
    return orjson.dumps([{"index": i, "embedding": [list(vector)]} for i, vector in enumerate(vectors)])


def _normalized(vector: Sequence[float], norm: int) -> Sequence[float]:
    """A vector that came raw unless ``norm`` is ``EUCLIDEAN``."""
    if norm not in (MAX_ABSOLUTE, TAXICAB):
        return vector
    absolute = np.abs(np.array(vector, np.float64))
    size = absolute.max() / _MAX_INT16 if norm == MAX_ABSOLUTE else absolute.sum()
    normalized: list[float] = (np.array(vector, np.float64) / (size or 1.0)).astype(np.float32).tolist()
    return normalized
