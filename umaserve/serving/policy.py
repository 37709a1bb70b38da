"""What the next tick computes: a pure function of a snapshot, tested and simulated with an invented clock.

The rules, and why:

1. Every stream that can make progress gets its token in every tick: nobody's stream freezes. Only where the interactive
   ones leave no time do the background ones take turns, at least one of them in each tick.
2. Prefill takes what is left of the tick's *time*: as many prompt tokens as keep the tightest time-between-tokens
   target among the running streams, by the cost model. At least ``PREFILL_FLOOR`` all the same, so that a target that
   is barely kept does not stop prompts for ever.
3. Where decoding alone breaks that target, it is lost, and the deadlines for first tokens decide: prefill gets the
   share of the time that they need, from ``MIN_SHARE`` to ``MAX_SHARE``. A prompt that has missed its deadline gets
   the least share in any case, or streams that barely keep their target would let nobody in.
4. With no stream running, a tick is bounded by ``IDLE_TICK_S`` only, so that a cancel and a newcomer are seen soon. (On
   a CPU the time for a prompt token is the same from some 16 tokens a batch on; nothing is lost.) With no other
   prompt either, the last token of a wide batch is computed by itself, as it is when the prompt is repeated: a wide
   batch rounds differently, and equal requests on an idle daemon are to get equal answers.
5. Prompts go by class; of a class, streams that lost their place go first, since their clients wait in the middle of an
   answer; then by deadline. Prompts that have missed their deadline go behind those that can still keep it, or a box
   with too much to do would serve everybody late. No deadline is later than ``AGING_S`` after arrival, and who has
   waited that long, of whatever class, is overtaken by no newcomer.
6. A prompt starts when a slot is free and the cells promised to it are: for what it has, and for as many more tokens as
   answers are likely to take. The first that does not fit holds back those behind it, or a long prompt would wait for
   ever. A stream that outgrows its promise gets more before its next token, and before any prompt starts.
7. Where cells are short, sequences lose their place in this order, and go on later where they were: those that are held
   (paused, or their reader behind or gone), the one held longest first; then background work that has not aged, the
   youngest first; then all others, the youngest first. A prompt takes the place of held sequences, and if it is
   interactive, of background work. A stream that grows takes anybody's that comes before itself in this order, or else
   loses its own place. The last in the order never does: somebody always gets to the end. A tick that took a place for
   a growing stream starts no prompt.
8. Guesses at a stream's next tokens are verified with it when no prompt wants the time, as many as bring more tokens a
   second than they cost, by the share of this stream's guesses that proved right. They make a tick longer by at most
   ``MAX_SLOWDOWN`` of what it takes the others.
9. Runs with different LoRA adapters can't share a decode: each set of adapters has its tick in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from umaserve.messages import Priority
from umaserve.serving.cost_model import MIN_TICK_S, Cost
from umaserve.serving.ticks import Adapters

PREFILL_FLOOR = 1
MIN_SHARE, MAX_SHARE = 0.15, 0.6
MAX_SLOWDOWN = 0.25
IDLE_TICK_S = 0.2
WIDE_ROWS = 64
"""From so many rows in a decode on, llama.cpp's attention on a CPU uses another kernel, which rounds differently."""
AGING_S = 30.0
HEADROOM = 0.95
"""Part of the target that the plan uses: the token must still be sent."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A sequence whose prompt is done and whose client takes its tokens."""

    id: int
    target_tbt_s: float
    priority: Priority = Priority.INTERACTIVE
    arrived_at: float = 0.0
    cells: int = 0
    """KV cells promised to it."""
    lacks: int = 0
    """Those that it needs for its next token beyond them."""
    last_token_at: float = 0.0
    draft_tokens: int = 0
    """How many of its next tokens can be guessed."""
    acceptance: float = 0.0
    """The share of guesses that proves right."""
    drafts: bool = False
    """Whether the guesses are still to be made, by the draft model."""
    adapters: Adapters = ()


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
    """KV cells promised to it, or to be promised when it starts."""
    resumes: bool = False
    """Whether its stream had a place before: what remains is to be computed again, or to be brought back."""
    adapters: Adapters = ()


@dataclass(frozen=True, slots=True)
class Held:
    """A sequence with a slot that gets no tokens for now."""

    id: int
    cells: int


_Holder = Held | Stream | Prompt


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
    last_adapters: Adapters = ()
    """Those of the tick before."""
    drafting_s: float = 0.0
    """What a guess by the draft model takes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Ids of the streams to decode, each with its number of guesses, of the prompts to prefill with their number of
    tokens, and of those that lose their place first."""

    decode: tuple[tuple[int, int], ...]
    prefill: tuple[tuple[int, int], ...] = ()
    preempt: tuple[int, ...] = ()
    adapters: Adapters = ()
    throttled: bool = False
    """Whether there was more to prefill than the tick's time allowed."""


def is_background(priority: Priority, arrived_at: float, now: float) -> bool:
    """Whether a request gives way to interactive ones: background work does until it has waited for ``AGING_S``."""
    return priority is Priority.BACKGROUND and now - arrived_at < AGING_S


def urgency(
    priority: Priority, arrived_at: float, target_ttft_s: float, now: float, *, resumes: bool
) -> tuple[bool, bool, bool, float]:
    """What waiting requests are served by, the least first (rule 5); of equal ones, the first that came."""
    deadline = arrived_at + min(target_ttft_s, AGING_S)
    missed = deadline < now < arrived_at + AGING_S
    return is_background(priority, arrived_at, now), not resumes, missed, deadline


def plan(snapshot: Snapshot) -> Plan:
    """The next tick; empty when nothing can be done."""
    sets = _in_turn(snapshot)
    for adapters in sets:
        the_plan = _plan(snapshot, adapters, len(sets))
        if the_plan.decode or the_plan.prefill or the_plan.preempt:
            return the_plan
    return Plan(())


def _in_turn(snapshot: Snapshot) -> list[Adapters]:
    """The sets of adapters that have work, the one after the last tick's first. Of prompts that have not started, only
    the most urgent one can be next."""
    first = min(
        (one for one in snapshot.prompts if not one.started), key=lambda one: _urgency(one, snapshot.now), default=None
    )
    prompts = [one.adapters for one in snapshot.prompts if one.started or one is first]
    sets = list(dict.fromkeys([*(one.adapters for one in snapshot.streams), *prompts]))
    if snapshot.last_adapters in sets:
        after = sets.index(snapshot.last_adapters) + 1
        sets = sets[after:] + sets[:after]
    return sets


def _plan(snapshot: Snapshot, adapters: Adapters, n_sets: int) -> Plan:
    streams = [stream for stream in snapshot.streams if stream.adapters == adapters]
    prompts = [prompt for prompt in snapshot.prompts if prompt.adapters == adapters]
    urgent = [stream for stream in streams if not _is_background(stream, snapshot.now)] or streams
    # Each set of adapters has only its part of the time between two tokens.
    target = min((stream.target_tbt_s for stream in urgent), default=IDLE_TICK_S) / n_sets
    if len(urgent) < len(streams):
        streams = _with_background(snapshot, urgent, streams, HEADROOM * target)
    streams = streams[: snapshot.batch_tokens]
    if not snapshot.prompts and not any(stream.lacks for stream in streams):
        return Plan(_with_draft_tokens(snapshot, streams, target), adapters=adapters)
    room = _Room(snapshot)
    streams = room.extend(streams)
    rows = limit = _prefill_rows(snapshot, prompts, len(streams), target)
    alone = not snapshot.streams and len(snapshot.prompts) == 1
    prefill: list[tuple[int, int]] = []
    waiting = 0
    for prompt in sorted(snapshot.prompts, key=lambda one: _urgency(one, snapshot.now)):
        if prompt.id in room.preempted:
            continue
        if prompt.adapters != adapters:
            room.leave(prompt)
        elif rows == 0:
            waiting += 1
        elif prompt.started or room.make(prompt):
            tokens = min(prompt.remaining, rows)
            waiting += tokens < prompt.remaining
            if alone and tokens == prompt.remaining >= WIDE_ROWS:
                tokens -= 1
            prefill.append((prompt.id, tokens))
            rows -= tokens
    streams = [stream for stream in streams if stream.id not in room.preempted]
    decode = tuple((stream.id, 0) for stream in streams) if prefill else _with_draft_tokens(snapshot, streams, target)
    throttled = bool(waiting) and limit < snapshot.batch_tokens - len(streams)
    return Plan(decode, tuple(prefill), tuple(room.preempted), adapters, throttled)


class _Room:
    """Slots and cells for streams that grow and prompts that start, and who loses its place for them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.preempted: dict[int, None] = {}
        self._slots, self._cells = snapshot.free_slots, snapshot.free_cells
        self._full = False
        """Whether no more prompts start in this tick."""
        running: list[Stream | Prompt] = [*snapshot.streams, *(one for one in snapshot.prompts if one.started)]
        running.sort(key=lambda one: (-one.arrived_at, -one.id))
        # Who loses its place, in the order of rule 7.
        self._held: list[_Holder] = list(snapshot.held)
        self._young: list[_Holder] = [one for one in running if _is_background(one, snapshot.now)]
        self._others: list[_Holder] = [one for one in running if not _is_background(one, snapshot.now)]

    def extend(self, streams: list[Stream]) -> list[Stream]:
        """Take the cells that ``streams`` lack for their next tokens; those that can make one then."""
        lacks = {stream.id: stream.lacks for stream in streams if stream.lacks}
        while sum(lacks.values()) > self._cells and len(self._held) + len(self._young) + len(self._others) > 1:
            lacks.pop(self._preempt(), None)
            self._full = True
        # What nobody here can give is held by prompts that wait for their media: the youngest stream waits with them.
        for one in [*self._young, *self._others]:
            if sum(lacks.values()) > self._cells:
                lacks.pop(one.id, None)
        self._cells -= sum(lacks.values())
        return [one for one in streams if one.id in lacks or (not one.lacks and one.id not in self.preempted)]

    def leave(self, prompt: Prompt) -> None:
        """Set aside what ``prompt``, of other adapters, needs to start in its own tick: those behind don't overtake."""
        if not prompt.started:
            self._slots -= 1
            self._cells -= prompt.cells

    def make(self, prompt: Prompt) -> bool:
        """Take a slot and cells for ``prompt``; whether there are."""
        if self._full:
            return False
        victims = self._held + self._young if prompt.priority is Priority.INTERACTIVE else self._held
        if self._slots + len(victims) <= 0 or prompt.cells > self._cells + sum(one.cells for one in victims):
            self._full = True
            return False
        while self._slots <= 0 or prompt.cells > self._cells:
            self._preempt()
        self._slots -= 1
        self._cells -= prompt.cells
        return True

    def _preempt(self) -> int:
        """Take the place of the first in the order; its id."""
        victim = next(filter(None, (self._held, self._young, self._others))).pop(0)
        self.preempted[victim.id] = None
        self._slots += 1
        self._cells += victim.cells
        return victim.id


def _is_background(one: Stream | Prompt, now: float) -> bool:
    return is_background(one.priority, one.arrived_at, now)


def _with_background(
    snapshot: Snapshot, urgent: Sequence[Stream], streams: Iterable[Stream], budget: float
) -> list[Stream]:
    """The urgent streams, and as many of the others as leave the budget kept, those that have waited longest first."""
    cost = snapshot.cost
    others = sorted(
        (stream for stream in streams if _is_background(stream, snapshot.now)),
        key=lambda stream: stream.last_token_at,
    )
    fitting = 1
    while fitting < len(others) and cost.seconds(len(urgent) + fitting + 1, 0, snapshot.cached) <= budget:
        fitting += 1
    return [*urgent, *others[:fitting]]


def _prefill_rows(snapshot: Snapshot, prompts: Sequence[Prompt], decode_rows: int, target: float) -> int:
    cost, cached = snapshot.cost, snapshot.cached
    seconds = HEADROOM * target if decode_rows else IDLE_TICK_S
    decode_s = cost.seconds(decode_rows, 0, cached)
    if decode_rows and decode_s > target:
        share = _needed_share(snapshot, prompts)
        # Where decoding takes nearly IDLE_TICK_S or more by itself, prefill still has its least share.
        seconds = min(decode_s / (1 - share), max(decode_s / (1 - MIN_SHARE), IDLE_TICK_S))
    elif decode_rows and any(prompt.arrived_at + prompt.target_ttft_s < snapshot.now for prompt in prompts):
        seconds = max(seconds, decode_s / (1 - MIN_SHARE))
    rows = cost.prefill_rows_within(seconds, decode_rows, cached)
    return min(max(rows, PREFILL_FLOOR), snapshot.batch_tokens - decode_rows)


def _needed_share(snapshot: Snapshot, prompts: Sequence[Prompt]) -> float:
    """The share of the time from now on that prefill needs for every prompt to keep its deadline."""
    row_s = snapshot.cost.prefill_row_s + snapshot.cost.attention_s * snapshot.cached / 1000
    needed = done_after = 0.0
    for prompt in sorted(prompts, key=lambda one: _urgency(one, snapshot.now)):
        done_after += row_s * prompt.remaining
        left = prompt.arrived_at + prompt.target_ttft_s - snapshot.now
        needed = max(needed, done_after / left if left > 0 else 1.0)
    return min(max(needed, MIN_SHARE), MAX_SHARE)


def _with_draft_tokens(snapshot: Snapshot, streams: Sequence[Stream], target: float) -> tuple[tuple[int, int], ...]:
    """Each stream with the number of guesses that pay: one that proves right with probability p brings p tokens for the
    time of a row, in which all streams together would have made their share of a tick's tokens."""
    if not any(stream.draft_tokens for stream in streams):
        return tuple((stream.id, 0) for stream in streams)
    cost = snapshot.cost
    row_s = max(cost.decode_row_s + cost.attention_s * snapshot.cached / 1000, MIN_TICK_S)
    tick_s = max(cost.seconds(len(streams), 0, snapshot.cached), MIN_TICK_S)
    left_s = HEADROOM * target - tick_s
    if len(streams) > 1:
        left_s = min(left_s, MAX_SLOWDOWN * tick_s)
    left_rows = snapshot.batch_tokens - len(streams)
    guessing = []
    for stream in streams:
        each_s = row_s + snapshot.drafting_s if stream.drafts else row_s
        limit = min(stream.draft_tokens, left_rows, max(0, int(left_s / each_s)))
        draft_tokens, probability = 0, stream.acceptance
        # Alone, a first guess is tried at even odds: nothing else would show what a row costs.
        while draft_tokens < limit and (
            probability * tick_s > len(streams) * each_s
            or (draft_tokens == 0 and len(streams) == 1 and probability >= 0.5)
        ):
            draft_tokens += 1
            probability *= stream.acceptance
        left_rows -= draft_tokens
        left_s -= draft_tokens * each_s
        guessing.append((stream.id, draft_tokens))
    return tuple(guessing)


def _urgency(prompt: Prompt, now: float) -> tuple[bool, bool, bool, float, int]:
    key = urgency(prompt.priority, prompt.arrived_at, prompt.target_ttft_s, now, resumes=prompt.resumes)
    return *key, prompt.id
