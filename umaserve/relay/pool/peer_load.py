"""What other relays have given the workers that are connected to several of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from umaserve.net.timers import Timer
from umaserve.relay.pool.request import Clock

FORGET_S = 5.0
"""After so long without word of a relay, what it has said is forgotten: it is gone, and so are its requests."""


class PeerLoad:
    """Loads by the workers' ``instance``. ``changed`` is called with those whose load is another one."""

    def __init__(self, clock: Clock, changed: Callable[[Collection[str]], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._said: dict[str, Mapping[str, int]] = {}
        """By relay."""
        self._timers: dict[str, Timer] = {}

    def __len__(self) -> int:
        """How many relays are heard of."""
        return len(self._said)

    def of(self, instance: str) -> int:
        """All that other relays have given this worker."""
        return sum(loads.get(instance, 0) for loads in self._said.values())

    def hear(self, relay: str, loads: Mapping[str, int]) -> None:
        """``relay`` has given these to its workers, and nothing to others."""
        if timer := self._timers.get(relay):
            timer.postpone(self._clock.now() + FORGET_S)
        else:
            self._timers[relay] = self._clock.call_later(FORGET_S, lambda: self._forget(relay))
        self._put(relay, loads)

    def _put(self, relay: str, loads: Mapping[str, int]) -> None:
        before, self._said[relay] = self._said.get(relay, {}), loads
        self._changed([one for one in before.keys() | loads.keys() if before.get(one) != loads.get(one)])

    def _forget(self, relay: str) -> None:
        del self._timers[relay]
        self._put(relay, {})
        del self._said[relay]
