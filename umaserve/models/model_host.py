"""One model of the daemon: has its engine loaded and unloaded, and loaded again when it is lost, and runs sessions on
it."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from umaserve.core.errors import ConfigError, Fault, ModelError, RequestError, TooLarge, shutting_down
from umaserve.core.events import Loading, ModelInfo
from umaserve.models import residency_snapshot as residency
from umaserve.models.engine_supervisor import EngineSupervisor
from umaserve.models.loaded_model import NOT_LOADED, LoadedModel
from umaserve.models.model_context import ModelContext
from umaserve.models.model_loading import MAX_PAUSE_S, ModelLoading
from umaserve.models.model_waiting import Then, Waiting
from umaserve.models.residency_snapshot import State
from umaserve.net.timers import Timer
from umaserve.remote.process import End
from umaserve.scheduler.crash_isolation import count_loss
from umaserve.scheduler.policy.burst import GATHER_S
from umaserve.scheduler.questions import Question, too_many_questions
from umaserve.sessions.engine_api import Adapters, Engine, EngineLost
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.session import Session
from umaserve.sessions.waiting import Why, held_by
from umaserve.settings.models import ModelSpec

log = logging.getLogger(__name__)

PUT_AWAY_S = 10.0
"""How long an unloaded model may take to write to disk what it has computed."""


class ModelHost:
    """Has the model loaded, and runs the sessions of its own manager on it."""

    def __init__(
        self, spec: ModelSpec, sessions: SessionManager, around: ModelContext, *, default: bool = False
    ) -> None:
        self.spec = spec
        self._default = default
        self.sessions = sessions
        self.place = EngineSupervisor(spec, around.loop, around.new_engine, around.wanted, self._lost)
        self.loading = ModelLoading(spec, self.place, around)
        self.info: ModelInfo | None = None
        """Properties of the model; ``None`` until it is loaded first."""
        self.loaded: LoadedModel | None = None
        """The model with its engine; ``None`` while no engine serves it."""
        self._around = around
        self._loop = around.loop
        self._gathering: Timer | None = None
        """Has the loop turn when a burst of prompts has been gathered."""
        self._unload_until: float | None = None
        """Time by which the unload in progress is to be done; ``None`` while there is none."""
        self._leaving = False
        """Whether the operator wants it unloaded, or its files have changed."""
        self._outdated = False
        """Whether what it computes may be wrong, since its files have changed."""
        self._suspects: Sequence[Session] = ()
        """The sessions that may be why the latest engine was lost."""
        self._waiting = Waiting(around.loop.now)
        """Questions and requests that wait for the model to be loaded; the questions also while suspects are tried."""
        self._crashes = 0
        self._generated = 0
        """Tokens generated, without those of the present engine."""
        self.adapters: Adapters | None = None
        """Adapters of requests that name none, each with its scale, as an operator has set them; ``None``: all at 1."""
        self.last_used_at = -math.inf
        """When it had work last, as far as was looked."""
        self._seen = 0
        """``SessionManager.version`` when it was last looked at."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def state(self) -> State:
        if self._unload_until is not None:
            return State.UNLOADING
        if self.loaded is not None:
            return State.LOADED
        if self.loading.under_way and not self.loading.pausing:
            return State.LOADING
        return State.FAILED if self.loading.failures else State.UNLOADED

    @property
    def awaited(self) -> bool:
        """Whether somebody waits until it is loaded."""
        return bool(self._waiting) or any(not one.holds for one in self.sessions.arrived)

    @property
    def recovers(self) -> bool:
        """Whether its engine was lost, and another one is being loaded."""
        return self.loading.under_way and self.loading.failures > 0

    @property
    def pinned(self) -> bool:
        """Whether it stays once it is loaded: its engine may be the daemon's voice, too."""
        return bool(self.spec.config.tts_model) or (self.spec.pin and not self._outdated)

    # -- the operator's wishes -----------------------------------------------------------------------------------

    def load_by_operator(self, then: Then) -> None:
        """Have it loaded, at once also where it failed, and call ``then`` once it is, or with the error. Raises
        ``RequestError`` where that can't be."""
        if not self._around.wanted():
            raise shutting_down()
        if self.state is State.LOADED and not self._leaving:
            raise RequestError(Fault.BAD_REQUEST, "model", f"{self.name} is loaded already")
        self._leaving = False
        self.loading.retry_at = -math.inf
        self._waiting.wish(then)
        self.loading.end_pause()

    def unload_by_operator(self) -> None:
        """Have it unloaded once what it runs has ended; raises ``RequestError`` where that can't be."""
        if self.pinned:
            why = "is the daemon's voice, too" if self.spec.config.tts_model else "is pinned"
            raise RequestError(Fault.BAD_REQUEST, "model", f"{self.name} {why}: it stays loaded")
        if self._leaving or self.state is State.UNLOADING:
            raise RequestError(Fault.BUSY, "model", f"{self.name} is being unloaded already")
        if self.state is State.LOADING:
            raise RequestError(Fault.BUSY, "model", f"{self.name} is being loaded: it can be unloaded afterwards")
        if self.state is not State.LOADED:
            raise RequestError(Fault.BAD_REQUEST, "model", f"{self.name} is not loaded")
        self._leaving = True

    # -- loading -------------------------------------------------------------------------------------------------

    def load(self, done: Callable[[BaseException | None], None]) -> None:
        """Load the model, then call ``done``, with the error if it failed. Once its engine is lost, it is loaded again
        if anybody waits for it; the default one and those to preload are in any case."""
        self.loading.begin(self._then(done))

    def _then(self, done: Callable[[BaseException | None], None]) -> Callable[[Engine | BaseException], None]:
        """Takes an engine that was loaded, or the error, and calls ``done``."""

        def loaded(result: Engine | BaseException) -> None:
            if isinstance(result, BaseException):
                done(result)
            elif self._around.wanted():
                self._serve(result)
                done(None)
            self._around.changed()

        return loaded

    def _serve(self, engine: Engine) -> None:
        self.info = replace(engine.info, name=self.name, parallel=engine.capacity.slots)
        self.loaded = LoadedModel(
            engine, self.spec.config, self.sessions, self._around, self._suspects, self.loading.cost
        )
        # A collection of all that stays for good would hold the streams for some 14 ms now and then. What an engine
        # before this one left stays no longer.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._around.metrics.begin(self.name)
        log.info("ready", extra={"fields": {"model": self.name, "load_s": round(self.loading.load_s, 2)}})

    def on_load_failed(self, error: BaseException) -> None:
        """Fail the requests that wait for it; others may have it tried again later. They go on waiting if it takes more
        memory than was known, until the plan makes room for it, and if another program has taken the memory or killed
        the engine, which says nothing about the next trial."""
        loading = self.loading
        if isinstance(error, TooLarge) and loading.takes_more(error.needed_bytes):
            log.info("%s", error)
            return
        loading.failed()
        if isinstance(error, TooLarge | EngineLost) and not loading.patience_is_over:
            log.warning("%s could not be loaded yet: %s", self.name, error)
            return
        if self._around.wanted():
            log.error("%s could not be loaded: %s", self.name, error, exc_info=_unexpected(error))
        problem = f"{self.name} could not be loaded: see the server's log"
        pause_s = loading.retry_at - self._loop.now()
        self.fail_all(RequestError(Fault.MODEL_NOT_LOADED, "model", problem, retry_after_s=pause_s))

    # -- unloading -----------------------------------------------------------------------------------------------

    def unload(self) -> None:
        """Unload the model once what it has computed is on disk. New requests wait from now on."""
        assert self.state is State.LOADED
        self._unload_until = self._loop.now() + PUT_AWAY_S
        self._leaving = False
        self.sessions.holds_back = True

    def _unload(self) -> None:
        loaded = self.loaded
        assert loaded is not None
        self.loaded = None
        self._end(loaded, blamed=False)
        self._suspects = ()
        self.loading.failures = 0
        # Those that are held go on once it is loaded again.
        self.sessions.start_over()
        self._seen = self.sessions.version

        def closed() -> None:
            self._unload_until = None
            self.sessions.holds_back = self._outdated = False
            log.info("unloaded", extra={"fields": {"model": self.name}})
            self._around.changed()

        self.place.close(closed)

    def _end(self, loaded: LoadedModel, *, blamed: bool) -> None:
        """Give the engine of ``loaded`` no more work. ``blamed``: as in ``LoadedModel.end``."""
        self._generated += loaded.scheduler.tokens_generated
        self.loading.keep_cost(loaded.scheduler.learned_cost)
        self._waiting.add(loaded.end(blamed=blamed))

    # -- the engine is lost --------------------------------------------------------------------------------------

    def _lost(self, end: End) -> None:
        """Have all that the engine had in work done by another one."""
        loaded = self.loaded
        if loaded is None:
            return  # The daemon drains, and had no use for it any more.
        self.loaded = self._unload_until = None
        self._leaving = self.sessions.holds_back = self._outdated = False
        self._end(loaded, blamed=end.blames)
        self._around.metrics.observe_crash(end.cause)
        self.loading.forget()
        self._crashes += 1
        self._suspects = count_loss(loaded.scheduler.in_work, blamed=end.blames)
        about = {"model": self.name, "cause": end.cause, "in_work": [one.request.id for one in self._suspects]}
        about["last_words"] = end.last_words
        log.error("the engine's process %s", end.words, extra={"fields": about})
        if not end.blames or loaded.scheduler.tokens_generated:
            self.loading.failures = 0
        self.sessions.start_over()
        if end.cause == "memory":
            # It is loaded again when it fits.
            self.loading.failed()
        elif self._default or self.spec.preload or not self.unused:
            self._load_again()
        self._around.changed()

    def hangs(self, timeout_s: float) -> bool:
        """Whether its engine does not return from a call, as ``LoadedModel.hangs``. Loading takes as long as it may."""
        return self.loaded is not None and self.loaded.hangs(timeout_s)

    def end_if_it_hangs(self) -> None:
        """End an engine that hangs, as if it had crashed."""
        timeout_s = self.spec.config.engine_timeout
        if timeout_s and self.hangs(timeout_s):
            log.error("the engine of %s does not return from a call: its process is killed", self.name)
            self.place.kill()

    def _load_again(self) -> None:
        if not self._around.wanted():
            problem = "the engine process has ended; see the server's log"
            self.fail_all(RequestError(Fault.DECODE_FAILED, "decode", problem))
            return
        self.loading.begin_again(self._then(self._loaded_again))
        self.tell_waiting()

    def _loaded_again(self, error: BaseException | None) -> None:
        if error is None:
            return
        if isinstance(error, TooLarge):
            # Others have taken its memory: it is loaded again when it fits.
            self.loading.failures = 0
            self.on_load_failed(error)
            return
        log.error("%s could not be loaded again: %s", self.name, error, exc_info=_unexpected(error))
        # One that another program has killed says nothing about the next one.
        if self.loading.patience_is_over and not isinstance(error, EngineLost):
            problem = f"{self.name} could not be loaded again: see the server's log"
            self.fail_all(RequestError(Fault.MODEL_NOT_LOADED, "model", problem, retry_after_s=MAX_PAUSE_S))
        if self._default or self.spec.preload or self.awaited:
            self._load_again()
        else:
            self.loading.failed()

    def look_at_files(self) -> None:
        """Have it loaded again, once what it runs has ended, where its files have changed."""
        if self._leaving or self.state not in (State.LOADED, State.FAILED) or not self.loading.files.changed():
            return
        if self.state is State.FAILED:
            # They may be whole now.
            self.loading.retry_at = -math.inf
            self.loading.end_pause()
        elif self.spec.config.tts_model:
            return  # It would fall silent in the middle of a sentence.
        else:
            self._leaving = self.sessions.holds_back = self._outdated = True
        self._waiting.wish(lambda _error: None)
        self._around.changed()

    # -- serving -------------------------------------------------------------------------------------------------

    def ask(self, question: Question) -> None:
        """Ask the model, as ``Questions.ask``, also before it is loaded."""
        if self.loaded is not None and not self.sessions.holds_back:
            self.loaded.questions.ask(question)
            return
        if len(self._waiting.questions) >= self.spec.config.max_queue:
            raise too_many_questions(self.spec.config.max_queue)
        self._waiting.add([question])

    def when_loaded(self, then: Then) -> Callable[[], None]:
        """Call ``then``, as ``Waiting.when_loaded``, also if the model is loaded: then in the next turn."""
        return self._waiting.when_loaded(then)

    def run_tick(self) -> None:
        """Plan and submit the next tick, then deliver the outputs of the last one to clients."""
        loaded = self.loaded
        if loaded is None:
            for _ in self.sessions.deliver():
                continue
            return
        scheduler = loaded.scheduler
        if not self.sessions.holds_back and not self._waiting.nobody:
            if not scheduler.trying:
                loaded.questions.ask_again(self._waiting.take_questions())
            self._waiting.tell_loaded()
        scheduler.pump()
        scheduler.deliver()
        if scheduler.eager:
            # So that the loop turns once more.
            self._loop.call_soon(lambda: None)
        if scheduler.gathers and self._gathering is None:
            self._gathering = self._loop.call_later(GATHER_S, self._stop_gathering)
        if self._unload_until is not None and (
            self._outdated or scheduler.put_away() or self._loop.now() > self._unload_until
        ):
            self._unload()

    def _stop_gathering(self) -> None:
        self._gathering = None

    def tell_waiting(self) -> None:
        """Report progress to requests that wait for the model or for a slot."""
        if self.loaded is not None:
            self.loaded.scheduler.tell_waiting()
            return
        loading = Loading(self.place.progress if self.loading.under_way else 0.0, self.loading.eta_s)
        for session in self.sessions.running():
            self.sessions.put(session, loading)

    def why_waiting(self, session: Session) -> Why:
        """Why one of its running sessions has no slot."""
        if self.loaded is None:
            return held_by(session) or Why.MODEL
        if self.sessions.holds_back and session in self.sessions.arrived:
            return held_by(session) or Why.OTHER_MODEL
        return self.loaded.scheduler.why_waiting(session)

    @property
    def unused(self) -> bool:
        """Whether nobody has or wants anything of it."""
        asked = self._waiting or not (self.loaded is None or self.loaded.questions.idle)
        return not asked and not self.sessions.undelivered and not any(True for _ in self.sessions.running())

    # -- the plan ------------------------------------------------------------------------------------------------

    def residency_entry(self, now: float) -> residency.Model:
        """State of the model that the plan depends on."""
        given = [one for one in self.sessions.running() if not one.holds]
        waiting = [one for one in self.sessions.arrived if not one.holds]
        idle = len(given) == len(waiting) and (self.loaded is None or self.loaded.questions.idle)
        since = min([one.waits_since for one in waiting], default=math.inf)
        if not idle or self.sessions.version != self._seen:
            self.last_used_at = now
        self._seen = self.sessions.version
        return residency.Model(
            name=self.name,
            needed_bytes=self.loading.needed_bytes,
            least_bytes=self.loading.least_bytes,
            state=self.state,
            idle=idle,
            waiting=len(waiting) + len(self._waiting),
            waiting_since=min(since, self._waiting.since),
            loaded_at=self.loading.loaded_at,
            last_used_at=self.last_used_at,
            load_s=self.loading.load_s,
            retry_at=math.inf if self.loading.pausing else self.loading.retry_at,
            pinned=self.pinned,
            preload=self.spec.preload,
            idle_unload_s=self.spec.idle_unload,
            leaving=self._leaving,
            default=self._default,
        )

    # -- the end -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop loading: the model has no engine, and gets none."""
        self.loading.give_up()
        self.place.stop()

    @property
    def idle(self) -> bool:
        """Whether nothing runs, or nothing can."""
        return self.loaded is None or (self.loaded.idle and not self._waiting.questions)

    def refuse_waiting(self) -> None:
        """Fail what has not started: the daemon drains."""
        if self.loaded is None:
            self.fail_all(shutting_down())
            return
        self.loaded.scheduler.refuse_waiting()
        if self.sessions.holds_back:
            self._waiting.fail_all(shutting_down())

    def fail_all(self, error: RequestError) -> None:
        for session in list(self.sessions.running()):
            self.sessions.fail(session, error.copy())
        self._waiting.fail_all(error)

    def expire(self, seconds: float) -> None:
        """Fail the requests that have taken longer, and questions asked longer ago that wait for the model."""
        self.sessions.expire(seconds)
        self._waiting.expire(seconds)

    def totals(self) -> Mapping[str, int]:
        """Counters of what the model has done since the start."""
        made = 0 if self.loaded is None else self.loaded.scheduler.tokens_generated
        return {"tokens_generated_total": self._generated + made, "engine_crashes_total": self._crashes}

    def snapshot(self) -> Mapping[str, int | float | str]:
        """The model's part of the metrics; the names are always the same."""
        if self.loaded is not None:
            return self.loaded.scheduler.snapshot()
        return {**NOT_LOADED, "waiting_sessions": self.sessions.waiting}


def _unexpected(error: BaseException) -> BaseException | None:
    """The error, for its traceback in the log; ``None`` for an expected one, which the log says by its message."""
    return None if isinstance(error, ConfigError | ModelError | EngineLost) else error
