"""Limits how many requests a backend gets at once; the others wait in a FIFO queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from umaserve.net.loop import Loop
from umaserve.wire.relay_messages import TokenCounts
from umaserve.worker.backend import Job, Reply

MAX_WAITING = 256
"""A relay sends a worker no more than ``max_concurrent`` at once; several relays together may, or a faulty one."""

Begin = Callable[[Reply], Job]


class Places:
    """One backend's places, shared by the requests of all relays."""

    def __init__(self, loop: Loop, count: int) -> None:
        self._loop = loop
        self._free = count
        self._running = 0
        self._waiting: deque[_PlacedRequest] = deque()

    @property
    def load(self) -> int:
        return self._running + len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether the queue is full."""
        return len(self._waiting) >= MAX_WAITING

    def take(self, begin: Begin, reply: Reply) -> Job:
        """Call ``begin`` as soon as a place is free. It must return before it calls its reply."""
        assert not self.full
        guest = _PlacedRequest(self, begin, reply)
        self._waiting.append(guest)
        self._seat()
        return guest

    def _seat(self) -> None:
        while self._waiting and self._free:
            self._free -= 1
            self._running += 1
            self._waiting.popleft().start()

    def left(self, guest: _PlacedRequest) -> None:
        """Free the place of a request that is complete or aborted."""
        if guest.job is None:
            self._waiting.remove(guest)
            return
        self._running -= 1
        self._free += 1
        # In a call of its own: the caller is still in the middle of ending its request.
        self._loop.call_soon(self._seat)


class _PlacedRequest:
    """One request: the link's job, and the backend's reply."""

    def __init__(self, places: Places, begin: Begin, reply: Reply) -> None:
        self.job: Job | None = None
        self._places = places
        self._begin = begin
        self._reply = reply
        self._paused = False

    def start(self) -> None:
        self.job = self._begin(self)
        if self._paused:
            self.job.pause(True)

    # -- from the link -------------------------------------------------------------------------------------------

    def abort(self) -> None:
        if self.job is not None:
            self.job.abort()
        self._places.left(self)

    def pause(self, paused: bool) -> None:
        self._paused = paused
        if self.job is not None:
            self.job.pause(paused)

    def frame(self, text: str) -> None:
        if self.job is not None:
            self.job.frame(text)

    def leave(self) -> None:
        if self.job is not None:
            self.job.leave()

    # -- from the backend ----------------------------------------------------------------------------------------

    def chunk(self, data: str | bytes, status: int, headers: Mapping[str, str]) -> None:
        self._reply.chunk(data, status, headers)

    def complete(
        self, status: int, headers: Mapping[str, str], body: str | bytes, token_counts: TokenCounts | None = None
    ) -> None:
        self._places.left(self)
        self._reply.complete(status, headers, body, token_counts)
