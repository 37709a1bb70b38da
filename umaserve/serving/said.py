"""Finds what followed the longest earlier occurrence of a text's end, in the last tokens that a tenant has said."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from umaserve.serving.speculation import NGRAM, TOKEN_BITS

MIN_MATCH = 6
"""Tokens that have to be the same before drafts are made: fewer are so by chance, as all that a tenant has said is
long."""
MAX_MATCH = 32
"""Tokens that are compared: a longer match is no better a reason for drafts."""
MAX_TRIED = 16
"""The latest occurrences of an n-gram that are compared: they bound a look-up in repetitive text."""
_BORDER = -1
_SPREAD = 0x9E3779B97F4A7C15
"""Knuth's multiplicative hash: 2**64 by the golden ratio."""


class SaidTokens:
    """A ring of tokens with hash chains of its n-grams, as LZ77 coders keep them: 16 bytes a token of ``capacity``.

    ``capacity``: tokens, a power of two.
    """

    def __init__(self, capacity: int) -> None:
        assert capacity >= 2
        assert capacity & (capacity - 1) == 0
        self._mask = capacity - 1
        self._shift = 64 - self._mask.bit_length()
        self._tokens = array("i", [_BORDER]) * capacity
        self._back = array("i", [0]) * capacity
        """How far back the previous n-gram of the same hash ends; 0: none, or overwritten."""
        self._latest = array("q", [0]) * capacity
        """By hash: the position behind the latest n-gram."""
        self._end = 0
        """Tokens ever appended. Positions count from the first of them."""

    def append(self, token: int) -> None:
        tokens, mask, end = self._tokens, self._mask, self._end
        tokens[end & mask] = token
        self._end = end = end + 1
        if end < NGRAM:
            return
        key = self._hash(tokens[end - 3 & mask], tokens[end - 2 & mask], token)
        latest = self._latest[key]
        self._back[end & mask] = end - latest if latest and end - latest <= mask else 0
        self._latest[key] = end

    def close(self) -> None:
        """End a text: no draft goes on into the next one."""
        self.append(_BORDER)

    def longest(self, text: Sequence[int]) -> tuple[int, int]:
        """The length of the longest match of ``text``'s end (0: none), and the position behind its latest occurrence.

        ``MAX_TRIED`` occurrences are compared, by at most ``MAX_MATCH`` tokens.
        """
        if len(text) < NGRAM:
            return 0, 0
        position = self._latest[self._hash(text[-3], text[-2], text[-1])]
        if not position:
            return 0, 0
        tokens, mask = self._tokens, self._mask
        most = min(len(text), MAX_MATCH)
        oldest = max(0, self._end - mask - 1)
        best = found = 0
        for _ in range(MAX_TRIED):
            if position - NGRAM < oldest:
                break
            reach = min(most, position - oldest)
            length = 0
            while length < reach and tokens[position - 1 - length & mask] == text[-1 - length]:
                length += 1
            # What nothing follows is of no use.
            if length > best and length >= NGRAM and self.after(position, 1):
                best, found = length, position
                if length == most:
                    break
            back = self._back[position & mask]
            if not back:
                break
            position -= back
        return best, found

    def draft_tokens(self, text: Sequence[int], limit: int) -> Sequence[int]:
        """At most ``limit`` tokens that followed the longest match of ``text``'s end, if that is long enough."""
        if len(text) < MIN_MATCH:
            return ()
        length, position = self.longest(text)
        return self.after(position, limit) if length >= MIN_MATCH else ()

    def after(self, position: int, limit: int) -> list[int]:
        """At most ``limit`` tokens from ``position`` on, of the same text; none where they are overwritten."""
        if position < self._end - self._mask - 1:
            return []
        found: list[int] = []
        for at in range(position, min(position + limit, self._end)):
            token = self._tokens[at & self._mask]
            if token == _BORDER:
                break
            found.append(token)
        return found

    def _hash(self, first: int, second: int, third: int) -> int:
        key = first << 2 * TOKEN_BITS ^ second << TOKEN_BITS ^ third
        return (key * _SPREAD & 0xFFFF_FFFF_FFFF_FFFF) >> self._shift
