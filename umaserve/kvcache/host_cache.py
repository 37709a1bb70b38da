"""Assigns places in host memory to sequences that the KV cache has no room for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from umaserve.kvcache.prefix_cache import Match, PrefixCache, Tokens
from umaserve.sessions.engine_api import SavedBytes


class Place(NamedTuple):
    """Bytes ``offset`` to ``offset + size`` of the host memory, which hold a sequence of ``tokens`` tokens."""

    offset: int
    size: int
    tokens: int


class HostCache:
    """A ring buffer: a new sequence is saved behind the previous one, over the oldest ones. A sequence that is
    continued is saved again when it ends, so that the oldest one is mostly the least recently used one, too.

    The same memory is reused, since on many boxes getting fresh pages from the kernel takes longer than copying.
    """

    def __init__(self, n_bytes: int, saved_bytes: SavedBytes, *, entire: bool = False) -> None:
        """``entire``: a saved sequence is of use only as a whole."""
        self._bytes = n_bytes
        self._saved_bytes = saved_bytes
        self._entire = entire
        self._head = 0
        self._ring: deque[int] = deque()
        """Keys, the oldest first."""
        self._places: dict[int, Place] = {}
        self._prefixes = PrefixCache()
        self._last = 0
        self._settled = 0
        """The latest key whose sequence is there, and those before it."""
        self._reserved: tuple[int, Place, str, Tokens] | None = None
        """The place that is being filled from elsewhere: nothing may be saved over it, even if it is forgotten."""

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def used_bytes(self) -> int:
        return sum(place.size for place in self._places.values())

    def put(self, scope: str, tokens: Sequence[int]) -> Place | None:
        """Where to save a sequence of these tokens; ``None`` if it is saved already, or too long."""
        size = self._saved_bytes.of(len(tokens))
        known = self.match(scope, tokens)
        if known is not None and known.length == len(tokens):
            return None
        key = self._allot(size, len(tokens))
        if key is None:
            return None
        self._prefixes.put(key, scope, tokens)
        return self._places[key]

    def reserve(self, scope: str, tokens: Sequence[int]) -> Place | None:
        """A place that is filled with a sequence of these tokens while ticks run, until ``fill``; ``None`` if it is too
        long. Only while no KV operations are under way, and for one sequence at a time."""
        assert self._reserved is None
        key = self._allot(self._saved_bytes.of(len(tokens)), len(tokens))
        if key is None:
            return None
        self._reserved = key, self._places[key], scope, tuple(tokens)
        return self._places[key]

    def fill(self, *, whole: bool) -> None:
        """The reserved place holds its sequence, if all of it came."""
        assert self._reserved is not None
        key, _place, scope, tokens = self._reserved
        self._reserved = None
        if whole and key in self._places:
            self._prefixes.put(key, scope, tokens)

    def settle(self) -> None:
        """All sequences that were put here are saved by now."""
        self._settled = self._last

    def saved(self) -> Iterator[tuple[int, str, Tokens]]:
        """The sequences that are there, the latest first: keys, scopes and tokens."""
        for key in reversed(self._ring):
            scope, tokens = self._prefixes.held(key)
            if key <= self._settled and tokens:
                yield key, scope, tokens

    @property
    def saved_tokens(self) -> int:
        """Tokens of all sequences, together."""
        return sum(len(self._prefixes.held(key)[1]) for key in self._ring)

    def match(self, scope: str, tokens: Sequence[int]) -> Match | None:
        """The saved sequence with the longest usable prefix of ``tokens``."""
        return self._prefixes.match(scope, tokens, entire=self._entire)

    def nearest(self, scope: str, tokens: Sequence[int]) -> tuple[int, Tokens]:
        """The longest prefix of ``tokens`` that a saved sequence begins with, usable or not: its length, and the whole
        sequence."""
        found = self._prefixes.match(scope, tokens)
        return (0, ()) if found is None else (found.length, self.tokens(found.holder))

    def tokens(self, key: int) -> Tokens:
        """The saved sequence that ``match`` found."""
        return self._prefixes.held(key)[1]

    def place(self, key: int) -> Place | None:
        """Where the sequence that ``match`` found is saved; ``None`` if it is overwritten."""
        return self._places.get(key)

    def clear(self) -> None:
        """Forget all."""
        while self._ring:
            self._drop_oldest()
        self._head = 0

    def _allot(self, size: int, tokens: int) -> int | None:
        """The key of a new place; ``None`` if it would be too large, or where one is being filled."""
        at = 0 if self._head + size > self._bytes else self._head
        if size > self._bytes or self._is_reserved(at, at + size):
            return None
        if at < self._head:
            self._drop_from(self._head, self._bytes)
        self._drop_from(at, at + size)
        self._last += 1
        self._places[self._last] = Place(at, size, tokens)
        self._ring.append(self._last)
        self._head = at + size
        return self._last

    def _is_reserved(self, begin: int, end: int) -> bool:
        if self._reserved is None:
            return False
        place = self._reserved[1]
        return place.offset < end and begin < place.offset + place.size

    def _drop_from(self, begin: int, end: int) -> None:
        while self._ring:
            place = self._places[self._ring[0]]
            if place.offset >= end or place.offset + place.size <= begin:
                return
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key = self._ring.popleft()
        del self._places[key]
        self._prefixes.remove(key)
