"""llama-server's ``/rerank``: documents in the order in which they answer a question, in the forms of Jina's API, which
Cohere's clients read too, and of Text Embeddings Inference (TEI)."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.queries import Embed, Embedded, Pair
from umaserve.dialects.llama_server import schemas
from umaserve.dialects.llama_server.schemas import DOCUMENTS
from umaserve.dialects.parameters import (
    RequestLimits,
    check_prompt_bytes,
    refuse_unknown_constraints,
)
from umaserve.wire.fields import Fields


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """The pairs and the model's name, and of the answer how many it has at most and its form."""

    query: Embed
    model: str
    top_n: int | None
    as_tei: bool
    return_text: bool


def parse_rerank(fields: Fields, limits: RequestLimits) -> RerankRequest:
    """Parse a body of ``POST /rerank``; raises ``RequestError``. A prompt's cap applies to all texts together, the
    question counting once for each document."""
    given = schemas.RerankRequest.view(fields)
    refuse_unknown_constraints(given)
    model = given.model or ""
    as_tei = given.values.get("texts") is not None
    if as_tei and given.values.get("documents") is not None:
        raise RequestError(Fault.BAD_REQUEST, "texts", "expected to be absent where documents are given")
    key = "texts" if as_tei else "documents"
    query = given.query
    pairs = tuple(Pair(query, document) for document in DOCUMENTS.read(given.values.get(key), key))
    check_prompt_bytes(sum(len(text.encode()) for pair in pairs for text in (pair.query, pair.document)), limits, key)
    of_tei, of_jina = given.return_text, given.return_documents
    return_text = of_tei if as_tei else of_jina
    return RerankRequest(Embed(pairs, ranks=True), model, given.top_n, as_tei, return_text)


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
