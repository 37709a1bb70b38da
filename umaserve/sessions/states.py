"""The states of a request, and the table of all transitions between them."""

from __future__ import annotations

import enum


class State(enum.Enum):
    """Contract: uds-framed-json, State Machine. Its RECV_REQ is a state of connections: there is no session yet."""

    PREFILL = "PREFILL"
    """The prompt waits or is being computed."""
    DECODE = "DECODE"
    """The stream gets a token in each tick."""
    STREAM = "STREAM"
    """No tokens are computed for now: the reader is behind or disconnected, or the stream is paused."""
    DONE = "DONE"
    ERRORED = "ERRORED"


class Event(enum.Enum):
    """What changes the state of a session."""

    PROMPT_DONE = "prompt done"
    HOLD = "hold"
    RELEASE = "release"
    PREEMPT = "preempt"
    FINISH = "finish"
    FAIL = "fail"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.PREFILL, Event.PROMPT_DONE): State.DECODE,
    (State.PREFILL, Event.PREEMPT): State.PREFILL,
    (State.PREFILL, Event.FINISH): State.DONE,
    (State.PREFILL, Event.FAIL): State.ERRORED,
    (State.DECODE, Event.HOLD): State.STREAM,
    (State.DECODE, Event.PREEMPT): State.PREFILL,
    (State.DECODE, Event.FINISH): State.DONE,
    (State.DECODE, Event.FAIL): State.ERRORED,
    (State.STREAM, Event.RELEASE): State.DECODE,
    (State.STREAM, Event.PREEMPT): State.PREFILL,
    (State.STREAM, Event.FINISH): State.DONE,
    (State.STREAM, Event.FAIL): State.ERRORED,
}

RUNNING = (State.DECODE, State.PREFILL, State.STREAM)
"""A tuple, since a set's lookup calls the hash function of enumerations, which is written in Python."""


class TransitionError(Exception):
    """A transition that the table does not have: a bug of ours, never the client's fault."""
