"""Responses that clients may come back for: in memory, with bounds on their number, size and age."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from umaserve.core.errors import Fault, RequestError

log = logging.getLogger(__name__)

MAX_AGE_S = 3600.0
"""Age at which a response is forgotten, in seconds since it was asked for, or ended."""
MAX_RESPONSES, MAX_BYTES = 256, 16 << 20
"""The most responses of one tenant, and bytes of them."""
MAX_BYTES_IN_ALL = 64 << 20
_BYTES_EACH = 2048
"""Memory of a response besides its texts, estimated."""


@dataclass(slots=True, eq=False)
class StoredResponse:
    """One response: all its items, those before it included, and what it is by now. All are JSON."""

    id: str
    input: tuple[bytes, ...]
    response: bytes = b""
    output: tuple[bytes, ...] = ()
    cancel: Callable[[], None] | None = None
    """Ends it, as long as it goes on in the background."""
    refresh: Callable[[], None] | None = None
    """Brings ``response`` up to date, where that does not happen by itself."""
    in_background: bool = False
    deleted: bool = False
    """Whether its client or its age has removed it."""
    since: float = 0.0
    n_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Tenant:
    kept: dict[str, StoredResponse] = field(default_factory=dict)
    """Responses by id, the oldest first."""
    n_bytes: int = 0


class KeptResponses:
    """Responses of all tenants. Where one has too many, its oldest goes; where all have, the oldest of who has most."""

    def __init__(self, now: Callable[[], float]) -> None:
        """``now``: seconds of any clock that only goes forward."""
        self._now = now
        self._tenants: dict[str, _Tenant] = {}
        self._bytes = 0

    def of(self, tenant: str) -> TenantsResponses:
        return TenantsResponses(self, tenant)

    def keep(self, tenant: str, kept: StoredResponse) -> None:
        """Keep a response, or what has changed of one."""
        self.expire()
        self._forget(tenant, kept.id)
        kept.since = self._now()
        # Items that several responses share count for each: so the bound holds whichever of them go first.
        kept.n_bytes = _BYTES_EACH + len(kept.response) + sum(map(len, (*kept.input, *kept.output)))
        own = self._tenants.setdefault(tenant, _Tenant())
        own.kept[kept.id] = kept
        own.n_bytes += kept.n_bytes
        self._bytes += kept.n_bytes
        while own.kept and (len(own.kept) > MAX_RESPONSES or own.n_bytes > MAX_BYTES):
            self._drop_oldest(tenant)
        while self._bytes > MAX_BYTES_IN_ALL:
            self._drop_oldest(max(self._tenants, key=lambda name: self._tenants[name].n_bytes))

    def get(self, tenant: str, response_id: str, name: str) -> StoredResponse:
        """A response; raises ``RequestError`` with the field ``name`` where this tenant has none of this id."""
        self.expire()
        kept = self._tenants.get(tenant, _Tenant()).kept.get(response_id)
        if kept is None:
            expected = f"the id of a response of the last {MAX_AGE_S / 60:.0f} minutes that is still stored"
            raise RequestError(Fault.NOT_FOUND, name, f"expected {expected}, got {response_id[:64]}")
        return kept

    def drop(self, tenant: str, response_id: str) -> None:
        """Forget a response, and end it where it goes on in the background."""
        kept = self._forget(tenant, response_id)
        if kept is not None:
            kept.deleted = True
            if kept.cancel is not None:
                kept.cancel()

    def expire(self) -> None:
        """Forget those that are too old."""
        until = self._now() - MAX_AGE_S
        for tenant, own in list(self._tenants.items()):
            for kept in [kept for kept in own.kept.values() if kept.since < until]:
                self.drop(tenant, kept.id)

    def _drop_oldest(self, tenant: str) -> None:
        oldest = next(iter(self._tenants[tenant].kept))
        log.info("response %s: evicted to store newer ones", oldest)
        self.drop(tenant, oldest)

    def _forget(self, tenant: str, response_id: str) -> StoredResponse | None:
        own = self._tenants.get(tenant)
        kept = None if own is None else own.kept.pop(response_id, None)
        if own is not None and kept is not None:
            own.n_bytes -= kept.n_bytes
            self._bytes -= kept.n_bytes
            if not own.kept:
                del self._tenants[tenant]
        return kept


class TenantsResponses:
    """Responses of one tenant; another's don't exist for it."""

    def __init__(self, all_: KeptResponses, tenant: str) -> None:
        self._all = all_
        self._tenant = tenant

    def keep(self, kept: StoredResponse) -> None:
        self._all.keep(self._tenant, kept)

    def get(self, response_id: str, name: str = "response_id") -> StoredResponse:
        """The response of this id; raises ``RequestError``."""
        return self._all.get(self._tenant, response_id, name)

    def drop(self, response_id: str) -> None:
        self._all.drop(self._tenant, response_id)
