"""Queries to the engine that make no stream (tokens, embeddings, counts), each on the thread for its kind."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from umaserve.core.errors import Fault, RequestError
from umaserve.core.queries import Answer, CountPrompt, Embed, Embedded, Pair, Query, Tokenize, Tokenized
from umaserve.core.requests import MixedText, TokenIds
from umaserve.scheduler.crash_isolation import MAX_CRASHES, MAX_KILLS
from umaserve.sessions.engine_api import Engine, EngineLost, JobQueue

log = logging.getLogger(__name__)

Render = Callable[[Answer], bytes]
Answered = Callable[[bytes | RequestError], None]

TEXTS_AT_ONCE = 32
BYTES_AT_ONCE = 4096
"""Limit for texts that are embedded together, in bytes: some 1,000 tokens, after which it is another asker's turn."""
BYTES_OF_TOKEN = 4

_INPUT = re.compile(r"^input(\[0\])?(?=\[|$)")


@dataclass(slots=True, eq=False)
class Question:
    """A query that was asked. ``forgotten``: nobody waits for its answer any more."""

    query: Query
    render: Render
    answered: Answered
    """Gets the rendered answer in a later turn."""
    asked_at: float = 0.0
    forgotten: bool = False
    begun: bool = False
    """Whether the engine has it in work, or had."""
    crashes: int = 0
    """Engines that may have been lost because of it."""
    kills: int = 0
    """Engines that another program killed meanwhile."""
    failed: bool = False
    taken: int = 0
    """How many of its inputs were taken up to be embedded."""
    vectors: dict[int, Sequence[float]] = field(default_factory=dict)
    """Vectors of the inputs embedded so far, by their index."""
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
        self._asked: dict[Question, None] = {}
        """Questions that have not ended, in order."""
        self._embedding: deque[Question] = deque()
        """Served in turn, a text of each at a time, so that none waits long for another's texts."""
        self._busy = False

    @property
    def idle(self) -> bool:
        return not self._asked

    def ask(self, question: Question) -> None:
        """Start a question, or raise ``RequestError`` if too many wait."""
        if len(self._asked) >= self._max_questions:
            raise too_many_questions(self._max_questions)
        self._start(question)

    def ask_again(self, questions: Iterable[Question]) -> None:
        """Ask again the questions that had no answer yet when an earlier engine was lost. One that two engines were
        lost with fails."""
        for question in questions:
            if question.crashes >= MAX_CRASHES:
                problem = "llama.cpp crashed or was killed while it computed this request, also in a second attempt"
                self._end(question, RequestError(Fault.DECODE_FAILED, "request", problem))
            else:
                question.begun, question.taken, question.tokens = False, 0, 0
                question.vectors.clear()
                self._start(question)

    def lose_engine(self, *, blamed: bool) -> Sequence[Question]:
        """Count the loss of the engine, and return the questions to be asked again; ``blamed``: as in
        ``crash_isolation.count_loss``."""
        left = [question for question in self._asked if not question.forgotten]
        self._asked.clear()
        for question in left:
            question.kills += question.begun and not blamed
            question.crashes += question.begun and (blamed or question.kills >= MAX_KILLS)
        return left

    def _start(self, question: Question) -> None:
        query = question.query
        self._asked[question] = None
        if isinstance(query, Embed):
            self._embedding.append(question)
            self._embed_next()
        else:
            media = isinstance(query, CountPrompt) and query.request.has_media
            thread = self._preparing_media if media else self._preparing
            thread.submit(lambda: self._work(question), lambda result: self._end(question, result))

    def _work(self, question: Question) -> bytes:
        """Answer a question, on the preparing thread; rendering a long answer takes its time too."""
        question.begun = True
        return b"" if question.forgotten else question.render(self._engine.answer(question.query))

    def _end(self, question: Question, result: bytes | BaseException) -> None:
        self._asked.pop(question, None)
        if not question.forgotten:
            question.answered(_seen(result))

    # -- embeddings ----------------------------------------------------------------------------------------------

    def _embed_next(self) -> None:
        """Tokenize the next texts of all askers in turn, unless some are in work, and have them embedded together."""
        texts = [] if self._busy else self._next_texts()
        self._busy = self._busy or bool(texts)
        if any(not isinstance(text.given, TokenIds) for text in texts):
            self._preparing.submit(lambda: [self._tokens(text) for text in texts], self._tokenized)
        elif texts:
            self._tokenized([self._tokens(text) for text in texts])

    def _next_texts(self) -> list[_Text]:
        """Texts to embed next: at least one if any waits, and no more than are embedded in a moment."""
        texts: list[_Text] = []
        size = 0
        while self._embedding and len(texts) < TEXTS_AT_ONCE:
            question = self._embedding[0]
            assert isinstance(question.query, Embed)
            if question.forgotten:
                self._embedding.popleft()
                self._end(question, b"")
                continue
            if texts and not question.query.like(texts[0].query):
                break
            # What a crash may be due to is tried alone.
            if texts and (question.crashes or texts[0].question.crashes):
                break
            given = question.query.inputs[question.taken]
            size += _size(given)
            if texts and size > BYTES_AT_ONCE:
                break
            self._embedding.popleft()
            texts.append(_Text(question, question.taken, given, question.query))
            question.taken += 1
            question.begun = True
            if question.taken < len(question.query.inputs):
                self._embedding.append(question)
        return texts

    def _tokens(self, text: _Text) -> tuple[_Text, TokenIds | Exception]:
        """Tokenize a text, on the preparing thread."""
        if isinstance(text.given, TokenIds):
            return text, text.given
        try:
            answer = self._engine.answer(Tokenize(text.given))
            assert isinstance(answer, Tokenized)
            return text, TokenIds(tuple(answer.ids))
        except EngineLost:
            raise
        except Exception as error:
            return text, error

    def _tokenized(self, result: Sequence[tuple[_Text, TokenIds | Exception]] | BaseException) -> None:
        assert not isinstance(result, BaseException)
        for text, tokens in result:
            if isinstance(tokens, Exception):
                self._failed(text, tokens)
        self._embed([(text, tokens) for text, tokens in result if isinstance(tokens, TokenIds)])

    def _embed(self, texts: Sequence[tuple[_Text, TokenIds]], rest: Sequence[tuple[_Text, TokenIds]] = ()) -> None:
        """Embed ``texts`` together and then each of the ``rest`` alone."""
        for text, _tokens in texts:
            if text.question.forgotten:
                self._end(text.question, b"")
        texts = [(text, tokens) for text, tokens in texts if text.wanted]
        if not texts and rest:
            self._embed(rest[:1], rest[1:])
            return
        if not texts:
            self._busy = False
            self._embed_next()
            return

        def embedded(result: Embedded | BaseException) -> None:
            if isinstance(result, Embedded):
                for (text, tokens), vector in zip(texts, result.vectors, strict=True):
                    self._embedded(text, tokens, vector)
            elif len(texts) > 1:
                # One of them is at fault: which one shows when each is alone.
                self._embed((), texts)
                return
            else:
                self._failed(texts[0][0], result)
            self._embed((), rest)

        query = replace(texts[0][0].query, inputs=tuple(tokens for _text, tokens in texts))
        self._compute.submit_lengthy(lambda pause: self._engine.embed(query, pause), embedded)

    def _embedded(self, text: _Text, tokens: TokenIds, vector: Sequence[float]) -> None:
        question = text.question
        question.vectors[text.index] = vector
        question.tokens += len(tokens.ids)
        assert isinstance(question.query, Embed)
        if question.forgotten:
            self._end(question, b"")
        elif len(question.vectors) == len(question.query.inputs):
            vectors = [question.vectors[index] for index in range(len(question.vectors))]
            answer = Embedded(vectors, question.tokens)
            self._preparing.submit(lambda: question.render(answer), lambda made: self._end(question, made))

    def _failed(self, text: _Text, error: BaseException) -> None:
        question = text.question
        if question.failed:
            return
        question.failed = True
        if isinstance(error, RequestError):
            # The engine was given this input alone, as number 0.
            error.field = _INPUT.sub(f"input[{text.index}]", error.field)
        if question in self._embedding:
            self._embedding.remove(question)
        self._end(question, error)


@dataclass(frozen=True, slots=True)
class _Text:
    """Input of a question, in work."""

    question: Question
    index: int
    given: str | TokenIds | MixedText | Pair
    query: Embed

    @property
    def wanted(self) -> bool:
        return not self.question.failed and not self.question.forgotten


def too_many_questions(limit: int) -> RequestError:
    """Error for a question that comes while ``limit`` of them wait."""
    problem = f"{limit} requests of this kind are waiting, which is the limit; try again later"
    return RequestError(Fault.QUEUE_FULL, "request", problem, retry_after_s=1)


def _size(given: str | TokenIds | MixedText | Pair) -> int:
    """Approximate size of an input's text, in bytes."""
    match given:
        case TokenIds():
            return len(given.ids) * BYTES_OF_TOKEN
        case MixedText():
            return sum(map(_size, given.parts))
        case Pair():
            return len(given.query) + len(given.document)
        case _:
            return len(given)


def _seen(result: bytes | BaseException) -> bytes | RequestError:
    """The part of a job's outcome that a client may see."""
    if isinstance(result, bytes | RequestError):
        return result
    log.error("a query to the engine failed", exc_info=result)
    return RequestError(Fault.DECODE_FAILED, "request", "internal error; see the server's log")
