"""Plans the next tick: gives the policy a snapshot of the sessions, and their slots to those that the plan starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from umaserve.core.metrics import ServingMetrics
from umaserve.core.requests import Priority
from umaserve.kvcache.partitioning import Partitioning
from umaserve.kvcache.reservations import Reservations
from umaserve.kvcache.slots import Room, Slots
from umaserve.scheduler.draft_costs import DraftCosts
from umaserve.scheduler.governor import ThreadGovernor
from umaserve.scheduler.other_models import NOTHING, OtherModels, seen_elsewhere
from umaserve.scheduler.policy.policy import may_start, plan
from umaserve.scheduler.policy.snapshot import Held, OtherModelsLoad, Plan, Prompt, Snapshot, Stream
from umaserve.scheduler.prompt_scoring import PromptScoring
from umaserve.scheduler.readiness import Readiness, resumes
from umaserve.scheduler.work import Work, make_work, moving, next_work, sequence
from umaserve.sessions.cost_model import Cost, MovingCost
from umaserve.sessions.engine_api import Adapters, Capacity
from umaserve.sessions.kv_operations import Copy, Divide, Load, Move
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.ngram_cache import MAX_OF_REQUEST, OVERLAP, NgramCaches
from umaserve.sessions.session import Session
from umaserve.sessions.speculation import MAX_DRAFT_TOKENS
from umaserve.sessions.states import RUNNING, State
from umaserve.sessions.targets import Targets
from umaserve.sessions.waiting import Why

MAX_SAVING_S = 0.02
"""Time for saving ended sequences beside streams in one tick, in seconds. One is always saved; the others in later
ticks."""


class Planner:
    """Plans ticks. Only this class gives slots to sessions and takes them back."""

    def __init__(
        self,
        sessions: SessionManager,
        capacity: Capacity,
        slots: Slots,
        readiness: Readiness,
        targets: Targets,
        clock: Callable[[], float],
        metrics: ServingMetrics,
        neighbours: OtherModels,
        governor: ThreadGovernor,
    ) -> None:
        self._slots = slots
        self._readiness = readiness
        self._promises = Reservations(slots)
        self._division = Partitioning(capacity.divisions, clock())
        self._metrics = metrics
        self._sessions = sessions
        self._capacity = capacity
        self._targets = targets
        self._now = clock
        self._neighbours = neighbours
        self._governor = governor
        self._ngrams = NgramCaches()
        self._last_adapters: Adapters = ()
        self._number = 0
        """Number of the latest tick."""
        self._prefilled_at = -math.inf
        """When the latest tick with prompt tokens was planned."""
        self._began_at = -math.inf
        """When the latest tick with the end of a prompt was planned: its stream begins."""
        self._moving = MovingCost(capacity)
        self._scoring = PromptScoring()
        self.draft_costs = DraftCosts()
        self.gathers = False
        """Whether the last plan is empty since more prompts are ready in a moment."""
        self.started: list[Session] = []
        """Sessions that got a slot by the last plan; their reused tokens are known."""

    def next(self, alone: Session | None = None) -> Work:
        """The next tick, which may be empty. ``alone``: the only session that it may serve, if there is one."""
        governor = self._governor
        self.started, self.gathers = [], False
        self._take_back_slots()
        if self._division.possible and self._divide() and not self._slots.holders:
            # Beside the streams of other models, which it would hold up.
            self._neighbours.tell(self, OtherModelsLoad())
            return moving(self._slots.take_kv_operations(), governor.threads_for(False))
        snapshot = self._snapshot(self._sessions.running() if alone is None else [alone])
        the_plan = plan(snapshot)
        self.gathers = the_plan.gathers
        for id_ in the_plan.preempt:
            self.preempt(self._sessions.get(id_))
        lacking = {stream.id for stream in snapshot.streams if stream.lacks}
        for id_, _ in the_plan.decode:
            if id_ in lacking:
                self._promises.give_lacking(self._sessions.get(id_))
        if not snapshot.prompts:
            self._slots.close_gaps([self._sessions.get(id_) for id_, _ in the_plan.decode])
        self._last_adapters = the_plan.adapters
        work = self._work(snapshot, the_plan, governor.threads_for(bool(the_plan.prefill)))
        if work.prefill_rows:
            self._prefilled_at = snapshot.now
        self._neighbours.tell(self, seen_elsewhere(snapshot, work, self._planned_s(work, snapshot.cost)))
        return work

    def after(self, work: Work) -> Work | None:
        """The tick after ``work``, whose tokens are not known yet: the same streams again, if that is what a plan of
        now comes to, and none of them gets its last token or outgrows its cells; else ``None``."""
        one_token_each = work.decode_rows == len(work.sessions) > 0 == work.prefill_rows
        if not one_token_each or self._governor.threads != work.tick.threads:
            return None
        # The compute thread has their ticks to do meanwhile, and these would wait for two of this model.
        if self._neighbours.elsewhere(self) != NOTHING:
            return None
        if not self._is_all(work) and not self._is_planned_again(work):
            return None
        if self._readiness.to_encode or self._slots.kv_operations:
            return None
        if not all(map(_continues, work.sessions)):
            return None
        following = next_work(work)
        self._number = following.tick.number
        return following

    def _is_all(self, work: Work) -> bool:
        """Whether no other session runs or holds a slot, and each of ``work`` is to get one token a tick: a plan of now
        is the same again, and need not be made."""
        if not len(work.sessions) == len(self._slots.holders) == self._sessions.count or self._capacity.drafts:
            return False
        return all(map(self._gets_one_token, work.sessions))

    def _gets_one_token(self, session: Session) -> bool:
        """Whether it gets a token in each tick, and no draft tokens now. Side effect: as ``_stream``."""
        if session.state is not State.DECODE or session.request.priority is Priority.BACKGROUND:
            return False
        session.draft_tokens = ()
        if session.repetition is not None and session.repetition.draft_tokens(1):
            return False
        self._promises.extend(session)
        return True

    def _is_planned_again(self, work: Work) -> bool:
        if any(holder.state is not State.DECODE for holder in self._slots.holders):
            return False
        again = tuple([(session.id, 0) for session in work.sessions])
        return plan(self._snapshot(self._sessions.running())) == Plan(again, adapters=work.tick.adapters)

    def forget_ngrams(self) -> None:
        """Drop the texts of earlier requests: memory is short."""
        self._ngrams.clear()

    def leave(self) -> None:
        """Leave the other schedulers: this one plans no more ticks, and their plans do not depend on it any longer."""
        self._neighbours.leave(self)

    def preempt(self, session: Session) -> None:
        """Take the slot of a running session, which then waits for another one."""
        self._metrics.preemptions += 1
        self._give_up(session)
        self._sessions.preempted(session)

    def forget_lost(self, work: Work) -> None:
        """Drop all cached sequences, and preempt the sessions whose slots were to be loaded: sequences of ``work``
        could not be saved or restored."""
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
        self._slots.forget_cached()
        self._readiness.drop_fetched()
        for session in work.sessions:
            if session.slot in lost:
                session.computed = 0
                if session.running:
                    self.preempt(session)

    def clear_all(self) -> None:
        """Clear all sequences, and preempt all sessions: the KV cache is in an unknown state."""
        self._slots.clear_all()
        for session in list(self._slots.holders):
            session.computed = 0
            if session.running:
                self.preempt(session)

    def resize(self, session: Session) -> None:
        """Take back cells that a session can't need any more, since its ``max_tokens`` changed."""
        self._promises.cut(session)

    def prefilled(self, session: Session) -> None:
        """Share a session's prompt as far as it is computed: other prompts may reuse it."""
        whole = session.computed == session.length
        self._slots.share(session, sequence(session)[: session.computed], whole=whole)

    def in_rows(self, work: Work) -> int:
        """How many rows of prompts take as long as those of ``work``, of which some give log-probabilities."""
        return work.prefill_rows - work.scored_rows + self._scoring.as_rows(work.scored_rows)

    def scored(self, work: Work, cost: Cost | None, seconds: float) -> None:
        """Learn how long rows take that give log-probabilities of their prompt. ``cost``: of others, if known."""
        if cost is None:
            return
        rows = work.prefill_rows - work.scored_rows
        without_s = cost.seconds(work.decode_rows, rows, work.cached, work.decodes)
        all_s = cost.seconds(work.decode_rows, work.prefill_rows, work.cached, work.decodes)
        self._scoring.observe(all_s - without_s, seconds - without_s)

    def moved(self, work: Work, seconds: float) -> None:
        """Learn how long the KV operations of a tick took."""
        self._moving.observe(work.tick.kv_operations, seconds, parted=self._division.parted)

    # -- slots ---------------------------------------------------------------------------------------------------

    def _divide(self) -> bool:
        """Divide the cells so that all running and waiting sessions fit, if there is such a division; returns whether
        they are divided anew."""
        running = self._slots.holders
        waiting = [s for s in self._sessions.running() if s.slot is None and s.prepared is not None and not s.holds]
        needs = [self._promises.soon(session) for session in running]
        needs += sorted(map(self._promises.to_start, waiting), reverse=True)[: self._capacity.slots - len(needs)]
        if not self._division.choose(needs, len(running), self._now()):
            return False
        self._slots.divide(self._division.parts)
        return True

    def _take_back_slots(self) -> None:
        ended = [session for session in self._slots.holders if session.state not in RUNNING]
        beside_streams = any(session.state is State.DECODE for session in self._slots.holders)
        beside_streams = beside_streams or self._neighbours.elsewhere(self).streaming
        for index, session in enumerate(ended):
            if beside_streams and index and self._moving_s() > MAX_SAVING_S:
                break
            self._promises.ended(session)
            self._remember(session)
            self._give_up(session)

    def _moving_s(self) -> float:
        """Time for the KV operations that are planned so far."""
        return self._moving.seconds(self._slots.kv_operations, parted=self._division.parted)

    def _remember(self, session: Session) -> None:
        """Let later requests of its scope have draft tokens from what is new in this one's text, behind its media."""
        prepared, tokens = session.prepared, sequence(session)
        assert prepared is not None
        if session.repetition is not None and session.request.shares_prefixes:
            text_from = prepared.spans[-1].end if prepared.spans else 0
            begin = max(text_from, session.reused - OVERLAP, len(tokens) - MAX_OF_REQUEST)
            self._ngrams.of(self._readiness.scope(session)).add(tokens[begin:])

    def _give_up(self, session: Session) -> None:
        request = session.request
        # A preempted session reuses its own tokens, even if nobody else may.
        keep = session.running or request.shares_prefixes
        self._slots.give_up(session, sequence(session)[: session.computed], keep=keep)

    # -- the snapshot for the policy -----------------------------------------------------------------------------

    def _snapshot(self, sessions: Iterable[Session]) -> Snapshot:
        streams: list[Stream] = []
        prefill: list[Session] = []
        preparing = 0
        may_draft = False
        for session in sessions:
            if session.state is State.DECODE:
                stream = self._stream(session)
                streams.append(stream)
                may_draft = may_draft or stream.draft_tokens > 0
            elif session.state is State.PREFILL and not session.holds:
                if session.prepared is None:
                    preparing += 1
                else:
                    prefill.append(session)
        held = [Held(s.id, s.cells) for s in self._sessions.held() if s.slot is not None]
        now = self._now()
        ready = self._readiness.of(prefill)
        # A long queue that nobody can leave now must not take its time in each tick.
        if ready and _only_wait(ready, streams) and not may_start(streams, held, self._slots.free, now):
            ready = []
        ready = self._readiness.one_of_alike(ready)
        return Snapshot(
            now=now,
            streams=streams,
            prompts=[self._prompt(session) for session in ready],
            free_slots=self._slots.free,
            free_cells=self._slots.free_cells,
            cached=self._slots.visited_cells,
            batch_tokens=self._capacity.batch_tokens,
            cost=self._governor.cost,
            caution=self._governor.caution,
            held=held,
            last_adapters=self._last_adapters,
            drafting_s=self.draft_costs.drafting_s,
            draft_seconds=self.draft_costs.seconds(len(streams)) if may_draft else {},
            preparing=preparing,
            prompts_apart=self._capacity.prompts_apart,
            parted=self._division.parted,
            moving_s=self._moving_s(),
            elsewhere=self._neighbours.elsewhere(self),
            prefilled_at=self._prefilled_at,
            began_at=self._began_at,
        )

    def _stream(self, session: Session) -> Stream:
        """Describe the stream to the policy. Side effects: promises its next KV cells, and sets its draft tokens."""
        request, prepared = session.request, session.prepared
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

    def why_waiting(self, session: Session) -> Why:
        """Why a prepared session that nobody holds has no slot."""
        if why := self._readiness.why_waiting(session):
            return why
        if not self._slots.free:
            return Why.SLOTS
        return Why.CELLS if self._slots.free_cells < session.length else Why.TURN

    def _prompt(self, session: Session) -> Prompt:
        request, prepared = session.request, session.prepared
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
            resumes=resumes(session),
            computed=session.computed if started else session.reusable,
            adapters=prepared.adapters,
            # Without divisions, it mostly shares the cells of the cached prefix.
            moving_s=0.0 if started or not self._division.possible else self._moving.of_sequence(session.reusable),
            target_tbt_s=request.target_tbt_s or self._targets.tbt_s,
            own_target=request.target_ttft_s is not None,
            random=request.sampling.random,
        )

    # -- from the plan to the tick -------------------------------------------------------------------------------

    def _work(self, snapshot: Snapshot, the_plan: Plan, threads: int) -> Work:
        streams = [(self._sessions.get(id_), draft_tokens) for id_, draft_tokens in the_plan.decode]
        prompts = []
        scored = 0
        for id_, n_tokens in the_plan.prefill:
            session = self._sessions.get(id_)
            if session.slot is None:
                self._start(session)
            # Fewer than planned if more of it is reused than the last lookup found.
            end = self._slots.coming.before_checkpoint(session, min(session.computed + n_tokens, session.length))
            if session.to_score:
                end = self._scoring.end(session, end, scored)
                # None where it computes again what was told.
                scored += max(0, end + 1 - session.scored)
            if end == session.length:
                self._began_at = snapshot.now
            prompts.append((session, end))
        self._number += 1
        return make_work(
            snapshot,
            the_plan,
            streams,
            prompts,
            self._slots.take_kv_operations(),
            threads,
            number=self._number,
            prompts_apart=self._capacity.prompts_apart,
            scored_rows=scored,
        )

    def _planned_s(self, work: Work, cost: Cost) -> float:
        """How long ``work`` takes, by what is known."""
        tick = work.tick
        seconds = self._moving.seconds(tick.kv_operations, parted=self._division.parted)
        if tick.runs:
            rows = self.in_rows(work) if work.scored_rows else work.prefill_rows
            seconds += cost.seconds(work.decode_rows, rows, work.cached, work.decodes)
        return seconds + self.draft_costs.drafting_s * sum([draft.limit for draft in tick.drafts])

    def _start(self, session: Session) -> None:
        cells, scope = self._promises.to_start(session), self._readiness.scope(session)
        request = session.request
        # Equal requests are to get equal answers: a decode of more rows may round differently.
        if session.repetition is not None and request.shares_prefixes and request.sampling.random:
            session.repetition.earlier = self._ngrams.of(scope)
        room = Room(cells, sequence(session), scope, request.shares_prefixes)
        self._slots.take(session, room)
        self.started.append(session)


def _continues(stream: Session) -> bool:
    """Whether a stream gets another token after the one that is computed now, and has a cell for that."""
    assert stream.prepared is not None
    length, generated = stream.length, len(stream.generated)
    is_late = stream.computed == length
    return not is_late and generated + 1 < stream.prepared.max_tokens and stream.cells > length


def _only_wait(prompts: Sequence[Session], streams: Sequence[Stream]) -> bool:
    """Whether none of ``prompts`` has started, and their adapters take no turns of their own."""
    sets = {stream.adapters for stream in streams}
    return all(one.slot is None and one.prepared is not None and one.prepared.adapters in sets for one in prompts)
