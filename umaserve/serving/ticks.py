"""The seam between the scheduler and an engine: what one tick asks of it and what comes back."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from umaserve.messages import Generate


class Text(Protocol):
    """The text of one stream, made of its tokens' bytes."""

    def push(self, token: int) -> tuple[str, bool]:
        """The text that ``token`` releases, and whether a stop string was reached."""

    def finish(self) -> str:
        """The text still held back, when no more tokens come."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request made ready to run. ``sampler`` is the engine's own and opaque to everybody else."""

    tokens: Sequence[int]
    max_tokens: int
    text: Text
    sampler: object


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of one sequence. With a ``sampler`` the next token after the last one is sampled."""

    slot: int
    start: int
    """Position of the first token in its sequence."""
    tokens: Sequence[int]
    sampler: object | None


@dataclass(frozen=True, slots=True)
class Tick:
    """One decode: first the slots of ended sequences are cleared, then all runs go in one batch."""

    release: Sequence[int]
    runs: Sequence[Run]


class Outcome(enum.Enum):
    """How a tick's decode ended."""

    DONE = enum.auto()
    NO_CELLS = enum.auto()
    """No place in the KV cache: nothing was computed, and nothing changed."""
    FAILED = enum.auto()
    """The sequences of this batch are in an unknown state."""


@dataclass(frozen=True, slots=True)
class TickResult:
    """``tokens`` holds one sampled token for each run, ``None`` for a run without a sampler."""

    outcome: Outcome
    tokens: Sequence[int | None]
    seconds: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an engine can hold, in tokens and sequences."""

    slots: int
    cells: int
    """KV cells shared by all sequences."""
    sequence_tokens: int
    """The longest one sequence may get, prompt and answer together."""
    batch_tokens: int


class Engine(Protocol):
    """What the scheduler needs. ``run`` is called on the compute thread, ``prepare`` on the preparing thread."""

    @property
    def capacity(self) -> Capacity: ...

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a generation."""

    def prepare(self, request: Generate) -> Prepared:
        """Template, tokenize and compile ``request``; raises ``RequestError``."""

    def run(self, tick: Tick) -> TickResult:
        """Decode and sample one tick."""
