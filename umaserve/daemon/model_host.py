"""The daemon's model: loads it on the compute thread, then runs sessions on it."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from umaserve.errors import Fault, RequestError
from umaserve.metrics import ServingMetrics
from umaserve.net.loop import Loop
from umaserve.outputs import Loading, ModelInfo
from umaserve.serving.admission import Admission
from umaserve.serving.content_filter import ContentFilter
from umaserve.serving.planning import Targets
from umaserve.serving.questions import Questions
from umaserve.serving.scheduler import Scheduler
from umaserve.serving.sessions import SessionManager
from umaserve.serving.ticks import Engine
from umaserve.settings.daemon import Config
from umaserve.stages.spoken import NICE
from umaserve.system.cores import CoreCounter
from umaserve.system.progress import ProgressBar
from umaserve.system.threads import DISK_NICE, JobThread

log = logging.getLogger(__name__)

PROGRESS_S = 0.1
MAX_TICK_S = 300.0
"""Bound on one decode, or on a long job between two yield points: a long text to embed, weights on a slow disk."""
MAX_PREPARING_S = 60.0
MAX_MEDIA_S = 600.0
"""A media decoder may start after up to 120 s and is killed after 300 s more; then its output is laid out."""


class LoadedEngine(Engine, Protocol):
    """An engine that can be closed."""

    def close(self) -> None: ...


Load = Callable[[Config, Callable[[float], bool]], LoadedEngine]
"""Loads the model; the callback takes the progress from 0 to 1 and says whether to go on. Raises ``ModelError``."""


class ModelHost:
    """Loads the model, and runs sessions on it from then on."""

    def __init__(
        self,
        loop: Loop,
        config: Config,
        sessions: SessionManager,
        admission: Admission,
        metrics: ServingMetrics,
        content_filter: ContentFilter | None,
        children: Sequence[int] = (),
    ) -> None:
        """``children``: the processes that compute for it."""
        self.compute = JobThread("compute", loop.wake, max_s=MAX_TICK_S, urgent=True)
        self.preparing = JobThread("preparing", loop.wake, max_s=MAX_PREPARING_S)
        self._preparing_media = JobThread("media", loop.wake, nice=NICE, max_s=MAX_MEDIA_S)
        self._disk = JobThread("disk", loop.wake, nice=DISK_NICE) if config.kv_cache else None
        self.loading = True
        self.questions: Questions | None = None
        """``None`` while the model loads."""
        self._loop = loop
        self._config = config
        self._sessions = sessions
        self._admission = admission
        self._metrics = metrics
        self._content_filter = content_filter
        self._children = children
        self._engine: LoadedEngine | None = None
        self._scheduler: Scheduler | None = None
        self._started_at = loop.now()
        self._progress = 0.0
        self._bar = ProgressBar("loading the model", sys.stderr)

    @property
    def threads(self) -> Sequence[JobThread]:
        threads = self.compute, self.preparing, self._preparing_media
        return threads if self._disk is None else (*threads, self._disk)

    @property
    def info(self) -> ModelInfo | None:
        """``None`` while it loads."""
        return None if self._engine is None or self._scheduler is None else self._engine.info

    # -- loading -------------------------------------------------------------------------------------------------

    def load(self, load: Load, wanted: Callable[[], bool], loaded: Callable[[BaseException | None], None]) -> None:
        """Load the model while it is ``wanted``, then call ``loaded``, with the error if it failed."""

        def on_progress(fraction: float) -> bool:
            self._progress = fraction
            return wanted()

        def on_loaded(result: LoadedEngine | BaseException) -> None:
            self.loading = False
            self._bar.clear()
            if isinstance(result, BaseException):
                loaded(result)
                return
            self._engine = result
            if wanted():
                self._serve(result)
                loaded(None)

        self._show_progress()
        self.compute.submit(lambda: load(self._config, on_progress), on_loaded)

    def _show_progress(self) -> None:
        if self.loading:
            self._bar.show(self._progress)
            self._loop.call_later(PROGRESS_S, self._show_progress)

    def _serve(self, engine: LoadedEngine) -> None:
        config = self._config
        self._progress = 1.0
        self._scheduler = Scheduler(
            self._sessions,
            engine,
            self.compute,
            self.preparing,
            self._preparing_media,
            Targets(config.slo_ttft_ms / 1000, config.slo_tbt_ms / 1000),
            self._loop.now,
            self._content_filter,
            self._admission.spend,
            self._metrics,
            CoreCounter(self._loop.now, children=lambda: self._children),
            self._disk,
            shared_prefixes=config.shared_prefix_cache,
            draft_tokens=config.speculation,
        )
        self.questions = Questions(engine, self.compute, self.preparing, self._preparing_media, config.max_queue)
        # A collection of all that stays for good would hold the streams for some 14 ms now and then.
        gc.collect()
        gc.freeze()
        seconds = round(self._loop.now() - self._started_at, 2)
        log.info("ready", extra={"fields": {"model": engine.info.name, "load_s": seconds}})

    # -- serving -------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Run the callbacks of finished jobs."""
        for thread in self.threads:
            thread.collect()

    def end_turn(self) -> None:
        """Plan and submit the next tick, then deliver outputs to clients."""
        if self._scheduler is None:
            for _ in self._sessions.deliver():
                continue
            return
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
        return self._scheduler.idle and self.questions.idle

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

    def close(self) -> None:
        """After the threads have ended."""
        self.compute.collect()
        if self._engine is not None:
            self._engine.close()

    def snapshot(self) -> Mapping[str, int | float | str]:
        """The model's part of the metrics; the names are always the same."""
        about: dict[str, int | float | str] = {
            "load_progress": round(self._progress, 3),
            "model": "" if self._engine is None else self._engine.info.name,
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


def _nothing() -> None:
    """Does nothing: scheduling it makes the loop turn once more."""
