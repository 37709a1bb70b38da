"""Rate limits: how many requests each tenant may make in a minute, and how many tokens may be generated for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from umaserve.core.errors import Fault, RequestError

SWEEP_ABOVE = 1024
"""Number of buckets above which the full ones are dropped: peers come and go."""


@dataclass(frozen=True, slots=True)
class RateLimits:
    """A key's own limits; ``None``: the server's, 0: no limit."""

    requests_per_minute: float | None
    tokens_per_minute: float | None


class Bucket:
    """A token bucket, full at first: refilled by ``rate`` a second up to ``capacity``. ``now`` is in seconds."""

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        assert rate > 0
        assert capacity > 0
        self.rate = rate
        self.capacity = capacity
        self._level = capacity
        self._at = now

    def level(self, now: float) -> float:
        """The amount in it; negative while in debt."""
        self._level = min(self.capacity, self._level + max(0.0, now - self._at) * self.rate)
        self._at = max(self._at, now)
        return self._level

    def wait(self, level: float, now: float) -> float:
        """Seconds until it holds ``level``; 0 if it does."""
        return max(0.0, (level - self.level(now)) / self.rate)

    def take(self, amount: float, now: float) -> None:
        """Take it out; may leave a debt."""
        self._level = self.level(now) - amount


class Rates:
    """The buckets of each tenant (a key or a peer). 0 is no limit; a burst is one minute's worth, at least 1."""

    def __init__(self, requests_per_minute: float, tokens_per_minute: float) -> None:
        self._per_minute = {"requests": requests_per_minute, "tokens": tokens_per_minute}
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._sweep_above = SWEEP_ABOVE

    def admit(self, tenant: str, now: float, own: RateLimits | None = None) -> None:
        """Take one request, or raise ``RequestError`` and take nothing. Tokens only refuse while there is a debt."""
        requests = self._bucket(tenant, "requests", now, own)
        tokens = self._bucket(tenant, "tokens", now, own)
        waits = [
            (bucket.wait(level, now), f"{bucket.rate * 60:g} {unit}")
            for bucket, level, unit in ((requests, 1, "requests"), (tokens, 0, "tokens"))
            if bucket is not None
        ]
        wait, limit = max(waits, default=(0.0, ""))
        if wait > 0:
            # Rounded up, so that nobody who has waited that long is refused.
            wait = (math.floor(wait * 1000) + 1) / 1000
            raise RequestError(
                Fault.RATE_LIMITED,
                "request",
                f"the limit of {limit} a minute is used up; try again in {wait:.3f} s",
                retry_after_s=wait,
            )
        if requests is not None:
            requests.take(1, now)

    def spend(self, tenant: str, tokens: int, now: float, own: RateLimits | None = None, *, requests: int = 0) -> None:
        """Take generated tokens, and requests that were admitted elsewhere; may leave a debt."""
        for unit, amount in (("tokens", tokens), ("requests", requests)):
            bucket = self._bucket(tenant, unit, now, own) if amount else None
            if bucket is not None:
                bucket.take(amount, now)

    def _bucket(self, tenant: str, unit: str, now: float, own: RateLimits | None) -> Bucket | None:
        """The tenant's bucket for ``unit``; ``None`` without a limit."""
        per_minute = None
        if own is not None:
            per_minute = own.requests_per_minute if unit == "requests" else own.tokens_per_minute
        if per_minute is None:
            per_minute = self._per_minute[unit]
        if per_minute == 0:
            return None
        rate = per_minute / 60
        bucket = self._buckets.get((tenant, unit))
        # The rate differs if the operator has changed the key's limits.
        if bucket is None or bucket.rate != rate:
            self._sweep(now)
            bucket = self._buckets[tenant, unit] = Bucket(rate, max(1.0, per_minute), now)
        return bucket

    def _sweep(self, now: float) -> None:
        if len(self._buckets) < self._sweep_above:
            return
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if bucket.level(now) < bucket.capacity}
        # Twice what is left, so that a sweep costs a constant time for each new bucket.
        self._sweep_above = max(SWEEP_ABOVE, 2 * len(self._buckets))
