"""The interface between the scheduler and an engine: what a tick asks for and what it returns."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, Protocol, TypeVar

from umaserve.core.errors import RequestError
from umaserve.core.events import Logprobs, ModelInfo
from umaserve.core.queries import Answer, Embed, Embedded, Query
from umaserve.core.requests import Generate
from umaserve.sessions.kv_operations import KVOperation

T = TypeVar("T")

Adapters = tuple[tuple[str, float], ...]
"""Names of LoRA adapters in alphabetical order, each with its scale."""


Sampler = Annotated[object, "sampler"]
"""Sampler of a sequence, with which the engine chooses its tokens: opaque to all others."""


class Chunk(Protocol):
    """Piece of media that a projector encodes at once: an image, a part of one, or a piece of audio."""

    @property
    def encoded(self) -> bool:
        """Whether it is encoded, so that it can be prefilled."""


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens of a prompt, from ``start`` up to ``end``, that stand for a chunk."""

    start: int
    end: int
    chunk: Chunk
    whole: bool = False
    """Whether all of it has to be in one decode, since its tokens attend to the ones behind them."""


ROW_BITS = 24


def media_ids(digest: int, tokens: int) -> list[int]:
    """The ids below 0 that stand in a prompt for a chunk of this many tokens. Only equal content has equal ids, so that
    the prefix cache can match them like text."""
    return [-1 - (digest << ROW_BITS | row) for row in range(tokens)]


def without_parts(tokens: Sequence[int], length: int) -> int:
    """``length``, or the start of the chunk that it would cut in two."""
    if length >= len(tokens) or tokens[length] >= 0:
        return length
    return length - ((-1 - tokens[length]) & ((1 << ROW_BITS) - 1))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request made ready to run."""

    tokens: Sequence[int]
    """Tokens of the prompt, with ``media_ids`` in ``spans``."""
    max_tokens: int
    sampler: Sampler
    logprobs: int | None = None
    """Alternatives to report with each token; ``None``: no log-probabilities."""
    adapters: Adapters = ()
    spans: Sequence[Span] = ()
    """Spans of media in the order of the prompt, which ends with text."""
    in_thought: bool | None = None
    """Whether the answer begins inside a thought; ``None``: its text is taken as it is, and has no thoughts."""
    sound_s: float = 0.0
    """The seconds of sound in the prompt."""
    text: str = ""
    """The prompt as text, without media, where the request asks for it."""
    first: bytes = b""
    """The bytes of the prompt's first token, where log-probabilities of the prompt are wanted."""


MAX_SCORED_ROWS = 64
"""Tokens in the runs of one tick with a ``Scoring``, at most. llama.cpp keeps room for their logits from then on: 39 MB
with a vocabulary of 152,000. On a CPU its attention computes so many together."""


class Scoring(NamedTuple):
    """The log-probabilities of the tokens that follow each of a run in its prompt, with so many alternatives."""

    following: int
    """Token that follows the run's last one."""
    alternatives: int


class Run(NamedTuple):
    """Consecutive tokens of one sequence to decode. With a ``sampler``, the token after them is sampled. There are none
    where that token was late (``TickResult``). A named tuple, since each stream has one in each tick, and a frozen
    dataclass takes three times as long to make."""

    slot: int
    start: int
    """Position of the first token in its sequence."""
    tokens: Sequence[int]
    sampler: Sampler | None
    logprobs: int | Scoring | None = None
    """Alternatives to report with each sampled token; or what to report of a prompt, in a run without a sampler."""
    draft_tokens: int = 0
    """How many of the last tokens are draft tokens. Tokens are sampled until one differs from its draft token. Rejected
    draft tokens are removed from the sequence."""
    span: Span | None = None
    """The span that the tokens are a part of, if they are media."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Up to ``limit`` draft tokens for the draft model to make after ``sequence`` and to append to the run of index
    ``run``."""

    run: int
    sequence: Sequence[int]
    limit: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Tick of an engine: first the KV operations in order, then the runs. How many decodes they take is the engine's
    choice: runs of media are decoded first, one by one, and all streams in one decode."""

    kv_operations: Sequence[KVOperation]
    runs: Sequence[Run]
    threads: int = 1
    """Compute threads to use."""
    adapters: Adapters = ()
    """Adapters used by all runs."""
    drafts: Sequence[Draft] = ()
    number: int = 0
    """Number of the tick. The one behind it, where that can be run ahead (``RunAhead``), has the next one."""


class Outcome(enum.Enum):
    """How a tick's decode ended."""

    DONE = enum.auto()
    NO_CELLS = enum.auto()
    """The KV cache has no room for the runs: the KV operations were done, but nothing was computed."""
    CACHE_LOST = enum.auto()
    """A sequence could not be saved or restored: nothing was computed, and the slots to be loaded are empty."""
    FAILED = enum.auto()
    """The sequences of this batch are in an unknown state."""


@dataclass(frozen=True, slots=True)
class TickResult:
    """Result of a tick. ``tokens``: the sampled tokens of each run, none for a run without a sampler. ``logprobs``: by
    the index of each run that wants them, one for each sampled token; for a ``Scoring``, one for each token of the
    run."""

    outcome: Outcome
    tokens: Sequence[Sequence[int]]
    seconds: float
    """Time for decoding and sampling, in seconds."""
    logprobs: Mapping[int, Sequence[Logprobs]] = field(default_factory=dict)
    drafted: Sequence[int] = ()
    """How many draft tokens the draft model made for each of the tick's drafts."""
    drafting_s: float = 0.0
    """Time that the draft model took for them, before the decode, in seconds."""
    moving_s: float = 0.0
    """Time for the KV operations, in seconds."""
    failed: Mapping[int, RequestError] = field(default_factory=dict)
    """The errors of runs whose next token could not be chosen, by the run's index; they have no tokens."""
    late: Collection[int] = ()
    """The indices of runs whose next token is still being chosen, by a slow grammar. The token comes with the next run
    of that sampler, which has no tokens if the sequence is still in its slot."""


class SavedBytes(NamedTuple):
    """The size of a saved sequence."""

    fixed: int = 0
    each: int = 0
    """Bytes for each token."""
    last: int = 0
    """Bytes for each of the last ``window`` tokens, besides."""
    window: int = 0

    def of(self, tokens: int) -> int:
        """The bytes of a sequence of so many tokens, at most."""
        return self.fixed + self.each * tokens + self.last * min(tokens, self.window)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The limits of an engine."""

    slots: int
    """Sessions that may run at once."""
    cells: int
    """KV cells shared by all sequences."""
    sequence_tokens: int
    """The longest sequence, prompt and answer together."""
    batch_tokens: int
    threads: int = 1
    """Compute threads that a tick can use, at most."""
    sequences: int = 0
    """Sequences that the KV cache can hold, cached ones included."""
    cached_cells: int = 0
    """KV cells that cached sequences may take; 0 if sequences can't share cells or be cut to a prefix. Then a saved
    sequence is only reused whole."""
    max_draft_tokens: int = 0
    """Draft tokens that a run may have; 0 where rejected ones can't be removed."""
    takes_back: bool = False
    """Whether the tokens of the latest decode can also be removed later, when its accepted ones were not all wanted."""
    host_bytes: int = 0
    """Host memory for ``Save``."""
    saved_bytes: SavedBytes = field(default_factory=SavedBytes)
    drafts: bool = False
    """Whether there is a draft model."""
    prompts_apart: bool = False
    """Whether prompts are computed in decodes of their own (``decodes``)."""
    divisions: Sequence[tuple[int, int]] = ()
    """The ways to divide the KV cells (``Divide``): parts, and the cells of each. The first is in force at the start;
    empty: all sequences share the cells."""
    keeps: bool = False
    """Whether there is a folder for sequences on disk."""
    names: bool = False
    """Whether there is one for sequences with names, too."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A sequence on disk."""

    name: str
    scope: str
    """Scope of the sequence, hashed as ``kvcache.disk_cache`` does it."""
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A sequence that an operator has given a name, and the size of its file."""

    kept: Kept
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Listing of what has changed on disk."""

    new: Sequence[Kept] = ()
    gone: Sequence[str] = ()
    """Names of the sequences that are gone."""
    used_bytes: int = 0
    """Size of all sequences on disk, in bytes."""
    more: bool = False
    """Whether there are more new ones, for the next listing."""
    errors: int = 0
    """How often something could not be read or written since the last one."""


YieldPoint = Callable[[], None]


class JobQueue(Protocol):
    """A thread that runs jobs in order; ``done`` is called back on the loop's thread with the result or the error."""

    def submit(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None: ...

    def submit_lengthy(self, job: Callable[[YieldPoint], T], done: Callable[[T | BaseException], None]) -> None:
        """Submit a long job, as ``submit``. The job calls its argument from time to time to let other jobs run."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Resources that an engine may take while it loads its model, and after."""

    available_bytes: int
    """Available memory of the box, in bytes, with what the model's mapped file takes."""
    beside: bool
    """Whether other models run, whose streams loading must not slow down."""
    known_bytes: int = 0
    """What the model took when it was loaded before, by the same program and in the same way; 0 where it was not."""
    known_cells: int = 0
    """KV cells that it had then; 0 where that is not known."""


class EngineLost(Exception):
    """The engine is gone, or no longer trusted: no call to it will be answered."""


class RunAhead(Protocol):
    """Has an engine run the tick behind one (``sessions.next_tick``) by itself. Belongs to the loop's thread."""

    def grant(self, before: Tick, done: Callable[[TickResult | BaseException | None], None]) -> bool:
        """Have the tick behind ``before`` run; returns whether that is possible. ``before`` runs or will run, and is
        the last tick that was submitted. ``done`` is called with the result, ``None`` if the tick can't be run."""

    def take_back(self) -> bool:
        """Take back the last grant; returns whether that tick has not begun. Its ``done`` is then never called."""


class Engine(Protocol):
    """Interface that the scheduler needs of an engine. ``run``, ``encode``, ``embed`` and ``shed`` are called on the
    compute thread, ``prepare``, ``prepare_choice`` and ``answer`` on preparing threads (of a few tokens to
    ``Detokenize`` also on the loop's), ``change`` on the loop's thread while no tick runs, ``look``, ``keep``,
    ``fetch``, ``give_name`` and ``take_back`` on a thread for the disk. All may raise ``EngineLost``."""

    @property
    def capacity(self) -> Capacity: ...

    @property
    def run_ahead(self) -> RunAhead | None:
        """Runs ticks behind others; ``None``: this engine doesn't."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a generation."""

    @property
    def pieces(self) -> Sequence[bytes]:
        """The bytes of each token's text, by its id."""

    @property
    def info(self) -> ModelInfo: ...

    def prepare(
        self,
        request: Generate,
        tenant: str = "",
        wanted: Callable[[], bool] = lambda: True,
        generated: Sequence[int] = (),
    ) -> Prepared:
        """Template and tokenize ``request``, and compile its grammar. Raises ``RequestError``, also when it isn't
        ``wanted`` any more. Prepared media are cached for each ``tenant``. ``generated``: the tokens that an engine
        which was lost has made for this request, to go on behind them."""

    def prepare_choice(self, request: Generate, first: Prepared) -> Prepared:
        """Prepare ``request``, as ``prepare``. It differs in id and seed only from the request that ``first`` was made
        of. No tick has used ``first`` yet."""

    def encode(self, chunk: Chunk, pause: YieldPoint, wanted: Callable[[], bool]) -> None:
        """Encode ``chunk``; stop when it isn't ``wanted`` any more. ``pause`` is called every few milliseconds and may
        run ticks. Raises ``RequestError`` if the projector fails."""

    def change(self, prepared: Prepared, request: Generate, generated: Sequence[int]) -> Prepared:
        """``prepared`` with the sampling and ``max_tokens`` of ``request``, to continue after the tokens ``generated``.
        ``None`` in ``request`` is the server's default, not the previous value. A ``thought_budget`` of 0 ends a
        thought. Must be quick. Raises ``RequestError`` and then changes nothing."""

    def answer(self, query: Query) -> Answer:
        """The answer to ``query``, which is not an ``Embed``; raises ``RequestError``."""

    def shed(self) -> None:
        """Drop cached media that no request uses: memory is short."""

    def embed(self, query: Embed, pause: YieldPoint) -> Embedded:
        """The vectors of all inputs; raises ``RequestError``, for instance if the model makes none. ``pause`` is called
        every few milliseconds and may run ticks."""

    def run(self, tick: Tick) -> TickResult:
        """Do the KV operations of ``tick``, decode its runs and sample their next tokens."""

    def look(self) -> Listing:
        """List what has changed on disk since the last call; at first, all that is there."""

    def keep(
        self,
        scope: str,
        tokens: Sequence[int],
        offset: int,
        size: int,
        replaced: Sequence[str],
        wanted: Callable[[], bool],
    ) -> str | None:
        """Write what was saved at ``offset`` to disk, and remove the sequences named ``replaced``; its name, or
        ``None`` if it can't be kept. ``wanted`` is asked before each piece, and once all is read: what was read then
        counts only if nothing was saved over it."""

    def fetch(self, name: str, offset: int, size: int, wanted: Callable[[], bool]) -> bool:
        """Read a sequence from disk into host memory, as if it had been saved there; returns whether all of it is
        there, as it was written. ``wanted`` is asked before each piece."""

    def give_name(self, name: str, filename: str) -> int:
        """Give the sequence ``name`` on disk a name of an operator's; the size of its file. Raises ``RequestError``."""

    def take_back(self, filename: str) -> NamedFile:
        """Put a sequence with such a name back to those on disk. Raises ``RequestError``."""
