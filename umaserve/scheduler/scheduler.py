"""The scheduler: takes a finished tick, plans and submits the next one, and only then delivers the tokens."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable

from umaserve.core.errors import Fault, RequestError, shutting_down
from umaserve.core.events import SlotFile, Started, Token
from umaserve.core.metrics import ServingMetrics
from umaserve.kvcache.disk_cache import DiskCache
from umaserve.kvcache.slot_files import SlotFiles
from umaserve.kvcache.slots import Slots
from umaserve.scheduler.crash_isolation import CrashIsolation
from umaserve.scheduler.encoding import Encoding
from umaserve.scheduler.governor import ThreadGovernor
from umaserve.scheduler.observer import observe_delivery
from umaserve.scheduler.other_models import OtherModels
from umaserve.scheduler.planner import Planner
from umaserve.scheduler.positions import tell_positions
from umaserve.scheduler.preparing import Preparing, lacks_media
from umaserve.scheduler.readiness import Readiness
from umaserve.scheduler.results import Results
from umaserve.scheduler.steering import Changes
from umaserve.scheduler.submitted import Submitted
from umaserve.sessions.caller import Caller
from umaserve.sessions.content_filter import ContentFilter
from umaserve.sessions.cost_model import Cost
from umaserve.sessions.engine_api import Engine, JobQueue, Outcome, TickResult
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.session import Hold, Session
from umaserve.sessions.targets import Targets
from umaserve.sessions.waiting import Why, held_by
from umaserve.system.cores import CoreUse

log = logging.getLogger(__name__)

MAX_SLOWNESS = 20


class Scheduler:
    """Runs the sessions of one manager on one engine, one tick at a time."""

    def __init__(
        self,
        sessions: SessionManager,
        engine: Engine,
        compute: JobQueue,
        preparing: JobQueue,
        preparing_media: JobQueue,
        targets: Targets,
        clock: Callable[[], float],
        content_filter: ContentFilter | None = None,
        spent: Callable[[Caller, int, float], None] | None = None,
        metrics: ServingMetrics | None = None,
        core_use: Callable[[], CoreUse | None] = lambda: None,
        disk: JobQueue | None = None,
        neighbours: OtherModels | None = None,
        *,
        shared_prefixes: bool = False,
        draft_tokens: bool = True,
        suspects: Iterable[Session] = (),
        known_cost: Cost | None = None,
    ) -> None:
        """``spent`` is called for each delivered token, with its caller, a count and the time. ``disk``: the thread
        for it. ``neighbours``: of all schedulers on ``compute``. ``shared_prefixes``: tenants may reuse each other's
        cached prefixes. ``draft_tokens``: whether to use draft tokens. ``suspects``: the sessions that an engine before
        this one may have crashed on. ``known_cost``: ``learned_cost`` of a scheduler before this one."""
        self.metrics = metrics or ServingMetrics()
        self._spent = spent
        self._sessions = sessions
        self._engine = engine
        self._compute = compute
        self._aside = preparing
        self._targets = targets
        self._now = clock
        speculates = draft_tokens and engine.capacity.max_draft_tokens > 0
        self._preparing, self._preparing_media = (
            Preparing(
                sessions,
                engine,
                worker,
                clock,
                content_filter,
                shared_prefixes=shared_prefixes,
                draft_tokens=speculates,
            )
            for worker in (preparing, preparing_media)
        )
        self._encoding = Encoding(sessions, engine, compute, self.metrics, clock)
        self._governor = ThreadGovernor(engine.capacity.threads, clock(), core_use, known_cost)
        self._slots = slots = Slots(engine.capacity)
        self._disk: DiskCache | None = None
        if disk is not None and engine.capacity.keeps:
            self._disk = DiskCache(engine, disk, slots, self.metrics, clock)
        self._slot_files: SlotFiles | None = None
        if disk is not None and self._disk is not None and engine.capacity.names:
            self._slot_files = SlotFiles(engine, disk, slots, self._disk, clock)
        self._readiness = Readiness(sessions, slots, self._disk, targets, clock, shared_prefixes=shared_prefixes)
        self._planning = Planner(
            sessions,
            engine.capacity,
            slots,
            self._readiness,
            targets,
            clock,
            self.metrics,
            neighbours or OtherModels(),
            self._governor,
        )
        self._results = Results(sessions, engine, self._planning, self.metrics, clock, shared_prefixes=shared_prefixes)
        self._changes = Changes(sessions, engine, self._planning)
        self._trials = CrashIsolation(sessions, suspects)
        self._submitted: deque[Submitted] = deque()
        """The tick that runs, and perhaps the one after it."""
        self._early: tuple[Submitted, TickResult | BaseException | None] | None = None
        """Tick whose result has come before that of the one before it."""
        self._planned_at = 0
        """``SessionManager.version`` when the latest tick was planned."""

    # -- one turn of the loop ------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Submit what ticks can be, and prepare the next request that arrived."""
        self._submit()
        for session in self._trials.may_begin(self._sessions.take_arrived()):
            if session.running:
                self._begin(session)
        self._preparing.next()
        self._preparing_media.next()
        if self._disk is not None:
            if not self._submitted:
                self._readiness.between_ticks()
            self._disk.next(self._governor.cost)
        if self._slot_files is not None:
            self._slot_files.next()

    def _begin(self, session: Session) -> None:
        if not session.announced:
            session.announced = True
            self._sessions.put(session, Started())
        if lacks_media(session):
            problem = "the engine crashed, and the request's media are too large to be kept: send it again"
            self._sessions.fail(session, RequestError(Fault.DECODE_FAILED, "request", problem, retry_after_s=0.0))
            return
        (self._preparing_media if session.request.has_media else self._preparing).add([session])

    def deliver(self) -> None:
        """Hand queued outputs to their sessions' sinks."""
        now = self._now()
        for session, output in self._sessions.deliver():
            observe_delivery(self.metrics, session, output, now, self._targets)
            if self._spent is not None and isinstance(output, Token):
                self._spent(session.caller, 1, now)

    def tell_waiting(self) -> None:
        """Tell each request that has waited in the queue for a while its position in the line of its class."""
        tell_positions(self._sessions, self._waits, self.metrics.request_s / self._engine.capacity.slots, self._now())

    def _waits(self, session: Session) -> bool:
        """Whether it waits in the queue, and its prompt is not being prepared or encoded now."""
        if session.slot is not None or session.holds:
            return False
        return not any(stage.serves(session) for stage in (self._preparing, self._preparing_media, self._encoding))

    def why_waiting(self, session: Session) -> Why:
        """Why a running session has no slot."""
        if held := held_by(session):
            return held
        if self._trials.current not in (None, session):
            return Why.TRIAL
        return Why.PREPARING if session.prepared is None else self._planning.why_waiting(session)

    def refuse_waiting(self) -> None:
        """Fail the requests that have not started: the daemon drains."""
        self._fail(lambda session: session.started_at is None)

    def fail_begun(self) -> None:
        """Fail the requests that have a token: the time to drain is over for them."""
        self._fail(lambda session: bool(session.generated))

    def fail_running(self) -> None:
        """Fail all running requests: the time to drain is over."""
        self._fail(lambda _session: True)

    def _fail(self, chosen: Callable[[Session], bool]) -> None:
        for session in list(filter(chosen, self._sessions.running())):
            self._sessions.fail(session, shutting_down())

    def put_away(self) -> bool:
        """Write to disk what was computed: nothing runs any more, nor will. To be called until it is done, which is
        returned."""
        if self._disk is None:
            return True
        if self._slots.cached_cells:
            self._slots.put_away()
        self._disk.put_away()
        self.pump()
        return self.idle and self._disk.is_put_away

    def leave(self) -> None:
        """Leave the other schedulers, which need not mind this one any longer: its engine is lost or closed, and it
        runs no more ticks."""
        self._planning.leave()
        if self._slot_files is not None:
            self._slot_files.fail(
                RequestError(Fault.MODEL_NOT_LOADED, "id", "its engine ended: try again later", retry_after_s=1)
            )

    def shed_caches(self) -> None:
        """Drop cached prefixes, media and texts of earlier requests: memory is short."""
        self._planning.forget_ngrams()
        self._slots.forget_cached()
        self._compute.submit(self._engine.shed, lambda _result: None)

    def erase_cached(self) -> int:
        """Drop all cached sequences in the cells and in host memory; returns how many tokens they held."""
        tokens = self._slots.cached_cells + (0 if self._slots.host is None else self._slots.host.saved_tokens)
        self._slots.forget_cached()
        return tokens

    def save_slot(self, number: int, filename: str, answered: Callable[[SlotFile | RequestError], None]) -> None:
        """Save what a slot holds in a file of that name: those of running answers come first, by age, and then those of
        the latest that ended. Raises ``RequestError``."""
        files = self._names_slots()
        running = sum(session.slot is not None for session in self._sessions.running())
        if number < running:
            raise RequestError(Fault.BUSY, "id", "an answer is running in this slot: save it afterwards")
        files.save(number - running, filename, answered)

    def restore_slot(self, filename: str, answered: Callable[[SlotFile | RequestError], None]) -> None:
        """Let prompts begin with what was saved in the file of that name. Raises ``RequestError``."""
        self._names_slots().restore(filename, answered)

    def _names_slots(self) -> SlotFiles:
        if self._slot_files is None:
            problem = (
                "slots are saved and restored with --slot-save-path, the folder for their files, and --kv-cache; "
                "--kv-cache alone finds what was computed again by its text"
            )
            raise RequestError(Fault.NOT_SUPPORTED, "action", problem)
        return self._slot_files

    # -- a tick: plan, submit ------------------------------------------------------------------------------------

    def _submit(self) -> None:
        """Submit the next tick unless one is in flight, and the one after it if it is certain."""
        if self._submitted and self._planned_at != self._sessions.version and self._submitted[-1].take_back():
            self._submitted.pop()
        if not self._submitted:
            self._submit_planned()
        if len(self._submitted) == 1 and not self._submitted[0].continued:
            self._submit_after(self._submitted[0])

    def _submit_planned(self) -> None:
        self._changes.apply()
        work = self._planning.next(self._trials.current)
        for session in self._planning.started:
            self._results.started(session)
        self._encoding.next(self._readiness.to_encode)
        tick = work.tick
        if not tick.runs and not tick.kv_operations:
            return
        submitted = Submitted(work)
        self._planned_at = self._sessions.version
        self._submitted.append(submitted)
        thread = self._aside if work.aside else self._compute
        thread.submit(lambda: submitted.run(self._engine), lambda result: self._finished(submitted, result))

    def _submit_after(self, running: Submitted) -> None:
        running.continued = True
        ahead = self._engine.run_ahead
        # A stop string may end a stream in the meantime: its next token is then computed in vain, and must not stay.
        if ahead is None or not self._engine.capacity.takes_back or self.trying:
            return
        work = self._planning.after(running.work)
        if work is None:
            return
        following = Submitted(work, ahead)
        if ahead.grant(running.work.tick, lambda result: self._finished(following, result)):
            self._planned_at = self._sessions.version
            self._submitted.append(following)

    # -- a finished tick -----------------------------------------------------------------------------------------

    def _finished(self, submitted: Submitted, result: TickResult | BaseException | None) -> None:
        if submitted in self._submitted and submitted is not self._submitted[0]:
            # The result of the tick before comes through a thread.
            self._early = submitted, result
            return
        self._take(submitted, result)
        if self._early is not None:
            early, self._early = self._early, None
            self._take(*early)

    def _take(self, submitted: Submitted, result: TickResult | BaseException | None) -> None:
        self._submitted.remove(submitted)
        if result is None:
            self._submit()
            return
        for following in self._submitted:
            following.begins()
        work = submitted.work
        if isinstance(result, BaseException):
            log.error("a tick failed: requests %s", _ids(work.sessions), exc_info=result)
            result = TickResult(Outcome.FAILED, (), 0.0)
            self._results.fail_all(work.sessions)
            # It is unknown which of its KV operations were done, and so what any cell holds.
            self._planning.clear_all()
        try:
            self._results.accept(work, result)
        except Exception:
            log.exception("internal error while applying a tick's result: requests %s", _ids(work.sessions))
            self._results.fail_all(work.sessions)
        self._readiness.between_ticks()
        self._submit()
        # After the next tick was submitted, so that learning does not delay it.
        if work.decode_rows + work.prefill_rows and result.outcome is Outcome.DONE:
            not_drafted = sum(draft.limit for draft in work.tick.drafts) - sum(result.drafted)
            rows = work.decode_rows - not_drafted, work.prefill_rows
            now, taken = self._now(), rows
            if work.scored_rows:
                taken = rows[0], self._planning.in_rows(work)
            self._governor.observe(work.tick.threads, *taken, work.cached, result.seconds, now, work.decodes)
            if work.scored_rows and work.tick.threads == self._engine.capacity.threads:
                self._planning.scored(work, self._governor.learned, result.seconds)
            over = work.budget_s is not None and result.seconds > work.budget_s
            n_sessions = len({*work.sessions})  # A prompt in several pieces is there several times.
            if not work.prefill_rows:
                self._planning.draft_costs.observe(n_sessions, rows[0], result.seconds)
            self.metrics.observe_tick(result.seconds, sum(rows), n_sessions, over_budget=over, throttled=work.throttled)

    # -- state and metrics ---------------------------------------------------------------------------------------

    @property
    def tokens_generated(self) -> int:
        return self._results.tokens_generated

    @property
    def learned_cost(self) -> Cost | None:
        """Cost of its ticks with all threads; ``None`` where next to nothing is known."""
        return self._governor.learned

    @property
    def trying(self) -> bool:
        """Whether a request that may have crashed an engine runs alone."""
        return self._trials.current is not None

    @property
    def in_work(self) -> list[Session]:
        """The sessions that the engine computes, prepares or samples now: one of them may be why it ends."""
        ticks = [session for submitted in self._submitted for session in submitted.work.sessions]
        late = [session for session in self._slots.holders if session.running and session.is_late]
        prepared = [*self._preparing.in_work, *self._preparing_media.in_work, *self._encoding.in_work]
        return list(dict.fromkeys((*ticks, *late, *prepared)))

    def hangs(self, timeout_s: float) -> bool:
        """Whether a tick takes longer than ``timeout_s``, and than ``MAX_SLOWNESS`` times what was predicted."""
        for submitted in self._submitted:
            work, begun_at = submitted.work, submitted.begun_at
            if begun_at is not None:
                rows = work.decode_rows, work.prefill_rows
                predicted_s = self._governor.cost.seconds(*rows, work.cached, work.decodes)
                return time.monotonic() - begun_at > max(timeout_s, MAX_SLOWNESS * predicted_s)
        return False

    @property
    def eager(self) -> bool:
        """Whether the next turn has work even without an event."""
        return not self._submitted and self._sessions.changing

    @property
    def gathers(self) -> bool:
        """Whether a turn after ``GATHER_S`` has work even without an event."""
        return self._planning.gathers

    @property
    def idle(self) -> bool:
        """Whether nothing runs, and nothing is left to deliver or to take back."""
        running = any(True for _ in self._sessions.running()) or bool(self._slots.holders)
        return not (self._submitted or running or self._sessions.undelivered) and self._encoding.idle

    def snapshot(self) -> dict[str, int | float | str]:
        """The scheduler's part of the metrics."""
        running = list(self._sessions.running())
        return {
            "active_sessions": sum(session.slot is not None for session in running),
            "waiting_sessions": sum(session.slot is None for session in running),
            "tx_stalled_sessions": sum(Hold.READER in session.holds for session in running),
            "threads": self._governor.threads,
            "threads_reason": self._governor.reason,
            "kv_cells_used": self._slots.used_cells,
            "kv_cells_cached": self._slots.cached_cells,
            "kv_cells_total": self._engine.capacity.cells,
            "host_cache_bytes": self._slots.host_bytes,
            "disk_cache_bytes": 0 if self._disk is None else self._disk.used_bytes,
        }


def _ids(sessions: list[Session]) -> str:
    return ", ".join(session.request.id for session in sessions)
