"""The snapshot that a plan depends on, the plan itself, and the order in which requests are served."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from umaserve.core.requests import Priority
from umaserve.sessions.cost_model import Cost
from umaserve.sessions.engine_api import Adapters

AGING_S = 30.0


class Stream(NamedTuple):
    """A sequence whose prompt is computed and that is not held. A named tuple, as ``engine_api.Run`` is one."""

    id: int
    target_tbt_s: float
    priority: Priority = Priority.INTERACTIVE
    arrived_at: float = 0.0
    cells: int = 0
    """KV cells promised to it."""
    lacks: int = 0
    """KV cells that its next token needs beyond those promised."""
    last_token_at: float = 0.0
    draft_tokens: int = 0
    """How many draft tokens it can have."""
    acceptance: float = 0.0
    """The share of its draft tokens that is accepted."""
    drafts: bool = False
    """Whether the draft model has still to make them."""
    adapters: Adapters = ()


class Prompt(NamedTuple):
    """A sequence with prompt tokens still to compute."""

    id: int
    remaining: int
    arrived_at: float
    target_ttft_s: float
    priority: Priority
    started: bool
    """Whether it has its slot and its cells already."""
    cells: int
    """KV cells promised to it, or to be promised when it starts."""
    resumes: bool = False
    """Whether it was preempted: its tokens are restored or computed again."""
    computed: int = 0
    """Tokens of the sequence in KV cells: all that its rows attend to, where it has a decode of its own."""
    adapters: Adapters = ()
    moving_s: float = 0.0
    """Seconds that it takes to load its cached prefix when it starts."""
    target_tbt_s: float = math.inf
    """Target time between tokens of the stream that it becomes, in seconds."""
    own_target: bool = False
    """Whether its request names the target for its first token."""
    random: bool = False
    """Whether its answer is drawn at random, without a seed: an equal request gets another one in any case."""


class Held(NamedTuple):
    """A sequence with a slot that gets no tokens for now, and the cells promised to it."""

    id: int
    cells: int


@dataclass(frozen=True, slots=True)
class OtherModelsLoad:
    """Load of the other models on the same compute thread: what they have to run. Of each of them, one tick comes
    between two ticks of this model. The default: nothing."""

    decode_s: float = 0.0
    """Seconds that the next decodes of their streams take, one of each model."""
    target_s: float = math.inf
    """The shortest target time between tokens of their streams; infinite without streams."""
    prefilling: bool = False
    """Whether the latest tick of one of them has prompt tokens."""
    prefilled_at: float = math.inf
    """Time at which a model had prompt tokens last: the model that waits for its turn the longest, of those that had
    more prompts to compute than their latest tick had time for. Infinite where there is none."""
    planned_s: float = 0.0
    """Seconds that their latest ticks take, by their plans."""

    @property
    def streaming(self) -> bool:
        return self.target_s < math.inf

    @property
    def waits(self) -> bool:
        """Whether one of them waits for its turn, or has it."""
        return self.prefilled_at < math.inf


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Input of a plan: all that it depends on."""

    now: float
    streams: Sequence[Stream]
    prompts: Sequence[Prompt]
    free_slots: int
    free_cells: int
    cached: int
    """KV cells that each row attends to, at most."""
    batch_tokens: int
    cost: Cost
    held: Sequence[Held] = ()
    """Sequences that are held, the one held longest first."""
    last_adapters: Adapters = ()
    """Adapters of the tick before."""
    drafting_s: float = 0.0
    """Seconds that the draft model takes for one draft token."""
    caution: float = 1.0
    """How many times as much as a tick usually takes ``cost`` says."""
    draft_seconds: Mapping[int, float] = field(default_factory=dict)
    """Seconds of a tick of ``streams`` without draft tokens, by their number, and of those with some by their sizes
    (``DraftCosts.seconds``)."""
    preparing: int = 0
    """Requests that have arrived and are not prepared yet."""
    prompts_apart: bool = False
    """Whether prompts are computed in decodes of their own (``decodes``)."""
    parted: bool = False
    """Whether each sequence has KV cells of its own."""
    moving_s: float = 0.0
    """Seconds for the KV operations that this tick has in any case."""
    prefilled_at: float = -math.inf
    """When a tick of this model had prompt tokens last."""
    began_at: float = -math.inf
    """When a tick of this model had the end of a prompt last: a stream began."""
    elsewhere: OtherModelsLoad = field(default_factory=OtherModelsLoad)


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of one tick, by id: the streams to decode, each with its number of draft tokens; the prompts to prefill,
    each with its number of tokens; and the sequences to preempt before that."""

    decode: tuple[tuple[int, int], ...]
    prefill: tuple[tuple[int, int], ...] = ()
    preempt: tuple[int, ...] = ()
    adapters: Adapters = ()
    throttled: bool = False
    """Whether there was more to prefill than the tick's time allowed."""
    gathers: bool = False
    """Whether it is empty because prompts wait, for ``GATHER_S`` at most, for others to be prepared."""


def is_background(priority: Priority, arrived_at: float, now: float) -> bool:
    """Whether interactive requests go before it: it is a background request and has not waited ``AGING_S`` yet."""
    return priority is Priority.BACKGROUND and now - arrived_at < AGING_S


def urgency(
    priority: Priority, arrived_at: float, target_ttft_s: float, now: float, *, own_target: bool, resumes: bool
) -> tuple[bool, bool, bool, float]:
    """The sort key of waiting requests: the least is served first (rule 5). Callers break ties by id."""
    deadline = arrived_at + min(target_ttft_s, AGING_S)
    missed = own_target and deadline < now < arrived_at + AGING_S
    return is_background(priority, arrived_at, now), not resumes, missed, deadline
