"""The states of a relayed request, and the table of its transitions."""

from __future__ import annotations

import enum


class State(enum.Enum):
    NEW = "new"
    WAITING = "waiting"
    """Request that no worker has: it is queued, or just being dispatched or refused."""
    IN_FLIGHT = "in flight"
    """Request that a worker has, while no output but comments has reached its client: it can still be requeued."""
    STREAMING = "streaming"
    """Request of which output has reached its client."""
    DONE = "done"
    FAILED = "failed"
    LEFT = "left"
    """Request whose client has disconnected."""


class Event(enum.Enum):
    """Event that changes a request's state."""

    SUBMIT = "submit"
    DISPATCH = "dispatch"
    LOSE_WORKER = "lose worker"
    OUTPUT = "output"
    FINISH = "finish"
    FAIL = "fail"
    LEAVE = "leave"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.NEW, Event.SUBMIT): State.WAITING,
    (State.WAITING, Event.DISPATCH): State.IN_FLIGHT,
    (State.WAITING, Event.FAIL): State.FAILED,
    (State.WAITING, Event.LEAVE): State.LEFT,
    (State.IN_FLIGHT, Event.LOSE_WORKER): State.WAITING,
    (State.IN_FLIGHT, Event.OUTPUT): State.STREAMING,
    (State.IN_FLIGHT, Event.FINISH): State.DONE,
    (State.IN_FLIGHT, Event.FAIL): State.FAILED,
    (State.IN_FLIGHT, Event.LEAVE): State.LEFT,
    (State.STREAMING, Event.FINISH): State.DONE,
    (State.STREAMING, Event.FAIL): State.FAILED,
    (State.STREAMING, Event.LEAVE): State.LEFT,
}

WITH_WORKER = frozenset({State.IN_FLIGHT, State.STREAMING})
ENDED = frozenset({State.DONE, State.FAILED, State.LEFT})


class TransitionError(Exception):
    """A transition that isn't in the table: a bug of ours, never the client's fault."""
