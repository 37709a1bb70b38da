"""llama-server's ``/rerank``: documents in the order in which they answer a question, in the forms of Jina's API, which
Cohere's clients read too, and of Text Embeddings Inference (TEI)."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.queries import Embed, Embedded, Pair
from umaserve.dialects.parameters import (
    RequestLimits,
    check_prompt_bytes,
    json_body,
    model_name,
    refuse_unknown_constraints,
)
from umaserve.wire.fields import array, string

MAX_DOCUMENTS = 256


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """The pairs and the model's name, and of the answer how many it has at most and its form."""

    query: Embed
    model: str
    top_n: int | None
    as_tei: bool
    return_text: bool


def parse_rerank(body: bytes, limits: RequestLimits) -> RerankRequest:
    """Parse a body of ``POST /rerank``; raises ``RequestError``. A prompt's cap applies to all texts together, the
    question counting once for each document."""
    fields = json_body(body)
    refuse_unknown_constraints(fields)
    model = model_name(fields)
    as_tei = fields.values.get("texts") is not None
    if as_tei and fields.values.get("documents") is not None:
        raise RequestError(Fault.BAD_REQUEST, "texts", "expected to be absent where documents are given")
    key = "texts" if as_tei else "documents"
    query = string(fields.values.get("query"), "query")
    given = array(fields.values.get(key), key, 1, MAX_DOCUMENTS, "strings")
    pairs = tuple(Pair(query, _text(document, f"{key}[{index}]")) for index, document in enumerate(given))
    check_prompt_bytes(sum(len(text.encode()) for pair in pairs for text in (pair.query, pair.document)), limits, key)
    of_tei, of_jina = (fields.boolean(name, False) for name in ("return_text", "return_documents"))
    top_n = fields.integer("top_n", 1)
    return RerankRequest(Embed(pairs, ranks=True), model, top_n, as_tei, return_text=of_tei if as_tei else of_jina)


def _text(document: object, path: str) -> str:
    """A text, or the one in ``{"text": TEXT}``."""
    if isinstance(document, dict):
        document, path = document.get("text"), f"{path}.text"
    return string(document, path, empty=True)


def rerank_result(answer: Embedded, asked: RerankRequest, model: str) -> bytes:
    """The best document first; equal ones in the order of the request."""
    scores = [score for [score] in answer.vectors]
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: asked.top_n]
    texts = [pair.document for pair in asked.query.inputs if isinstance(pair, Pair)]
    if asked.as_tei:
        return orjson.dumps(
            [
                {"index": index, "score": scores[index]} | ({"text": texts[index]} if asked.return_text else {})
                for index in best
            ]
        )
    usage = {"prompt_tokens": answer.prompt_tokens, "total_tokens": answer.prompt_tokens}
    results = [
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": texts[index]}} if asked.return_text else {})
        for index in best
    ]
    return orjson.dumps({"model": model, "object": "list", "usage": usage, "results": results})
