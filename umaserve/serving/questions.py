"""Queries to the engine that make no stream (tokens, embeddings, counts): one at a time on each thread."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from umaserve.errors import Fault, RequestError
from umaserve.messages import CountPrompt, Embed, Query, TokenIds, Tokenize
from umaserve.outputs import Answer, Embedded, Tokenized
from umaserve.serving.preparing import has_media
from umaserve.serving.ticks import Engine, JobQueue

log = logging.getLogger(__name__)

Render = Callable[[Answer], bytes]
Answered = Callable[[bytes | RequestError], None]

_INPUT = re.compile(r"^input(\[0\])?(?=\[|$)")


@dataclass(slots=True, eq=False)
class Question:
    """A query that was asked. ``forgotten``: nobody waits for its answer any more."""

    query: Query
    render: Render
    answered: Answered
    forgotten: bool = False
    vectors: list[Sequence[float]] = field(default_factory=list)
    """Of the inputs embedded so far."""
    tokens: int = 0


class Questions:
    """Runs queries on the engine, each on the thread for its kind; at most ``limit`` wait."""

    def __init__(
        self, engine: Engine, compute: JobQueue, preparing: JobQueue, preparing_media: JobQueue, limit: int
    ) -> None:
        self._engine = engine
        self._compute = compute
        self._preparing = preparing
        self._preparing_media = preparing_media
        self._max_questions = limit
        self._asked: set[Question] = set()
        self._embedding: deque[Question] = deque()
        """Served in turn, one input between two ticks, so that neither streams nor other questions wait for long."""
        self._busy = False

    @property
    def idle(self) -> bool:
        return not self._asked

    def ask(self, query: Query, render: Render, answered: Answered) -> Question:
        """``answered`` gets the rendered answer in a later turn. Raises ``RequestError`` if too many wait."""
        if len(self._asked) >= self._max_questions:
            raise RequestError(
                Fault.QUEUE_FULL,
                "request",
                f"{self._max_questions} questions wait already; try again later",
                retry_after_s=1,
            )
        question = Question(query, render, answered)
        self._asked.add(question)
        if isinstance(query, Embed):
            self._embedding.append(question)
            self._embed_next()
        else:
            thread = (
                self._preparing_media
                if isinstance(query, CountPrompt) and has_media(query.request)
                else self._preparing
            )
            thread.submit(lambda: self._work(question), lambda result: self._end(question, result))
        return question

    def _work(self, question: Question) -> bytes:
        """On the preparing thread; rendering a long answer takes its time too."""
        return b"" if question.forgotten else question.render(self._engine.answer(question.query))

    def _end(self, question: Question, result: bytes | BaseException) -> None:
        self._asked.discard(question)
        if not question.forgotten:
            question.answered(_seen(result))

    # -- embeddings ----------------------------------------------------------------------------------------------

    def _embed_next(self) -> None:
        while not self._busy and self._embedding:
            question = self._embedding.popleft()
            if question.forgotten:
                self._end(question, b"")
            else:
                self._busy = True
                self._tokenize(question)

    def _tokenize(self, question: Question) -> None:
        assert isinstance(question.query, Embed)
        text = question.query.inputs[len(question.vectors)]

        def tokenized(result: Answer | BaseException) -> None:
            if isinstance(result, Tokenized):
                self._embed(question, TokenIds(tuple(result.ids)))
            else:
                self._embedded(question, result)

        if isinstance(text, TokenIds):
            self._embed(question, text)
        else:
            self._preparing.submit(lambda: self._engine.answer(Tokenize(text, special=True)), tokenized)

    def _embed(self, question: Question, tokens: TokenIds) -> None:
        assert isinstance(question.query, Embed)
        embed = Embed((tokens,), question.query.ranks)
        self._compute.submit(lambda: self._engine.embed(embed), lambda result: self._embedded(question, result))

    def _embedded(self, question: Question, result: Answer | BaseException) -> None:
        self._busy = False
        assert isinstance(question.query, Embed)
        if isinstance(result, Embedded):
            question.vectors += result.vectors
            question.tokens += result.prompt_tokens
            if len(question.vectors) < len(question.query.inputs):
                self._embedding.append(question)
            else:
                answer = Embedded(question.vectors, question.tokens)
                self._preparing.submit(lambda: question.render(answer), lambda made: self._end(question, made))
        else:
            if isinstance(result, RequestError):
                # The engine was given this input alone, as number 0.
                result.field = _INPUT.sub(f"input[{len(question.vectors)}]", result.field)
            assert isinstance(result, BaseException)
            self._end(question, result)
        self._embed_next()


def _seen(result: bytes | BaseException) -> bytes | RequestError:
    """The part of a job's outcome that a client may see."""
    if isinstance(result, bytes | RequestError):
        return result
    log.error("a question to the engine failed", exc_info=result)
    return RequestError(Fault.DECODE_FAILED, "request", "the server failed; its log says why")
