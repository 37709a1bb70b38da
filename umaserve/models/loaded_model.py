"""A model that is loaded: serves the sessions of its manager, and questions, with one engine until that ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from umaserve.models.model_context import ModelContext
from umaserve.scheduler.engine_jobs import EngineJobs
from umaserve.scheduler.questions import Question, Questions
from umaserve.scheduler.scheduler import Scheduler
from umaserve.sessions.cost_model import Cost
from umaserve.sessions.engine_api import Engine
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.session import Session
from umaserve.sessions.targets import Targets
from umaserve.settings.daemon import Config
from umaserve.system.cores import CoreCounter

NOT_LOADED: Mapping[str, int | str] = {
    "active_sessions": 0,
    "waiting_sessions": 0,
    "tx_stalled_sessions": 0,
    "threads": 0,
    "threads_reason": "",
    "kv_cells_used": 0,
    "kv_cells_cached": 0,
    "kv_cells_total": 0,
    "host_cache_bytes": 0,
    "disk_cache_bytes": 0,
}
"""The metrics of a scheduler, where there is none."""


class LoadedModel:
    """The scheduler, the questions, and the engine's jobs on the threads of all models."""

    def __init__(
        self,
        engine: Engine,
        config: Config,
        sessions: SessionManager,
        around: ModelContext,
        suspects: Iterable[Session],
        known_cost: Cost | None,
    ) -> None:
        """``suspects``, ``known_cost``: as in ``Scheduler``."""
        self._jobs = [EngineJobs(thread, thread.max_s) for thread in around.threads.calling]
        self._jobs += [] if around.threads.disk is None else [EngineJobs(around.threads.disk)]
        compute, preparing, preparing_media, *disk = self._jobs
        self.scheduler = Scheduler(
            sessions,
            engine,
            compute,
            preparing,
            preparing_media,
            Targets(config.slo_ttft_ms / 1000, config.slo_tbt_ms / 1000),
            around.loop.now,
            around.content_filter,
            around.admission.spend,
            around.metrics,
            CoreCounter(around.loop.now, children=around.children),
            disk[0] if disk else None,
            around.neighbours,
            shared_prefixes=config.shared_prefix_cache,
            draft_tokens=config.speculation,
            suspects=suspects,
            known_cost=known_cost,
        )
        self.questions = Questions(engine, compute, preparing, preparing_media, config.max_queue)

    @property
    def idle(self) -> bool:
        """Whether nothing runs."""
        return self.scheduler.idle and self.questions.idle

    def hangs(self, timeout_s: float) -> bool:
        """Whether the engine does not return from a tick or another call. A slow disk takes as long as it may."""
        return self.scheduler.hangs(timeout_s) or any(jobs.stuck for jobs in self._jobs)

    def end(self, *, blamed: bool) -> Iterable[Question]:
        """The engine gets no more work; returns the questions that another one is to answer. ``blamed``: it may have
        ended because of what it had in work."""
        self.scheduler.leave()
        for jobs in self._jobs:
            jobs.end()
        return self.questions.lose_engine(blamed=blamed)
