"""Commands of clients to the sessions: to begin, end, replace and steer a generation, and to ask for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from umaserve.core.requests import Generate


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the running request with this id at the next token boundary."""

    id: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Drop the running request without further output, and start this one in its place."""

    request: Generate


@dataclass(frozen=True, slots=True)
class Modify:
    """Continue the running request with this one's sampling, except the grammar, ``max_tokens`` and ``stop``.

    It is complete, and independent of earlier changes: of several that wait, only the last one is applied.
    """

    request: Generate


@dataclass(frozen=True, slots=True)
class EndThought:
    """Close the thought that the running request is in, or begins next."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Generate no more tokens until ``Resume``."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on after ``Pause``."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """A client's feedback on a generation, to be stored."""

    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Reattach:
    """Take over a lost connection's generation, from its token number ``position`` (from 0) on."""

    request_id: str
    position: int


@dataclass(frozen=True, slots=True)
class GetMetrics:
    """Ask for one snapshot of the metrics."""


Steering = Modify | EndThought | Pause | Resume
Command = Generate | Cancel | Replace | Steering | Feedback | Reattach | GetMetrics
