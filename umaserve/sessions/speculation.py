"""Draft tokens from repetition in a stream's text and in earlier ones, and the share of them that is accepted."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from umaserve.sessions.ngram_cache import NGRAM, TOKEN_BITS, NgramCache

MAX_DRAFT_TOKENS = 15
"""The most that a stream has in a tick: with the token before them they fill a tile of 16 rows."""
MAX_INDEXED = 4096
"""The last tokens of the prompt that are searched for repetition: each takes 14 bytes."""
PRIOR = 0.6
OF_DRAFT_MODEL = 0.8
"""The prior for tokens of a draft model, which are only known once some were verified: enough to try three."""
LEARNING, FORGETTING = 0.15, 0.005
"""How far a verified draft token moves the acceptance, and how far a tick that used none moves it back to the prior: a
text may begin to repeat itself."""


class Acceptance:
    """The share of draft tokens that is accepted."""

    def __init__(self, prior: float = PRIOR) -> None:
        self.share = self._prior = prior

    def observe(self, draft_tokens: int, right: int) -> None:
        """Learn from a tick that verified ``draft_tokens``, of which the first ``right`` were accepted."""
        if draft_tokens == 0:
            self.share += FORGETTING * (self._prior - self.share)
        # Those behind the first rejected one were not verified.
        for index in range(min(draft_tokens, right + 1)):
            self.share += LEARNING * ((index < right) - self.share)


class PromptIndex:
    """Where each n-gram of a prompt's last tokens occurs. It never changes, so several answers may use it."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = array("i", tokens[-MAX_INDEXED:])
        ids = np.array(self.tokens, np.int64)
        # The last n-gram has nothing behind it.
        first, second, third = (ids[at : len(ids) - NGRAM + at] for at in range(NGRAM))
        keys = first << 2 * TOKEN_BITS | second << TOKEN_BITS | third
        order = keys.argsort(kind="stable")
        # Sorted keys take a tenth of a dict's memory. Unlike NumPy's arrays, these are quick to read one by one.
        self._keys = array("q", keys[order].tobytes())
        self._ends = array("H", (order + NGRAM).astype(np.uint16).tobytes())

    def after(self, ngram: Sequence[int]) -> int | None:
        """The position behind the last occurrence of ``ngram`` before the prompt's end."""
        if len(ngram) < NGRAM:
            return None
        first, second, third = ngram
        key = first << 2 * TOKEN_BITS | second << TOKEN_BITS | third
        at = bisect_right(self._keys, key) - 1
        return self._ends[at] if at >= 0 and self._keys[at] == key else None


class Repetition:
    """Looks for an earlier occurrence of the text's last tokens, in earlier texts where this one has none: the draft
    tokens are what followed there."""

    def __init__(self, prompt: PromptIndex, answer: Sequence[int] = ()) -> None:
        self.earlier: NgramCache | None = None
        """Texts of earlier requests."""
        self._own, self._of_earlier = Acceptance(), Acceptance()
        self.acceptance = self._own
        """Acceptance of draft tokens from where the latest ones came."""
        self._prompt = prompt
        self._answer: list[int] = []
        self._end = tuple(prompt.tokens[-NGRAM:])
        """The last tokens of the text."""
        self._after: dict[tuple[int, ...], int] = {}
        """By ``NGRAM`` tokens that end in the answer, or with the prompt: the position behind their latest
        occurrence."""
        for token in answer:
            self.append(token)

    def append(self, token: int) -> None:
        if len(self._end) == NGRAM:
            self._after[self._end] = len(self._prompt.tokens) + len(self._answer)
        self._answer.append(token)
        self._end = (*self._end, token)[-NGRAM:]

    def draft_tokens(self, limit: int) -> Sequence[int]:
        """At most ``limit`` draft tokens. Where what followed reaches the text's end, the text is taken to go round: a
        copy may overlap its source, as in LZ77 (Ziv and Lempel 1977)."""
        position = self._after.get(self._end) or self._prompt.after(self._end)
        self.acceptance = self._own
        if position is None:
            if self.earlier is None:
                return ()
            self.acceptance = self._of_earlier
            return self.earlier.draft_tokens(self._end, limit)
        in_answer = position - len(self._prompt.tokens)
        if in_answer >= 0:
            followed = self._answer[in_answer : in_answer + limit]
        else:
            followed = [*self._prompt.tokens[position : position + limit], *self._answer[: max(0, in_answer + limit)]]
        return (followed * -(-limit // len(followed)))[:limit] if len(followed) < limit else followed
