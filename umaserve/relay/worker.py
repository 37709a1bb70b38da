"""A registered worker, and its connection as the pool sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from umaserve.net.timers import Timer
from umaserve.relay.request import RelayedRequest
from umaserve.wire.relay_messages import WEBSOCKET, FromProxy

ANY_MODEL = "*"


class Link(Protocol):
    """One worker's connection."""

    @property
    def overfull(self) -> bool:
        """Whether so much waits for the worker that clients should wait too."""

    def send(self, message: FromProxy) -> None: ...

    def close(self, code: int, reason: str) -> None:
        """End it; the pool is told by ``lost``."""


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
    """What it said that it does besides our requests."""
    in_flight: dict[str, RelayedRequest] = field(default_factory=dict)
    cancelled: dict[str, Timer] = field(default_factory=dict)
    """Requests that are nobody's any more and still have their place."""
    given_at: int = 0
    """By the pool's count, when it was last given a request."""
    draining: bool = False
    drain: Timer | None = None

    @property
    def occupied(self) -> int:
        return len(self.in_flight) + len(self.cancelled)

    @property
    def load(self) -> int:
        return self.others + self.occupied

    @property
    def free(self) -> bool:
        return not self.draining and self.occupied < self.max_concurrent and not self.link.overfull

    @property
    def takes_websockets(self) -> bool:
        return WEBSOCKET in self.features

    def offers(self, model: str) -> bool:
        """Whether it has ``model``, or any at all where that is empty."""
        if not model:
            return bool(self.models)  # One that offers none wants no work, or is leaving.
        return model in self.models or ANY_MODEL in self.models

    def serves(self, request: RelayedRequest) -> bool:
        return self.offers(request.model) and (self.takes_websockets or not request.is_websocket)

    def report(self, load: int) -> None:
        """It says how much it does, ours included."""
        self.others = max(0, load - self.occupied)
