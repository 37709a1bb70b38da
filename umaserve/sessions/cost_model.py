"""Predicts how long a tick will take, from the ticks that ran.

A model starts from what its ticks took when it ran last, if that is known, else from a guess. The first ``FIRST`` ticks
find how fast the box is now, a factor on all of the start: the lower median of their durations, each divided by what
the start predicts. So a guess that is ten times too high or too low is corrected by the first tick, which counts fully.
What is known has a vote of its own, so that one tick which reads weights from a disk changes nothing; where the box was
busier or quicker at the last run than it is now, two ticks correct that. What the parts of a tick take is learned from
the first one on where it was guessed, else after those: so few would only show their noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from umaserve.sessions.engine_api import Capacity
from umaserve.sessions.kv_operations import Copy, Divide, KVOperation, Load, Save

FORGETTING = 0.98
"""Factor on the weight of a tick for each later one: about the last 50 count."""

MAX_NEW = 16
"""Ticks without prefill that are collected before the model learns from them, after as many single ones."""

MIN_TICK_S = 1e-6
"""A coarse clock may measure 0 s for a tick, which would give it infinite weight."""

_PRIOR_S = (2e-3, 5e-3, 5e-3, 0.0, 0.0)
_PRIOR_WEIGHTS = (1e-4, 1e-3, 1e-3, 0.01, 1e-3)
"""Attention's is large: cached positions grow with all other costs, and would otherwise be blamed for them. That of a
decode itself is small: one stream's ticks don't tell it from their row, and most of their time is reading weights."""

FIRST = 5
"""Ticks that find the factor on the start."""
TRUST = 30
"""How many times as much as a guess the proportions of what is known count: a few noisy ticks don't change them."""

CORRECTING = 0.4
MAX_WRONG = 2.0
"""The largest factor of the correction, and the largest error of one tick that it learns from."""
LATE_SHARE, MARGIN_STEP, MAX_MARGIN = 0.05, 0.1, 1.5
"""The share of ticks that may take longer than predicted; how fast the margin for that adapts, and its limit."""

MAX_S = 3600.0
"""No coefficient of a cost that makes sense is larger."""

_DIVIDE_S = 0.1
_DIVIDE_LEARNED = 0.5
"""Weight of the latest division in the average time for one."""

_BYTE_S = 2.5e-10
_BYTE_LEARNED = 0.1
"""Weight of the latest tick in the average time for a byte."""
_MIN_BYTES = 1 << 20
"""Fewer say nothing about the time for a byte."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A linear model of a tick's duration, in seconds: per decode (``llama_decode``), per decode row, per prefill row,
    per row and 1,000 cached positions that it attends to, and per decode of several rows.

    The last is there since llama.cpp has kernels of their own for a single row: on some processors the second row costs
    as much as the first, and the next six together not more.
    """

    fixed_s: float = _PRIOR_S[0]
    decode_row_s: float = _PRIOR_S[1]
    prefill_row_s: float = _PRIOR_S[2]
    attention_s: float = _PRIOR_S[3]
    several_s: float = _PRIOR_S[4]

    def seconds(self, decode_rows: int, prefill_rows: int, cached: int, decodes: int = 1) -> float:
        rows = decode_rows + prefill_rows
        return (
            self.fixed_s * decodes
            + self.several_s * _of_several_rows(decode_rows, prefill_rows, decodes)
            + self.decode_row_s * decode_rows
            + self.prefill_row_s * prefill_rows
            + self.attention_s * rows * cached / 1000
        )

    def prompt_s(self, tokens: int, cached: int, batch_tokens: int) -> float:
        """Seconds for so many tokens of a prompt that has ``cached`` before them, in decodes of ``batch_tokens``. All
        parts count, since a few small ticks don't tell a decode from its rows, and a row may seem to cost nothing."""
        return self.seconds(0, tokens, cached + tokens // 2, -(-tokens // batch_tokens))

    def times(self, factor: float) -> Cost:
        """The cost if everything takes ``factor`` times as long."""
        return Cost(*[factor * value for value in self.coefficients])

    @property
    def coefficients(self) -> tuple[float, ...]:
        return self.fixed_s, self.decode_row_s, self.prefill_row_s, self.attention_s, self.several_s

    @property
    def makes_sense(self) -> bool:
        """Whether it may have been learned from ticks."""
        return all(0 <= value <= MAX_S for value in self.coefficients) and self.prefill_row_s > 0

    def prefill_rows_within(self, seconds: float, cached: int) -> int:
        """The most prefill rows that take ``seconds``, without what their decode takes besides its rows; may be 0."""
        row_s = self.prefill_row_s + self.attention_s * cached / 1000
        return max(0, int(seconds / row_s)) if row_s > 0 else 0


class CostModel:
    """Recursive least squares with forgetting and a weak prior; negative coefficients make no sense and are cut."""

    def __init__(self, known: Cost | None = None) -> None:
        """``known``: what was learned of this model before."""
        self._known = known
        self._start = self._prior = known or Cost()
        self._ratios = [] if known is None else [1.0]
        """Durations of the first ticks, divided by what the start predicts."""
        self._trusted = 1 if known is None else FIRST
        """Ticks after which more than the factor is learned."""
        self._prior_weights = np.array(_PRIOR_WEIGHTS) * (1 if known is None else TRUST)
        self._xx = np.zeros((5, 5))
        self._xy = np.zeros(5)
        self.cost = self._prior
        """The estimate from the ticks so far; of ticks without prefill, the last ones may be missing."""
        self._correction = 1.0
        self._margin = 1.1
        self._new: list[tuple[float, ...]] = []
        self._ticks = 0

    @property
    def learned(self) -> Cost | None:
        """What another one may start from; ``None`` where next to nothing is known."""
        return self._known if self._ticks < FIRST else self.cost

    def observe(self, decode_rows: int, prefill_rows: int, cached: int, seconds: float, decodes: int = 1) -> None:
        """Learn from one tick: rows of both kinds, cached positions that each attends to, wall seconds, decodes."""
        rows = decode_rows + prefill_rows
        if self._ticks < FIRST:
            predicted = self._start.seconds(decode_rows, prefill_rows, cached, decodes)
            self._find_factor(max(seconds, MIN_TICK_S) / max(predicted, MIN_TICK_S))
        if prefill_rows and self._ticks >= self._trusted:
            foreseen = self.cautious.seconds(decode_rows, prefill_rows, cached, decodes)
            self._correct(seconds / max(foreseen, MIN_TICK_S))
        # Collected, since learning from many at once takes hardly longer than from one.
        several = _of_several_rows(decode_rows, prefill_rows, decodes)
        features = (decodes, decode_rows, prefill_rows, rows * cached / 1000, several)
        self._new.append((*features, max(seconds, MIN_TICK_S)))
        self._ticks += 1
        if self._ticks < self._trusted:
            return
        if prefill_rows or self._ticks <= MAX_NEW or len(self._new) >= MAX_NEW:
            self._fold()
            self.cost = self._solved()

    @property
    def cautious(self) -> Cost:
        """``cost`` with a correction and a margin, so that only a ``LATE_SHARE`` of the ticks with prefill exceeds it.
        The latest ticks count most: rows cost less in large batches, and a box's speed changes within a second."""
        return self.cost.times(self.caution)

    @property
    def caution(self) -> float:
        """How many times as much as ``cost`` the ``cautious`` one is."""
        return self._correction * self._margin

    def _correct(self, late: float) -> None:
        """``late``: a tick's duration divided by its prediction."""
        ratio = min(max(late * self._margin, 1 / MAX_WRONG), MAX_WRONG)
        self._correction = min(max(self._correction * ratio**CORRECTING, 1 / MAX_WRONG), MAX_WRONG)
        self._margin *= 1 + MARGIN_STEP * ((1 - LATE_SHARE) if late > 1 else -LATE_SHARE)
        self._margin = min(max(self._margin, 1.0), MAX_MARGIN)

    def _find_factor(self, ratio: float) -> None:
        self._ratios.append(ratio)
        self._prior = self._start.times(sorted(self._ratios)[(len(self._ratios) - 1) // 2])
        if self._ticks < self._trusted:
            self.cost = self._prior

    def _fold(self) -> None:
        observed = np.array(self._new)
        self._new.clear()
        x, seconds = observed[:, :5], observed[:, 5]
        predicted = x @ np.array(self.cost.coefficients)
        if self._ticks == self._trusted:
            # An exception among the first would count for long.
            seconds = np.where(seconds > MAX_WRONG * predicted, np.maximum(predicted, MIN_TICK_S), seconds)
        # Errors are relative, or a long prefill would outweigh the short ticks; and relative to the prediction, since
        # relative to the time itself, slow ticks would weigh less, and a noisy box would seem faster than it is.
        scale = np.clip(predicted, seconds / 10, seconds * 10)
        x = x / scale[:, None]
        weights = FORGETTING ** np.arange(len(x) - 1, -1, -1)
        weighted = x.T * weights
        self._xx = FORGETTING ** len(x) * self._xx + weighted @ x
        self._xy = FORGETTING ** len(x) * self._xy + weighted @ (seconds / scale)

    def _solved(self) -> Cost:
        prior = np.array(self._prior.coefficients)
        if self._known is None:
            # Until several streams or draft tokens show what a further row costs, it is taken to cost what a prompt's
            # does.
            prior[1] = self.cost.prefill_row_s
        ridge = self._prior_weights * (np.diag(self._xx) + 1e-9)
        theta = np.linalg.solve(self._xx + np.diag(ridge), self._xy + ridge * prior)
        fixed, decode, prefill, attention, several = (max(0.0, float(value)) for value in theta)
        return Cost(fixed, decode, max(prefill, 1e-7), attention, several)


def _of_several_rows(decode_rows: int, prefill_rows: int, decodes: int) -> int:
    """How many of the decodes have several rows: a prompt that has one of its own has several, the streams perhaps."""
    return int(decode_rows + prefill_rows > 1) if decodes == 1 else decodes - (decode_rows == 1)


class MovingCost:
    """Predicts how long KV operations take, from the bytes that they copy, and for a new context."""

    def __init__(self, capacity: Capacity) -> None:
        self._saved_bytes = capacity.saved_bytes
        self._byte_s = _BYTE_S
        self._divide_s = _DIVIDE_S

    def seconds(self, kv_operations: Sequence[KVOperation], *, parted: bool) -> float:
        """``parted``: whether a copied sequence gets cells of its own."""
        copied = self._byte_s * sum([self._bytes(one, parted=parted) for one in kv_operations])
        return copied + self._divide_s * sum([isinstance(one, Divide) for one in kv_operations])

    def of_sequence(self, tokens: int) -> float:
        """The time to save or load a sequence of ``tokens``."""
        return self._byte_s * self._saved_bytes.of(tokens)

    def observe(self, kv_operations: Sequence[KVOperation], seconds: float, *, parted: bool) -> None:
        """Learn from those of one tick."""
        n_bytes = sum(self._bytes(one, parted=parted) for one in kv_operations)
        if any(isinstance(one, Divide) for one in kv_operations):
            divided_s = max(0.0, seconds - self._byte_s * n_bytes)
            self._divide_s += _DIVIDE_LEARNED * (divided_s - self._divide_s)
        elif n_bytes >= _MIN_BYTES:
            wrong = min(seconds / n_bytes / self._byte_s, 2 * MAX_WRONG)
            self._byte_s *= 1 + _BYTE_LEARNED * (wrong - 1)

    def _bytes(self, one: KVOperation, *, parted: bool) -> int:
        match one:
            case Save() | Load():
                return one.size
            case Copy() if parted:
                # Through host memory and back.
                return 2 * self._saved_bytes.of(one.length)
        return 0
