"""Round robin of tenants: the one whose last turn was longest ago comes first."""

from __future__ import annotations

REMEMBERED = 1024


class Turns:
    """The order of the last turns of the latest ``REMEMBERED`` tenants."""

    def __init__(self) -> None:
        self._now = 0
        self._last: dict[str, int] = {}

    def last(self, tenant: str) -> int:
        """The number of the tenant's last turn, larger for later ones; 0 if it had none."""
        return self._last.get(tenant, 0)

    def take(self, tenant: str) -> None:
        """Count a turn of ``tenant``."""
        self._now += 1
        self._last.pop(tenant, None)
        self._last[tenant] = self._now
        if len(self._last) > REMEMBERED:
            del self._last[next(iter(self._last))]
