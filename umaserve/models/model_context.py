"""Objects that all models of a daemon share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from umaserve.core.metrics import ServingMetrics
from umaserve.models.engine_supervisor import NewEngine
from umaserve.models.engine_threads import EngineThreads
from umaserve.models.known_models import KnownModels
from umaserve.net.loop import Loop
from umaserve.scheduler.other_models import OtherModels
from umaserve.sessions.admission import Admission
from umaserve.sessions.content_filter import ContentFilter


@dataclass(frozen=True, slots=True)
class ModelContext:
    """Objects that the host of each model needs."""

    loop: Loop
    threads: EngineThreads
    admission: Admission
    metrics: ServingMetrics
    content_filter: ContentFilter | None
    new_engine: NewEngine
    known: KnownModels
    neighbours: OtherModels
    children: Callable[[], Sequence[int]]
    """The processes that compute for the daemon."""
    available_bytes: Callable[[], int]
    """Memory that a model to be loaded may take."""
    wanted: Callable[[], bool]
    """Whether engines are to be loaded: the daemon does not drain."""
    changed: Callable[[], None]
    """Called when a model is loaded, unloaded or lost, or could not be loaded."""
