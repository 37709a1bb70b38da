"""The queue: requests that wait for a worker, in their order, each with a deadline."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from umaserve.relay.pool.request import Clock, RelayedRequest
from umaserve.relay.pool.worker import Worker

_Order = tuple[bool, int]
_Orders = list[_Order]
"""A heap, whose first one waits; some of the others, also twice, are of requests that do not wait any more."""


@dataclass(frozen=True, slots=True)
class _Line:
    """Line of requests that wait for the same model, and need the same feature: a worker serves all of them, or
    none."""

    orders: _Orders = field(default_factory=list)
    at_home: dict[str, _Orders] = field(default_factory=dict)
    """Orders of requests by their homes, where they have one."""


class Queue:
    """Queue of requests. One that has waited ``timeout`` seconds in total is removed, and ``timed_out`` called with it.
    Finding the next one for a worker looks at the first ones of each line, not at all who wait."""

    def __init__(self, clock: Clock, timeout: float, timed_out: Callable[[RelayedRequest], None]) -> None:
        self._clock = clock
        self._timeout = timeout
        self._timed_out = timed_out
        self._waiting: dict[_Order, RelayedRequest] = {}
        self._lines: dict[tuple[str, str], _Line] = {}
        """Lines by model and feature."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[RelayedRequest]:
        """Iterate in order, over a copy: requests may be added and removed during the iteration."""
        return iter([self._waiting[order] for order in sorted(self._waiting)])

    def add(self, request: RelayedRequest) -> None:
        """Insert it by its order, which a requeue does not change."""
        self._waiting[request.order] = request
        line = self._lines.setdefault((request.model, request.needs), _Line())
        heapq.heappush(line.orders, request.order)
        if request.home:
            heapq.heappush(line.at_home.setdefault(request.home, []), request.order)
        left_s = max(0.0, self._timeout - request.waited_s)
        request.timer = self._clock.call_later(left_s, lambda: self._on_timeout(request))

    def remove(self, request: RelayedRequest) -> None:
        del self._waiting[request.order]
        request.stop_timer()
        line = self._lines[request.model, request.needs]
        if not self._has_waiting(line.orders):
            del self._lines[request.model, request.needs]
        if request.home and not self._has_waiting(line.at_home[request.home]):
            del line.at_home[request.home]

    def next_for(self, worker: Worker, reach: int) -> RelayedRequest | None:
        """The first one that the worker can serve; or the first one that is at home there, if it is in the same class
        and at most ``reach`` arrivals later."""
        lines = [line for line in self._lines.values() if worker.serves(self._waiting[line.orders[0]])]
        if not lines:
            return None
        background, number = first = min(line.orders[0] for line in lines)
        at_home = (line.at_home[worker.place][0] for line in lines if worker.place in line.at_home)
        own = min(at_home, default=first)
        return self._waiting[own if own <= (background, number + reach) else first]

    def _has_waiting(self, orders: _Orders) -> bool:
        """Whether one of them waits; removes those before it."""
        while orders and orders[0] not in self._waiting:
            heapq.heappop(orders)
        return bool(orders)

    def _on_timeout(self, request: RelayedRequest) -> None:
        self.remove(request)
        self._timed_out(request)
