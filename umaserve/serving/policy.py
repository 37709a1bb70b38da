"""What the next tick computes: a pure function of a snapshot, tested and simulated with an invented clock.

The rules, and why:

1. Every stream that can make progress gets its token in every tick: nobody's stream freezes.
2. Prefill takes what is left of the tick's *time*: as many prompt tokens as keep the tightest time-between-tokens
   target among the running streams, by the cost model. At least ``PREFILL_FLOOR`` all the same, so that a target that
   can't be kept does not stop prompts for ever.
3. With no stream running, a tick is bounded by ``IDLE_TICK_S`` only, so that a cancel and a newcomer are seen soon. (On
   a CPU the time for a prompt token is the same from some 16 tokens a batch on; nothing is lost.)
4. Prompts go by class, then by deadline. A background prompt that has waited ``AGING_S`` counts as interactive, and no
   deadline is later than ``AGING_S`` after arrival: whoever waits longer than that is overtaken by no newcomer.
5. A prompt starts when a slot is free and the cells for its whole answer are: nobody who runs is failed for want of KV
   later. The first that does not fit holds back those behind it, or a long prompt would wait for ever.
6. A stream that is held (paused, or its reader behind or gone) keeps its slot and cells until a prompt can't start for
   want of them. Then those held longest give way, and are computed again when they go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from umaserve.messages import Priority
from umaserve.serving.cost_model import Cost

PREFILL_FLOOR = 8
IDLE_TICK_S = 0.2
AGING_S = 30.0
HEADROOM = 0.9
"""Part of the target that the plan uses: the model errs, and the token must still be sent."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A sequence whose prompt is done and whose client takes its tokens."""

    id: int
    target_tbt_s: float


@dataclass(frozen=True, slots=True)
class Prompt:
    """A sequence with prompt tokens still to compute."""

    id: int
    remaining: int
    arrived_at: float
    target_ttft_s: float
    priority: Priority
    started: bool
    """Whether it has its slot and its cells already."""
    cells: int
    """KV cells that prompt and answer need at most."""


@dataclass(frozen=True, slots=True)
class Held:
    """A sequence with a slot that gets no tokens for now."""

    id: int
    cells: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the plan depends on."""

    now: float
    streams: Sequence[Stream]
    prompts: Sequence[Prompt]
    free_slots: int
    free_cells: int
    cached: int
    """KV cells in use."""
    batch_tokens: int
    cost: Cost
    held: Sequence[Held] = ()
    """The one held longest first."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Ids of the streams to decode, of the prompts to prefill with their number of tokens, and of the held ones that
    lose their place first."""

    decode: tuple[int, ...]
    prefill: tuple[tuple[int, int], ...]
    evict: tuple[int, ...] = ()


def plan(snapshot: Snapshot) -> Plan:
    """The next tick; empty when nothing can be done."""
    decode = tuple(stream.id for stream in snapshot.streams[: snapshot.batch_tokens])
    if not snapshot.prompts:
        return Plan(decode, ())
    rows = _prefill_rows(snapshot, len(decode))
    free_slots, free_cells = snapshot.free_slots, snapshot.free_cells
    held = list(snapshot.held)
    prefill: list[tuple[int, int]] = []
    evict: list[int] = []
    for prompt in sorted(snapshot.prompts, key=lambda p: _urgency(p, snapshot.now)):
        if rows == 0:
            break
        if not prompt.started:
            if free_slots + len(held) == 0 or prompt.cells > free_cells + sum(one.cells for one in held):
                # Those that have started keep their turn; nobody new overtakes.
                free_slots = 0
                held.clear()
                continue
            while free_slots == 0 or prompt.cells > free_cells:
                victim = held.pop(0)
                evict.append(victim.id)
                free_slots += 1
                free_cells += victim.cells
            free_slots -= 1
            free_cells -= prompt.cells
        tokens = min(prompt.remaining, rows)
        prefill.append((prompt.id, tokens))
        rows -= tokens
    return Plan(decode, tuple(prefill), tuple(evict))


def _prefill_rows(snapshot: Snapshot, decode_rows: int) -> int:
    if decode_rows:
        budget = HEADROOM * min(stream.target_tbt_s for stream in snapshot.streams)
    else:
        budget = IDLE_TICK_S
    rows = snapshot.cost.prefill_rows_within(budget, decode_rows, snapshot.cached)
    return min(max(rows, PREFILL_FLOOR), snapshot.batch_tokens - decode_rows)


def _urgency(prompt: Prompt, now: float) -> tuple[int, float, int]:
    aged = now - prompt.arrived_at >= AGING_S
    class_ = Priority.INTERACTIVE if aged else prompt.priority
    return class_, prompt.arrived_at + min(prompt.target_ttft_s, AGING_S), prompt.id
