"""Log-probabilities of a row of logits, for clients that ask for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from umaserve.core.events import Logprobs, Scored
from umaserve.engine.sampling.candidates import COLUMNS, Left, Logits
from umaserve.sessions.engine_api import Scoring

MAX_PROMPT_ENTRIES = 1 << 17
"""Most log-probabilities of one prompt, alternatives included: some 4 MB as JSON."""


class Scores:
    """The natural logarithm of the softmax over one row; make it before the sampler changes the row."""

    def __init__(self, logits: Logits) -> None:
        self._below_best = logits - logits.max()
        self._log_sum = math.log(np.exp(self._below_best).sum(dtype=np.float64))

    def report(self, chosen: int, n: int, written: Callable[[int], bytes], *, ranked: bool = False) -> Logprobs:
        """The log-probabilities of ``chosen`` and of the ``n`` likeliest tokens; ``written`` gives a token's bytes.
        ``ranked``: with the rank of ``chosen``."""

        def scored(token: int) -> Scored:
            return Scored(token, written(token), float(self._below_best[token]) - self._log_sum)

        top = tuple(scored(token) for token in _best(self._below_best, n))
        rank = 1 + int(np.count_nonzero(self._below_best > self._below_best[chosen])) if ranked else None
        return Logprobs(scored(chosen), top, rank)


def scores_of_prompt(
    rows: Sequence[Logits], tokens: Sequence[int], scoring: Scoring, written: Callable[[int], bytes]
) -> list[Logprobs]:
    """Log-probabilities of the token behind each of ``tokens``, which have given these rows."""
    following = (*tokens[1:], scoring.following)
    return [
        Scores(logits).report(token, scoring.alternatives, written, ranked=True)
        for logits, token in zip(rows, following, strict=True)
    ]


def scores_after(left: Left, chosen: int, n: int, written: Callable[[int], bytes]) -> Logprobs:
    """Log-probabilities as ``Scores.report``, of the tokens that sampling ``left`` to draw from, without those that it
    left no chance."""
    ids, chances = left["id"], left["p"]

    def scored(token: int, chance: float) -> Scored:
        return Scored(token, written(token), math.log(chance) if chance else -math.inf)

    best = [scored(int(ids[place]), float(chances[place])) for place in _best(chances, n) if chances[place]]
    return Logprobs(scored(chosen, float(chances[ids == chosen].sum())), tuple(best))


def _best(values: npt.NDArray[np.float32], n: int) -> list[int]:
    """The places of the ``n`` greatest values, the greatest first."""
    if n == 0:
        return []
    places = _likely(values, n) if n < len(values) else range(len(values))
    return sorted(map(int, places), key=lambda place: (-values[place], place))[:n]


def _likely(values: npt.NDArray[np.float32], n: int) -> npt.NDArray[np.intp]:
    """The places of the ``n`` greatest values, and mostly of a few more."""
    rows = len(values) // COLUMNS
    if not rows or n > COLUMNS:
        return np.argpartition(values, -n)[-n:]
    # In each of n columns, at least one value reaches the n-th largest maximum: found in a third of the time.
    maxima = np.maximum.reduce(values[: rows * COLUMNS].reshape(rows, COLUMNS))
    maxima.partition(-n)
    (places,) = (values >= maxima[-n]).nonzero()
    return places if n <= len(places) <= COLUMNS else np.argpartition(values, -n)[-n:]
