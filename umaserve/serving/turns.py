"""Tenants in turn: who had theirs longest ago comes first."""

from __future__ import annotations

REMEMBERED = 1024


class Turns:
    """When each tenant had its last turn, of those who had one lately."""

    def __init__(self) -> None:
        self._now = 0
        self._last: dict[str, int] = {}

    def last(self, tenant: str) -> int:
        """Grows with each turn; 0 for a tenant who had none."""
        return self._last.get(tenant, 0)

    def take(self, tenant: str) -> None:
        """It is this tenant's turn."""
        self._now += 1
        self._last.pop(tenant, None)
        self._last[tenant] = self._now
        if len(self._last) > REMEMBERED:
            del self._last[next(iter(self._last))]
