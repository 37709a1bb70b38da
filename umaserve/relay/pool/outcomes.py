"""How requests end: the client is told, the log has a line, and the relay's counters go up."""

from __future__ import annotations

from collections import Counter

from umaserve.relay.pool.request import Clock, RelayedRequest
from umaserve.relay.pool.states import Event
from umaserve.system import logs

COUNTED = (
    "requests",
    "completed",
    "failed",
    "requeues",
    "client_disconnects",
    "queue_timeouts",
    "request_timeouts",
    "late_messages",
    "connections_refused",
)
"""The names of the counters."""


class Outcomes:
    """``totals`` has the counters since the start, by the names in ``COUNTED``."""

    def __init__(self, clock: Clock) -> None:
        self.totals: Counter[str] = Counter()
        self._clock = clock

    def fail(self, request: RelayedRequest, status: int, error: str) -> None:
        """End it without an answer, or without the rest of one."""
        request.move(Event.FAIL)
        self.totals["failed"] += 1
        # The error is a field, which is escaped: it may quote a client's or a worker's text.
        logs.requests.info("request failed", extra={"fields": self.about(request, status) | {"error": error}})
        request.client.fail(status, error)

    def about(self, request: RelayedRequest, status: int) -> dict[str, object]:
        """The fields of a log line."""
        return {
            "request": request.id,
            "path": request.path,
            "model": request.model,
            "status": status,
            "requeues": request.requeues,
            "queue_ms": round(request.waited_s * 1000, 1),
            "total_ms": round((self._clock.now() - request.asked_at) * 1000, 1),
        }
