"""Admits requests to the queue or refuses them, by rate limits, queue length and free memory."""

from __future__ import annotations

from collections.abc import Callable

from umaserve.core.errors import Fault, RequestError
from umaserve.sessions.caller import Caller
from umaserve.sessions.rates import Rates


class Admission:
    """Implements ``sessions.manager.Admit``. ``available_bytes`` returns the memory still available.

    ``memory_short`` is set from outside while memory is short and no cache is left to drop.
    """

    def __init__(self, rates: Rates, max_queue: int, memory_reserve: int, available_bytes: Callable[[], int]) -> None:
        self.memory_short = False
        self._rates = rates
        self._max_queue = max_queue
        self._reserve = memory_reserve
        self._available = available_bytes

    def __call__(self, caller: Caller, waiting: int, now: float) -> None:
        """Raise ``RequestError`` to refuse a request; all refusals are temporary."""
        if waiting >= self._max_queue:
            raise RequestError(
                Fault.QUEUE_FULL,
                "request",
                f"{waiting} requests are waiting, which is the limit; try again later",
                retry_after_s=1.0,
            )
        if self.memory_short or (self._reserve and self._available() < self._reserve):
            raise RequestError(
                Fault.MEMORY_PRESSURE, "request", "the server is short of memory; try again later", retry_after_s=5.0
            )
        self._rates.admit(caller.tenant, now, caller.limits)

    def spend(self, caller: Caller, tokens: int, now: float) -> None:
        """Count generated tokens."""
        self._rates.spend(caller.tenant, tokens, now, caller.limits)
