"""The scheduler: collect a finished tick, plan and submit the next one, and only then deliver the tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from umaserve.errors import Fault, RequestError
from umaserve.messages import (
    FinishReason,
    Logprobs,
    Modify,
    Started,
    Steered,
    Steering,
    Token,
    Waiting,
)
from umaserve.metrics import ServingMetrics
from umaserve.serving.content_filter import ContentFilter
from umaserve.serving.cost_model import Cost
from umaserve.serving.governor import ThreadGovernor
from umaserve.serving.observer import observe_delivery
from umaserve.serving.policy import Held, Plan, Prompt, Snapshot, Stream, plan
from umaserve.serving.preparing import Preparing
from umaserve.serving.sessions import Hold, Origin, Session, SessionManager, State
from umaserve.serving.slots import Slots
from umaserve.serving.ticks import Engine, Outcome, Run, Tick, TickResult, Worker

log = logging.getLogger(__name__)

PATIENCE_S = 1.0
CHANGED_PER_TICK = 8
"""Sessions whose modifications are applied before one tick: each makes a sampler anew."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Latency targets of requests that name none; seconds."""

    ttft_s: float
    tbt_s: float


class Scheduler:
    """Runs the sessions of one manager on one engine, one tick at a time."""

    def __init__(
        self,
        sessions: SessionManager,
        engine: Engine,
        compute: Worker,
        preparing: Worker,
        targets: Targets,
        clock: Callable[[], float],
        content_filter: ContentFilter | None = None,
        spent: Callable[[Origin, int, float], None] | None = None,
        metrics: ServingMetrics | None = None,
        idle_cores: Callable[[], float | None] = lambda: None,
    ) -> None:
        """``spent`` is told of each token that its client was given: whose, how many, when."""
        self.metrics = metrics or ServingMetrics()
        self._spent = spent
        self._sessions = sessions
        self._engine = engine
        self._compute = compute
        self._preparing = Preparing(sessions, engine, preparing, content_filter)
        self._targets = targets
        self._now = clock
        self._governor = ThreadGovernor(engine.capacity.threads, clock(), idle_cores)
        self._slots = Slots(engine.capacity)
        self._in_flight: list[Session] | None = None
        """The sessions of the tick being computed, in the order of its runs."""

    # -- one turn of the loop ------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Prepare the next request that arrived, and start the next tick, unless one runs already."""
        arrived = self._sessions.take_arrived()
        for session in arrived:
            self._sessions.put(session, Started())
        self._preparing.add(arrived)
        self._preparing.next()
        if self._in_flight is None:
            self._submit()

    def deliver(self) -> None:
        """Hand queued outputs to their sessions' sinks."""
        for session, output in self._sessions.deliver():
            now = self._now()
            observe_delivery(self.metrics, session, output, now)
            if self._spent is not None and isinstance(output, Token):
                self._spent(session.origin, 1, now)

    def tell_waiting(self) -> None:
        """Tell each request that has waited ``PATIENCE_S`` for a place where it stands."""
        now = self._now()
        queue = sorted((s for s in self._sessions.running() if s.slot is None and not s.holds), key=_class_and_age)
        each = self.metrics.request_s / self._engine.capacity.slots
        for position, session in enumerate(queue, 1):
            if now - session.requested_at >= PATIENCE_S:
                eta = round(position * each, 1) if each else None
                self._sessions.put(session, Waiting(position, len(queue), eta))

    def refuse_waiting(self) -> None:
        """Fail the requests that have not started: the daemon drains."""
        for session in list(self._sessions.running()):
            if session.started_at is None:
                self._sessions.fail(session, _shutting_down())

    def fail_running(self) -> None:
        """Fail all that still runs: the time to drain is over."""
        for session in list(self._sessions.running()):
            self._sessions.fail(session, _shutting_down())

    # -- a tick: snapshot, plan, submit --------------------------------------------------------------------------

    def _submit(self) -> None:
        self._take_back_slots()
        self._apply_changes()
        snapshot = self._snapshot()
        the_plan = plan(snapshot)
        for id_ in the_plan.evict:
            self._evict(self._sessions.get(id_))
        tick, sessions = self._tick(the_plan)
        if not tick.runs and not tick.release:
            return
        decode_rows = len(the_plan.decode)
        prefill_rows = sum(tokens for _, tokens in the_plan.prefill)
        cached = snapshot.cached

        def finished(result: TickResult | BaseException) -> None:
            self._in_flight = None
            if isinstance(result, BaseException):
                log.error("a tick failed: requests %s", _ids(sessions), exc_info=result)
                result = TickResult(Outcome.FAILED, (), 0.0)
            try:
                self._accept(tick, sessions, result)
            except Exception:
                log.exception("a tick's result could not be taken: requests %s", _ids(sessions))
                self._fail_all(sessions)
            self.pump()
            # Learned after the next tick was submitted, which can do without what this one shows.
            if tick.runs and result.outcome is Outcome.DONE:
                now = self._now()
                self._governor.observe(tick.threads, decode_rows, prefill_rows, cached, result.seconds, now)
                self.metrics.observe_tick(result.seconds)
                self.metrics.last_batch_size = decode_rows + prefill_rows

        self._in_flight = sessions
        self._compute.submit(lambda: self._engine.run(tick), finished)

    def _take_back_slots(self) -> None:
        for session in [s for s in self._slots.holders if not s.running]:
            self._slots.give_up(session)

    def _evict(self, session: Session) -> None:
        self._slots.give_up(session)
        self._sessions.evicted(session)

    def _apply_changes(self) -> None:
        """Modify requests, which no tick is computing now, and acknowledge what already holds."""
        for session, commands in self._sessions.take_changes(CHANGED_PER_TICK):
            try:
                self._apply(session, commands)
            except Exception:
                # Nobody knows what of it has changed.
                log.exception("request %s: modifying it failed", session.request_id)
                self._sessions.fail(session, RequestError(Fault.DECODE_FAILED, "request: the server failed on it"))

    def _apply(self, session: Session, commands: list[Steering]) -> None:
        """Each modification says all that is changed so far: the last one is enough."""
        modifications = [command for command in commands if isinstance(command, Modify)]
        refusal = self._modify(session, modifications[-1]) if modifications else None
        for command in commands:
            self._sessions.put(session, Steered(command, refusal if isinstance(command, Modify) else None))
        self._settle(session)

    def _modify(self, session: Session, command: Modify) -> str | None:
        """Why it was refused, if it was."""
        request, prepared, wanted = session.request, session.prepared, command.request
        assert request is not None
        assert prepared is not None
        try:
            session.prepared = self._engine.change(prepared, wanted, session.generated)
        except RequestError as error:
            return error.message
        # Its id and its class are what they were.
        session.request = replace(request, sampling=wanted.sampling, max_tokens=wanted.max_tokens, stop=wanted.stop)
        return None

    def _settle(self, session: Session) -> None:
        """An answer may be long enough now, or need more cells than are free: then it waits in the queue for them."""
        assert session.prepared is not None
        if len(session.generated) >= session.prepared.max_tokens:
            self._sessions.finish(session, FinishReason.LENGTH)
        elif session.slot is not None and not self._slots.promise(session, _cells(session)):
            self._evict(session)

    def _snapshot(self) -> Snapshot:
        streams, prompts = [], []
        for session in self._sessions.running():
            request = session.request
            if session.prepared is None or request is None or session.holds:
                continue
            if session.state is State.DECODE:
                streams.append(Stream(session.id, request.target_tbt_s or self._targets.tbt_s))
            elif session.state is State.PREFILL:
                prompts.append(
                    Prompt(
                        id=session.id,
                        remaining=_length(session) - session.computed,
                        arrived_at=session.requested_at,
                        target_ttft_s=request.target_ttft_s or self._targets.ttft_s,
                        priority=request.priority,
                        started=session.slot is not None,
                        cells=_cells(session),
                    )
                )
        capacity = self._engine.capacity
        return Snapshot(
            now=self._now(),
            streams=streams,
            prompts=prompts,
            free_slots=self._slots.free,
            free_cells=self._slots.free_cells,
            cached=self._slots.used_cells,
            batch_tokens=capacity.batch_tokens,
            # Only prefill is planned by cost, and solving for it takes longer than all the rest of the plan.
            cost=self._governor.cost if prompts else Cost(),
            held=[Held(s.id, s.cells) for s in self._sessions.held() if s.slot is not None] if prompts else (),
        )

    def _tick(self, the_plan: Plan) -> tuple[Tick, list[Session]]:
        sessions, runs = [], []
        for id_ in the_plan.decode:
            session = self._sessions.get(id_)
            prepared = session.prepared
            assert prepared is not None
            assert session.slot is not None
            sessions.append(session)
            runs.append(
                Run(session.slot, session.computed, session.generated[-1:], prepared.sampler, prepared.logprobs)
            )
        for id_, n_tokens in the_plan.prefill:
            session = self._sessions.get(id_)
            prepared = session.prepared
            assert prepared is not None
            slot = self._start(session) if session.slot is None else session.slot
            end = session.computed + n_tokens
            last = end == _length(session)
            # One that lost its place computes also what it had generated.
            whole = [*prepared.tokens, *session.generated] if session.generated else prepared.tokens
            tokens = whole[session.computed : end]
            sessions.append(session)
            runs.append(Run(slot, session.computed, tokens, prepared.sampler if last else None, prepared.logprobs))
        return Tick(self._slots.take_ended(), runs, self._governor.threads), sessions

    def _start(self, session: Session) -> int:
        if session.started_at is None:
            session.started_at = self._now()
            self.metrics.observe_start(session.origin.dialect, session.started_at - session.requested_at)
        return self._slots.take(session, _cells(session))

    # -- a finished tick -----------------------------------------------------------------------------------------

    def _accept(self, tick: Tick, sessions: list[Session], result: TickResult) -> None:
        match result.outcome:
            case Outcome.NO_CELLS:
                # Admission promised these cells, so this is rare (a cache that wants consecutive ones, say). The
                # youngest gives way to the others, who lose nothing but this tick.
                youngest = max(sessions, key=lambda session: session.requested_at)
                if youngest.running:
                    error = RequestError(Fault.MEMORY_PRESSURE, "request: the KV cache is full; try again later")
                    self._sessions.fail(youngest, error)
            case Outcome.FAILED:
                self._fail_all(sessions)
            case Outcome.DONE:
                now = self._now()
                for index, (session, run) in enumerate(zip(sessions, tick.runs, strict=True)):
                    token, logprobs = result.tokens[index], result.logprobs.get(index)
                    try:
                        self._advance(session, run, token, logprobs, now)
                    except RequestError as error:
                        self._sessions.fail(session, error)

    def _fail_all(self, sessions: list[Session]) -> None:
        for session in sessions:
            if session.running:
                self._sessions.fail(session, RequestError(Fault.DECODE_FAILED, "decode: llama.cpp failed"))

    def _advance(self, session: Session, run: Run, token: int | None, logprobs: Logprobs | None, now: float) -> None:
        if session.state is State.PREFILL:
            if session.generated:
                self.metrics.recomputed_tokens += len(run.tokens)
            else:
                self.metrics.prompt_tokens += len(run.tokens)
        session.computed += len(run.tokens)
        if token is None or not session.running:
            return
        if session.state is State.PREFILL:
            self._sessions.prompt_done(session)
        prepared, text = session.prepared, session.text
        assert prepared is not None
        assert text is not None
        if token in self._engine.end_tokens:
            self._sessions.finish(session, FinishReason.STOP)
            return
        self.metrics.tokens_generated += 1
        session.generated.append(token)
        released, ended = text.push(token)
        if ended is None and len(session.generated) >= prepared.max_tokens:
            ended = FinishReason.LENGTH
            # In this token's text and not in one of its own, as another token would be.
            rest, filtered = text.finish()
            released += rest
            ended = FinishReason.CONTENT_FILTER if filtered else ended
        since = session.requested_at if session.last_made_at is None else session.last_made_at
        session.last_made_at = now
        if session.first_made_at is None:
            session.first_made_at = now
        self._sessions.put(session, Token(released, token, logprobs, now - session.requested_at, now - since))
        if ended is not None:
            self._sessions.finish(session, ended)

    # -- what happened, for people -------------------------------------------------------------------------------

    @property
    def eager(self) -> bool:
        """Whether there is work for the next turn, whatever happens meanwhile."""
        return self._in_flight is None and self._sessions.changing

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing is left to be delivered or cleared."""
        running = any(True for _ in self._sessions.running())
        return self._in_flight is None and not self._slots.holders and not running and not self._sessions.undelivered

    def snapshot(self) -> dict[str, int | float | str]:
        """The scheduler's part of the metrics."""
        running = list(self._sessions.running())
        return {
            "active_sessions": sum(session.slot is not None for session in running),
            "waiting_sessions": sum(session.slot is None for session in running),
            "tx_stalled_sessions": sum(Hold.READER in session.holds for session in running),
            **self.metrics.snapshot(),
            "threads": self._governor.threads,
            "threads_reason": self._governor.reason,
            "kv_cells_used": self._slots.used_cells,
            "kv_cells_total": self._engine.capacity.cells,
        }


def _ids(sessions: list[Session]) -> str:
    return ", ".join(session.request_id for session in sessions)


def _cells(session: Session) -> int:
    assert session.prepared is not None
    return len(session.prepared.tokens) + session.prepared.max_tokens


def _length(session: Session) -> int:
    """Tokens that have to be computed before the next one can be sampled."""
    assert session.prepared is not None
    return len(session.prepared.tokens) + len(session.generated)


def _class_and_age(session: Session) -> tuple[int, int]:
    assert session.request is not None
    return session.request.priority, session.id


def _shutting_down() -> RequestError:
    return RequestError(Fault.SHUTTING_DOWN, "request: the server is shutting down; try again later")
