"""Assigns places in host memory to sequences that the KV cache has no room for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from umaserve.serving.prefix_cache import Match, PrefixCache, Tokens
from umaserve.serving.ticks import SavedBytes


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

    @property
    def used_bytes(self) -> int:
        return sum(place.size for place in self._places.values())

    def put(self, scope: str, tokens: Sequence[int]) -> Place | None:
        """Where to save a sequence of these tokens; ``None`` if it is saved already, or too long."""
        size = self._saved_bytes.of(len(tokens))
        known = self.match(scope, tokens)
        if size > self._bytes or (known is not None and known.length == len(tokens)):
            return None
        if self._head + size > self._bytes:
            self._drop_from(self._head, self._bytes)
            self._head = 0
        self._drop_from(self._head, self._head + size)
        self._last += 1
        place = self._places[self._last] = Place(self._head, size, len(tokens))
        self._ring.append(self._last)
        self._prefixes.put(self._last, scope, tokens)
        self._head += size
        return place

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
