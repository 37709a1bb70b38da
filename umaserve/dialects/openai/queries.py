"""The HTTP API's questions without a stream: OpenAI's embeddings, llama.cpp's tokenize and detokenize."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from umaserve.dialects.openai.requests import body_fields, inputs, token_ids
from umaserve.dialects.parameters import MAX_ID_BYTES, RequestLimits, check_prompt_bytes
from umaserve.errors import Fault, RequestError
from umaserve.messages import Detokenize, Detokenized, Embed, Embedded, Tokenize, Tokenized
from umaserve.wire.fields import string

MAX_INPUTS = 256


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """The texts, and whether their vectors go out as base64 of little-endian 32-bit floats."""

    query: Embed
    as_base64: bool


def parse_embeddings(body: bytes, limits: RequestLimits) -> EmbeddingsRequest:
    """A body of ``POST /v1/embeddings``; raises ``RequestError``. All texts together are capped as one prompt is."""
    fields = body_fields(body)
    fields.string("model", max_bytes=MAX_ID_BYTES, empty=True)
    if fields.values.get("dimensions") is not None:
        raise RequestError(
            Fault.BAD_REQUEST, "dimensions: expected to be absent, since a vector's length is the model's"
        )
    texts = inputs(fields, "input", limits, MAX_INPUTS)
    check_prompt_bytes(
        sum(len(text.encode()) if isinstance(text, str) else len(text.ids) for text in texts), limits, "input"
    )
    as_base64 = fields.choice("encoding_format", {"float": False, "base64": True}, False)
    return EmbeddingsRequest(Embed(texts), as_base64)


def embeddings_result(answer: Embedded, model: str, *, as_base64: bool) -> bytes:
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(vector) if as_base64 else list(vector)}
        for index, vector in enumerate(answer.vectors)
    ]
    usage = {"prompt_tokens": answer.prompt_tokens, "total_tokens": answer.prompt_tokens}
    return orjson.dumps({"object": "list", "data": data, "model": model, "usage": usage})


def parse_tokenize(body: bytes, limits: RequestLimits) -> tuple[Tokenize, bool]:
    """A body of ``POST /tokenize``, and whether it wants each token's text; raises ``RequestError``."""
    fields = body_fields(body)
    text = string(fields.values.get("content"), "content", empty=True)
    check_prompt_bytes(len(text.encode()), limits, "content")
    return Tokenize(text, fields.boolean("add_special", False)), fields.boolean("with_pieces", False)


def tokenize_result(answer: Tokenized, *, with_pieces: bool) -> bytes:
    """Token ids; ``with_pieces`` with their text, or its bytes as numbers where they are no UTF-8 by themselves."""
    if not with_pieces:
        return orjson.dumps({"tokens": list(answer.ids)})
    pieces = zip(answer.ids, answer.pieces, strict=True)
    return orjson.dumps({"tokens": [{"id": token, "piece": _text_or_bytes(piece)} for token, piece in pieces]})


def parse_detokenize(body: bytes, limits: RequestLimits) -> Detokenize:
    """A body of ``POST /detokenize``; raises ``RequestError``."""
    return Detokenize(token_ids(body_fields(body).values.get("tokens"), "tokens", limits))


def detokenize_result(answer: Detokenized) -> bytes:
    return orjson.dumps({"content": answer.text})


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _text_or_bytes(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
