"""Log-probabilities of a row of logits, for clients that ask for them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from umaserve.engine.candidates import Logits
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

        return Logprobs(scored(chosen), tuple(scored(token) for token in self._best(n)))

    def _best(self, n: int) -> list[int]:
        if n == 0:
            return []
        ids = np.argpartition(self._below_best, -n)[-n:] if n < len(self._below_best) else range(len(self._below_best))
        return sorted(map(int, ids), key=lambda token: (-self._below_best[token], token))
