"""One running request of a relay: connects its job at the backend with the connection to the relay."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from umaserve.wire.event_stream import is_event_stream, late_error
from umaserve.wire.relay_messages import Request, ResponseChunk, ResponseComplete, TokenCounts
from umaserve.worker.backend import Backend, Job

log = logging.getLogger(__name__)


class Connection(Protocol):
    """The connection that the answer goes to."""

    @property
    def tells_late_errors(self) -> bool:
        """Whether the relay reports an incomplete answer to its client."""

    @property
    def takes_bytes(self) -> bool:
        """Whether the relay takes bodies that are no text."""

    def chunk(self, message: ResponseChunk) -> None: ...

    def complete(self, running: Running, message: ResponseComplete) -> None: ...


class Running:
    """One running request; the ``backend.Reply`` of its job."""

    def __init__(self, connection: Connection, request: Request, now: float) -> None:
        self.request = request
        self.started_at = now
        self._connection = connection
        self._job: Job | None = None
        self._begun = self._events = self._aborted = False
        self._held = self._by_client = self._over = False

    def start(self, backend: Backend, *, held: bool) -> None:
        self._held = held
        try:
            self._job = backend.start(self.request, self)
        except Exception:
            # A bug of ours in one request must not end the others on the connection.
            log.exception("request %s failed", self.request.request_id)
            if not self._over:
                self.complete(500, {}, "")
        if self._job is not None and self._held:
            self._job.pause(True)

    # -- from the relay ------------------------------------------------------------------------------------------

    def frame(self, text: str) -> None:
        if self._job is None:
            return
        try:
            self._job.frame(text)
        except Exception:
            log.exception("request %s failed", self.request.request_id)
            if not self._over:
                self._job.abort()
                self.complete(500, {}, "")

    def pause_or_go_on(self, *, held: bool | None = None, by_client: bool | None = None) -> None:
        """Update the reasons to pause: all requests are ``held``, or this one's client reads slowly (``by_client``)."""
        before = self._held or self._by_client
        self._held = self._held if held is None else held
        self._by_client = self._by_client if by_client is None else by_client
        paused = self._held or self._by_client
        if self._job is not None and paused != before:
            self._job.pause(paused)

    def leave(self) -> None:
        if self._job is not None:
            self._job.leave()

    def abort(self) -> None:
        self._aborted = True
        if self._job is not None:
            self._job.abort()

    # -- from the backend ----------------------------------------------------------------------------------------

    def chunk(self, data: str | bytes, status: int, headers: Mapping[str, str]) -> None:
        request_id = self.request.request_id
        begins, self._begun = not self._begun, True
        if begins:
            self._events = is_event_stream(headers)
        data = self._as_taken(data)
        self._connection.chunk(
            ResponseChunk(request_id, data, status, headers) if begins else ResponseChunk(request_id, data)
        )

    def complete(
        self, status: int, headers: Mapping[str, str], body: str | bytes, token_counts: TokenCounts | None = None
    ) -> None:
        request_id = self.request.request_id
        self._over = True
        if status >= 400 and self._events and not (self._aborted or self._connection.tells_late_errors):
            late = late_error(self.request.endpoint_path, "the worker failed after it had begun to answer")
            # After a blank line, which ends an event that is unfinished.
            self._connection.chunk(ResponseChunk(request_id, f"\n\n{late}"))
        message = ResponseComplete(request_id, status, headers, self._as_taken(body), token_counts)
        self._connection.complete(self, message)

    def _as_taken(self, data: str | bytes) -> str | bytes:
        if isinstance(data, str) or self._connection.takes_bytes:
            return data
        log.warning(
            "request %s: the answer is not text, which is all that this relay carries: its other bytes are replaced",
            self.request.request_id,
        )
        return data.decode(errors="replace")
