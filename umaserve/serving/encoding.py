"""Media that are encoded before their prompts can go on: one chunk at a time, between the ticks of all streams."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from umaserve.errors import Fault, RequestError
from umaserve.metrics import ServingMetrics
from umaserve.serving.sessions import Session, SessionManager
from umaserve.serving.ticks import Chunk, Engine, Worker

log = logging.getLogger(__name__)


class Encoding:
    """Has the most urgent chunk encoded on the compute thread, for all prompts that wait for it."""

    def __init__(self, sessions: SessionManager, engine: Engine, compute: Worker, metrics: ServingMetrics) -> None:
        self._sessions = sessions
        self._engine = engine
        self._compute = compute
        self._metrics = metrics
        self._busy = False

    @property
    def idle(self) -> bool:
        return not self._busy

    def next(self, waiting: Sequence[tuple[Session, Chunk]]) -> None:
        """Begin with the first of ``waiting``, unless one is under way; it ends early when all that wait have left."""
        if self._busy or not waiting:
            return
        _session, chunk = waiting[0]
        takers = [session for session, wanted in waiting if wanted is chunk]

        def encoded(result: BaseException | None) -> None:
            self._busy = False
            if result is None:
                self._metrics.chunks_encoded += chunk.encoded
                return
            if not isinstance(result, RequestError):
                log.error("encoding media failed", exc_info=result)
                result = RequestError(Fault.DECODE_FAILED, "messages: the projector failed on an image or a recording")
            for session in takers:
                if session.running:
                    self._sessions.fail(session, RequestError(result.fault, result.message))

        def wanted() -> bool:
            return any(session.running for session in takers)

        self._busy = True
        self._compute.submit_lengthy(lambda pause: self._engine.encode(chunk, pause, wanted), encoded)
