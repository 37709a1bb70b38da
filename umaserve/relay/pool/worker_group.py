"""A crew: workers that offer the same. Finds the least loaded one, and those that a conversation belongs to."""

from __future__ import annotations

import bisect
import hashlib
import heapq
import itertools
from collections.abc import Iterator

from umaserve.relay.pool.worker import Rank, Worker

POINTS = 32
"""Points of each worker on the ring: with one, a worker's share would be anything up to several times its due."""
RING = 1 << 64
_STALE = 64


class WorkerGroup:
    """Crew of workers that offer the same. No choice looks at all workers, of which there may be thousands: the least
    loaded one is at the top of a heap, and a conversation's are the next ones on a ring (consistent hashing: who comes
    or goes takes or leaves only its own). ``note`` has to be called after each change of a worker."""

    def __init__(self) -> None:
        self.load = 0
        """Load of all its workers that are not being drained."""
        self._loads: dict[Worker, int] = {}
        """Load of each of them, as counted in ``load``."""
        self._members: dict[Worker, None] = {}
        self._heap: list[tuple[Rank, int, Worker]] = []
        """Heap with at least one entry of each worker with a free slot; those whose rank is not the worker's any more
        are stale."""
        self._pushed = 0
        self._points: list[int] = []
        self._owners: dict[int, Worker] = {}

    def __bool__(self) -> bool:
        return bool(self._members)

    @property
    def size(self) -> int:
        """How many workers are not being drained."""
        return len(self._loads)

    @property
    def any(self) -> Worker:
        """Any worker of the crew, for what all offer."""
        return next(iter(self._members))

    # -- changes -------------------------------------------------------------------------------------------------

    def add(self, worker: Worker) -> None:
        self._members[worker] = None
        for point in _points(worker.place):
            self._owners[point] = worker
            bisect.insort(self._points, point)
        self.note(worker)

    def remove(self, worker: Worker) -> None:
        del self._members[worker]
        self.load -= self._loads.pop(worker, 0)
        for point in _points(worker.place):
            del self._owners[point]
            del self._points[bisect.bisect_left(self._points, point)]
        self._forget_stale()

    def note(self, worker: Worker) -> None:
        """Take in that the worker has changed."""
        self.load -= self._loads.pop(worker, 0)
        if worker.draining:
            return
        self._loads[worker] = worker.load
        self.load += worker.load
        if worker.has_slot:
            self._pushed += 1
            heapq.heappush(self._heap, (worker.rank, self._pushed, worker))
        if len(self._heap) > 4 * len(self._members) + _STALE:
            self._forget_stale()

    def _forget_stale(self) -> None:
        self._heap = list({entry[2]: entry for entry in self._heap if self._holds(entry)}.values())
        heapq.heapify(self._heap)

    def _holds(self, entry: tuple[Rank, int, Worker]) -> bool:
        rank, _, worker = entry
        return worker in self._loads and worker.has_slot and worker.rank == rank

    # -- choices -------------------------------------------------------------------------------------------------

    def least_loaded(self) -> Worker | None:
        """The free worker with the lowest rank."""
        unread = []
        while self._heap and not (self._holds(self._heap[0]) and self._heap[0][2].free):
            entry = heapq.heappop(self._heap)
            if self._holds(entry):
                unread.append(entry)  # It is behind with reading, and nobody is told when it isn't any more.
        found = self._heap[0][2] if self._heap else None
        for entry in unread:
            heapq.heappush(self._heap, entry)
        return found

    def after(self, point: int) -> Iterator[tuple[int, Worker]]:
        """All workers as they come on the ring, each once, with their distances."""
        seen = set()
        start = bisect.bisect_left(self._points, point)
        for at in itertools.chain(range(start, len(self._points)), range(start)):
            worker = self._owners[self._points[at]]
            if worker not in seen:
                seen.add(worker)
                yield (self._points[at] - point) % RING, worker


def _points(place: str) -> list[int]:
    """A worker's points, by its name: after a restart, and at another relay, it has the same."""
    return [
        int.from_bytes(hashlib.blake2b(f"{number} {place}".encode(), digest_size=8).digest())
        for number in range(POINTS)
    ]
