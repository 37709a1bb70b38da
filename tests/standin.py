"""Stand-ins for the engine and its threads: as strict as llama.cpp is, and without a model."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from umaserve.engine.text import TextStream
from umaserve.errors import Fault, RequestError
from umaserve.messages import (
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    Generate,
    Logprobs,
    ModelInfo,
    Query,
    Scored,
    TokenIds,
    Tokenize,
    Tokenized,
)
from umaserve.serving.ticks import Capacity, Outcome, Prepared, Run, Tick, TickResult

END = 0
DEFAULT_MAX_TOKENS = 16
SHORT = "?"
"""A prompt that begins so may be answered shorter than its ``max_tokens``, and no other."""
UNKNOWN = -1
"""Stands in a sequence for what a failed decode left there."""

# A token is a byte: prompts are their own tokens, and answers are small letters.
PIECES = [bytes([token]) for token in range(256)]


def next_token(sequence: Sequence[int]) -> int:
    """What follows the sequence: different as soon as one token of it is lost, doubled or somebody else's."""
    drawn = zlib.crc32(bytes(sequence))
    ends = sequence[0] == ord(SHORT) and drawn % 19 == 0
    return END if ends else ord("a") + drawn % 26


def answer(prompt: str, max_tokens: int = DEFAULT_MAX_TOKENS, stop: Sequence[str] = ()) -> str:
    """The text that a request must give, made without a scheduler."""
    sequence = list(prompt.encode())
    text = ""
    for _ in range(max_tokens):
        token = next_token(sequence)
        if token == END:
            break
        sequence.append(token)
        text += chr(token)
        found = [text.rindex(string) for string in stop if text.endswith(string)]
        if found:
            return text[: min(found)]
    return text


def scored(token: int, rank: int = 0) -> Scored:
    """What the stand-in says of a token that is the ``rank``-th likeliest, from 0."""
    return Scored(token, PIECES[token], -0.5 - rank)


def vector(text: bytes) -> list[float]:
    """The embedding of ``text``: of unit length, and another for another text."""
    angle = zlib.crc32(text) / 2**32
    return [math.cos(angle), math.sin(angle)]


class EngineFailure(Exception):
    """What the engine raises when it is told to; the scheduler knows nothing of it."""


@dataclass(frozen=True)
class StandInSampler:
    """Belongs to one sequence: sampling another with it is a mistake."""

    prompt: tuple[int, ...]


class StandInEngine:
    """Implements ``serving.ticks.Engine`` and asserts what the seam promises.

    ``failures`` holds what the next ticks with runs end in: an outcome, an exception, or ``None`` for a tick that
    goes well. A prompt of "raise" makes ``prepare`` raise, one of "refuse" makes it refuse, and so do ``change`` and
    ``embed``.
    """

    def __init__(self, *, slots: int = 4, cells: int = 400, batch_tokens: int = 16, sequence_tokens: int = 200) -> None:
        self.capacity = Capacity(slots, cells, sequence_tokens, batch_tokens)
        self.end_tokens = frozenset({END})
        self.sequences: list[list[int]] = [[] for _ in range(slots)]
        self.ticks: list[Tick] = []
        self.failures: deque[Outcome | type[EngineFailure] | None] = deque()

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            name="stand-in",
            architecture="none",
            quantization="none",
            parameters=0,
            size_bytes=0,
            context_tokens=self.capacity.sequence_tokens,
            training_tokens=self.capacity.sequence_tokens,
            vocabulary=len(PIECES),
            embedding_length=len(vector(b"")),
            chat_template=None,
            bos="",
            eos=PIECES[END].decode(),
        )

    def prepare(self, request: Generate) -> Prepared:
        tokens = _tokens(request)
        max_tokens = request.max_tokens or DEFAULT_MAX_TOKENS
        self._check_length(tokens, max_tokens)
        text = TextStream(PIECES, request.stop)
        return Prepared(tokens, max_tokens, text, StandInSampler(tokens), request.logprobs)

    def change(self, prepared: Prepared, request: Generate, generated: Sequence[int]) -> Prepared:
        assert isinstance(prepared.sampler, StandInSampler)
        assert prepared.sampler.prompt == prepared.tokens
        sequence = list(prepared.tokens)
        for token in generated:
            assert token == next_token(sequence), "changed with another sequence's tokens"
            sequence.append(token)
        _tokens(request)
        max_tokens = request.max_tokens or prepared.max_tokens
        self._check_length(prepared.tokens, max_tokens)
        prepared.text.set_stops(request.stop)
        return dataclasses.replace(prepared, max_tokens=max_tokens)

    def answer(self, query: Query) -> Tokenized | Detokenized:
        match query:
            case Tokenize(text):
                return Tokenized(list(text.encode()), [PIECES[token] for token in text.encode()])
            case Detokenize(ids):
                if not all(0 <= token < len(PIECES) for token in ids):
                    raise RequestError(Fault.BAD_REQUEST, "tokens: out of range")
                return Detokenized(bytes(ids).decode(errors="replace"))
            case Embed():
                raise AssertionError("embeddings are asked of embed")

    def embed(self, query: Embed) -> Embedded:
        texts = [bytes(one.ids) if isinstance(one, TokenIds) else one.encode() for one in query.inputs]
        if b"raise" in texts:
            raise EngineFailure("told to")
        if b"refuse" in texts:
            raise RequestError(Fault.CONTEXT_EXCEEDED, "input: too long")
        return Embedded([vector(text) for text in texts], sum(map(len, texts)))

    def _check_length(self, tokens: Sequence[int], max_tokens: int) -> None:
        if len(tokens) + max_tokens > self.capacity.sequence_tokens:
            raise RequestError(Fault.CONTEXT_EXCEEDED, "prompt: too long")

    def run(self, tick: Tick) -> TickResult:
        self.ticks.append(tick)
        for slot in tick.release:
            self.sequences[slot].clear()
        self._check(tick)
        failure = self.failures.popleft() if tick.runs and self.failures else None
        if failure is Outcome.NO_CELLS:
            return TickResult(failure, (), 0.0)
        if failure is not None:
            for run in tick.runs:
                self.sequences[run.slot] += [UNKNOWN] * len(run.tokens)
            if isinstance(failure, type):
                raise failure("told to")
            return TickResult(failure, (), 0.0)
        for run in tick.runs:
            self.sequences[run.slot] += run.tokens
        self._check_cells()
        sampled = [self._sample(run.slot, run.sampler) for run in tick.runs]
        logprobs = {
            index: _logprobs(run, token)
            for index, (run, token) in enumerate(zip(tick.runs, sampled, strict=True))
            if token is not None and run.logprobs is not None
        }
        return TickResult(Outcome.DONE, sampled, 0.01 * bool(tick.runs), logprobs)

    def _sample(self, slot: int, sampler: object) -> int | None:
        if sampler is None:
            return None
        assert isinstance(sampler, StandInSampler)
        sequence = self.sequences[slot]
        assert tuple(sequence[: len(sampler.prompt)]) == sampler.prompt, "sampled with another sequence's sampler"
        return next_token(sequence)

    def _check(self, tick: Tick) -> None:
        slots = [run.slot for run in tick.runs]
        assert len(set(slots)) == len(slots), "two runs of one sequence in a batch"
        assert sum(len(run.tokens) for run in tick.runs) <= self.capacity.batch_tokens
        for run in tick.runs:
            assert run.tokens, "an empty run"
            # A slot that was not cleared before its next use fails this as well.
            assert run.start == len(self.sequences[run.slot]), "positions have a gap or go back"
            assert UNKNOWN not in self.sequences[run.slot], "goes on after a failure"

    def _check_cells(self) -> None:
        assert sum(map(len, self.sequences)) <= self.capacity.cells
        assert all(len(sequence) <= self.capacity.sequence_tokens for sequence in self.sequences)


def _tokens(request: Generate) -> tuple[int, ...]:
    match request.prompt:
        case TokenIds(ids):
            return ids
        case str() as prompt:
            pass
        case turns:
            prompt = "".join(turn.content for turn in turns)
    if prompt == "raise":
        raise EngineFailure("told to")
    if prompt == "refuse":
        raise RequestError(Fault.CONTEXT_EXCEEDED, "prompt: too long")
    return tuple(prompt.encode())


def _logprobs(run: Run, token: int) -> Logprobs:
    """The chosen token is the likeliest, and the others follow by their ids."""
    assert run.logprobs is not None
    others = [other for other in range(ord("a"), ord("z") + 1) if other != token]
    best = [token, *others][: run.logprobs]
    return Logprobs(scored(token), tuple(scored(one, rank) for rank, one in enumerate(best)))


class SteppedWorker:
    """Implements ``serving.scheduler.Worker`` on the caller's thread: a job runs when the test says so."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self.submitted: Callable[[], None] = lambda: None

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.jobs.append((job, done))
        self.submitted()

    def step(self) -> None:
        """Do the oldest job, if there is one, and call back."""
        if not self.jobs:
            return
        job, done = self.jobs.popleft()
        try:
            result = job()
        except AssertionError:
            raise  # The stand-in's own complaint: the scheduler would take it for one more failing tick.
        except Exception as error:
            result = error
        done(result)
