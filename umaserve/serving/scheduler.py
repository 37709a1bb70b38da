"""The scheduler: collect a finished tick, plan and submit the next one, and only then deliver the tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from umaserve.errors import Fault, RequestError
from umaserve.messages import Finished, FinishReason, Output, Token
from umaserve.metrics import ServingMetrics
from umaserve.serving.cost_model import Cost, CostModel
from umaserve.serving.policy import Plan, Prompt, Snapshot, Stream, plan
from umaserve.serving.sessions import Session, SessionManager, State
from umaserve.serving.ticks import Engine, Outcome, Prepared, Run, Tick, TickResult

log = logging.getLogger(__name__)

T = TypeVar("T")


class Worker(Protocol):
    """A thread that runs jobs in order; ``done`` is called back on the loop's thread with the result or the error."""

    def submit(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class Targets:
    """Latency targets of requests that name none; seconds."""

    ttft_s: float
    tbt_s: float


@dataclass(slots=True)
class _Slots:
    """Sequence ids of the engine, and the KV cells promised to those in use."""

    free: list[int]
    ended: list[int]
    """Free again, but still to be cleared by the next tick, before its own runs."""
    promised_cells: int = 0


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
    ) -> None:
        self.metrics = ServingMetrics()
        self._sessions = sessions
        self._engine = engine
        self._compute = compute
        self._preparing = preparing
        self._targets = targets
        self._now = clock
        self._cost = CostModel()
        self._slots = _Slots(free=list(reversed(range(engine.capacity.slots))), ended=[])
        self._unprepared: list[Session] = []
        self._preparing_one = False
        self._holders: dict[int, Session] = {}
        """Sessions that hold a slot, by id, also when they have ended and the slot is still to be taken back."""
        self._in_flight: list[Session] | None = None
        """The sessions of the tick being computed, in the order of its runs."""

    # -- one turn of the loop ------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Prepare the next request that arrived, and start the next tick, unless one runs already."""
        self._unprepared += self._sessions.take_arrived()
        if self._unprepared and not self._preparing_one:
            self._prepare_next()
        if self._in_flight is None:
            self._submit()

    def deliver(self) -> None:
        """Hand queued outputs to their sessions' sinks."""
        for session, output in self._sessions.deliver():
            self._observe_delivery(session, output)

    def refuse_waiting(self) -> None:
        """Fail the requests that have not started: the daemon drains."""
        for session in list(self._sessions.running()):
            if session.slot is None:
                self._sessions.fail(session, _shutting_down())

    def fail_running(self) -> None:
        """Fail all that still runs: the time to drain is over."""
        for session in list(self._sessions.running()):
            self._sessions.fail(session, _shutting_down())

    # -- preparing -----------------------------------------------------------------------------------------------

    def _prepare_next(self) -> None:
        """One at a time, so that those who leave meanwhile cost nothing, and by class."""
        self._unprepared = [session for session in self._unprepared if session.running]
        if not self._unprepared:
            return
        session = min(self._unprepared, key=_class_and_age)
        self._unprepared.remove(session)
        request = session.request
        assert request is not None

        def prepared(result: Prepared | BaseException) -> None:
            self._preparing_one = False
            if session.state is not State.PREFILL:
                return
            if isinstance(result, Prepared):
                session.prepared = result
            elif isinstance(result, RequestError):
                self._sessions.fail(session, result)
            else:
                log.error("request %s: preparing it failed", request.id, exc_info=result)
                self._sessions.fail(session, RequestError(Fault.DECODE_FAILED, "request: the server failed on it"))

        self._preparing_one = True
        self._preparing.submit(lambda: self._engine.prepare(request), prepared)

    # -- a tick: snapshot, plan, submit --------------------------------------------------------------------------

    def _submit(self) -> None:
        self._take_back_slots()
        snapshot = self._snapshot()
        the_plan = plan(snapshot)
        tick, sessions = self._tick(the_plan)
        if not tick.runs and not tick.release:
            return
        decode_rows = len(the_plan.decode)
        prefill_rows = sum(tokens for _, tokens in the_plan.prefill)
        cached = snapshot.cached

        def finished(result: TickResult | BaseException) -> None:
            self._in_flight = None
            if isinstance(result, BaseException):
                log.error("a tick failed", exc_info=result)
                result = TickResult(Outcome.FAILED, (), 0.0)
            try:
                self._accept(tick, sessions, result)
            except Exception:
                log.exception("a tick's result could not be taken")
                self._fail_all(sessions)
            self.pump()
            # Learned after the next tick was submitted, which can do without what this one shows.
            if tick.runs and result.outcome is Outcome.DONE:
                self._cost.observe(decode_rows, prefill_rows, cached, result.seconds)
                self.metrics.ticks.add(result.seconds)
                self.metrics.last_batch_size = decode_rows + prefill_rows

        self._in_flight = sessions
        self._compute.submit(lambda: self._engine.run(tick), finished)

    def _take_back_slots(self) -> None:
        for session in [s for s in self._holders.values() if not s.running]:
            del self._holders[session.id]
            assert session.slot is not None
            self._slots.ended.append(session.slot)
            self._slots.free.append(session.slot)
            self._slots.promised_cells -= _cells(session)

    def _snapshot(self) -> Snapshot:
        streams, prompts = [], []
        for session in self._sessions.running():
            request, prepared = session.request, session.prepared
            if prepared is None or request is None:
                continue
            if session.state is State.DECODE:
                streams.append(Stream(session.id, request.target_tbt_s or self._targets.tbt_s))
            elif session.state is State.PREFILL:
                prompts.append(
                    Prompt(
                        id=session.id,
                        remaining=len(prepared.tokens) - session.computed,
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
            free_slots=len(self._slots.free),
            free_cells=capacity.cells - self._slots.promised_cells,
            cached=self.cells_used,
            batch_tokens=capacity.batch_tokens,
            # Only prefill is planned by cost, and solving for it takes longer than all the rest of the plan.
            cost=self._cost.cost if prompts else Cost(),
        )

    def _tick(self, the_plan: Plan) -> tuple[Tick, list[Session]]:
        sessions, runs = [], []
        for id_ in the_plan.decode:
            session = self._sessions.get(id_)
            assert session.prepared is not None
            assert session.slot is not None
            sessions.append(session)
            runs.append(Run(session.slot, session.computed, session.generated[-1:], session.prepared.sampler))
        for id_, n_tokens in the_plan.prefill:
            session = self._sessions.get(id_)
            assert session.prepared is not None
            slot = self._start(session) if session.slot is None else session.slot
            end = session.computed + n_tokens
            last = end == len(session.prepared.tokens)
            tokens = session.prepared.tokens[session.computed : end]
            sessions.append(session)
            runs.append(Run(slot, session.computed, tokens, session.prepared.sampler if last else None))
        release, self._slots.ended = self._slots.ended, []
        return Tick(release, runs), sessions

    def _start(self, session: Session) -> int:
        slot = session.slot = self._slots.free.pop()
        session.started_at = self._now()
        self._holders[session.id] = session
        self._slots.promised_cells += _cells(session)
        self.metrics.queue.add(session.started_at - session.requested_at)
        return slot

    # -- a finished tick -----------------------------------------------------------------------------------------

    def _accept(self, tick: Tick, sessions: list[Session], result: TickResult) -> None:
        match result.outcome:
            case Outcome.NO_CELLS:
                # Admission promised these cells, so this is rare (a cache that wants consecutive ones, say). The
                # youngest gives way to the others, who lose nothing but this tick.
                youngest = max(sessions, key=lambda session: session.requested_at)
                if youngest.running:
                    self._sessions.fail(youngest, RequestError(Fault.DECODE_FAILED, "decode: the KV cache is full"))
            case Outcome.FAILED:
                self._fail_all(sessions)
            case Outcome.DONE:
                for session, run, token in zip(sessions, tick.runs, result.tokens, strict=True):
                    self._advance(session, run, token)

    def _fail_all(self, sessions: list[Session]) -> None:
        for session in sessions:
            if session.running:
                self._sessions.fail(session, RequestError(Fault.DECODE_FAILED, "decode: llama.cpp failed"))

    def _advance(self, session: Session, run: Run, token: int | None) -> None:
        if session.state is State.PREFILL:
            self.metrics.prompt_tokens += len(run.tokens)
        session.computed += len(run.tokens)
        if token is None or not session.running:
            return
        if session.state is State.PREFILL:
            self._sessions.prompt_done(session)
        prepared = session.prepared
        assert prepared is not None
        if token in self._engine.end_tokens:
            self._sessions.finish(session, FinishReason.STOP)
            return
        self.metrics.tokens_generated += 1
        session.generated.append(token)
        text, stopped = prepared.text.push(token)
        full = len(session.generated) == prepared.max_tokens
        if full and not stopped:
            text += prepared.text.finish()
        self._sessions.put(session, Token(text, token))
        if stopped or full:
            self._sessions.finish(session, FinishReason.STOP if stopped else FinishReason.LENGTH)

    # -- what happened, for people -------------------------------------------------------------------------------

    def _observe_delivery(self, session: Session, output: Output | RequestError) -> None:
        now = self._now()
        if isinstance(output, Token):
            if session.last_token_at is None:
                session.first_token_at = now
                self.metrics.ttft.add(now - session.requested_at)
            else:
                self.metrics.tbt.add(now - session.last_token_at)
            session.last_token_at = now
        elif isinstance(output, Finished | RequestError):
            _log_end(session, output, now)

    @property
    def cells_used(self) -> int:
        """KV cells that hold tokens of sessions."""
        return sum(session.computed for session in self._holders.values())

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing is left to be delivered or cleared."""
        running = any(True for _ in self._sessions.running())
        return self._in_flight is None and not self._holders and not running and not self._sessions.undelivered

    def snapshot(self) -> dict[str, int | float | str]:
        """The scheduler's part of the metrics."""
        running = list(self._sessions.running())
        return {
            "active_sessions": sum(session.slot is not None for session in running),
            "waiting_sessions": sum(session.slot is None for session in running),
            "tx_stalled_sessions": sum(session.state is State.STREAM for session in running),
            **self.metrics.snapshot(),
            "kv_cells_used": self.cells_used,
            "kv_cells_total": self._engine.capacity.cells,
        }


def _cells(session: Session) -> int:
    assert session.prepared is not None
    return len(session.prepared.tokens) + session.prepared.max_tokens


def _class_and_age(session: Session) -> tuple[int, int]:
    assert session.request is not None
    return session.request.priority, session.id


def _shutting_down() -> RequestError:
    return RequestError(Fault.SHUTTING_DOWN, "request: the server is shutting down; try again later")


def _log_end(session: Session, output: Finished | RequestError, now: float) -> None:
    request = session.request
    ttft = None if session.first_token_at is None else round((session.first_token_at - session.requested_at) * 1000, 1)
    log.info(
        "request ended",
        extra={
            "fields": {
                "request": "" if request is None else request.id,
                "peer": session.peer,
                "end": output.reason.value if isinstance(output, Finished) else output.fault.name.lower(),
                "prompt_tokens": session.usage.prompt_tokens,
                "completion_tokens": session.usage.completion_tokens,
                "ttft_ms": ttft,
                "total_ms": round((now - session.requested_at) * 1000, 1),
            }
        },
    )
