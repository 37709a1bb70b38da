"""What clients may come back for, responses and conversations: in memory, with bounds on its size and age."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import orjson

from umaserve.core.errors import Fault, RequestError

log = logging.getLogger(__name__)

MAX_AGE_S = 3600.0
"""Age at which something is forgotten, in seconds since it was last changed, unless the operator wants another."""
MAX_BYTES_IN_ALL = 128 << 20
"""The most bytes, half of it for conversations, unless the operator wants another bound. A tenant has up to a quarter
of each half."""
MAX_BYTES = MAX_BYTES_IN_ALL // 8
_BYTES_EACH, _BYTES_OF_ITEM = 2048, 256
"""Memory of an entry, and of an item, besides its texts, estimated."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(slots=True, eq=False, kw_only=True)
class Entry:
    """One response or conversation."""

    id: str
    deleted: bool = False
    """Whether its client, its age or a bound has removed it."""
    since: float = 0.0
    """When it was last changed."""
    n_bytes: int = 0

    def texts(self) -> Iterable[bytes]:
        """What takes its memory."""
        return ()

    def size(self) -> int:
        """The bytes that it counts for: of memory, estimated."""
        # Items that several responses share count for each: so the bound holds whichever of them go first.
        return _BYTES_EACH + sum(_BYTES_OF_ITEM + len(text) for text in self.texts())

    def end(self) -> None:
        """End what still goes on for it."""


@dataclass(slots=True, eq=False, kw_only=True)
class StoredResponse(Entry):
    """One response: all its items, those before it included, and what it is by now. All are JSON."""

    input: tuple[bytes, ...]
    response: bytes = b""
    output: tuple[bytes, ...] = ()
    cancel: Callable[[], None] | None = None
    """Ends it, as long as it goes on in the background."""
    refresh: Callable[[], None] | None = None
    """Brings ``response`` up to date, where that does not happen by itself."""
    in_background: bool = False

    def texts(self) -> Iterable[bytes]:
        return (self.response, *self.input, *self.output)

    def end(self) -> None:
        if self.cancel is not None:
            self.cancel()


@dataclass(slots=True, eq=False, kw_only=True)
class StoredConversation(Entry):
    """One conversation: its items by their ids, the oldest first, as JSON."""

    created_at: int
    """Seconds since 1970."""
    metadata: Mapping[str, str]
    items: Mapping[str, bytes] = field(default_factory=dict)

    def texts(self) -> Iterable[bytes]:
        return self.items.values()

    def add(self, items: Iterable[bytes]) -> list[bytes]:
        """Put items at its end, and return them as they are now: one whose id is taken, or no id, gets another."""
        whole = dict(self.items)
        added = []
        for item in items:
            values = orjson.loads(item)
            given = values.get("id")
            if not isinstance(given, str) or not _ID.fullmatch(given) or given in whole:
                given = _free_id(f"item_{self.id.removeprefix('conv_')}n", len(whole), whole)
                item = orjson.dumps({**values, "id": given})
            whole[given] = item
            added.append(item)
        # Another object, since a thread may be writing the one before.
        self.items = whole
        return added


def _free_id(beginning: str, number: int, taken: Mapping[str, bytes]) -> str:
    while (made := f"{beginning}{number:02x}") in taken:
        number += 1
    return made


E = TypeVar("E", bound=Entry)


@dataclass(slots=True, eq=False)
class _Tenant(Generic[E]):
    kept: dict[str, E] = field(default_factory=dict)
    """Entries by id, the oldest first."""
    n_bytes: int = 0


class KeptEntries(Generic[E]):
    """Entries of one kind, of all tenants. Where one has too many bytes, its oldest goes; where all have, the oldest of
    who has most."""

    def __init__(self, kind: str, now: Callable[[], float], max_bytes: int, max_age_s: float) -> None:
        """``kind``: as errors name it. ``now``: seconds of any clock that only goes forward."""
        self.kind = kind
        self.max_each = max_bytes // 4
        """The most bytes of one tenant."""
        self.changed: Callable[[str, str], object] = _nothing
        """Is told of each change, by the tenant and the id of the entry."""
        self._now = now
        self._max_bytes = max_bytes
        self.max_age_s = max_age_s
        self._tenants: dict[str, _Tenant[E]] = {}
        self._bytes = 0

    def of(self, tenant: str) -> TenantsEntries[E]:
        return TenantsEntries(self, tenant)

    def keep(self, tenant: str, kept: E, age_s: float = 0.0) -> None:
        """Keep an entry, or what has changed of one. ``age_s``: for how long it has been as it is."""
        self.expire()
        self._forget(tenant, kept.id)
        kept.since = self._now() - age_s
        kept.n_bytes = kept.size()
        own = self._tenants.setdefault(tenant, _Tenant())
        own.kept[kept.id] = kept
        own.n_bytes += kept.n_bytes
        self._bytes += kept.n_bytes
        self.changed(tenant, kept.id)
        while own.kept and own.n_bytes > self.max_each:
            self._drop_oldest(tenant)
        while self._bytes > self._max_bytes:
            self._drop_oldest(max(self._tenants, key=lambda name: self._tenants[name].n_bytes))

    def find(self, tenant: str, entry_id: str) -> E | None:
        return self._tenants.get(tenant, _Tenant[E]()).kept.get(entry_id)

    def get(self, tenant: str, entry_id: str, name: str) -> E:
        """An entry; raises ``RequestError`` with the field ``name`` where this tenant has none of this id."""
        self.expire()
        kept = self.find(tenant, entry_id)
        if kept is None:
            expected = f"the id of a {self.kind}{_of_last(self.max_age_s)} that is still stored"
            raise RequestError(Fault.NOT_FOUND, name, f"expected {expected}, got {entry_id[:64]}")
        return kept

    def all(self, tenant: str) -> list[E]:
        """The entries of a tenant, the oldest first."""
        self.expire()
        return [*self._tenants.get(tenant, _Tenant[E]()).kept.values()]

    def everyones(self) -> Iterator[tuple[str, E]]:
        """The entries of all, each with its tenant."""
        return ((tenant, kept) for tenant, own in self._tenants.items() for kept in own.kept.values())

    def drop(self, tenant: str, entry_id: str) -> None:
        """Forget an entry, and end it where it goes on in the background."""
        kept = self._forget(tenant, entry_id)
        if kept is not None:
            kept.deleted = True
            self.changed(tenant, entry_id)
            kept.end()

    def expire(self) -> None:
        """Forget those that are too old."""
        until = self._now() - self.max_age_s
        for tenant, entry_id in [*self._older(until)]:
            self.drop(tenant, entry_id)

    def _older(self, until: float) -> Iterator[tuple[str, str]]:
        for tenant, own in self._tenants.items():
            for kept in own.kept.values():
                if kept.since >= until:
                    break  # The oldest are first.
                yield tenant, kept.id

    def _drop_oldest(self, tenant: str) -> None:
        oldest = next(iter(self._tenants[tenant].kept))
        log.info("%s %s: evicted to store newer ones", self.kind, oldest)
        self.drop(tenant, oldest)

    def _forget(self, tenant: str, entry_id: str) -> E | None:
        own = self._tenants.get(tenant)
        kept = None if own is None else own.kept.pop(entry_id, None)
        if own is not None and kept is not None:
            own.n_bytes -= kept.n_bytes
            self._bytes -= kept.n_bytes
            if not own.kept:
                del self._tenants[tenant]
        return kept


def _nothing(_tenant: str, _id: str) -> None:
    return None


def _of_last(seconds: float) -> str:
    if math.isinf(seconds):
        return ""
    days = seconds / 86400
    return f" of the last {days:g} days" if days >= 1 else f" of the last {seconds / 60:.0f} minutes"


class TenantsEntries(Generic[E]):
    """Entries of one tenant; another's don't exist for it."""

    def __init__(self, all_: KeptEntries[E], tenant: str) -> None:
        self._all = all_
        self._tenant = tenant

    @property
    def max_bytes(self) -> int:
        return self._all.max_each

    @property
    def max_age_s(self) -> float:
        """Age at which one is forgotten, in seconds; infinite where none is."""
        return self._all.max_age_s

    def keep(self, kept: E) -> None:
        self._all.keep(self._tenant, kept)

    def get(self, entry_id: str, name: str) -> E:
        """The entry of this id; raises ``RequestError``."""
        return self._all.get(self._tenant, entry_id, name)

    def find(self, entry_id: str) -> E | None:
        return self._all.find(self._tenant, entry_id)

    def all(self) -> list[E]:
        """The entries, the oldest first."""
        return self._all.all(self._tenant)

    def drop(self, entry_id: str) -> None:
        self._all.drop(self._tenant, entry_id)


class AllKept:
    """Responses and conversations of all tenants."""

    def __init__(
        self,
        now: Callable[[], float],
        max_bytes: int = MAX_BYTES_IN_ALL,
        max_age_s: float = MAX_AGE_S,
        *,
        on_disk: bool = False,
    ) -> None:
        """``now``, ``max_age_s``: as of ``KeptEntries``. ``max_bytes``: of both kinds together. ``on_disk``: whether a
        file has a copy of them."""
        self._on_disk = on_disk
        self.responses = KeptEntries[StoredResponse]("response", now, max_bytes // 2, max_age_s)
        self.conversations = KeptEntries[StoredConversation]("conversation", now, max_bytes // 2, max_age_s)

    def of(self, tenant: str) -> TenantsKept:
        return TenantsKept(self.responses.of(tenant), self.conversations.of(tenant), self._on_disk)

    def expire(self) -> None:
        self.responses.expire()
        self.conversations.expire()


@dataclass(frozen=True, slots=True)
class TenantsKept:
    """Responses and conversations of one tenant."""

    responses: TenantsEntries[StoredResponse]
    conversations: TenantsEntries[StoredConversation]
    on_disk: bool
    """Whether they outlive the program."""
