"""The queue: requests that wait for a worker, in order of arrival, each with a deadline."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator

from umaserve.relay.request import Clock, RelayedRequest


class Queue:
    """A request that has waited ``timeout`` seconds in total is removed, and ``timed_out`` called with it."""

    def __init__(self, clock: Clock, timeout: float, timed_out: Callable[[RelayedRequest], None]) -> None:
        self._clock = clock
        self._timeout = timeout
        self._timed_out = timed_out
        self._waiting: list[RelayedRequest] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[RelayedRequest]:
        """Over a copy: requests may be added and removed during the iteration."""
        return iter(list(self._waiting))

    def add(self, request: RelayedRequest) -> None:
        """Insert it by its number, which a requeue does not change."""
        bisect.insort(self._waiting, request, key=lambda one: one.number)
        left_s = max(0.0, self._timeout - request.waited_s)
        request.timer = self._clock.call_later(left_s, lambda: self._on_timeout(request))

    def remove(self, request: RelayedRequest) -> None:
        self._waiting.remove(request)
        request.stop_timer()

    def _on_timeout(self, request: RelayedRequest) -> None:
        self.remove(request)
        self._timed_out(request)
