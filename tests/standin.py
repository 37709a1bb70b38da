"""Stand-ins for the engine and its threads: as strict as llama.cpp is, and without a model."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from umaserve.engine.text import TextStream
from umaserve.errors import Fault, RequestError
from umaserve.messages import Generate
from umaserve.serving.ticks import Capacity, Outcome, Prepared, Tick, TickResult

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


class EngineFailure(Exception):
    """What the engine raises when it is told to; the scheduler knows nothing of it."""


@dataclass(frozen=True)
class StandInSampler:
    """Belongs to one sequence: sampling another with it is a mistake."""

    prompt: tuple[int, ...]


class StandInEngine:
    """Implements ``serving.ticks.Engine`` and asserts what the seam promises.

    ``failures`` holds what the next ticks with runs end in: an outcome, an exception, or ``None`` for a tick that
    goes well. A prompt of "raise" makes ``prepare`` raise, one of "refuse" makes it refuse.
    """

    def __init__(self, *, slots: int = 4, cells: int = 400, batch_tokens: int = 16, sequence_tokens: int = 200) -> None:
        self.capacity = Capacity(slots, cells, sequence_tokens, batch_tokens)
        self.end_tokens = frozenset({END})
        self.sequences: list[list[int]] = [[] for _ in range(slots)]
        self.ticks: list[Tick] = []
        self.failures: deque[Outcome | type[EngineFailure] | None] = deque()

    def prepare(self, request: Generate) -> Prepared:
        assert isinstance(request.prompt, str)
        if request.prompt == "raise":
            raise EngineFailure("told to")
        tokens = tuple(request.prompt.encode())
        max_tokens = request.max_tokens or DEFAULT_MAX_TOKENS
        if request.prompt == "refuse" or len(tokens) + max_tokens > self.capacity.sequence_tokens:
            raise RequestError(Fault.CONTEXT_EXCEEDED, "prompt: too long")
        return Prepared(tokens, max_tokens, TextStream(PIECES, request.stop), StandInSampler(tokens))

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
        return TickResult(Outcome.DONE, sampled, 0.01 * bool(tick.runs))

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
