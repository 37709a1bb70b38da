"""Chooses how many compute threads a tick uses, by how long ticks took.

llama.cpp's threads meet at spinning barriers some hundred times a tick. One thread whose core is taken by another
program thus delays all others: with one of two cores taken, two threads have a tenth of the speed of one. The cost of a
tick (the reference) is learned with all threads. The slowness of recent ticks, their duration divided by the
reference, is known for each number of threads. The rules, and why:

1. One thread fewer is first tried as soon as the kernel reports that others have used ``TAKEN_CORES`` while this
   process computed; or after ``SETTLED_S``, if the slowness exceeds ``SLOWED``, or the kernel reports nothing or more
   than ``OTHERS_CORES``: only a comparison shows whether the box was busy from the start.
2. One fewer is used if its slowness is less than ``MARGIN`` times the present one. The slowness is the median of the
   last ``LATE_TICKS``, since a few delayed ticks prove nothing; or that of the last two if both exceed ``HOPELESS``,
   since five such ticks of many streams take seconds.
3. One more is tried after ``PATIENCE_S`` if the kernel reports an idle core: a trial on a taken core makes ticks many
   times as long. If the kernel reports nothing, it is tried after ``BLIND_FACTOR`` times as long; if it reports no idle
   core, after ``MAX_PATIENCE_S``. The patience doubles after each trial that does not help.
4. A trial takes ``LATE_TICKS``, or three if what is tried is ``HOPELESS`` times as fast. It ends after two ticks that
   are both ``FAILED`` times as slow as before: with many streams, five would take seconds, and one thread in place of
   two that both have a core takes 1.5 to 2 times as long. Where two ticks were slow by chance, rules 2 and 3 come back
   to it. Ticks with prompts have no part in a trial of one fewer that nothing but time or some slowness suggests: five
   of them may take seconds, in which somebody waits twice as long for a first token.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

from umaserve.sessions.cost_model import MIN_TICK_S, Cost, CostModel
from umaserve.system.cores import CoreUse

LATE_TICKS = 5
MARGIN = 0.9
SLOWED = 1.2
"""Slowness above which one thread fewer is first tried, in multiples of the reference."""
HOPELESS = 2.0
LIKE_ENOUGH = 1.5
"""The cost model does not learn from ticks slower than this: something else delayed them."""
FAILED = 1.2
"""A trial of ticks that are all slower than this many times the present ones has failed."""
SETTLED_TICKS = 16
SETTLED_S = 5.0
"""Seconds of computing before one thread fewer is first tried without a word of the kernel."""
SOLVED_EVERY = 16
"""Ticks after which a solution of the cost model becomes the reference."""
PATIENCE_S, MAX_PATIENCE_S = 0.5, 30.0
BLIND_FACTOR = 8.0
IDLE_CORES = 0.7
OTHERS_CORES = 0.3
"""More cores than clients and the kernel use on a box that does nothing else."""
TAKEN_CORES = 0.5
"""A program that computes gets more, also where it shares the core."""
PAUSE_S, WATCHED_S = 1.0, 0.5
"""Seconds: the kernel's report is of time in which this process computed once it has done so for ``WATCHED_S`` without
a pause of ``PAUSE_S``."""


class ThreadGovernor:
    """Chooses between 1 and ``limit`` threads. ``core_use`` returns the recent use of the box's cores,
    ``None`` if unknown. ``known``: as in ``CostModel``, with all threads. Times are in seconds."""

    def __init__(
        self, limit: int, now: float, core_use: Callable[[], CoreUse | None], known: Cost | None = None
    ) -> None:
        self.threads = limit
        self.reason = "all"
        self._max_threads = limit
        self._core_use = core_use
        self._model = CostModel(known)
        self._reference = self._model.cost
        """Cost of a tick with all threads, updated at least every ``SOLVED_EVERY`` ticks."""
        self._ticks = 0
        self._computed_s = 0.0
        self._late: dict[int, deque[float]] = {n: deque(maxlen=LATE_TICKS) for n in range(1, limit + 1)}
        """The slowness of the last ticks, by number of threads."""
        self._before: int | None = None
        """During a trial, the number of threads that it is compared with."""
        self._spares_prompts = False
        """Whether the trial has no part in ticks with prompts."""
        self._patience_s = PATIENCE_S
        self._settled_at = now
        self._watched_since = self._watched_at = now

    @property
    def cost(self) -> Cost:
        """Cost of a tick with the present number of threads, of which most take less."""
        return self._model.cautious if self._is_modelled else self._reference.times(self._slowness(self.threads))

    @property
    def caution(self) -> float:
        """How many times as much as the usual cost of a tick ``cost`` is."""
        return self._model.caution if self._is_modelled else 1.0

    @property
    def _is_modelled(self) -> bool:
        return self.threads == self._max_threads or not self._late[self.threads]

    def threads_for(self, prefills: bool) -> int:
        """The number of threads for the next tick. ``prefills``: whether it has prompt tokens."""
        return self._before if self._before is not None and prefills and self._spares_prompts else self.threads

    @property
    def learned(self) -> Cost | None:
        """Cost of a tick with all threads, as ``CostModel.learned``."""
        return self._model.learned

    def observe(
        self,
        threads: int,
        decode_rows: int,
        prefill_rows: int,
        cached: int,
        seconds: float,
        now: float,
        decodes: int = 1,
    ) -> None:
        """Learn from one tick that ran with ``threads``, and choose for the next."""
        # Negative coefficients are cut to 0, so that the predicted cost may be 0.
        expected = max(self._reference.seconds(decode_rows, prefill_rows, cached, decodes), MIN_TICK_S)
        slowness = max(seconds, MIN_TICK_S) / expected
        if threads == self._max_threads:
            if self._ticks < SETTLED_TICKS or slowness < LIKE_ENOUGH:
                self._model.observe(decode_rows, prefill_rows, cached, seconds, decodes)
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
            self._consider_fewer(n, now)
        elif n > 1 and self._slowness(n - 1) < MARGIN * self._slowness(n):
            self._use(n - 1, "another program uses a core", now)
        elif n < self._max_threads and now >= self._settled_at + self._patience_s and self._may_be_free(now):
            self._try(n + 1)

    def _slowness(self, n: int) -> float:
        late = self._late[n]
        typical = statistics.median(late)
        sudden = min(late[-1], late[-2]) if len(late) > 1 else 0.0
        return max(typical, sudden) if sudden > HOPELESS else typical

    def _judge_trial(self, n: int, before: int, now: float) -> None:
        present = self._slowness(before)
        ratio = self._slowness(n) / present
        fails = min(self._late[n]) > FAILED * present
        if not fails and len(self._late[n]) < (3 if ratio < 1 / HOPELESS else LATE_TICKS):
            return
        better = ratio < (MARGIN if n < before else 1.0)
        if n > before:
            self._patience_s = PATIENCE_S if better else min(2 * self._patience_s, MAX_PATIENCE_S)
        if better:
            self._use(n, "another program uses a core" if n < before else "a core is free again", now)
        else:
            self._use(before, self.reason, now)

    def _try(self, threads: int, *, spares_prompts: bool = False) -> None:
        self._before = self.threads
        self._spares_prompts = spares_prompts
        self._late[threads].clear()
        self.threads = threads

    def _use(self, threads: int, reason: str, now: float) -> None:
        self._before = None
        self.threads = threads
        self.reason = "all" if threads == self._max_threads else reason
        self._settled_at = now
        self._core_use()  # Starts a new period: what was idle before does not count.

    def _consider_fewer(self, n: int, now: float) -> None:
        """Try one thread fewer for the first time, if rule 1 wants it."""
        if now - self._watched_at > PAUSE_S:
            self._watched_since = now
        self._watched_at = now
        use = self._core_use()
        others = use.others if use is not None and now - self._watched_since >= WATCHED_S else 0.0
        if others >= TAKEN_CORES:
            self._try(n - 1)
        elif self._computed_s >= SETTLED_S:
            slowness = self._slowness(n)
            if slowness > SLOWED or use is None or others >= OTHERS_CORES:
                self._try(n - 1, spares_prompts=slowness <= HOPELESS)

    def _may_be_free(self, now: float) -> bool:
        use = self._core_use()
        if use is None:
            return now >= self._settled_at + BLIND_FACTOR * self._patience_s
        # The kernel reports the use of the whole box, not of a container's share, so that its no must expire.
        return use.idle >= IDLE_CORES or now >= self._settled_at + MAX_PATIENCE_S
