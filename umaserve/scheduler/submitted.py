"""A tick on the compute thread, and the one behind it, which begins before the loop has seen the tokens of the first.

Between two ticks, the compute thread would wait for the loop to take the tokens and to plan, some 5% of the time with a
small model. Mostly the plan is the same again: each stream with its next token.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from umaserve.scheduler.work import Work
from umaserve.sessions.engine_api import Engine, Outcome, Run, TickResult


class Submitted:
    """A tick that waits for the compute thread, or runs there. Behind ``before``, it goes on with its tokens."""

    def __init__(self, work: Work, before: Submitted | None = None) -> None:
        self.work = work
        self.continued = False
        """Whether the tick behind it is planned, or can't be."""
        self.begun_at: float | None = None
        """Time at which it began, by ``time.monotonic``, in seconds; ``None`` while it waits, and once it has ended."""
        self._before = before
        self._result: TickResult | None = None
        self._unclaimed = [True]
        """Claim on the tick, emptied by the thread that comes first: ``pop`` is atomic."""

    def take_back(self) -> bool:
        """Whether it was planned ahead and has not begun; then it never will."""
        return self._before is not None and self._claim()

    def run(self, engine: Engine) -> TickResult | None:
        """Run the tick, on the compute thread; returns ``None`` if it was taken back, or can't go on as one of its
        streams has ended."""
        if not self._claim():
            return None
        tick = self.work.tick
        if self._before is not None:
            runs = self._before.next_runs(tick.runs, engine.end_tokens)
            # Else all ticks up to this one would be kept.
            self._before = None
            if runs is None:
                return None
            tick = replace(tick, runs=runs)
        self.begun_at = time.monotonic()
        self._result = engine.run(tick)
        self.begun_at = None
        return self._result

    def next_runs(self, runs: Sequence[Run], end_tokens: frozenset[int]) -> list[Run] | None:
        """``runs`` with the tokens that this tick has sampled; ``None`` if one of them is missing, late or an end."""
        result = self._result
        if result is None or result.outcome is not Outcome.DONE or result.failed or result.late:
            return None
        if not end_tokens.isdisjoint([tokens[0] for tokens in result.tokens]):
            return None
        return [
            Run(run.slot, run.start, tokens, run.sampler, run.logprobs)
            for run, tokens in zip(runs, result.tokens, strict=True)
        ]

    def _claim(self) -> bool:
        try:
            return self._unclaimed.pop()
        except IndexError:
            return False
