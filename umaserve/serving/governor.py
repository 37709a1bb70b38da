"""How many compute threads a tick uses, judged by what ticks took.

llama.cpp's threads meet at spinning barriers some hundred times a tick, so that one of them whose core another program
has holds up all the others: with one of two cores taken, two threads give a tenth of what one thread gives. What ticks
cost is therefore learned for each number of threads apart, and how much slower than that they have been of late. The
rules, and why:

1. One fewer is tried once, early: only a comparison tells whether the box was busy from the start.
2. One fewer is used as soon as its ticks would be faster by ``MARGIN`` than those of late.
3. One more is tried after ``PATIENCE_S`` where the kernel says that a core is idle: a trial on a core that is taken
   costs ticks of many times their length. Where it says nothing, ``BLIND_FACTOR`` times as long passes, and where it
   says no, ``MOST_PATIENCE_S``. The patience doubles while a trial does not help.
4. A trial is ``TRIAL_TICKS`` long, or ends with the second tick where that is hopeless.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from umaserve.serving.cost_model import Cost, CostModel

LATE = 0.3
"""Weight of a tick in how slow ticks are of late."""
MARGIN = 0.9
HOPELESS = 2.0
LIKE_ENOUGH = 3.0
"""A tick counts at most as so many times its prediction: a single one that was held up proves nothing."""
TRIAL_TICKS = 4
SETTLED_TICKS = 16
SOLVED_EVERY = 16
"""Ticks for which a solution of the cost model serves: solving takes longer than all the rest here."""
PATIENCE_S, MOST_PATIENCE_S = 0.5, 30.0
BLIND_FACTOR = 8.0
IDLE_CORES = 0.7


@dataclass(slots=True)
class _Record:
    """What is known of one number of threads."""

    model: CostModel = field(default_factory=CostModel)
    cost: Cost = field(default_factory=Cost)
    slowness: float = 1.0
    """Time of ticks of late over their prediction."""
    ticks: int = 0

    def learn(self, decode_rows: int, prefill_rows: int, cached: int, seconds: float) -> None:
        predicted = self.cost.seconds(decode_rows, prefill_rows, cached)
        if self.ticks >= SETTLED_TICKS:
            seconds = min(seconds, LIKE_ENOUGH * predicted)
            self.slowness += LATE * (seconds / predicted - self.slowness)
        self.model.observe(decode_rows, prefill_rows, cached, seconds)
        self.ticks += 1
        if self.ticks <= SETTLED_TICKS or self.ticks % SOLVED_EVERY == 0:
            self.cost = self.model.cost


class ThreadGovernor:
    """Chooses between 1 and ``most`` threads. ``idle_cores`` tells how many cores do nothing of late, or ``None`` where
    that can't be known; times are in seconds."""

    def __init__(self, most: int, now: float, idle_cores: Callable[[], float | None]) -> None:
        self.threads = most
        self.reason = "all"
        self._most = most
        self._idle_cores = idle_cores
        self._records = {n: _Record() for n in range(1, most + 1)}
        self._before: int | None = None
        """During a trial, the number that it is compared with."""
        self._trial: list[float] = []
        """How long its ticks took beside the prediction for the number before."""
        self._patience_s = PATIENCE_S
        self._settled_at = now

    @property
    def cost(self) -> Cost:
        """Of a tick with the present number of threads."""
        return self._records[self.threads].model.cost

    def observe(
        self, threads: int, decode_rows: int, prefill_rows: int, cached: int, seconds: float, now: float
    ) -> None:
        """Learn from one tick that ran with ``threads``, and choose for the next."""

        def expected(n: int) -> float:
            record = self._records[n]
            return record.cost.seconds(decode_rows, prefill_rows, cached) * record.slowness

        self._records[threads].learn(decode_rows, prefill_rows, cached, seconds)
        if threads != self.threads or self._most == 1:
            return
        if self._before is not None:
            self._trial.append(seconds / expected(self._before))
            self._judge_trial(threads, self._before, now)
        elif threads > 1 and not self._records[threads - 1].ticks:
            if self._records[threads].ticks >= SETTLED_TICKS:
                self._try(threads - 1)
        elif threads > 1 and expected(threads - 1) < MARGIN * expected(threads):
            self._use(threads - 1, "another program has a core", now)
        elif threads < self._most and now >= self._settled_at + self._patience_s and self._may_be_free(now):
            self._try(threads + 1)

    def _judge_trial(self, n: int, before: int, now: float) -> None:
        # The first tick wakes threads that slept.
        ratio = statistics.median(self._trial[1:] or [1.0])
        if len(self._trial) < (2 if ratio > HOPELESS else TRIAL_TICKS):
            return
        better = ratio < (MARGIN if n < before else 1.0)
        if n > before:
            self._patience_s = PATIENCE_S if better else min(2 * self._patience_s, MOST_PATIENCE_S)
        if better:
            self._records[n].slowness = 1.0
            self._use(n, "another program has a core" if n < before else "a core is free again", now)
        else:
            self._use(before, self.reason, now)

    def _try(self, threads: int) -> None:
        self._before, self._trial = self.threads, []
        self.threads = threads

    def _use(self, threads: int, reason: str, now: float) -> None:
        self._before = None
        self.threads = threads
        self.reason = "all" if threads == self._most else reason
        self._settled_at = now
        self._idle_cores()  # What was idle before says nothing of what is idle now.

    def _may_be_free(self, now: float) -> bool:
        idle = self._idle_cores()
        if idle is None:
            return now >= self._settled_at + BLIND_FACTOR * self._patience_s
        # The kernel counts for the whole box, and a container's share is something else: its no is not for ever.
        return idle >= IDLE_CORES or now >= self._settled_at + MOST_PATIENCE_S
