"""The states of a relayed request, and the one table of what moves it from which to which."""

from __future__ import annotations

import enum


class State(enum.Enum):
    NEW = "new"
    WAITING = "waiting"
    """No worker has it: it is in the queue, unless it is just being dispatched or refused."""
    IN_FLIGHT = "in flight"
    """A worker has it, and no output has reached its client: another worker may yet be given it."""
    STREAMING = "streaming"
    """Output has reached its client."""
    DONE = "done"
    FAILED = "failed"
    LEFT = "left"
    """Its client has gone."""


class Event(enum.Enum):
    """What moves a request."""

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


class TransitionError(Exception):
    """A move that the table does not hold: our own mistake, never the client's."""
