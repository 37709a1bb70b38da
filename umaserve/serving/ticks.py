"""The seam between the scheduler and an engine: what one tick asks of it and what comes back."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from umaserve.messages import Answer, Embed, Embedded, Generate, Logprobs, ModelInfo, Query

T = TypeVar("T")


class Text(Protocol):
    """The text of one stream, made of its tokens' bytes."""

    def push(self, token: int) -> tuple[str, bool]:
        """The text that ``token`` releases, and whether a stop string was reached."""

    def finish(self) -> str:
        """The text still held back, when no more tokens come."""

    def set_stops(self, stops: Sequence[str]) -> None:
        """Stop at other strings from now on, also those that the text held back contains."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request made ready to run. ``sampler`` is the engine's own and opaque to everybody else."""

    tokens: Sequence[int]
    max_tokens: int
    text: Text
    sampler: object
    logprobs: int | None = None
    """Alternatives to report with each token; ``None``: no log-probabilities."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of one sequence. With a ``sampler`` the next token after the last one is sampled."""

    slot: int
    start: int
    """Position of the first token in its sequence."""
    tokens: Sequence[int]
    sampler: object | None
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """One decode: first the slots of ended sequences are cleared, then all runs go in one batch."""

    release: Sequence[int]
    runs: Sequence[Run]
    threads: int = 1
    """Compute threads to use."""


class Outcome(enum.Enum):
    """How a tick's decode ended."""

    DONE = enum.auto()
    NO_CELLS = enum.auto()
    """No place in the KV cache: nothing was computed, and nothing changed."""
    FAILED = enum.auto()
    """The sequences of this batch are in an unknown state."""


@dataclass(frozen=True, slots=True)
class TickResult:
    """``tokens`` holds one sampled token for each run, ``None`` for a run without a sampler; ``logprobs`` is by the
    index of a run that wants them."""

    outcome: Outcome
    tokens: Sequence[int | None]
    seconds: float
    logprobs: Mapping[int, Logprobs] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an engine can hold, in tokens and sequences."""

    slots: int
    cells: int
    """KV cells shared by all sequences."""
    sequence_tokens: int
    """The longest one sequence may get, prompt and answer together."""
    batch_tokens: int
    threads: int = 1
    """The most that a tick can use."""


class Worker(Protocol):
    """A thread that runs jobs in order; ``done`` is called back on the loop's thread with the result or the error."""

    def submit(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None: ...


class Engine(Protocol):
    """What the scheduler needs. ``run`` and ``embed`` are called on the compute thread, ``prepare`` and
    ``answer`` on the preparing thread, ``change`` on the loop's, and never while a tick runs."""

    @property
    def capacity(self) -> Capacity: ...

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a generation."""

    @property
    def info(self) -> ModelInfo: ...

    def prepare(self, request: Generate) -> Prepared:
        """Template, tokenize and compile ``request``; raises ``RequestError``."""

    def change(self, prepared: Prepared, request: Generate, generated: Sequence[int]) -> Prepared:
        """``prepared``, going on after the tokens ``generated`` with the sampling, stops and ``max_tokens`` of
        ``request``; quick. Raises ``RequestError``, and then nothing has changed."""

    def answer(self, query: Query) -> Answer:
        """What ``query`` asks, save for ``Embed``; raises ``RequestError``."""

    def embed(self, query: Embed) -> Embedded:
        """The vectors of all inputs; raises ``RequestError`` where the model makes none."""

    def run(self, tick: Tick) -> TickResult:
        """Decode and sample one tick."""
