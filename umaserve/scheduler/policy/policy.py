"""Plans the next tick: a pure function of a snapshot, so that tests and simulations can choose the time.

The rules, and why:

1. Every stream that can make progress gets a token in every tick, so that none stalls. Only if the interactive streams
   leave too little time do the background ones take turns, at least one of them in each tick.
2. Prefill takes the rest of the tick's *time*: as many prompt tokens as keep the shortest target time between tokens
   of the running streams, by the cost model. It gets at least ``PREFILL_FLOOR`` tokens, so that a target that is barely
   kept does not stop prefill for ever; ``MIN_ROWS`` where a prompt has a decode of its own, shorter than the
   streams', and these take ``FULL`` of the target.
3. If decoding alone exceeds that target, it can't be kept, and the deadlines for first tokens decide: prefill gets the
   share of the time that they need, from ``MIN_SHARE`` to ``MAX_SHARE``. Once a prompt has missed its deadline, prefill
   gets ``MIN_SHARE`` in any case; otherwise streams that barely keep their target would keep all prompts waiting.
4. Without streams, a tick takes up to ``MAX_IDLE_TICK_S``, and of a lone prompt up to ``IDLE_SHARE`` of what it still
   takes, ``IDLE_TICK_S`` at least: long ticks compute prompts up to a sixth faster, and a newcomer waits for those
   before it in any case, unless it can still join a burst (rule 10). A tick of background prompts takes
   ``IDLE_TICK_S``, since a newcomer may go before them. It has whole tiles of ``WIDE_ROWS`` rows, and one at least,
   whatever that takes: a prompt token in 32 takes 1.4 times, in 64 1.1 times, as long as one in 128; behind 300 others
   one in 32 takes 2.4 times as long as one in 64. If there is only one prompt, the last token of a wide batch has its
   own tick, as it has when the prompt is repeated: a wide batch rounds differently, and equal requests on an idle
   daemon are to get equal answers; unless they are drawn at random.
5. Prompts are ordered by class; within a class, preempted streams go first, since their clients wait in the middle of
   an answer; then by deadline, which is the order of arrival for prompts without a target of their own. Those with one
   that have missed their deadline go behind all that have not; otherwise an overloaded daemon would serve everybody
   late. No deadline is later than ``AGING_S`` after arrival. A prompt that has waited that long, of whatever class, is
   not overtaken by newer ones.
6. A prompt starts when a slot is free, and the cells to promise to it: for its tokens, and for the likely length of its
   answer. The first prompt that does not fit blocks those behind it; otherwise a long prompt could wait for ever. A
   stream that outgrows its promise gets more cells before its next token, and before any prompt starts.
7. If slots or cells are short, sequences are preempted in this order, and resume later: held ones (paused, or their
   reader is slow or disconnected), the one held longest first; then background ones that have not aged, the youngest
   first; then all others, the youngest first. A prompt that starts preempts held sequences, and if it is interactive,
   background ones. A growing stream preempts any that are before it in this order; if there are none, it is itself
   preempted. The last in the order never is, so that some sequence always finishes. A tick that preempts for a growing
   stream starts no prompt.
   Beside streams, loading the prefix of a prompt that starts, and saving sequences that ended, count as prefill: of the
   prompts that start, all but the first wait for a tick that has time for it.
8. Draft tokens are verified in ticks without prefill: as many as bring the most tokens a second, by the streams'
   acceptance and by what such ticks took, in the time that ticks usually take: a rare longer one is made good by its
   tokens. The likeliest ones fill one of the sizes in ``draft_costs.SIZES``; where each sequence has KV cells of its
   own, all streams have equally many, since llama.cpp computes unequal ones one after another. A size of which little
   is known is tried if each of its draft tokens is right at even odds; with several streams, only if it pays with rows
   that take as long as a prompt's. No stream waits longer for its tokens than without any by more than the share
   ``MAX_SLOWDOWN``.
9. Runs with different LoRA adapters can't share a decode: the sets of adapters take turns, one tick each, and equal
   shares of what the decodes of all of them leave of the time between two tokens.
10. Where prompts are not computed in the decode of the streams and no stream runs, the prompts of a burst start
   together: each is computed up to its last token, and all last tokens have one tick; or all of them whole, if they
   fit one tick and rule 4 wants none of their last tokens apart. Prompts beside a stream are computed at half the speed
   (every tick then has a decode for the stream, and little time for them), and the first streams would keep all others
   waiting. A prompt waits for those that arrived at most ``BURST_S`` after it, not for less urgent classes, not in the
   middle of its answer, and not beyond a target of its own that it can still keep. It does not wait once it has aged,
   unless a stream began less than ``AGING_S`` ago: else all that are computed later would start one by one, each beside
   the stream of the one before. Before the first is computed, it waits for the requests that are being prepared, up to
   ``GATHER_S`` and ``GATHER_SHARE`` of what its own rows take: with Qwen2.5 0.5B on a Xeon, each of 33 rows takes 5.4
   ms, each of 128 in one decode 3.3 ms.
11. The models of a daemon share one compute thread, on which their ticks alternate: between two tokens of a stream runs
   one tick of each model. So a tick's target is the shortest of all models' streams, and what the decodes of the
   others' streams take is taken off. What is then left for prefill goes to one model at a time: each decode has its
   price, and with slow models the parts of all would be no more than that. The models whose prompts need more than they
   get take turns: next is the one whose latest tick with prompt tokens was longest ago, once no other has one under
   way; the others' ticks decode only. Rules 2, 3 and 8 hold for the decodes of all models together, also for a model
   that has no streams itself: its prompts get as much as beside streams of its own, the floor included. Background
   streams that would make others elsewhere miss a shorter target take turns. Rule 4 holds where no model has streams:
   of ticks that no token waits for, few long ones are better than many short ones. Rule 10 is about a model's own
   streams: it is their decodes that slow its prompts down.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter

from umaserve.scheduler.draft_costs import SIZES
from umaserve.scheduler.policy.burst import Burst, gathers
from umaserve.scheduler.policy.planned_cells import PlannedCells
from umaserve.scheduler.policy.snapshot import Held, Plan, Prompt, Snapshot, Stream, is_background, urgency
from umaserve.sessions.decodes import WIDE_ROWS
from umaserve.sessions.engine_api import Adapters

PREFILL_FLOOR = 1
MIN_SHARE, MAX_SHARE = 0.15, 0.6
MAX_SLOWDOWN = 0.25
IDLE_TICK_S, MAX_IDLE_TICK_S = 0.3, 1.2
IDLE_SHARE = 0.5
LATE_TICK_S = 0.2
"""For streams and prefill together, where the streams alone miss their target."""
MIN_ROWS = 16
"""Fewer rows of a prompt are computed only if they are its last or the first of a tick: each decode has its price."""
FULL = 0.7
HEADROOM = 0.95
"""The share of the target that the plan uses: the token must still be sent."""


def may_start(streams: Iterable[Stream], held: Sequence[Held], free_slots: int, now: float) -> bool:
    """Whether a slot can be had for a waiting prompt in this tick (rules 6 and 7). Where it can't and no prompt has
    started, the plan depends on no prompt whose adapters are those of a stream."""
    return free_slots > 0 or bool(held) or any(is_background(one.priority, one.arrived_at, now) for one in streams)


def plan(snapshot: Snapshot) -> Plan:
    """The next tick; empty when nothing can be done, or it is another model's turn."""
    if gathers(snapshot):
        return Plan((), adapters=snapshot.last_adapters, gathers=True)
    queue = sorted(snapshot.prompts, key=lambda one: _urgency(one, snapshot.now))
    sets = _in_turn(snapshot, queue)
    throttled = False
    for adapters in sets:
        the_plan = _plan(snapshot, queue, adapters, len(sets))
        throttled |= the_plan.throttled
        if the_plan.decode or the_plan.prefill or the_plan.preempt:
            return the_plan if the_plan.throttled == throttled else replace(the_plan, throttled=throttled)
    return Plan((), throttled=throttled)


def _in_turn(snapshot: Snapshot, queue: Sequence[Prompt]) -> list[Adapters]:
    """The sets of adapters that have work, beginning with the one after the last tick's. Of the prompts that have not
    started, only the most urgent one counts. ``queue``: all prompts, the most urgent first."""
    first = next((one for one in queue if not one.started), None)
    prompts = [one.adapters for one in snapshot.prompts if one.started or one is first]
    sets = list(dict.fromkeys([one.adapters for one in snapshot.streams] + prompts))
    if snapshot.last_adapters in sets:
        after = sets.index(snapshot.last_adapters) + 1
        sets = sets[after:] + sets[:after]
    return sets


def _plan(snapshot: Snapshot, queue: Sequence[Prompt], adapters: Adapters, n_sets: int) -> Plan:
    streams = [stream for stream in snapshot.streams if stream.adapters == adapters]
    prompts = [prompt for prompt in queue if prompt.adapters == adapters]
    elsewhere = snapshot.elsewhere
    urgent = [one for one in snapshot.streams if not is_background(one.priority, one.arrived_at, snapshot.now)]
    # The sets of adapters share the time between two tokens of any stream.
    target = min([stream.target_tbt_s for stream in urgent or snapshot.streams], default=IDLE_TICK_S) / n_sets
    if not urgent and target <= elsewhere.target_s:
        urgent = list(snapshot.streams)
    target = min(target, elsewhere.target_s)
    mine = [one for one in urgent if one.adapters == adapters]
    if len(mine) < len(streams):
        streams = _with_background(snapshot, mine, streams, HEADROOM * target - elsewhere.decode_s)
    streams = streams[: snapshot.batch_tokens]
    if not queue and not any(stream.lacks for stream in streams):
        return Plan(_with_draft_tokens(snapshot, streams, target), adapters=adapters)
    room = PlannedCells(snapshot)
    streams = room.extend(streams)
    others_s = _decodes_s(snapshot, Counter(one.adapters for one in urgent if one.adapters != adapters).values())
    beside = bool(streams) or others_s > 0 or elsewhere.streaming
    has_turn = not beside or _has_turn(snapshot)
    mean_s = (_decodes_s(snapshot, [len(streams)]) + others_s) / n_sets
    rows = limit = _prefill_rows(snapshot, prompts, len(streams), mean_s, target) if has_turn else 0
    burst = Burst(snapshot, queue, adapters, rows)
    each, least = 0, 1
    if snapshot.prompts_apart:
        # Without streams, short prompts share a decode, and no token waits for the rest.
        each = _rows_of_a_decode(snapshot) if beside else 0
        # Without streams a tick may end early, so that the next one has the whole prompt.
        least = MIN_ROWS if snapshot.streams or elsewhere.streaming else snapshot.batch_tokens
    prefill: list[tuple[int, int]] = []
    waiting = 0
    held_back: list[tuple[int, int]] = []
    for prompt in queue:
        if prompt.id in room.preempted:
            continue
        price = _rows_in(prompt.moving_s, snapshot) if beside else 0
        if prompt.adapters != adapters:
            room.leave(prompt)
        elif burst.holds(prompt):
            held_back.append((prompt.id, prompt.remaining))
        elif rows < min(prompt.remaining, least) + price and (prefill or not rows):
            waiting += 1
            rows = 0
        elif prompt.started or room.make(prompt):
            rows = rows - price if prefill else max(rows - price, min(rows, MIN_ROWS))
            tokens = min(prompt.remaining, rows)
            if not (snapshot.streams or elsewhere.streaming) and _leaves_little(prompt, tokens):
                tokens = min(prompt.remaining, snapshot.batch_tokens - sum([n for _, n in prefill]))
            waiting += tokens < prompt.remaining
            tokens -= burst.keeps_last(prompt, tokens)
            prefill.append((prompt.id, tokens))
            rows = max(0, rows - tokens - (each if tokens > 1 else 0))
    # The others of the burst have no room yet.
    prefill = prefill or held_back[:limit]
    streams = [stream for stream in streams if stream.id not in room.preempted]
    decode = tuple((stream.id, 0) for stream in streams) if prefill else _with_draft_tokens(snapshot, streams, target)
    throttled = bool(waiting) and limit < snapshot.batch_tokens - len(streams)
    return Plan(decode, tuple(prefill), tuple(room.preempted), adapters, throttled)


def _has_turn(snapshot: Snapshot) -> bool:
    """Whether prompts of this model may be computed beside streams (rule 11)."""
    return not snapshot.elsewhere.prefilling and snapshot.prefilled_at <= snapshot.elsewhere.prefilled_at


def _with_background(
    snapshot: Snapshot, urgent: Sequence[Stream], streams: Iterable[Stream], budget: float
) -> list[Stream]:
    """The urgent streams, and as many others as fit the budget (at least one), those that have waited longest first."""
    cost = snapshot.cost
    others = sorted(
        (stream for stream in streams if is_background(stream.priority, stream.arrived_at, snapshot.now)),
        key=lambda stream: stream.last_token_at,
    )
    fitting = 1
    while fitting < len(others) and cost.seconds(len(urgent) + fitting + 1, 0, snapshot.cached) <= budget:
        fitting += 1
    return [*urgent, *others[:fitting]]


def _decodes_s(snapshot: Snapshot, rows: Iterable[int]) -> float:
    """Seconds that decodes of so many rows take."""
    return sum(snapshot.cost.seconds(one, 0, snapshot.cached) for one in rows if one)


def _prefill_rows(snapshot: Snapshot, prompts: Sequence[Prompt], decode_rows: int, mean_s: float, target: float) -> int:
    """``mean_s``: what the decodes of the model's streams take, on average over the ticks of its sets of adapters."""
    cost, cached = snapshot.cost, snapshot.cached
    beside = decode_rows > 0 or mean_s > 0 or snapshot.elsewhere.streaming
    # Of all models.
    decode_s = snapshot.elsewhere.decode_s + mean_s
    seconds = _beside_streams_s(snapshot, prompts, decode_s, target) if beside else _idle_s(snapshot, prompts)
    seconds += _decodes_s(snapshot, [decode_rows]) - mean_s
    decodes = 1 + (snapshot.prompts_apart and decode_rows > 0)
    left = seconds - cost.seconds(decode_rows, 0, cached, decodes)
    if decodes == 1 and decode_rows <= 1:
        left -= cost.several_s
    rows = cost.prefill_rows_within(left, prompts[0].computed if snapshot.prompts_apart and prompts else cached)
    if not beside:
        rows = max(1, round(rows / WIDE_ROWS)) * WIDE_ROWS
    # Where streams leave hardly the time for another decode, a prompt gets enough for its price, if that doesn't double
    # the tick: a few streams with a short target keep it.
    apart = snapshot.prompts_apart or not decode_rows
    full = apart and decode_s > max(FULL * target, cost.seconds(0, MIN_ROWS, cached))
    return min(max(rows, MIN_ROWS if full else PREFILL_FLOOR), snapshot.batch_tokens - decode_rows)


def _beside_streams_s(snapshot: Snapshot, prompts: Sequence[Prompt], decode_s: float, target: float) -> float:
    """How long the tick may be beside streams, of this model or others, whose decodes take ``decode_s`` together."""
    elsewhere = snapshot.elsewhere
    seconds = HEADROOM * target
    lost = decode_s > target
    if lost:
        share = _needed_share(snapshot, prompts)
        # Where decoding alone takes nearly LATE_TICK_S or more, prefill still gets MIN_SHARE.
        seconds = min(decode_s / (1 - share), max(decode_s / (1 - MIN_SHARE), LATE_TICK_S))
    elif any(prompt.arrived_at + prompt.target_ttft_s < snapshot.now for prompt in prompts):
        seconds = max(seconds, decode_s / (1 - MIN_SHARE))
    # A tick that was planned before this model had its turn takes longer, but no target is lost for that.
    others_s = elsewhere.decode_s if lost else max(elsewhere.decode_s, elsewhere.planned_s)
    return seconds - others_s - snapshot.moving_s


def _idle_s(snapshot: Snapshot, prompts: Sequence[Prompt]) -> float:
    """How long a tick may be that no token waits for (rule 4)."""
    if not prompts or is_background(prompts[0].priority, prompts[0].arrived_at, snapshot.now):
        return IDLE_TICK_S
    if len(prompts) > 1:
        return MAX_IDLE_TICK_S
    left_s = snapshot.cost.seconds(0, prompts[0].remaining, snapshot.cached)
    return min(max(IDLE_SHARE * left_s, IDLE_TICK_S), MAX_IDLE_TICK_S)


def _leaves_little(prompt: Prompt, tokens: int) -> bool:
    """Whether less than a tile would remain behind whole ones: it takes longer alone, and rounds otherwise (rule 4)."""
    return tokens >= WIDE_ROWS and prompt.remaining - tokens < WIDE_ROWS


def _rows_of_a_decode(snapshot: Snapshot) -> int:
    """The rows of a prompt that take as long as what a decode takes besides its rows."""
    cost = snapshot.cost
    return max(MIN_ROWS // 2, int((cost.fixed_s + cost.several_s) / cost.prefill_row_s))


def _rows_in(seconds: float, snapshot: Snapshot) -> int:
    """The rows of prompts that take so long."""
    cost = snapshot.cost
    return math.ceil(seconds / (cost.prefill_row_s + cost.attention_s * snapshot.cached / 1000)) if seconds else 0


def _needed_share(snapshot: Snapshot, prompts: Sequence[Prompt]) -> float:
    """The share of the time from now on that prefill needs for each of ``prompts``, the most urgent first, to keep its
    deadline."""
    row_s = snapshot.cost.prefill_row_s + snapshot.cost.attention_s * snapshot.cached / 1000
    needed = done_after = 0.0
    for prompt in prompts:
        done_after += row_s * prompt.remaining
        left = prompt.arrived_at + prompt.target_ttft_s - snapshot.now
        needed = max(needed, done_after / left if left > 0 else 1.0)
    return min(max(needed, MIN_SHARE), MAX_SHARE)


def _with_draft_tokens(snapshot: Snapshot, streams: Sequence[Stream], target: float) -> tuple[tuple[int, int], ...]:
    """Each stream with the number of draft tokens that pay."""
    chosen = _draft_tokens(snapshot, streams, target) if snapshot.draft_seconds else ()
    if not chosen:
        return tuple([(stream.id, 0) for stream in streams])
    numbers = Counter([stream.id for _, stream in chosen])
    return tuple([(stream.id, numbers[stream.id]) for stream in streams])


def _draft_tokens(snapshot: Snapshot, streams: Sequence[Stream], target: float) -> Sequence[tuple[float, Stream]]:
    """The draft tokens that pay: how likely each is to be accepted, and its stream."""
    seconds, n_streams = snapshot.draft_seconds, len(streams)
    if n_streams not in seconds or snapshot.elsewhere.waits:
        return ()
    without_s = seconds[n_streams]
    left_s = HEADROOM * target - max(snapshot.elsewhere.decode_s, snapshot.elsewhere.planned_s)
    if snapshot.elsewhere.streaming:
        left_s = min(left_s, (1 + MAX_SLOWDOWN) * without_s)
    cost = snapshot.cost.times(1 / snapshot.caution)
    row_s = cost.prefill_row_s + cost.attention_s * snapshot.cached / 1000
    together = n_streams if snapshot.parted else 1
    offered = _each_equally(streams) if together > 1 else _likeliest(streams)
    offered = offered[: snapshot.batch_tokens - n_streams]
    best, rate, before = 0, n_streams / without_s, 0
    for size in SIZES:
        number = min(max(size - n_streams, 0), len(offered))
        number -= number % together
        if number == before:
            continue
        before, chosen = number, offered[:number]
        known_s = seconds.get(size)
        if known_s is None and min(likely for likely, _ in chosen[-together:]) < 0.5:
            continue
        tick_s = without_s + number * row_s if known_s is None else known_s
        tick_s += snapshot.drafting_s * sum([stream.drafts for _, stream in chosen])
        tokens = _expected_tokens(streams, chosen)
        if tick_s > min(left_s, (1 + MAX_SLOWDOWN) * without_s * min(tokens)):
            continue
        # What is tried for a stream alone keeps no other one waiting.
        if sum(tokens) / tick_s > rate or (known_s is None and n_streams == 1):
            best, rate = number, sum(tokens) / tick_s
            if known_s is None:
                break
    return offered[:best]


def _likeliest(streams: Sequence[Stream]) -> list[tuple[float, Stream]]:
    """All draft tokens of ``streams``, the likeliest ones to be accepted first."""
    offered = [(stream.acceptance ** (1 + place), stream) for stream in streams for place in range(stream.draft_tokens)]
    return sorted(offered, key=itemgetter(0), reverse=True)


def _each_equally(streams: Sequence[Stream]) -> list[tuple[float, Stream]]:
    """The draft tokens of all streams, equally many of each: as many as all have."""
    places = range(min(stream.draft_tokens for stream in streams))
    return [(stream.acceptance ** (1 + place), stream) for place in places for stream in streams]


def _expected_tokens(streams: Sequence[Stream], draft_tokens: Sequence[tuple[float, Stream]]) -> Sequence[float]:
    """Tokens that each stream gets of a tick, on average."""
    tokens = {stream.id: 1.0 for stream in streams}
    for likely, stream in draft_tokens:
        tokens[stream.id] += likely
    return [*tokens.values()]


def _urgency(prompt: Prompt, now: float) -> tuple[bool, bool, bool, float, int]:
    target, own, resumes = prompt.target_ttft_s, prompt.own_target, prompt.resumes
    return *urgency(prompt.priority, prompt.arrived_at, target, now, own_target=own, resumes=resumes), prompt.id
