"""Draft tokens from repetition in a stream's text, and the share of draft tokens that is accepted."""

from __future__ import annotations

from collections.abc import Sequence

NGRAM = 3
"""Tokens that have to be repeated before draft tokens are made (prompt lookup decoding, Saxena 2023)."""

MAX_DRAFT_TOKENS = 16
MAX_INDEXED = 4096
"""The last tokens of the prompt that are searched for repetition: each takes some 140 bytes."""
PRIOR = 0.6
LEARNING, FORGETTING = 0.15, 0.005
"""How far a verified draft token moves the acceptance, and how far a tick that used none moves it back to the prior: a
text may begin to repeat itself."""


class Acceptance:
    """The share of draft tokens that is accepted."""

    def __init__(self) -> None:
        self.share = PRIOR

    def observe(self, draft_tokens: int, right: int) -> None:
        """Learn from a tick that verified ``draft_tokens``, of which the first ``right`` were accepted."""
        if draft_tokens == 0:
            self.share += FORGETTING * (PRIOR - self.share)
        # Those behind the first rejected one were not verified.
        for index in range(min(draft_tokens, right + 1)):
            self.share += LEARNING * ((index < right) - self.share)


class Repetition:
    """Looks for an earlier occurrence of the text's last tokens: the draft tokens are what followed there."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.acceptance = Acceptance()
        self._tokens = list(tokens[-MAX_INDEXED:])
        ngrams = zip(*(self._tokens[first:] for first in range(NGRAM)), strict=False)
        # The last ones have nothing behind them.
        self._after: dict[tuple[int, ...], int] = dict(zip(ngrams, range(NGRAM, len(self._tokens)), strict=False))
        """By ``NGRAM`` tokens: the position behind their latest occurrence."""

    def append(self, token: int) -> None:
        end = tuple(self._tokens[-NGRAM:])
        if len(end) == NGRAM:
            self._after[end] = len(self._tokens)
        self._tokens.append(token)

    def draft_tokens(self, limit: int) -> Sequence[int]:
        """At most ``limit`` draft tokens."""
        position = self._after.get(tuple(self._tokens[-NGRAM:]))
        return () if position is None else self._tokens[position : position + limit]
