"""The loop's timers: a heap in which a timer is postponed without reordering the heap."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator


class Timer:
    """One deadline, in seconds of the loop's clock. ``postpone`` is O(1): the entry moves when it reaches the top."""

    __slots__ = ("_heap_at", "_timers", "at", "callback")

    def __init__(self, timers: Timers, at: float, callback: Callable[[], None]) -> None:
        self.at = at
        self.callback: Callable[[], None] | None = callback
        self._heap_at = at
        self._timers = timers

    def postpone(self, at: float) -> None:
        """Move the deadline to ``at``, which must not be before the current one."""
        self.at = at

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self._timers.cancelled()

    def __lt__(self, other: Timer) -> bool:
        return self._heap_at < other._heap_at


class Timers:
    """All timers of one loop."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._dead = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(self, at, callback)
        heapq.heappush(self._heap, timer)
        return timer

    def cancelled(self) -> None:
        """Sweep the heap when most entries are dead: short connections cancel long deadlines before these are due."""
        self._dead += 1
        if self._dead > 64 and self._dead > len(self._heap) // 2:
            self._heap = [timer for timer in self._heap if timer.callback is not None]
            heapq.heapify(self._heap)
            self._dead = 0

    def next_at(self) -> float | None:
        """The earliest time at which a timer may be due; ``None`` without timers."""
        while self._heap and self._heap[0].callback is None:
            heapq.heappop(self._heap)
            self._dead -= 1
        return self._heap[0]._heap_at if self._heap else None

    def due(self, now: float) -> Iterator[Callable[[], None]]:
        """The callbacks that are due. Call each before asking for the next: it may add and cancel timers."""
        while (at := self.next_at()) is not None and at <= now:
            timer = heapq.heappop(self._heap)
            if timer.at > now:
                timer._heap_at = timer.at
                heapq.heappush(self._heap, timer)
                continue
            callback, timer.callback = timer.callback, None
            if callback is not None:
                yield callback
