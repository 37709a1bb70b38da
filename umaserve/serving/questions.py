"""Questions to the engine that make no stream."""

from __future__ import annotations

import logging
from collections.abc import Callable

from umaserve.errors import Fault, RequestError
from umaserve.messages import Answer, Embed, Embedded, TokenIds, Tokenize, Tokenized
from umaserve.serving.scheduler import Worker
from umaserve.serving.ticks import Engine

log = logging.getLogger(__name__)


def result_or_error(result: Answer | BaseException) -> Answer | RequestError:
    """What a client may see of a job's outcome."""
    if not isinstance(result, BaseException):
        return result
    if isinstance(result, RequestError):
        return result
    log.error("a question to the engine failed", exc_info=result)
    return RequestError(Fault.DECODE_FAILED, "request: the server failed on it")


def embed_all(
    engine: Engine,
    compute: Worker,
    preparing: Worker,
    query: Embed,
    answered: Callable[[Answer | RequestError], None],
) -> None:
    """One text after another, so that the ticks of running streams come in between."""
    done: list[Embedded] = []

    def begin() -> None:
        text = query.inputs[len(done)]
        if isinstance(text, TokenIds):
            embed(text)
        else:
            preparing.submit(lambda: engine.answer(Tokenize(text, special=True)), tokenized)

    def tokenized(result: Answer | BaseException) -> None:
        if isinstance(result, Tokenized):
            embed(TokenIds(tuple(result.ids)))
        else:
            answered(result_or_error(result))

    def embed(tokens: TokenIds) -> None:
        compute.submit(lambda: engine.embed(Embed((tokens,))), embedded)

    def embedded(result: Embedded | BaseException) -> None:
        if not isinstance(result, Embedded):
            answered(result_or_error(result))
            return
        done.append(result)
        if len(done) < len(query.inputs):
            begin()
        else:
            vectors = [vector for one in done for vector in one.vectors]
            answered(Embedded(vectors, sum(one.prompt_tokens for one in done)))

    begin()
