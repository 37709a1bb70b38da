"""How many requests a backend is given at once; the others wait in the order in which they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from umaserve.net.loop import Loop
from umaserve.wire.relay_messages import TokenCounts
from umaserve.worker.backend import Job, Reply

MAX_WAITING = 256
"""A relay gives a worker no more than it takes at once; several relays, or one that forgets, may."""

Begin = Callable[[Reply], Job]


class Places:
    """The places of one backend, for the requests of all relays."""

    def __init__(self, loop: Loop, count: int) -> None:
        self._loop = loop
        self._free = count
        self._running = 0
        self._waiting: deque[_Guest] = deque()

    @property
    def load(self) -> int:
        return self._running + len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether nobody else may wait."""
        return len(self._waiting) >= MAX_WAITING

    def take(self, begin: Begin, reply: Reply) -> Job:
        """Begin at once or as soon as a place is free. ``begin`` returns before its reply is called."""
        assert not self.full
        guest = _Guest(self, begin, reply)
        self._waiting.append(guest)
        self._seat()
        return guest

    def _seat(self) -> None:
        while self._waiting and self._free:
            self._free -= 1
            self._running += 1
            self._waiting.popleft().sit_down()

    def left(self, guest: _Guest) -> None:
        """It has its answer, or wants none any more."""
        if guest.job is None:
            self._waiting.remove(guest)
            return
        self._running -= 1
        self._free += 1
        # In a turn of its own: whoever left is in the middle of something.
        self._loop.call_soon(self._seat)


class _Guest:
    """One request: the job that the link has, and the reply that the backend has."""

    def __init__(self, places: Places, begin: Begin, reply: Reply) -> None:
        self.job: Job | None = None
        self._places = places
        self._begin = begin
        self._reply = reply
        self._paused = False

    def sit_down(self) -> None:
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

    # -- from the backend ----------------------------------------------------------------------------------------

    def chunk(self, text: str, status: int, headers: Mapping[str, str]) -> None:
        self._reply.chunk(text, status, headers)

    def complete(
        self, status: int, headers: Mapping[str, str], body: str, token_counts: TokenCounts | None = None
    ) -> None:
        self._places.left(self)
        self._reply.complete(status, headers, body, token_counts)
