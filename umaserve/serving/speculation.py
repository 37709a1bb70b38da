"""Guesses at a stream's next tokens, and how often they are right."""

from __future__ import annotations

from collections.abc import Sequence

NGRAM = 3
"""Tokens that have to be repeated before the one after them is guessed (prompt lookup decoding, Saxena 2023)."""

MAX_DRAFT_TOKENS = 16
MAX_INDEXED = 4096
"""Tokens of the prompt, from its end, in which repetition is looked for: each takes some 140 bytes."""
PRIOR = 0.6
LEARNING, FORGETTING = 0.15, 0.005
"""How far a guess that was verified moves the acceptance, and a token without guesses moves it back to the prior: a
text that was never worth a guess may begin to repeat itself."""


class Acceptance:
    """The share of guesses that prove right."""

    def __init__(self) -> None:
        self.share = PRIOR

    def observe(self, draft_tokens: int, right: int) -> None:
        """Learn from a tick that verified ``draft_tokens``, of which the first ``right`` were right."""
        if draft_tokens == 0:
            self.share += FORGETTING * (PRIOR - self.share)
        # Those behind the first wrong one say nothing.
        for index in range(min(draft_tokens, right + 1)):
            self.share += LEARNING * ((index < right) - self.share)


class Repetition:
    """A text's tokens, in which its end is looked for further up: what followed there is guessed to follow here."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.acceptance = Acceptance()
        self._tokens = list(tokens[-MAX_INDEXED:])
        self._after: dict[tuple[int, ...], int] = {}
        """By tokens, the position behind where they stood last."""
        for position in range(NGRAM, len(self._tokens)):
            self._after[tuple(self._tokens[position - NGRAM : position])] = position

    def append(self, token: int) -> None:
        end = tuple(self._tokens[-NGRAM:])
        if len(end) == NGRAM:
            self._after[end] = len(self._tokens)
        self._tokens.append(token)

    def draft_tokens(self, limit: int) -> Sequence[int]:
        """At most so many of the next tokens."""
        position = self._after.get(tuple(self._tokens[-NGRAM:]))
        return () if position is None else self._tokens[position : position + limit]
