"""How many compute threads a tick uses, judged by what ticks took.

llama.cpp's threads meet at spinning barriers some hundred times a tick, so that one of them whose core another program
has holds up all the others: with one of two cores taken, two threads give a tenth of what one thread gives. What a tick
costs is learned with all threads; how slow ticks are beside that, of late, is known for each number of threads. The
rules, and why:

1. One fewer is tried once, after ``SETTLED_S``, when ticks have become slower than ``SLOWED`` or the kernel does not
   say that others leave this process its cores: only a comparison tells whether the box was busy from the start.
2. One fewer is used when ticks have become slower than that by ``MARGIN``. What counts is the median of the last
   ``LATE_TICKS``, since a few that were held up prove nothing, or the last two where both were ``HOPELESS``: five such
   ticks of many streams take seconds.
3. One more is tried after ``PATIENCE_S`` where the kernel says that a core is idle: a trial on a core that is taken
   costs ticks of many times their length. Where it says nothing, ``BLIND_FACTOR`` times as long passes, and where it
   says no, ``MAX_PATIENCE_S``. The patience doubles while a trial does not help.
4. A trial is ``LATE_TICKS`` long, or ends with the third tick where either number is hopeless beside the other.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

from umaserve.serving.cost_model import MIN_TICK_S, Cost, CostModel
from umaserve.system.cores import CoreUse

LATE_TICKS = 5
MARGIN = 0.9
SLOWED = 1.2
"""Times the reference."""
HOPELESS = 2.0
LIKE_ENOUGH = 1.5
"""A tick that took longer than so many times its prediction says nothing of what its work costs."""
SETTLED_TICKS = 16
SETTLED_S = 5.0
"""Of computing, before one fewer is tried first."""
SOLVED_EVERY = 16
"""Ticks for which a solution of the cost model serves: solving takes longer than all the rest here."""
PATIENCE_S, MAX_PATIENCE_S = 0.5, 30.0
BLIND_FACTOR = 8.0
IDLE_CORES = 0.7
OTHERS_CORES = 0.3
"""More than clients and the kernel take while a box has nothing else to do."""


class ThreadGovernor:
    """Chooses between 1 and ``limit`` threads. ``core_use`` tells how the box's cores are used of late, ``None`` where
    that can't be known; times are in seconds."""

    def __init__(self, limit: int, now: float, core_use: Callable[[], CoreUse | None]) -> None:
        self.threads = limit
        self.reason = "all"
        self._max_threads = limit
        self._core_use = core_use
        self._model = CostModel()
        self._reference = Cost()
        """Of a tick with all threads, solved now and then."""
        self._ticks = 0
        self._computed_s = 0.0
        self._late: dict[int, deque[float]] = {n: deque(maxlen=LATE_TICKS) for n in range(1, limit + 1)}
        """How long ticks took beside the reference."""
        self._before: int | None = None
        """During a trial, the number that it is compared with."""
        self._patience_s = PATIENCE_S
        self._settled_at = now

    @property
    def cost(self) -> Cost:
        """Of a tick with the present number of threads."""
        if self.threads == self._max_threads or not self._late[self.threads]:
            return self._model.cautious
        return self._reference.times(self._slowness(self.threads))

    def observe(
        self, threads: int, decode_rows: int, prefill_rows: int, cached: int, seconds: float, now: float
    ) -> None:
        """Learn from one tick that ran with ``threads``, and choose for the next."""
        # Coefficients that make no sense are cut to nothing, and nothing may be left of a tick's cost.
        expected = max(self._reference.seconds(decode_rows, prefill_rows, cached), MIN_TICK_S)
        slowness = max(seconds, MIN_TICK_S) / expected
        if threads == self._max_threads:
            if self._ticks < SETTLED_TICKS or slowness < LIKE_ENOUGH:
                self._model.observe(decode_rows, prefill_rows, cached, seconds)
            self._ticks += 1
            if self._ticks <= SETTLED_TICKS or self._ticks % SOLVED_EVERY == 0:
                self._reference = self._model.cost
        if self._ticks >= SETTLED_TICKS:
            self._late[threads].append(slowness)
        self._computed_s += seconds
        if threads == self.threads and self._max_threads > 1 and len(self._late[threads]) >= 2:
            self._choose(threads, now)

    def _choose(self, n: int, now: float) -> None:
        if self._before is not None:
            self._judge_trial(n, self._before, now)
        elif len(self._late[n]) < LATE_TICKS:
            return
        elif n > 1 and not self._late[n - 1]:
            if self._computed_s >= SETTLED_S and (self._slowness(n) > SLOWED or not self._undisturbed()):
                self._try(n - 1)
        elif n > 1 and self._slowness(n - 1) < MARGIN * self._slowness(n):
            self._use(n - 1, "another program has a core", now)
        elif n < self._max_threads and now >= self._settled_at + self._patience_s and self._may_be_free(now):
            self._try(n + 1)

    def _slowness(self, n: int) -> float:
        late = self._late[n]
        typical = statistics.median(late)
        sudden = min(late[-1], late[-2]) if len(late) > 1 else 0.0
        return max(typical, sudden) if sudden > HOPELESS else typical

    def _judge_trial(self, n: int, before: int, now: float) -> None:
        ratio = self._slowness(n) / self._slowness(before)
        if len(self._late[n]) < (LATE_TICKS if 1 / HOPELESS <= ratio <= HOPELESS else 3):
            return
        better = ratio < (MARGIN if n < before else 1.0)
        if n > before:
            self._patience_s = PATIENCE_S if better else min(2 * self._patience_s, MAX_PATIENCE_S)
        if better:
            self._use(n, "another program has a core" if n < before else "a core is free again", now)
        else:
            self._use(before, self.reason, now)

    def _try(self, threads: int) -> None:
        self._before = self.threads
        self._late[threads].clear()
        self.threads = threads

    def _use(self, threads: int, reason: str, now: float) -> None:
        self._before = None
        self.threads = threads
        self.reason = "all" if threads == self._max_threads else reason
        self._settled_at = now
        self._core_use()  # What was idle before says nothing of what is idle now.

    def _undisturbed(self) -> bool:
        use = self._core_use()
        return use is not None and use.others < OTHERS_CORES

    def _may_be_free(self, now: float) -> bool:
        use = self._core_use()
        if use is None:
            return now >= self._settled_at + BLIND_FACTOR * self._patience_s
        # The kernel counts for the whole box, and a container's share is something else: its no is not for ever.
        return use.idle >= IDLE_CORES or now >= self._settled_at + MAX_PATIENCE_S
