"""A registered worker, and the interface of its connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from umaserve.net.timers import Timer
from umaserve.relay.pool.request import RelayedRequest
from umaserve.wire.relay_messages import FromProxy

ANY_MODEL = "*"
Rank = tuple[bool, int, int]
"""Rank by which workers are preferred: whether all its slots are taken, as far as is known; its load; its last
dispatch."""


class Link(Protocol):
    """A worker's connection."""

    @property
    def overfull(self) -> bool:
        """Whether so much output is queued for the worker that clients must wait."""

    def send(self, message: FromProxy) -> None: ...

    def close(self, code: int, reason: str) -> None:
        """Close the connection; the pool's ``lost`` is called."""


@dataclass(slots=True, eq=False)
class Worker:
    """A registered worker."""

    id: str
    name: str
    link: Link
    models: Sequence[str]
    max_concurrent: int
    features: frozenset[str]
    others: int = 0
    """The reported load beyond our requests."""
    instance: str = ""
    """Name of the worker at all relays, where it says so."""
    elsewhere: int = 0
    """Load that other relays have given it, as they say: sooner than by its own report, which has these too."""
    in_flight: dict[str, RelayedRequest] = field(default_factory=dict)
    cancelled: dict[str, Timer] = field(default_factory=dict)
    """Cancelled requests that still occupy a slot, by id."""
    contexts: Mapping[str, int] = field(default_factory=dict)
    """Tokens of prompt and answer together by the names of models, where the worker says so."""
    place: str = ""
    """Name of the worker, or one made of it where several have the same: no other worker's, but the same after a
    restart."""
    given_at: int = 0
    """The number of the last dispatch to it, in the pool's count."""
    draining: bool = False
    drain: Timer | None = None

    @property
    def occupied(self) -> int:
        return len(self.in_flight) + len(self.cancelled)

    @property
    def load(self) -> int:
        return max(self.others, self.elsewhere) + self.occupied

    @property
    def has_slot(self) -> bool:
        return not self.draining and self.occupied < self.max_concurrent

    @property
    def free(self) -> bool:
        """Whether it may be given a request now."""
        return self.has_slot and not self.link.overfull

    @property
    def rank(self) -> Rank:
        return self.load >= self.max_concurrent, self.load, self.given_at

    def offers(self, model: str) -> bool:
        """Whether it has ``model``, or any model where that is empty."""
        if not model:
            return bool(self.models)  # A worker without models wants no requests, or is leaving.
        return model in self.models or ANY_MODEL in self.models

    def serves(self, request: RelayedRequest) -> bool:
        return self.offers(request.model) and (not request.needs or request.needs in self.features)

    def report(self, load: int) -> None:
        """Take the load that it reports, which includes our requests."""
        self.others = max(0, load - self.occupied)
