"""One model of the daemon: has its engine loaded and unloaded, and loaded again when it is lost, and runs sessions on
it."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from umaserve.daemon.engine_place import EnginePlace, NewEngine
from umaserve.daemon.engine_threads import EngineThreads
from umaserve.daemon.model_waiting import Then, Waiting
from umaserve.errors import ConfigError, Fault, ModelError, RequestError, TooLarge
from umaserve.messages import Query
from umaserve.metrics import ServingMetrics
from umaserve.net.loop import Loop
from umaserve.outputs import Loading, ModelInfo
from umaserve.remote.process import End
from umaserve.serving import residency_snapshot as residency
from umaserve.serving.admission import Admission
from umaserve.serving.content_filter import ContentFilter
from umaserve.serving.engine_jobs import EngineJobs
from umaserve.serving.neighbours import Neighbours
from umaserve.serving.planning import Targets
from umaserve.serving.questions import Answered, Question, Questions, Render, too_many_questions
from umaserve.serving.residency import retry_pause_s
from umaserve.serving.residency_snapshot import State
from umaserve.serving.scheduler import Scheduler
from umaserve.serving.sessions import Session, SessionManager
from umaserve.serving.ticks import Allowance, Engine, EngineLost
from umaserve.serving.waiting import Why, held_by
from umaserve.settings.models import ModelSpec
from umaserve.system.cores import CoreCounter
from umaserve.system.memory import resident_bytes

log = logging.getLogger(__name__)

MAX_PAUSE_S = 60.0
"""Between two trials to load a model whose engine ends at once: from none on, twice as long each time."""
PATIENCE = 3
"""Trials that requests wait for: of a lost engine, and where it is not the model's fault that it was not loaded."""
PUT_AWAY_S = 10.0
"""How long an unloaded model may take to write to disk what it has computed."""
BESIDES_WEIGHTS = 32 << 20
"""Bytes: a low guess at what a model takes besides its files. Where it takes more than there is, its engine says so
before it is loaded; a model that is thought to need too much would be refused."""
READ_RATE = 500e6
"""Bytes of weights loaded a second: the same."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the hosts of all models share."""

    loop: Loop
    threads: EngineThreads
    admission: Admission
    metrics: ServingMetrics
    content_filter: ContentFilter | None
    new_engine: NewEngine
    neighbours: Neighbours
    children: Callable[[], Sequence[int]]
    """The processes that compute for the daemon."""
    available_bytes: Callable[[], int]
    """Memory that a model to be loaded may take."""
    wanted: Callable[[], bool]
    """Whether engines are to be loaded: the daemon does not drain."""
    changed: Callable[[], None]
    """Called when a model is loaded, unloaded or lost, or could not be loaded."""


class ModelHost:
    """Has the model loaded, and runs the sessions of its own manager on it."""

    def __init__(
        self, spec: ModelSpec, sessions: SessionManager, around: Surroundings, *, default: bool = False
    ) -> None:
        self.spec = spec
        self._default = default
        self.sessions = sessions
        self.info: ModelInfo | None = None
        """``None`` until the model is loaded first."""
        self.needed_bytes = spec.size_bytes + BESIDES_WEIGHTS
        """The memory that it takes, as far as is known."""
        self._around = around
        self._loop = around.loop
        self._place = EnginePlace(spec, around.loop, around.new_engine, around.wanted, self._lost)
        self._loading = False
        self._unload_until: float | None = None
        """While it is being unloaded: when that is to be done."""
        self._leaving = False
        """Whether the operator wants it unloaded."""
        self._jobs: Sequence[EngineJobs] = ()
        self._suspects: Sequence[Session] = ()
        """The sessions that the latest engine may have crashed on."""
        self._scheduler: Scheduler | None = None
        self._questions: Questions | None = None
        self._waiting = Waiting(around.loop.now)
        """For the model to be loaded; the questions also while suspects are tried."""
        self._crashes = 0
        self._generated = 0
        """Tokens, without those of the present engine."""
        self._failures = 0
        """Loads in a row that failed, and engines that ended by themselves before they had made anything."""
        self._retry_at = -math.inf
        self._started_at = 0.0
        self._loaded_at = -math.inf
        self._load_s = spec.size_bytes / READ_RATE
        self._last_used_at = -math.inf
        self._seen = 0
        """``SessionManager.version`` when it was last looked at."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def state(self) -> State:
        if self._unload_until is not None:
            return State.UNLOADING
        if self._scheduler is not None:
            return State.LOADED
        if self._loading:
            return State.LOADING
        return State.FAILED if self._failures else State.UNLOADED

    @property
    def pids(self) -> Sequence[int]:
        """The processes that compute for it."""
        return self._place.pids

    @property
    def progress(self) -> float:
        """How much of it is loaded, from 0 to 1."""
        return self._place.progress

    @property
    def last_used_at(self) -> float:
        """When it had work last, as far as was looked."""
        return self._last_used_at

    @property
    def awaited(self) -> bool:
        """Whether somebody waits until it is loaded."""
        return bool(self._waiting) or any(not one.holds for one in self.sessions.arrived)

    @property
    def pinned(self) -> bool:
        """Whether it stays once it is loaded: its engine may be the daemon's voice, too."""
        return self.spec.pin or bool(self.spec.config.tts_model)

    # -- the operator's wishes -----------------------------------------------------------------------------------

    def come(self, then: Then) -> None:
        """Have it loaded, at once also where it failed, and call ``then`` once it is, or with the error. Raises
        ``RequestError`` where that can't be."""
        if not self._around.wanted():
            raise _shutting_down()
        if self.state is State.LOADED and not self._leaving:
            raise RequestError(Fault.BAD_REQUEST, "model", f"{self.name} is loaded already")
        self._leaving = False
        self._retry_at = -math.inf
        self._waiting.wish(then)

    def leave(self) -> None:
        """Have it unloaded once what it runs has ended; raises ``RequestError`` where that can't be."""
        if self.pinned:
            why = "is the daemon's voice, too" if self.spec.config.tts_model else "is pinned"
            raise RequestError(Fault.BAD_REQUEST, "model", f"{self.name} {why}: it stays loaded")
        if self._leaving or self.state is State.UNLOADING:
            raise RequestError(Fault.BUSY, "model", f"{self.name} is being unloaded already")
        if self._loading:
            raise RequestError(Fault.BUSY, "model", f"{self.name} is being loaded: it can be unloaded afterwards")
        if self.state is not State.LOADED:
            raise RequestError(Fault.BAD_REQUEST, "model", f"{self.name} is not loaded")
        self._leaving = True

    # -- loading -------------------------------------------------------------------------------------------------

    def load(self, done: Callable[[BaseException | None], None]) -> None:
        """Load the model, then call ``done``, with the error if it failed. Once its engine is lost, it is loaded again
        if anybody waits for it; the default one and those to preload are in any case."""
        self._begin_loading()
        self._load(done)

    def _begin_loading(self) -> None:
        self._loading = True
        self._place.progress = 0.0
        self._started_at = self._loop.now()

    def _load(self, done: Callable[[BaseException | None], None]) -> None:
        def loaded(result: Engine | BaseException) -> None:
            self._loading = False
            if isinstance(result, BaseException):
                done(result)
            elif self._around.wanted():
                self._serve(result)
                done(None)
            self._around.changed()

        beside = any(pid not in self.pids for pid in self._around.children())
        self._place.load(Allowance(self._around.available_bytes(), beside), loaded)

    def _serve(self, engine: Engine) -> None:
        config, around = self.spec.config, self._around
        self.info = replace(engine.info, name=self.name)
        self._loaded_at = self._loop.now()
        self._load_s = self._loaded_at - self._started_at
        self._jobs = [EngineJobs(thread, thread.max_s) for thread in around.threads.calling]
        self._jobs += [] if around.threads.disk is None else [EngineJobs(around.threads.disk)]
        compute, preparing, preparing_media, *disk = self._jobs
        self._scheduler = Scheduler(
            self.sessions,
            engine,
            compute,
            preparing,
            preparing_media,
            Targets(config.slo_ttft_ms / 1000, config.slo_tbt_ms / 1000),
            self._loop.now,
            around.content_filter,
            around.admission.spend,
            around.metrics,
            CoreCounter(self._loop.now, children=around.children),
            disk[0] if disk else None,
            around.neighbours,
            shared_prefixes=config.shared_prefix_cache,
            draft_tokens=config.speculation,
            suspects=self._suspects,
        )
        self._questions = Questions(engine, compute, preparing, preparing_media, config.max_queue)
        # A collection of all that stays for good would hold the streams for some 14 ms now and then. What an engine
        # before this one left stays no longer.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self.needed_bytes = engine.info.needed_bytes or resident_bytes(self.pids) - resident_bytes()
        log.info("ready", extra={"fields": {"model": self.name, "load_s": round(self._load_s, 2)}})

    def could_not_load(self, error: BaseException) -> None:
        """Fail the requests that wait for it; others may have it tried again later. They go on waiting if it takes more
        memory than was known, until the plan makes room for it, and if another program has taken the memory or killed
        the engine, which says nothing about the next trial."""
        if isinstance(error, TooLarge) and error.needed_bytes > self.needed_bytes:
            log.info("%s", error)
            self.needed_bytes = error.needed_bytes
            return
        self._fail_for_now()
        if isinstance(error, TooLarge | EngineLost) and self._failures < PATIENCE:
            log.warning("%s could not be loaded yet: %s", self.name, error)
            return
        if self._around.wanted():
            log.error("%s could not be loaded: %s", self.name, error, exc_info=_unexpected(error))
        problem = f"{self.name} could not be loaded: see the server's log"
        pause_s = self._retry_at - self._loop.now()
        self.fail_all(RequestError(Fault.MODEL_NOT_LOADED, "model", problem, retry_after_s=pause_s))

    def _fail_for_now(self) -> None:
        self._failures += 1
        self._retry_at = self._loop.now() + retry_pause_s(self._failures)

    # -- unloading -----------------------------------------------------------------------------------------------

    def unload(self) -> None:
        """Unload the model once what it has computed is on disk. New requests wait from now on."""
        assert self.state is State.LOADED
        self._unload_until = self._loop.now() + PUT_AWAY_S
        self._leaving = False
        self.sessions.holds_back = True

    def _unload(self) -> None:
        scheduler, questions = self._scheduler, self._questions
        assert scheduler is not None
        assert questions is not None
        self._leave(scheduler)
        self._waiting.add(questions.lose_engine(blamed=False))
        self._scheduler = self._questions = None
        self._suspects = ()
        self._failures = 0
        # Those that are held go on once it is loaded again.
        self.sessions.start_over()
        self._seen = self.sessions.version

        def closed() -> None:
            self._unload_until = None
            self.sessions.holds_back = False
            log.info("unloaded", extra={"fields": {"model": self.name}})
            self._around.changed()

        self._place.close(closed)

    def _leave(self, scheduler: Scheduler) -> None:
        """The engine gets no more work."""
        self._generated += scheduler.tokens_generated
        scheduler.leave()
        for jobs in self._jobs:
            jobs.end()

    # -- the engine is lost --------------------------------------------------------------------------------------

    def _lost(self, end: End) -> None:
        """Have all that the engine had in work done by another one."""
        scheduler, questions = self._scheduler, self._questions
        if scheduler is None or questions is None:
            return  # The daemon drains, and had no use for it any more.
        self._leave(scheduler)
        self._around.metrics.observe_crash(end.cause)
        self._crashes += 1
        self._suspects = scheduler.in_work if end.blames else ()
        about = {"model": self.name, "cause": end.cause, "in_work": [one.request_id for one in self._suspects]}
        about["last_words"] = end.last_words
        log.error("the engine's process %s", end.words, extra={"fields": about})
        if not end.blames or scheduler.tokens_generated:
            self._failures = 0
        self._scheduler = self._questions = self._unload_until = None
        self._leaving = self.sessions.holds_back = False
        self._waiting.add(questions.lose_engine(blamed=end.blames))
        self.sessions.start_over()
        if end.cause == "memory":
            # It is loaded again when it fits.
            self._fail_for_now()
        elif self._default or self.spec.preload or not self.unused:
            self._load_again()
        self._around.changed()

    def end_if_it_hangs(self) -> None:
        """End an engine that does not return from a tick or another call, as if it had crashed. Loading, and a slow
        disk, take as long as they may."""
        scheduler, timeout_s = self._scheduler, self.spec.config.engine_timeout
        if scheduler is None or not timeout_s:
            return
        if scheduler.hangs(timeout_s) or any(jobs.stuck for jobs in self._jobs):
            log.error("the engine of %s does not return from a call", self.name)
            self._place.kill()

    def _load_again(self) -> None:
        if not self._around.wanted():
            self.fail_all(
                RequestError(Fault.DECODE_FAILED, "decode", "the engine has ended: the server's log says how")
            )
            return
        pause_s = min(2.0 ** (self._failures - 1), MAX_PAUSE_S) if self._failures else 0.0
        self._failures += 1
        self._begin_loading()
        self.tell_waiting()

        def again() -> None:
            if self._around.wanted():
                self._load(self._loaded_again)

        self._loop.call_later(pause_s, again)

    def _loaded_again(self, error: BaseException | None) -> None:
        if error is None:
            return
        if isinstance(error, TooLarge):
            # Others have taken its memory: it is loaded again when it fits.
            self._failures = 0
            self.could_not_load(error)
            return
        log.error("%s could not be loaded again: %s", self.name, error, exc_info=_unexpected(error))
        # One that another program has killed says nothing about the next one.
        if self._failures >= PATIENCE and not isinstance(error, EngineLost):
            problem = "the model could not be loaded again: see the server's log"
            self.fail_all(RequestError(Fault.MODEL_NOT_LOADED, "request", problem, retry_after_s=MAX_PAUSE_S))
        self._load_again()

    # -- serving -------------------------------------------------------------------------------------------------

    def ask(self, query: Query, render: Render, answered: Answered) -> Question:
        """As ``Questions.ask``, also before the model is loaded."""
        if self._questions is not None and not self.sessions.holds_back:
            return self._questions.ask(query, render, answered)
        if len(self._waiting.questions) >= self.spec.config.max_queue:
            raise too_many_questions(self.spec.config.max_queue)
        question = Question(query, render, answered)
        self._waiting.add([question])
        return question

    def when_loaded(self, then: Then) -> Callable[[], None]:
        """As ``Waiting.when_loaded``, also if it is loaded: then in the next turn."""
        return self._waiting.when_loaded(then)

    def collect(self) -> None:
        """Run the callbacks of what was loaded or closed."""
        self._place.collect()

    def end_turn(self) -> None:
        """Plan and submit the next tick, then deliver outputs to clients."""
        scheduler, questions = self._scheduler, self._questions
        if scheduler is None or questions is None:
            for _ in self.sessions.deliver():
                continue
            return
        if not self.sessions.holds_back:
            if not scheduler.trying:
                questions.ask_again(self._waiting.take_questions())
            self._waiting.tell_loaded()
        scheduler.pump()
        scheduler.deliver()
        if scheduler.eager:
            self._loop.call_soon(_nothing)
        if self._unload_until is not None and (scheduler.put_away() or self._loop.now() > self._unload_until):
            self._unload()

    def tell_waiting(self) -> None:
        """Report progress to requests that wait for the model or for a slot."""
        if self._scheduler is not None:
            self._scheduler.tell_waiting()
            return
        so_far = self._loop.now() - self._started_at
        eta = so_far / self.progress - so_far if self._loading and self.progress else None
        for session in self.sessions.running():
            self.sessions.put(session, Loading(self.progress if self._loading else 0.0, eta))

    def why_waiting(self, session: Session) -> Why:
        """Why one of its running sessions has no slot."""
        if self._scheduler is None:
            return held_by(session) or Why.MODEL
        if self.sessions.holds_back and session in self.sessions.arrived:
            return held_by(session) or Why.OTHER_MODEL
        return self._scheduler.why_waiting(session)

    def shed_caches(self) -> None:
        """Memory is short: drop what is kept for later prompts."""
        if self._scheduler is not None:
            self._scheduler.shed_caches()

    @property
    def unused(self) -> bool:
        """Whether nobody has or wants anything of it."""
        asked = self._waiting or not (self._questions is None or self._questions.idle)
        return not asked and not self.sessions.undelivered and not any(True for _ in self.sessions.running())

    # -- the plan ------------------------------------------------------------------------------------------------

    def look(self, now: float) -> residency.Model:
        """What the plan depends on."""
        given = [one for one in self.sessions.running() if not one.holds]
        waiting = [one for one in self.sessions.arrived if not one.holds]
        idle = len(given) == len(waiting) and (self._questions is None or self._questions.idle)
        since = min([one.waits_since for one in waiting], default=math.inf)
        if not idle or self.sessions.version != self._seen:
            self._last_used_at = now
        self._seen = self.sessions.version
        return residency.Model(
            name=self.name,
            needed_bytes=self.needed_bytes,
            state=self.state,
            idle=idle,
            waiting=len(waiting) + len(self._waiting),
            waiting_since=min(since, self._waiting.since),
            loaded_at=self._loaded_at,
            last_used_at=self._last_used_at,
            load_s=self._load_s,
            retry_at=self._retry_at,
            pinned=self.pinned,
            preload=self.spec.preload,
            idle_unload_s=self.spec.idle_unload,
            leaving=self._leaving,
            default=self._default,
        )

    # -- the end -------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing runs, or nothing can."""
        if self._scheduler is None or self._questions is None:
            return True
        return self._scheduler.idle and self._questions.idle and not self._waiting.questions

    def put_away(self) -> bool:
        """Nothing runs any more: write to disk what was computed; returns whether that is done."""
        return self._scheduler is None or self._scheduler.put_away()

    def refuse_waiting(self) -> None:
        """The daemon drains: fail what has not started."""
        if self._scheduler is None:
            self.fail_all(_shutting_down())
            return
        self._scheduler.refuse_waiting()
        if self.sessions.holds_back:
            self._waiting.fail_all(_shutting_down())

    def fail_running(self) -> None:
        """The time to drain is over."""
        if self._scheduler is not None:
            self._scheduler.fail_running()

    def fail_all(self, error: RequestError) -> None:
        for session in list(self.sessions.running()):
            self.sessions.fail(session, error.copy())
        self._waiting.fail_all(error)

    def expire(self, seconds: float) -> None:
        """Fail the requests that have taken longer, and questions that have waited longer for the model."""
        self.sessions.expire(seconds)
        self._waiting.expire(seconds)

    def stop(self) -> None:
        """It is not loaded, and won't be."""
        self._place.stop()

    def close(self) -> None:
        """After the threads have ended."""
        self._place.end()

    def totals(self) -> Mapping[str, int]:
        """What the model has done since the start."""
        made = 0 if self._scheduler is None else self._scheduler.tokens_generated
        return {"tokens_generated_total": self._generated + made, "engine_crashes_total": self._crashes}

    def snapshot(self) -> Mapping[str, int | float | str]:
        """Its part of the metrics; the names are always the same."""
        if self._scheduler is not None:
            return self._scheduler.snapshot()
        return {
            "active_sessions": 0,
            "waiting_sessions": self.sessions.waiting,
            "tx_stalled_sessions": 0,
            "threads": 0,
            "threads_reason": "",
            "kv_cells_used": 0,
            "kv_cells_cached": 0,
            "kv_cells_total": 0,
            "host_cache_bytes": 0,
            "disk_cache_bytes": 0,
        }


def _shutting_down() -> RequestError:
    return RequestError(Fault.SHUTTING_DOWN, "request", "the server is shutting down; try again later")


def _unexpected(error: BaseException) -> BaseException | None:
    """For the log, which says all of the expected ones by their messages."""
    return None if isinstance(error, ConfigError | ModelError | EngineLost) else error


def _nothing() -> None:
    """Does nothing: scheduling it makes the loop turn once more."""
