"""Log-probabilities of a row of logits, for clients that ask for them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from umaserve.engine.candidates import Left, Logits
from umaserve.outputs import Logprobs, Scored


class Scores:
    """The natural logarithm of the softmax over one row; make it before the sampler changes the row."""

    def __init__(self, logits: Logits) -> None:
        self._below_best = logits - logits.max()
        self._log_sum = math.log(np.exp(self._below_best).sum(dtype=np.float64))

    def report(self, chosen: int, n: int, written: Callable[[int], bytes]) -> Logprobs:
        """The log-probabilities of ``chosen`` and of the ``n`` likeliest tokens; ``written`` gives a token's bytes."""

        def scored(token: int) -> Scored:
            return Scored(token, written(token), float(self._below_best[token]) - self._log_sum)

        return Logprobs(scored(chosen), tuple(scored(token) for token in _best(self._below_best, n)))


def scores_after(left: Left, chosen: int, n: int, written: Callable[[int], bytes]) -> Logprobs:
    """As ``Scores.report``, of the tokens that sampling ``left`` to draw from, without those that it left no chance."""
    ids, chances = left["id"], left["p"]

    def scored(token: int, chance: float) -> Scored:
        return Scored(token, written(token), math.log(chance) if chance else -math.inf)

    best = [scored(int(ids[place]), float(chances[place])) for place in _best(chances, n) if chances[place]]
    return Logprobs(scored(chosen, float(chances[ids == chosen].sum())), tuple(best))


def _best(values: npt.NDArray[np.float32], n: int) -> list[int]:
    """The places of the ``n`` greatest values, the greatest first."""
    if n == 0:
        return []
    places = np.argpartition(values, -n)[-n:] if n < len(values) else range(len(values))
    return sorted(map(int, places), key=lambda place: (-values[place], place))
