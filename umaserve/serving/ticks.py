"""The seam between the scheduler and an engine: what one tick asks of it and what comes back."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from umaserve.messages import Answer, Embed, Embedded, Generate, Logprobs, ModelInfo, Query

T = TypeVar("T")

Adapters = tuple[tuple[str, float], ...]
"""Names of LoRA adapters in alphabetical order, each with its scale."""


class Text(Protocol):
    """The text of one stream, made of its tokens' bytes."""

    def push(self, token: int) -> tuple[str, bool]:
        """The text that ``token`` releases, and whether a stop string was reached."""

    def finish(self) -> str:
        """The text still held back, when no more tokens come."""

    def set_stops(self, stops: Sequence[str]) -> None:
        """Stop at other strings from now on, also those that the text held back contains."""


class Chunk(Protocol):
    """What a projector takes in one go: an image, a part of one, or a stretch of sound."""

    @property
    def encoded(self) -> bool:
        """Whether it can be computed as a part of a prompt."""


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens of a prompt, from ``start`` up to ``end``, that stand for a chunk."""

    start: int
    end: int
    chunk: Chunk
    whole: bool = False
    """Whether all of it has to be computed at once: each of its tokens sees the ones behind it."""


ROW_BITS = 24


def media_ids(digest: int, tokens: int) -> list[int]:
    """What stands in a prompt for a chunk of so many tokens: below 0, and the same only for the same content, so that
    it can be found again like any prefix."""
    return [-1 - (digest << ROW_BITS | row) for row in range(tokens)]


def without_parts(tokens: Sequence[int], length: int) -> int:
    """``length``, or what is before the chunk that it would cut in two."""
    if length >= len(tokens) or tokens[length] >= 0:
        return length
    return length - ((-1 - tokens[length]) & ((1 << ROW_BITS) - 1))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request made ready to run. ``sampler`` is the engine's own and opaque to everybody else."""

    tokens: Sequence[int]
    """With ``media_ids`` where ``spans`` are."""
    max_tokens: int
    text: Text
    sampler: object
    logprobs: int | None = None
    """Alternatives to report with each token; ``None``: no log-probabilities."""
    adapters: Adapters = ()
    spans: Sequence[Span] = ()
    """In their order; there is text behind the last one."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of one sequence. With a ``sampler`` the next token after the last one is sampled."""

    slot: int
    start: int
    """Position of the first token in its sequence."""
    tokens: Sequence[int]
    sampler: object | None
    logprobs: int | None = None
    draft_tokens: int = 0
    """How many of the last tokens are guesses at what will be sampled. Tokens are sampled until one is no guess's, and
    the sequence then holds what was guessed right and nothing behind it."""
    span: Span | None = None
    """Where all of the tokens lie in one."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Up to ``limit`` guesses by the draft model at what follows ``sequence``, to be added to the run of this index."""

    run: int
    sequence: Sequence[int]
    limit: int


@dataclass(frozen=True, slots=True)
class Release:
    """Forget what a sequence holds from position ``start`` on."""

    slot: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """Let ``target``, which is empty, begin with the first ``length`` tokens of ``source``; they share the cells."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class Save:
    """Copy all that a sequence holds to host memory, into a place of this offset and size, in bytes."""

    slot: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Load:
    """Give a sequence, which is empty, what was saved in this place."""

    offset: int
    size: int
    slot: int


@dataclass(frozen=True, slots=True)
class Shed:
    """Give the host memory back: nothing in it is wanted."""


KVOperation = Release | Copy | Save | Load | Shed


@dataclass(frozen=True, slots=True)
class Tick:
    """One decode: first the moves, in order, then all runs in one batch, save for those of media, which llama.cpp
    decodes one by one."""

    kv_operations: Sequence[KVOperation]
    runs: Sequence[Run]
    threads: int = 1
    """Compute threads to use."""
    adapters: Adapters = ()
    """What all runs are computed with."""
    drafts: Sequence[Draft] = ()


class Outcome(enum.Enum):
    """How a tick's decode ended."""

    DONE = enum.auto()
    NO_CELLS = enum.auto()
    """No place in the KV cache: nothing was computed, and nothing changed."""
    CACHE_LOST = enum.auto()
    """A sequence could not be saved or brought back: nothing was computed, and the slots to be loaded are empty."""
    FAILED = enum.auto()
    """The sequences of this batch are in an unknown state."""


@dataclass(frozen=True, slots=True)
class TickResult:
    """``tokens`` holds the sampled tokens of each run, none for a run without a sampler; ``logprobs`` is by the index
    of a run that wants them, one for each of its tokens."""

    outcome: Outcome
    tokens: Sequence[Sequence[int]]
    seconds: float
    """What the decode took, with sampling."""
    logprobs: Mapping[int, Sequence[Logprobs]] = field(default_factory=dict)
    drafted: Sequence[int] = ()
    """How many guesses the draft model made for each of the tick's drafts."""
    drafting_s: float = 0.0
    """What it took for them, before the decode."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an engine can hold, in tokens and sequences."""

    slots: int
    """Sequences that may be computed at once."""
    cells: int
    """KV cells shared by all sequences."""
    sequence_tokens: int
    """The longest one sequence may get, prompt and answer together."""
    batch_tokens: int
    threads: int = 1
    """The most that a tick can use."""
    sequences: int = 0
    """Sequences that can be held, those that are kept for later prompts among them; at least ``slots``."""
    cached_cells: int = 0
    """KV cells that sequences kept for later may take; 0 where no sequence can be shared or cut short."""
    host_bytes: int = 0
    """Host memory for ``Save``."""
    saved_bytes: tuple[int, int] = (0, 0)
    """What a saved sequence takes: in any case, and for each token."""
    drafts: bool = False
    """Whether there is a draft model."""


YieldPoint = Callable[[], None]


class JobQueue(Protocol):
    """A thread that runs jobs in order; ``done`` is called back on the loop's thread with the result or the error."""

    def submit(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None: ...

    def submit_lengthy(self, job: Callable[[YieldPoint], T], done: Callable[[T | BaseException], None]) -> None:
        """The same for a job that calls what it is given now and then, so that others run meanwhile."""


class Engine(Protocol):
    """What the scheduler needs. ``run``, ``encode`` and ``embed`` are called on the compute thread, ``prepare`` and
    ``answer`` on preparing threads, ``change`` on the loop's, and never while a tick runs."""

    @property
    def capacity(self) -> Capacity: ...

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a generation."""

    @property
    def info(self) -> ModelInfo: ...

    def prepare(self, request: Generate, tenant: str = "", wanted: Callable[[], bool] = lambda: True) -> Prepared:
        """Template, tokenize and compile ``request``; raises ``RequestError``, also when it isn't ``wanted`` any more.
        Media that were prepared before are found again for the same ``tenant``."""

    def encode(self, chunk: Chunk, pause: YieldPoint, wanted: Callable[[], bool]) -> None:
        """Encode ``chunk``, and give up when it isn't ``wanted`` any more. ``pause`` is called every few milliseconds,
        and may run ticks. Raises ``RequestError`` where the projector fails on it."""

    def change(self, prepared: Prepared, request: Generate, generated: Sequence[int]) -> Prepared:
        """``prepared``, going on after the tokens ``generated`` with the sampling, stops and ``max_tokens`` of
        ``request``, whose ``None`` is the server's default, not what held before; quick. Raises ``RequestError``, and
        then nothing has changed."""

    def answer(self, query: Query) -> Answer:
        """What ``query`` asks, save for ``Embed``; raises ``RequestError``."""

    def shed(self) -> None:
        """Memory is short: keep nothing of media that no request uses. Called on the compute thread."""

    def embed(self, query: Embed) -> Embedded:
        """The vectors of all inputs; raises ``RequestError`` where the model makes none."""

    def run(self, tick: Tick) -> TickResult:
        """KVOperation, decode and sample one tick."""
