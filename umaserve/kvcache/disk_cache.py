"""Computed sequences on disk, which survive the daemon: which of the host cache's are written, and which are read back.

The engine reads and writes, on a thread for the disk and to and from host memory. Nothing of it holds up a tick.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from umaserve.core.metrics import ServingMetrics
from umaserve.kvcache.prefix_cache import PrefixCache, Tokens
from umaserve.kvcache.slots import Slots
from umaserve.sessions.cost_model import Cost
from umaserve.sessions.engine_api import Engine, JobQueue, Kept, Listing, YieldPoint

log = logging.getLogger(__name__)

PRIVATE = "session "
"""The scope of a sequence that only its own session may reuse begins so: it is never written."""
MIN_TOKENS = 256
"""The shortest sequence that is written, and the fewest tokens that are read instead of computed: a file costs a few
milliseconds, whatever it holds, and reading must be faster than computing."""
GROWTH = 1.5
"""Growth at which a conversation is written again: when it is so many times as long, and at the end: all its files
together are then at most three times as long as the last one."""
WRITTEN_BYTES_S = 16 << 20
"""Most bytes written a second, on average, for the sake of flash memory."""
BURST_S = 32.0
"""Amount that may be written at once, in seconds at that rate."""
REST_S = 0.008
"""Pause between two pieces of 1 MiB, in seconds, so that streams have the memory's bandwidth and the cores."""
CHECK_S = 1.0
LOOK_S = 30.0
"""How often to look for what other daemons have written or removed."""
PUT_AWAY_S = 5.0
"""The longest that the end of the daemon waits for what is not written yet. An agent's conversation may take some 200
MB, and other programs leave the disk's thread, whose niceness is 10, a tenth of a core."""

_READ_BYTE_S = 2e-9
_LEARNED = 0.3
_LEAST_BYTE_S, _MOST_BYTE_S = 1e-11, 1e-6


class _Candidate(NamedTuple):
    """A sequence to write: its key in the host cache, and the file that it replaces, which is a prefix of it."""

    key: int
    scope: str
    tokens: Tokens
    replaced: tuple[int, ...]


class DiskCache:
    """Knows the sequences on disk, and has them written and read, one of each at a time."""

    def __init__(
        self,
        engine: Engine,
        worker: JobQueue,
        slots: Slots,
        metrics: ServingMetrics,
        clock: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``worker``: the thread for the disk. ``sleep`` is called there."""
        assert slots.host is not None
        self._engine = engine
        self._worker = worker
        self._slots = slots
        self._host = slots.host
        self._metrics = metrics
        self._now = clock
        self._sleep = sleep
        self._saved_bytes = engine.capacity.saved_bytes
        self._cells = engine.capacity.cells
        self._batch_tokens = engine.capacity.batch_tokens
        self._entire = not engine.capacity.cached_cells
        self._cost = Cost()
        self._byte_s = _READ_BYTE_S
        """Average time for reading a byte."""
        self._index = PrefixCache()
        """The sequences on disk, by keys of their own, and with hashed scopes."""
        self._names: dict[int, str] = {}
        self._keys: dict[str, int] = {}
        self._last = 0
        self._fetched: set[int] = set()
        self._pending: set[int] = set()
        """Keys of the sequences that prompts wait for."""
        self._fetching: int | None = None
        self._writing: int | None = None
        """Key in the host cache of the sequence that is being written."""
        self._decided: set[int] = set()
        """Keys of the sequences of the host cache that are written, or never will be."""
        self._paid_until = clock()
        """When all that was written is within the average rate."""
        self._check_at = clock()
        self._looks = False
        self._look_at = clock()
        self._listed = False
        """Whether all that was there at the start is known."""
        self._put_away_until: float | None = None
        self._nothing_left = False
        self.used_bytes = 0
        """Size of all sequences on disk, in bytes, as of the last look that has told all of them."""

    # -- what is on disk -----------------------------------------------------------------------------------------

    def next(self, cost: Cost) -> None:
        """Look for changes, and write the next sequence, if it is time. ``cost``: of ticks."""
        self._cost = cost
        now = self._now()
        if not self._looks and now >= self._look_at:
            self._looks = True
            self._worker.submit(self._engine.look, self._looked)
        if self._writing is None and (self._put_away_until is not None or now >= self._check_at):
            self._check_at = now + CHECK_S
            self._write_next(now)

    def _looked(self, result: Listing | BaseException) -> None:
        self._looks = False
        self._look_at = self._now() + LOOK_S
        if isinstance(result, BaseException):
            self._metrics.disk_cache_errors += 1
            log.error("disk cache: its sequences can't be listed", exc_info=result)
            return
        self._metrics.disk_cache_errors += result.errors
        for name in result.gone:
            self._forget(self._keys.get(name))
        for kept in result.new:
            self.know(kept)
        if result.more:
            self._look_at = self._now()
        else:
            self._listed = True
            self.used_bytes = result.used_bytes
        if result.new:
            self._slots.version += 1

    def know(self, kept: Kept) -> None:
        """Take note of a sequence on disk."""
        if kept.name not in self._keys:
            self._last += 1
            self._keys[kept.name] = self._last
            self._names[self._last] = kept.name
            self._index.put(self._last, kept.scope, kept.tokens)

    def named(self, scope: str, tokens: Tokens) -> str | None:
        """The name of a sequence on disk that begins with all of these tokens; ``None``: there is none."""
        found = self._index.match(_hashed(scope), tokens, entire=self._entire)
        return self._names[found.holder] if found is not None and found.length == len(tokens) else None

    def _forget(self, key: int | None) -> None:
        if key is not None and key in self._names:
            self._index.remove(key)
            del self._keys[self._names.pop(key)]
            self._pending.discard(key)

    def drop_fetched(self) -> None:
        """Forget the sequences that came from disk: one could not be loaded, and they may be why."""
        for key in self._fetched:
            self._forget(key)
        self._fetched.clear()

    # -- reading -------------------------------------------------------------------------------------------------

    def better(self, scope: str, tokens: Tokens, reusable: int) -> int | None:
        """The sequence on disk to read for a prompt that can reuse so many tokens without it; its key, or ``None``.
        ``is_awaited`` then says whether it is still to come."""
        found = self._index.match(_hashed(scope), tokens[:-1], entire=self._entire)
        if found is None or found.length - reusable < MIN_TOKENS:
            return None
        ahead = self._pending - {found.holder}
        n_bytes = [self._saved_bytes.of(len(self._index.held(key)[1])) for key in (found.holder, *ahead)]
        if n_bytes[0] > self._host.bytes or len(self._index.held(found.holder)[1]) > self._cells:
            return None
        if sum(n_bytes) * self._byte_s > self._computing_s(found.length - reusable, reusable):
            return None
        self._pending.add(found.holder)
        return found.holder

    def is_awaited(self, key: int) -> bool:
        return key in self._pending

    def between_ticks(self, wanted: Mapping[int, str]) -> None:
        """Read the next sequence that is ``wanted``, by keys, with its scope: no KV operation is under way."""
        self._host.settle()
        self._pending &= wanted.keys()
        for key, scope in wanted.items():
            if self._fetching is None and key in self._pending:
                self._fetch(key, scope)

    def _fetch(self, key: int, scope: str) -> None:
        name, (_hash, tokens) = self._names[key], self._index.held(key)
        place = self._host.reserve(scope, tokens)
        if place is None:
            self._pending.discard(key)
            return
        self._fetching = key

        def read() -> tuple[bool, float]:
            began = self._now()
            whole = self._engine.fetch(name, place.offset, place.size, lambda: key in self._pending)
            return whole, self._now() - began

        def fetched(result: tuple[bool, float] | BaseException) -> None:
            self._fetching = None
            if isinstance(result, BaseException):
                self._metrics.disk_cache_errors += 1
                log.error("disk cache: a sequence can't be read", exc_info=result)
                result = False, 0.0
            whole, seconds = result
            self._host.fill(whole=whole)
            if whole:
                self._fetched.add(key)
                self._metrics.disk_cache_hits += 1
                self._metrics.disk_cache_tokens += len(tokens)
                found_s = min(max(seconds / place.size, _LEAST_BYTE_S), _MOST_BYTE_S)
                self._byte_s += _LEARNED * (found_s - self._byte_s)
            elif key in self._pending:
                self._forget(key)
            self._pending.discard(key)
            self._slots.version += 1

        self._worker.submit(read, fetched)

    # -- writing -------------------------------------------------------------------------------------------------

    def put_away(self) -> None:
        """Write all that is worth it, as fast as possible, until ``is_put_away``: nothing runs any more."""
        if self._put_away_until is None:
            self._put_away_until = self._now() + PUT_AWAY_S

    @property
    def is_put_away(self) -> bool:
        return self._writing is None and (self._nothing_left or self._is_over)

    @property
    def _is_over(self) -> bool:
        return self._put_away_until is not None and self._now() >= self._put_away_until

    @property
    def writes(self) -> bool:
        """Whether a sequence is being written."""
        return self._writing is not None

    def write(self, scope: str, tokens: Tokens, done: Callable[[BaseException | None], None]) -> bool:
        """Write a sequence of the host cache that begins with these tokens now, worth it or not, while none is being
        written. Returns whether it is there, and then calls ``done``."""
        for key, of, held in self._host.saved():
            if of == scope and held[: len(tokens)] == tokens and (len(held) == len(tokens) or not self._entire):
                self._write(_Candidate(key, of, held, ()), self._now(), done)
                return True
        return False

    def _write_next(self, now: float) -> None:
        in_time = self._put_away_until is not None or now >= self._paid_until - BURST_S
        candidate = self._candidate() if in_time and self._listed and not self._is_over else None
        self._nothing_left = candidate is None
        if candidate is not None:
            self._write(candidate, now)

    def _candidate(self) -> _Candidate | None:
        """The latest sequence of the host cache that is worth writing."""
        present = set()
        found = None
        for key, scope, tokens in self._host.saved():
            present.add(key)
            if found is None and key not in self._decided:
                found = self._judged(key, scope, tokens)
        self._decided &= present
        return found

    def _judged(self, key: int, scope: str, tokens: Tokens) -> _Candidate | None:
        if not self._is_worth(key, scope, tokens):
            self._decided.add(key)
            return None
        if self._entire:
            return _Candidate(key, scope, tokens, ())
        before = self._index.match(_hashed(scope), tokens, entire=True)
        if before is None:
            return _Candidate(key, scope, tokens, ())
        if self._put_away_until is None and len(tokens) < GROWTH * before.length:
            return None
        return _Candidate(key, scope, tokens, (before.holder,))

    def _is_worth(self, key: int, scope: str, tokens: Tokens) -> bool:
        if len(tokens) < MIN_TOKENS or scope.startswith(PRIVATE) or min(tokens) < 0:
            return False
        if self._saved_bytes.of(len(tokens)) * self._byte_s > self._computing_s(len(tokens), 0):
            return False
        on_disk = self._index.match(_hashed(scope), tokens, entire=self._entire)
        if on_disk is not None and on_disk.length == len(tokens):
            return False
        # A later one may begin with all of it.
        later = self._host.match(scope, tokens)
        return self._entire or later is None or later.holder == key or later.length < len(tokens)

    def _computing_s(self, tokens: int, cached: int) -> float:
        """How long computing so many tokens behind ``cached`` ones takes."""
        return self._cost.prompt_s(tokens, cached, self._batch_tokens)

    def _write(
        self, candidate: _Candidate, now: float, done: Callable[[BaseException | None], None] = lambda _error: None
    ) -> None:
        key, scope, tokens, replaced = candidate
        place = self._host.place(key)
        assert place is not None
        names = [self._names[other] for other in replaced]
        self._paid_until = max(self._paid_until, now) + place.size / WRITTEN_BYTES_S
        self._writing = key

        def write(pause: YieldPoint) -> str | None:
            def wanted() -> bool:
                pause()
                if self._put_away_until is None:
                    self._sleep(REST_S)
                # Last: before anything is saved over it, its key is gone.
                return not self._is_over and self._host.place(key) is not None

            return self._engine.keep(_hashed(scope), tokens, place.offset, place.size, names, wanted)

        def written(result: str | BaseException | None) -> None:
            self._writing = None
            self._decided.add(key)
            if isinstance(result, BaseException):
                self._metrics.disk_cache_errors += 1
                log.error("disk cache: a sequence can't be written", exc_info=result)
            elif result is not None:
                for other in replaced:
                    self._forget(other)
                self.know(Kept(result, _hashed(scope), tokens))
                # Which others had to make room for it, and how much is used.
                self._look_at = self._now()
            self._check_at = self._now()
            done(result if isinstance(result, BaseException) else None)

        self._worker.submit_lengthy(write, written)


def _hashed(scope: str) -> str:
    """The names of tenants are not written to disk."""
    return hashlib.blake2b(scope.encode(errors="surrogatepass"), digest_size=16).hexdigest()
