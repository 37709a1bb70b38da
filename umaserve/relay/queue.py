"""The queue: requests that wait for a worker, in their order, each with a deadline."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from umaserve.relay.request import Clock, RelayedRequest
from umaserve.relay.worker import Worker

_Order = tuple[bool, int]
_Line = tuple[str, str]
"""A model, and the feature that is needed: a worker serves all who wait in the same line, or none of them."""


class Queue:
    """A request that has waited ``timeout`` seconds in total is removed, and ``timed_out`` called with it. Finding the
    next one for a worker looks at the head of each line, not at all who wait."""

    def __init__(self, clock: Clock, timeout: float, timed_out: Callable[[RelayedRequest], None]) -> None:
        self._clock = clock
        self._timeout = timeout
        self._timed_out = timed_out
        self._waiting: dict[_Order, RelayedRequest] = {}
        self._lines: dict[_Line, list[_Order]] = {}
        """Heaps; some entries, also twice, are of requests that do not wait any more."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[RelayedRequest]:
        """In order, over a copy: requests may be added and removed during the iteration."""
        return iter([self._waiting[order] for order in sorted(self._waiting)])

    def add(self, request: RelayedRequest) -> None:
        """Insert it by its order, which a requeue does not change."""
        self._waiting[request.order] = request
        heapq.heappush(self._lines.setdefault((request.model, request.needs), []), request.order)
        left_s = max(0.0, self._timeout - request.waited_s)
        request.timer = self._clock.call_later(left_s, lambda: self._on_timeout(request))

    def remove(self, request: RelayedRequest) -> None:
        del self._waiting[request.order]
        request.stop_timer()

    def first_for(self, worker: Worker) -> RelayedRequest | None:
        """The first one that the worker can serve."""
        heads = (head for line in list(self._lines) if (head := self._head(line)) is not None)
        return min((head for head in heads if worker.serves(head)), key=lambda head: head.order, default=None)

    def _head(self, line: _Line) -> RelayedRequest | None:
        orders = self._lines[line]
        while orders and orders[0] not in self._waiting:
            heapq.heappop(orders)
        if not orders:
            del self._lines[line]
            return None
        return self._waiting[orders[0]]

    def _on_timeout(self, request: RelayedRequest) -> None:
        self.remove(request)
        self._timed_out(request)
