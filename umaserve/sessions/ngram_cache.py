"""The n-grams of a tenant's latest requests: where they are followed by something, that becomes draft tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NGRAM = 3
"""Tokens that have to be repeated before draft tokens are made (prompt lookup decoding, Saxena 2023)."""
TOKEN_BITS = 21
"""Bits of a token's id in the key of an n-gram: ``NGRAM`` of them fit 64 bits."""
CAPACITY = 1 << 16
"""Tokens that are kept of a scope, in 768 KiB: a power of two."""
MAX_SCOPES = 16
"""Scopes that are kept, in 12 MiB: the one whose latest request started first goes first."""
MAX_OF_REQUEST = 1 << 13
"""The last tokens that are taken from one request: they take 0.3 ms."""
OVERLAP = 32
"""Tokens before what is new in a request that are added again: by them, the new ones are found."""
_BORDER = -1
_SPREAD = 0x9E3779B97F4A7C15
"""Knuth's multiplicative hash: 2**64 divided by the golden ratio."""
_SHIFT = 64 - CAPACITY.bit_length() + 1


class NgramCache:
    """A ring of tokens, and by the hash of each n-gram the position behind its latest occurrence."""

    def __init__(self) -> None:
        self._tokens = np.empty(CAPACITY, np.int32)
        self._behind = np.empty(CAPACITY, np.int64)
        self.clear()

    def clear(self) -> None:
        """Forget all of it."""
        self._tokens.fill(_BORDER)
        self._behind.fill(0)
        self._end = 0
        """Tokens ever added; positions count from the first of them."""

    def add(self, text: Sequence[int]) -> None:
        """Add a text of at most ``MAX_OF_REQUEST`` tokens; no draft goes on into the next one."""
        tokens = np.array([*text, _BORDER], np.int32)
        at = self._end + np.arange(len(tokens))
        self._tokens[at % CAPACITY] = tokens
        if len(text) >= NGRAM:
            # Of equal ones the last is assigned.
            self._behind[_hashes(tokens[:-1])] = at[NGRAM:]
        self._end += len(tokens)

    def draft_tokens(self, ngram: Sequence[int], limit: int) -> list[int]:
        """At most ``limit`` tokens that followed the latest occurrence of ``ngram``."""
        if len(ngram) < NGRAM:
            return []
        position: int = self._behind.item(_hash(*ngram))
        # Of the hash's n-grams another may be the latest one, and its tokens may be overwritten.
        if position - NGRAM < self._end - CAPACITY or self._slice(position - NGRAM, NGRAM) != [*ngram]:
            return []
        found = self._slice(position, min(limit, self._end - position))
        return found[: found.index(_BORDER)] if _BORDER in found else found

    def _slice(self, start: int, length: int) -> list[int]:
        at = start % CAPACITY
        found: list[int] = self._tokens[at : at + length].tolist()
        return found + self._tokens[: length - len(found)].tolist() if len(found) < length else found


class NgramCaches:
    """Caches of one model, by the scopes in which cached prefixes are reused."""

    def __init__(self) -> None:
        self._by_scope: OrderedDict[str, NgramCache] = OrderedDict()

    def of(self, scope: str) -> NgramCache:
        """The cache of ``scope``, for a request that starts."""
        cache = self._by_scope.pop(scope, None) or NgramCache()
        self._by_scope[scope] = cache
        if len(self._by_scope) > MAX_SCOPES:
            self._by_scope.popitem(last=False)
        return cache

    def clear(self) -> None:
        """Forget all, also in caches that running requests look into."""
        for cache in self._by_scope.values():
            cache.clear()


def _hash(first: int, second: int, third: int) -> int:
    """The hash of an n-gram, below ``CAPACITY``."""
    key = first << 2 * TOKEN_BITS ^ second << TOKEN_BITS ^ third
    return (key * _SPREAD & (1 << 64) - 1) >> _SHIFT


def _hashes(tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """``_hash`` of each n-gram of ``tokens``."""
    ids = tokens.astype(np.uint64)
    keys = ids[:-2] << np.uint64(2 * TOKEN_BITS) ^ ids[1:-1] << np.uint64(TOKEN_BITS) ^ ids[2:]
    return (keys * np.uint64(_SPREAD) >> np.uint64(_SHIFT)).astype(np.int64)
