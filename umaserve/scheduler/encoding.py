"""Encodes media before their prompts can start: one chunk at a time, between ticks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from umaserve.core.errors import Fault, RequestError
from umaserve.core.metrics import ServingMetrics
from umaserve.scheduler.policy.snapshot import is_background
from umaserve.scheduler.turns import Turns
from umaserve.sessions.engine_api import Chunk, Engine, JobQueue
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.session import Session

log = logging.getLogger(__name__)


class Encoding:
    """Encodes one chunk after the other on the compute thread, each for all prompts that wait for it.

    Interactive prompts go first, and background ones that have waited ``AGING_S``. Within a class, tenants take turns,
    so that one tenant's video delays another's image by one chunk at most.
    """

    def __init__(
        self,
        sessions: SessionManager,
        engine: Engine,
        compute: JobQueue,
        metrics: ServingMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._sessions = sessions
        self._engine = engine
        self._compute = compute
        self._metrics = metrics
        self._now = clock
        self._chunk: Chunk | None = None
        """The chunk that is being encoded."""
        self._waiting: Sequence[tuple[Session, Chunk]] = ()
        self._turns = Turns()

    @property
    def idle(self) -> bool:
        return self._chunk is None

    @property
    def in_work(self) -> list[Session]:
        """Sessions that wait for the chunk that is being encoded now."""
        return [] if self._chunk is None else self._takers(self._chunk)

    def serves(self, session: Session) -> bool:
        """Whether ``session`` waits for the chunk that is being encoded now."""
        return session in self.in_work

    def next(self, waiting: Sequence[tuple[Session, Chunk]]) -> None:
        """Encode the next chunk of ``waiting``, unless one is in progress. It ends early once nobody waits for it."""
        self._waiting = waiting
        if self._chunk is not None or not waiting:
            return
        session, chunk = min(waiting, key=self._order)
        self._turns.take(session.caller.tenant)

        def encoded(result: BaseException | None) -> None:
            self._chunk = None
            takers = self._takers(chunk)
            if result is None:
                for taker in takers:
                    taker.waits_since = self._now()
                self._metrics.chunks_encoded += chunk.encoded
                return
            if not isinstance(result, RequestError):
                log.error("encoding media failed", exc_info=result)
                result = RequestError(
                    Fault.DECODE_FAILED, "messages", "the projector could not encode an image or a sound"
                )
            for taker in takers:
                self._sessions.fail(taker, RequestError(result.fault, result.field, result.problem))

        self._chunk = chunk
        self._compute.submit_lengthy(
            lambda pause: self._engine.encode(chunk, pause, lambda: bool(self._takers(chunk))), encoded
        )

    def _takers(self, chunk: Chunk) -> list[Session]:
        return [session for session, wanted in self._waiting if wanted is chunk and session.running]

    def _order(self, one: tuple[Session, Chunk]) -> tuple[bool, int, float]:
        session, _chunk = one
        background = is_background(session.request.priority, session.requested_at, self._now())
        return background, self._turns.last(session.caller.tenant), session.requested_at
