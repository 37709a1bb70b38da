"""One model of the daemon: has its engine loaded, and again when it is lost, and runs sessions on it."""

from __future__ import annotations

import gc
import logging
import math
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from umaserve.errors import Fault, ModelError, RequestError
from umaserve.metrics import ServingMetrics
from umaserve.net.loop import READ, Loop
from umaserve.outputs import Loading, ModelInfo
from umaserve.remote.process import End
from umaserve.serving.admission import Admission
from umaserve.serving.content_filter import ContentFilter
from umaserve.serving.engine_jobs import EngineJobs
from umaserve.serving.planning import Targets
from umaserve.serving.questions import Question, Questions
from umaserve.serving.scheduler import Scheduler
from umaserve.serving.sessions import Session, SessionManager
from umaserve.serving.ticks import Allowance, Engine, EngineLost
from umaserve.settings.daemon import Config
from umaserve.system.cores import CoreCounter
from umaserve.system.memory import available_bytes
from umaserve.system.progress import ProgressBar
from umaserve.system.threads import DISK_NICE, MEDIA_NICE, JobThread

log = logging.getLogger(__name__)

PROGRESS_S = 0.1
MAX_TICK_S = 300.0
"""Bound on one decode, or on a long job between two yield points: a long text to embed, weights on a slow disk."""
MAX_PREPARING_S = 60.0
MAX_MEDIA_S = 600.0
"""A media decoder may start after up to 120 s and is killed after 300 s more; then its output is laid out."""


MAX_PAUSE_S = 60.0
"""Between two trials to load a model whose engine ends at once: from none on, twice as long each time."""
PATIENCE = 3
"""Trials that requests wait for."""


class LoadedEngine(Engine, Protocol):
    """An engine that can be closed."""

    def close(self) -> None: ...


class EngineHandle(Protocol):
    """A place for an engine to be loaded in; made on the loop's thread."""

    @property
    def pid(self) -> int:
        """Of the process that computes."""

    @property
    def life(self) -> socket.socket | None:
        """Readable once the engine has ended; ``None`` if it ends with this process."""

    def load(self, config: Config, allowance: Allowance, progress: Callable[[float], bool]) -> LoadedEngine:
        """Load the model: once, on a thread of its own. ``progress`` takes how much is loaded, from 0 to 1, and says
        whether to go on. Raises ``ModelError``, ``TooLarge`` where the ``allowance`` is too small for it, and
        ``EngineLost`` where another program has killed it."""

    def kill(self) -> None:
        """It does not return from a call."""

    def end(self) -> End:
        """How it has ended."""

    def close(self) -> None:
        """Free what is left, the engine included."""


class ModelHost:
    """Has the model loaded, and runs sessions on it."""

    def __init__(
        self,
        loop: Loop,
        config: Config,
        sessions: SessionManager,
        admission: Admission,
        metrics: ServingMetrics,
        content_filter: ContentFilter | None,
        new_engine: Callable[[], EngineHandle],
    ) -> None:
        self.compute = JobThread("compute", loop.wake, max_s=MAX_TICK_S, urgent=True)
        self.preparing = JobThread("preparing", loop.wake, max_s=MAX_PREPARING_S)
        self._preparing_media = JobThread("media", loop.wake, nice=MEDIA_NICE, max_s=MAX_MEDIA_S)
        self._disk = JobThread("disk", loop.wake, nice=DISK_NICE) if config.kv_cache else None
        self._loading_thread = JobThread("loading", loop.wake, max_s=math.inf)
        self.loading = False
        self.questions: Questions | None = None
        """``None`` until the model is loaded first."""
        self.info: ModelInfo | None = None
        """The same."""
        self._loop = loop
        self._config = config
        self._sessions = sessions
        self._admission = admission
        self._metrics = metrics
        self._content_filter = content_filter
        self._new_engine = new_engine
        self._handle: EngineHandle | None = None
        self._engine: LoadedEngine | None = None
        self._jobs: Sequence[EngineJobs] = ()
        self._suspects: Sequence[Session] = ()
        """The sessions that the latest engine may have crashed on."""
        self._unanswered: Sequence[Question] = ()
        """To be asked again, once no suspect is tried."""
        self._failures = 0
        """Engines in a row that ended by themselves before they had made anything."""
        self._made_before = 0
        """``ServingMetrics.tokens_generated`` when the engine was loaded."""
        self._scheduler: Scheduler | None = None
        self._started_at = self._loaded_at = loop.now()
        self._progress = 0.0
        self._bar = ProgressBar("loading the model", sys.stderr)

    @property
    def threads(self) -> Sequence[JobThread]:
        threads = self.compute, self.preparing, self._preparing_media
        return threads if self._disk is None else (*threads, self._disk)

    @property
    def children(self) -> Sequence[int]:
        """The processes that compute for it."""
        return () if self._handle is None or self._handle.life is None else (self._handle.pid,)

    # -- loading -------------------------------------------------------------------------------------------------

    def load(self, wanted: Callable[[], bool], loaded: Callable[[BaseException | None], None]) -> None:
        """Load the model while it is ``wanted``, then call ``loaded``, with the error if it failed. From then on it is
        loaded again whenever its engine is lost."""
        self.loading = True
        self._progress = 0.0
        self._started_at = self._loop.now()
        self._handle = handle = self._new_engine()

        def on_progress(fraction: float) -> bool:
            self._progress = fraction
            return wanted()

        def on_loaded(result: LoadedEngine | BaseException) -> None:
            self.loading = False
            self._bar.clear()
            if isinstance(result, BaseException):
                self._handle = None
                handle.close()
                loaded(result)
                return
            self._engine = result
            if wanted():
                self._serve(result)
                self._watch(handle, wanted)
                loaded(None)

        self._show_progress()
        allowance = Allowance(available_bytes(), beside=False)
        self._loading_thread.submit(lambda: handle.load(self._config, allowance, on_progress), on_loaded)

    def _show_progress(self) -> None:
        if self.loading:
            self._bar.show(self._progress)
            self._loop.call_later(PROGRESS_S, self._show_progress)

    def _serve(self, engine: LoadedEngine) -> None:
        config = self._config
        self._progress = 1.0
        self.info = engine.info
        self._made_before = self._metrics.tokens_generated
        self._loaded_at = self._loop.now()
        self._jobs = [EngineJobs(thread) for thread in self.threads]
        compute, preparing, preparing_media, *disk = self._jobs
        self._scheduler = Scheduler(
            self._sessions,
            engine,
            compute,
            preparing,
            preparing_media,
            Targets(config.slo_ttft_ms / 1000, config.slo_tbt_ms / 1000),
            self._loop.now,
            self._content_filter,
            self._admission.spend,
            self._metrics,
            CoreCounter(self._loop.now, children=lambda: self.children),
            disk[0] if disk else None,
            shared_prefixes=config.shared_prefix_cache,
            draft_tokens=config.speculation,
            suspects=self._suspects,
        )
        self.questions = Questions(engine, compute, preparing, preparing_media, config.max_queue)
        # A collection of all that stays for good would hold the streams for some 14 ms now and then. What an engine
        # before this one left stays no longer.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        seconds = round(self._loop.now() - self._started_at, 2)
        log.info("ready", extra={"fields": {"model": engine.info.name, "load_s": seconds}})

    # -- the engine is lost --------------------------------------------------------------------------------------

    def _watch(self, handle: EngineHandle, wanted: Callable[[], bool]) -> None:
        life = handle.life
        if life is None:
            return

        def on_end(_events: int) -> None:
            self._loop.set_interest(life, 0, on_end)
            self._lost(handle, wanted)

        self._loop.set_interest(life, READ, on_end)

    def _lost(self, handle: EngineHandle, wanted: Callable[[], bool]) -> None:
        """Have all that the engine had in work done by another one."""
        scheduler, questions = self._scheduler, self.questions
        assert scheduler is not None
        assert questions is not None
        end = handle.end()
        handle.close()
        for jobs in self._jobs:
            jobs.end()
        self._metrics.observe_crash(end.cause)
        self._suspects = scheduler.in_work if end.blames else ()
        about = {"cause": end.cause, "in_work": [session.request_id for session in self._suspects]}
        about["last_words"] = end.last_words
        log.error("the engine's process %s", end.words, extra={"fields": about})
        if not end.blames or self._metrics.tokens_generated > self._made_before:
            self._failures = 0
        self._handle = self._engine = self._scheduler = None
        self._unanswered = [*self._unanswered, *questions.lose_engine(blamed=end.blames)]
        self._sessions.start_over()
        self._load_again(wanted)

    def end_if_it_hangs(self) -> None:
        """End an engine that does not return from a tick or another call, as if it had crashed. Loading, and a slow
        disk, take as long as they may."""
        handle, scheduler = self._handle, self._scheduler
        if handle is None or handle.life is None or scheduler is None or not self._config.engine_timeout:
            return
        # What hangs since an earlier engine is no call to this one.
        age_s = self._loop.now() - self._loaded_at
        threads = self.compute, self.preparing, self._preparing_media
        stuck = [thread.name for thread in threads if (thread.stuck_s() or math.inf) < age_s]
        if stuck or scheduler.hangs(self._config.engine_timeout):
            log.error("the engine does not return from a %s", f"call for {stuck[0]}" if stuck else "tick")
            handle.kill()

    def _load_again(self, wanted: Callable[[], bool]) -> None:
        if not wanted():
            self.fail_all(
                RequestError(Fault.DECODE_FAILED, "decode", "the engine has ended: the server's log says how")
            )
            return
        pause_s = min(2.0 ** (self._failures - 1), MAX_PAUSE_S) if self._failures else 0.0
        self._failures += 1
        self.loading = True
        self._progress = 0.0
        self.tell_waiting()

        def again() -> None:
            if wanted():
                self.load(wanted, lambda error: self._loaded_again(error, wanted))

        self._loop.call_later(pause_s, again)

    def _loaded_again(self, error: BaseException | None, wanted: Callable[[], bool]) -> None:
        if error is None:
            return
        log.error("the model could not be loaded again: %s", error, exc_info=_unexpected(error))
        if isinstance(error, EngineLost):
            # Another program has killed it: that says nothing about the next one.
            self._failures = 0
        if self._failures >= PATIENCE:
            problem = "the model could not be loaded again: see the server's log"
            self.fail_all(RequestError(Fault.MODEL_NOT_LOADED, "request", problem, retry_after_s=MAX_PAUSE_S))
        self._load_again(wanted)

    # -- serving -------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Run the callbacks of finished jobs."""
        for thread in (*self.threads, self._loading_thread):
            thread.collect()

    def end_turn(self) -> None:
        """Plan and submit the next tick, then deliver outputs to clients."""
        if self._scheduler is None:
            for _ in self._sessions.deliver():
                continue
            return
        if self._unanswered and self.questions is not None and not self._scheduler.trying:
            unanswered, self._unanswered = self._unanswered, ()
            self.questions.ask_again(unanswered)
        self._scheduler.pump()
        self._scheduler.deliver()
        if self._scheduler.eager:
            self._loop.call_soon(_nothing)

    def tell_waiting(self) -> None:
        """Report progress to requests that wait for the model or for a slot."""
        if self._scheduler is not None:
            self._scheduler.tell_waiting()
        elif self.loading:
            so_far = self._loop.now() - self._started_at
            eta = so_far / self._progress - so_far if self._progress else None
            for session in self._sessions.running():
                self._sessions.put(session, Loading(self._progress, eta))

    def shed_caches(self) -> None:
        """Memory is short: drop what is kept for later prompts."""
        if self._scheduler is not None:
            self._scheduler.shed_caches()

    # -- the end -------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing runs, or nothing can."""
        if self._scheduler is None or self.questions is None:
            return True
        return self._scheduler.idle and self.questions.idle and not self._unanswered

    def put_away(self) -> bool:
        """Nothing runs any more: write to disk what was computed; returns whether that is done."""
        return self._scheduler is None or self._scheduler.put_away()

    def refuse_waiting(self) -> None:
        """The daemon drains: fail what has not started."""
        if self._scheduler is not None:
            self._scheduler.refuse_waiting()
        else:
            self.fail_all(RequestError(Fault.SHUTTING_DOWN, "request", "the server is shutting down; try again later"))

    def fail_running(self) -> None:
        """The time to drain is over."""
        if self._scheduler is not None:
            self._scheduler.fail_running()

    def fail_all(self, error: RequestError) -> None:
        for session in list(self._sessions.running()):
            self._sessions.fail(session, error.copy())
        for question in self._unanswered:
            question.answered(error.copy())
        self._unanswered = ()

    def close(self) -> None:
        """After the threads have ended."""
        self._loading_thread.collect()
        if self._engine is not None:
            self._engine.close()
        if self._handle is not None:
            self._handle.close()

    def snapshot(self) -> Mapping[str, int | float | str]:
        """The model's part of the metrics; the names are always the same."""
        about: dict[str, int | float | str] = {
            "load_progress": round(self._progress, 3),
            "model": "" if self.info is None else self.info.name,
        }
        if self._scheduler is not None:
            return {**about, **self._scheduler.snapshot()}
        return {
            **about,
            "active_sessions": 0,
            "waiting_sessions": self._sessions.waiting,
            "tx_stalled_sessions": 0,
            **self._metrics.snapshot(),
            "threads": 0,
            "threads_reason": "",
            "kv_cells_used": 0,
            "kv_cells_cached": 0,
            "kv_cells_total": 0,
            "host_cache_bytes": 0,
            "disk_cache_bytes": 0,
        }


def _unexpected(error: BaseException) -> BaseException | None:
    """For the log, which says all of the expected ones by their messages."""
    return None if isinstance(error, ModelError | EngineLost) else error


def _nothing() -> None:
    """Does nothing: scheduling it makes the loop turn once more."""
