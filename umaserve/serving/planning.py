"""Plans the next tick: gives the policy a snapshot of the sessions, and their slots to those that the plan starts."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from umaserve.metrics import ServingMetrics
from umaserve.serving.cost_model import Cost, MovingCost
from umaserve.serving.disk_cache import PRIVATE, DiskCache
from umaserve.serving.division import Division
from umaserve.serving.neighbours import Neighbours, seen_elsewhere
from umaserve.serving.policy import may_start, plan
from umaserve.serving.promises import Promises
from umaserve.serving.sessions import NEVER, Session, SessionManager
from umaserve.serving.slots import Room, Slots
from umaserve.serving.snapshot import Elsewhere, Held, Plan, Prompt, Snapshot, Stream, urgency
from umaserve.serving.speculation import MAX_DRAFT_TOKENS
from umaserve.serving.states import RUNNING, State
from umaserve.serving.ticks import (
    Adapters,
    Capacity,
    Chunk,
    Copy,
    Divide,
    Load,
    Move,
    Span,
)
from umaserve.serving.waiting import Why
from umaserve.serving.work import Work, make_work, moving, next_work, sequence

LOOKED_UP = 4
"""Waiting prompts whose cached prefix is looked up before one tick: the lookup of a long prompt takes its time."""

MAX_SAVING_S = 0.02
"""Ended sequences are saved beside streams for so long in one tick, or one of them; the others in later ticks."""

DRAFTING_LEARNED = 0.1
"""Weight of the latest tick in the average time for a draft token of the draft model."""

DRAFTING_FORGOTTEN = 0.99
"""Factor on that average for each tick without such draft tokens."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Latency targets of requests that name none; seconds."""

    ttft_s: float
    tbt_s: float


class Planning:
    """Plans ticks. Only this class gives slots to sessions and takes them back."""

    def __init__(
        self,
        sessions: SessionManager,
        capacity: Capacity,
        targets: Targets,
        clock: Callable[[], float],
        metrics: ServingMetrics,
        neighbours: Neighbours,
        *,
        shared_prefixes: bool,
    ) -> None:
        self.slots = Slots(capacity)
        self._promises = Promises(self.slots)
        self._division = Division(capacity.divisions, clock())
        self._metrics = metrics
        self._sessions = sessions
        self._capacity = capacity
        self._targets = targets
        self._now = clock
        self._neighbours = neighbours
        self._shares_prefixes = shared_prefixes
        self._last_adapters: Adapters = ()
        self._prefilled_at = -math.inf
        """When the latest tick with prompt tokens was planned."""
        self._moving = MovingCost(capacity)
        self._drafting_s = 0.0
        """Average time for one draft token of the draft model."""
        self.started: list[Session] = []
        """Those that got a slot by the last plan; their reused tokens are known."""
        self.to_encode: list[tuple[Session, Chunk]] = []
        """Prompts that can't start before this chunk of media is encoded, oldest first, as of the last plan."""
        self.disk: DiskCache | None = None
        self._to_fetch: dict[int, str] = {}
        """Sequences on disk that prompts wait for, with their scopes, as of the last plan."""

    def next(self, cost: Cost, threads: int, alone: Session | None = None) -> Work:
        """The next tick, which may be empty. ``alone``: the only session that it may serve, if there is one."""
        self.started = []
        self._take_back_slots()
        if self._division.possible and self._divide() and not self.slots.holders:
            # Beside the streams of other models, which it would hold up.
            self._neighbours.tell(self, Elsewhere())
            return moving(self.slots.take_kv_operations(), threads)
        snapshot = self._snapshot(cost, self._sessions.running() if alone is None else [alone])
        the_plan = plan(snapshot)
        for id_ in the_plan.preempt:
            self.preempt(self._sessions.get(id_))
        lacking = {stream.id for stream in snapshot.streams if stream.lacks}
        for id_, _ in the_plan.decode:
            if id_ in lacking:
                self._promises.give_lacking(self._sessions.get(id_))
        if not snapshot.prompts:
            self.slots.close_gaps([self._sessions.get(id_) for id_, _ in the_plan.decode])
        self._last_adapters = the_plan.adapters
        work = self._work(snapshot, the_plan, threads)
        if work.prefill_rows:
            self._prefilled_at = snapshot.now
        self._neighbours.tell(self, seen_elsewhere(snapshot, work, self._planned_s(work, cost)))
        return work

    def after(self, work: Work, cost: Cost, threads: int) -> Work | None:
        """The tick after ``work``, whose tokens are not known yet: the same streams again, if that is what a plan of
        now comes to, and none of them gets its last token or outgrows its cells; else ``None``."""
        one_token_each = work.decode_rows == len(work.sessions) > 0 == work.prefill_rows
        if not one_token_each or threads != work.tick.threads:
            return None
        # The compute thread has their ticks to do meanwhile, and these would wait for two of this model.
        if self._neighbours.elsewhere(self) != Elsewhere():
            return None
        if any(holder.state is not State.DECODE for holder in self.slots.holders):
            return None
        again = tuple([(session.id, 0) for session in work.sessions])
        if plan(self._snapshot(cost, self._sessions.running())) != Plan(again, adapters=work.tick.adapters):
            return None
        if self.to_encode or self.slots.kv_operations:
            return None
        return next_work(work) if all(map(_goes_on, work.sessions)) else None

    def leave(self) -> None:
        """It plans no more ticks: others' plans do not depend on it any longer."""
        self._neighbours.leave(self)

    def preempt(self, session: Session) -> None:
        """Take the slot of a running session, which then waits for another one."""
        self._metrics.preemptions += 1
        self._give_up(session)
        self._sessions.preempted(session)

    def forget_lost(self, work: Work) -> None:
        """Sequences of ``work`` could not be saved or restored: drop all cached sequences, and preempt the sessions
        whose slots were to be loaded."""
        lost = set()
        for move in work.tick.kv_operations:
            match move:
                case Load():
                    lost.add(move.slot)
                case Copy() if move.source in lost:
                    lost.add(move.target)
                case Move():
                    lost.add(move.target)
                case Divide():
                    lost.update(slot for _before, slot in move.kept)
        self.slots.forget_cached()
        if self.disk is not None:
            self.disk.distrust_fetched()
        for session in work.sessions:
            if session.slot in lost:
                session.computed = 0
                if session.running:
                    self.preempt(session)

    def distrust_all(self) -> None:
        """The KV cache is in an unknown state: clear all sequences, and preempt all sessions."""
        self.slots.distrust_all()
        for session in list(self.slots.holders):
            session.computed = 0
            if session.running:
                self.preempt(session)

    def resize(self, session: Session) -> None:
        """Its ``max_tokens`` changed: take back cells that it can't need any more."""
        self._promises.cut(session)

    def prefilled(self, session: Session) -> None:
        """More of its prompt is computed: other prompts may reuse it."""
        whole = session.computed == session.length
        self.slots.share(session, sequence(session)[: session.computed], whole=whole)

    def drafted(self, draft_tokens: int, seconds: float) -> None:
        """Learn how long the draft model takes for a draft token."""
        if draft_tokens:
            before = self._drafting_s or seconds / draft_tokens
            self._drafting_s = before + DRAFTING_LEARNED * (seconds / draft_tokens - before)
        else:
            # A draft model that was slow once is tried again later.
            self._drafting_s *= DRAFTING_FORGOTTEN

    def moved(self, work: Work, seconds: float) -> None:
        """Learn how long the KV operations of a tick took."""
        self._moving.observe(work.tick.kv_operations, seconds, parted=self._division.parted)

    def between_ticks(self) -> None:
        """No tick with KV operations is under way."""
        if self.disk is not None and not self.slots.kv_operations:
            self.disk.between_ticks(self._to_fetch)

    # -- slots ---------------------------------------------------------------------------------------------------

    def _divide(self) -> bool:
        """Divide the cells so that all running and waiting sessions fit, if there is such a division; returns whether
        they are divided anew."""
        running = self.slots.holders
        waiting = [s for s in self._sessions.running() if s.slot is None and s.prepared is not None and not s.holds]
        needs = [self._promises.soon(session) for session in running]
        needs += sorted(map(self._promises.to_start, waiting), reverse=True)[: self._capacity.slots - len(needs)]
        if not self._division.choose(needs, len(running), self._now()):
            return False
        self.slots.divide(self._division.parts)
        return True

    def _take_back_slots(self) -> None:
        ended = [session for session in self.slots.holders if session.state not in RUNNING]
        beside_streams = any(session.state is State.DECODE for session in self.slots.holders)
        beside_streams = beside_streams or self._neighbours.elsewhere(self).streaming
        for index, session in enumerate(ended):
            if beside_streams and index and self._moving_s() > MAX_SAVING_S:
                break
            self._promises.ended(session)
            self._give_up(session)

    def _moving_s(self) -> float:
        """Time for the KV operations that are planned so far."""
        return self._moving.seconds(self.slots.kv_operations, parted=self._division.parted)

    def _give_up(self, session: Session) -> None:
        request = session.request
        assert request is not None
        # A preempted session reuses its own tokens, even if nobody else may.
        keep = session.running or request.cache_prompt
        self.slots.give_up(session, sequence(session)[: session.computed], keep=keep)

    def _scope(self, session: Session) -> str:
        """The scope of its cache entries: tenant and adapters, or only itself. Were they shared between tenants, timing
        would tell one tenant what another one has asked."""
        request, prepared = session.request, session.prepared
        assert request is not None
        assert prepared is not None
        if not request.cache_prompt:
            return f"{PRIVATE}{session.id}"
        tenant = "" if self._shares_prefixes else session.caller.tenant
        return f"{tenant} {prepared.adapters}" if prepared.adapters else tenant

    # -- the snapshot for the policy -----------------------------------------------------------------------------

    def _snapshot(self, cost: Cost, sessions: Iterable[Session]) -> Snapshot:
        streams: list[Stream] = []
        prefill: list[Session] = []
        preparing = 0
        for session in sessions:
            if session.state is State.DECODE:
                streams.append(self._stream(session))
            elif session.state is State.PREFILL and not session.holds:
                if session.prepared is None:
                    preparing += 1
                else:
                    prefill.append(session)
        held = [Held(s.id, s.cells) for s in self._sessions.held() if s.slot is not None]
        now = self._now()
        self._look_up_some([s for s in prefill if s.slot is None and s.looked_at != self.slots.version])
        ready = self._encoded(prefill)
        # A long queue that nobody can leave now must not take its time in each tick.
        if ready and _only_wait(ready, streams) and not may_start(streams, held, self.slots.free, now):
            ready = []
        return Snapshot(
            now=now,
            streams=streams,
            prompts=[self._prompt(session) for session in ready],
            free_slots=self.slots.free,
            free_cells=self.slots.free_cells,
            cached=self.slots.visited_cells,
            batch_tokens=self._capacity.batch_tokens,
            cost=cost,
            held=held,
            last_adapters=self._last_adapters,
            drafting_s=self._drafting_s,
            preparing=preparing,
            prompts_apart=self._capacity.prompts_apart,
            parted=self._division.parted,
            moving_s=self._moving_s(),
            elsewhere=self._neighbours.elsewhere(self),
            prefilled_at=self._prefilled_at,
        )

    def _stream(self, session: Session) -> Stream:
        """It is promised its next cells first."""
        request, prepared = session.request, session.prepared
        assert request is not None
        assert prepared is not None
        spare = self._promises.extend(session)
        draft_tokens, acceptance, drafts = 0, 0.0, False
        session.draft_tokens = ()
        if session.repetition is not None and not session.is_late:
            # Less one: the tick samples a token besides the draft tokens.
            left = prepared.max_tokens - len(session.generated) - 1
            limit = max(0, min(MAX_DRAFT_TOKENS, self._capacity.max_draft_tokens, left, spare))
            session.draft_tokens = session.repetition.draft_tokens(limit)
            draft_tokens, acceptance = len(session.draft_tokens), session.repetition.acceptance.share
            if not draft_tokens and self._capacity.drafts and not prepared.spans:
                draft_tokens, acceptance, drafts = limit, session.drafting.share, True
        return Stream(
            id=session.id,
            target_tbt_s=request.target_tbt_s or self._targets.tbt_s,
            priority=request.priority,
            arrived_at=session.requested_at,
            cells=session.cells,
            lacks=max(0, -spare),
            last_token_at=session.last_made_at or 0.0,
            draft_tokens=draft_tokens,
            acceptance=acceptance,
            drafts=drafts,
            adapters=prepared.adapters,
        )

    def urgency(self, session: Session) -> tuple[bool, bool, bool, float, int]:
        """The sort key of waiting sessions: the least is served first."""
        request = session.request
        assert request is not None
        target, resumes = request.target_ttft_s or self._targets.ttft_s, _resumes(session)
        return *urgency(request.priority, session.requested_at, target, self._now(), resumes=resumes), session.id

    def why_waiting(self, session: Session) -> Why:
        """Why a prepared session that nobody holds has no slot."""
        if session.follows is not None and self._follows(session, session.follows):
            return Why.PREFIX
        if session.awaits is not None and self._comes_from_disk(session.awaits):
            return Why.DISK
        if any(one is session for one, _chunk in self.to_encode):
            return Why.MEDIA
        if not self.slots.free:
            return Why.SLOTS
        return Why.CELLS if self.slots.free_cells < session.length else Why.TURN

    def _encoded(self, prefill: Sequence[Session]) -> list[Session]:
        """The sessions whose prompts can start or go on now; sets ``to_encode``."""
        ready: list[Session] = []
        self.to_encode = []
        self._to_fetch = {}
        for session in prefill:
            if session.slot is None and session.follows is not None and self._follows(session, session.follows):
                continue
            if session.slot is None and session.awaits is not None and self._comes_from_disk(session.awaits):
                self._to_fetch[session.awaits] = self._scope(session)
                continue
            prepared = session.prepared
            chunk = _not_encoded(session, prepared.spans) if prepared is not None and prepared.spans else None
            if chunk is None:
                ready.append(session)
            elif session.slot is not None or session.looked_at != NEVER:
                # Before its first lookup it is unknown which chunks it has to compute.
                self.to_encode.append((session, chunk))
        return ready

    def _comes_from_disk(self, key: int) -> bool:
        return self.disk is not None and self.disk.is_awaited(key)

    def _look_up_some(self, stale: list[Session]) -> None:
        """Look up the most urgent session, which may start in this tick, and those with the oldest lookups."""
        if stale:
            most_urgent = min(stale, key=self.urgency)
            stale.remove(most_urgent)
            for session in (most_urgent, *heapq.nsmallest(LOOKED_UP - 1, stale, key=lambda s: s.looked_at)):
                self._look_up(session)

    def _look_up(self, session: Session) -> None:
        """Find the longest cached prefix, and the session that is now computing a longer one, if any."""
        scope, tokens = self._scope(session), sequence(session)
        session.looked_at = self.slots.version
        session.reusable = self.slots.reusable(scope, tokens)
        coming = self.slots.coming(scope, tokens)
        session.follows = coming.holder if coming is not None and coming.length > session.reusable else None
        if self.disk is not None and session.slot is None and session.awaits is None:
            known = max(session.reusable, 0 if coming is None else coming.length)
            session.awaits = self.disk.better(scope, tuple(tokens), known)

    def _follows(self, session: Session, leader_id: int) -> bool:
        """Whether it waits to reuse that session's prompt in prefill, which will be served before it in any case."""
        leader = self._sessions.find(leader_id)
        if leader is None or leader.state is not State.PREFILL or leader.slot is None or leader.holds:
            return False
        assert leader.request is not None
        assert session.request is not None
        in_time = self._now() <= self._deadline(leader) <= self._deadline(session)
        return in_time and leader.request.priority <= session.request.priority

    def _deadline(self, session: Session) -> float:
        assert session.request is not None
        return session.requested_at + (session.request.target_ttft_s or self._targets.ttft_s)

    def _prompt(self, session: Session) -> Prompt:
        request, prepared = session.request, session.prepared
        assert request is not None
        assert prepared is not None
        started = session.slot is not None
        return Prompt(
            id=session.id,
            remaining=session.length - (session.computed if started else session.reusable),
            arrived_at=session.requested_at,
            target_ttft_s=request.target_ttft_s or self._targets.ttft_s,
            priority=request.priority,
            started=started,
            cells=session.cells if started else self._promises.to_start(session),
            resumes=_resumes(session),
            computed=session.computed if started else session.reusable,
            adapters=prepared.adapters,
            # Without divisions, it mostly shares the cells of the cached prefix.
            moving_s=0.0 if started or not self._division.possible else self._moving.of_sequence(session.reusable),
            target_tbt_s=request.target_tbt_s or self._targets.tbt_s,
        )

    # -- from the plan to the tick -------------------------------------------------------------------------------

    def _work(self, snapshot: Snapshot, the_plan: Plan, threads: int) -> Work:
        streams = [(self._sessions.get(id_), draft_tokens) for id_, draft_tokens in the_plan.decode]
        prompts = []
        for id_, n_tokens in the_plan.prefill:
            session = self._sessions.get(id_)
            if session.slot is None:
                self._start(session)
            # Fewer than planned if more of it is reused than the last lookup found.
            end = min(session.computed + n_tokens, session.length)
            prompts.append((session, self.slots.before_checkpoint(session, end)))
        kv_operations = self.slots.take_kv_operations()
        apart = self._capacity.prompts_apart
        return make_work(snapshot, the_plan, streams, prompts, kv_operations, threads, prompts_apart=apart)

    def _planned_s(self, work: Work, cost: Cost) -> float:
        """How long ``work`` takes, by what is known."""
        tick = work.tick
        seconds = self._moving.seconds(tick.kv_operations, parted=self._division.parted)
        if tick.runs:
            seconds += cost.seconds(work.decode_rows, work.prefill_rows, work.cached, work.decodes)
        return seconds + self._drafting_s * sum([draft.limit for draft in tick.drafts])

    def _start(self, session: Session) -> None:
        assert session.request is not None
        cells = self._promises.to_start(session)
        room = Room(cells, sequence(session), self._scope(session), session.request.cache_prompt)
        self.slots.take(session, room)
        self.started.append(session)


def _goes_on(stream: Session) -> bool:
    """Whether it gets another token after the one that is computed now, and has a cell for that."""
    assert stream.prepared is not None
    if stream.is_late:
        return False
    return len(stream.generated) + 1 < stream.prepared.max_tokens and stream.cells > stream.length


def _resumes(session: Session) -> bool:
    return bool(session.generated) or (session.slot is None and session.started_at is not None)


def _only_wait(prompts: Sequence[Session], streams: Sequence[Stream]) -> bool:
    """Whether none of ``prompts`` has started, and their adapters take no turns of their own."""
    sets = {stream.adapters for stream in streams}
    return all(one.slot is None and one.prepared is not None and one.prepared.adapters in sets for one in prompts)


def _not_encoded(session: Session, spans: Sequence[Span]) -> Chunk | None:
    """The first chunk to encode before this prompt can start, so that it takes no slot meanwhile; or before it can go
    on, where the lookup had found the chunk cached."""
    start = session.reusable if session.slot is None else session.computed
    for span in spans:
        if span.end > start and not span.chunk.encoded:
            return span.chunk
    return None
