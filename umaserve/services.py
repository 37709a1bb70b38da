"""What connections need of the daemon, whatever they speak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from umaserve.config import Config
from umaserve.detached import Detached
from umaserve.errors import RequestError
from umaserve.messages import Answer, Feedback, Metrics, ModelInfo, Query
from umaserve.net.loop import Loop
from umaserve.serving.sessions import Origin, SessionManager


@dataclass(frozen=True, slots=True)
class Services:
    """One daemon's, for all connections."""

    config: Config
    loop: Loop
    sessions: SessionManager
    detached: Detached
    model: Callable[[], ModelInfo | None]
    """``None`` while it loads."""
    metrics: Callable[[], Metrics]
    started_at: int
    """Seconds since 1970."""
    prometheus: Callable[[], bytes]
    keep_feedback: Callable[[Feedback, Origin], bool]
    """Write it down; whether there is a place for it. Raises ``RequestError`` where the disk refuses."""
    ask: Callable[[Query, Callable[[Answer | RequestError], None]], None]
    """Put a question to the engine; the callback comes in a later turn."""
