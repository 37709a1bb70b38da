"""Sessions: one request each, from its reception to its end, moved through one transition table by one writer."""

from __future__ import annotations

import enum
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from umaserve.errors import Fault, RequestError
from umaserve.messages import Finished, FinishReason, Generate, Output, Token, Usage
from umaserve.serving.ticks import Prepared

log = logging.getLogger(__name__)


class State(enum.Enum):
    """Contract: uds-framed-json, State Machine."""

    RECV_REQ = "RECV_REQ"
    """No request yet."""
    PREFILL = "PREFILL"
    """The prompt waits or is being computed."""
    DECODE = "DECODE"
    """The stream gets a token in each tick."""
    STREAM = "STREAM"
    """Computed tokens wait for a reader that is behind; no more are computed until it has caught up."""
    DONE = "DONE"
    ERRORED = "ERRORED"


class Event(enum.Enum):
    """What moves a session."""

    REQUEST = "request"
    PROMPT_DONE = "prompt done"
    HOLD = "hold"
    RELEASE = "release"
    FINISH = "finish"
    FAIL = "fail"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.RECV_REQ, Event.REQUEST): State.PREFILL,
    (State.RECV_REQ, Event.FINISH): State.DONE,
    (State.PREFILL, Event.PROMPT_DONE): State.DECODE,
    (State.PREFILL, Event.FINISH): State.DONE,
    (State.PREFILL, Event.FAIL): State.ERRORED,
    (State.DECODE, Event.HOLD): State.STREAM,
    (State.DECODE, Event.FINISH): State.DONE,
    (State.DECODE, Event.FAIL): State.ERRORED,
    (State.STREAM, Event.RELEASE): State.DECODE,
    (State.STREAM, Event.FINISH): State.DONE,
    (State.STREAM, Event.FAIL): State.ERRORED,
}

RUNNING = frozenset({State.PREFILL, State.DECODE, State.STREAM})

Sink = Callable[[Output | RequestError], None]


class TransitionError(Exception):
    """A move that the table does not hold: our own mistake, never the client's."""


@dataclass(slots=True, eq=False)
class Session:
    """One request. Times are in the loop's seconds."""

    id: int
    sink: Sink
    peer: str
    state: State = State.RECV_REQ
    request: Generate | None = None
    prepared: Prepared | None = None
    slot: int | None = None
    computed: int = 0
    """Tokens of this sequence in the KV cache."""
    generated: list[int] = field(default_factory=list)
    outbox: deque[Output | RequestError] = field(default_factory=deque)
    requested_at: float = 0.0
    started_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None

    @property
    def running(self) -> bool:
        return self.state in RUNNING

    @property
    def usage(self) -> Usage:
        prompt = 0 if self.prepared is None else len(self.prepared.tokens)
        return Usage(prompt, len(self.generated))


@dataclass(slots=True)
class Totals:
    """Counters since the start."""

    sessions: int = 0
    rejected: int = 0


class SessionManager:
    """All sessions that have not ended; the only writer of their states."""

    def __init__(self) -> None:
        self.totals = Totals()
        self.draining = False
        self._ids = itertools.count(1)
        self._running: dict[int, Session] = {}
        self._arrived: dict[int, Session] = {}
        self._with_output: dict[int, Session] = {}

    def open(self, sink: Sink, peer: str) -> Session:
        """A session that waits for its request. ``sink`` gets its outputs, and a ``RequestError`` if it fails."""
        self.totals.sessions += 1
        return Session(next(self._ids), sink, peer)

    def request(self, session: Session, request: Generate, now: float) -> None:
        """Start ``request``; raises ``RequestError`` while the daemon shuts down."""
        if self.draining:
            raise RequestError(Fault.SHUTTING_DOWN, "request: the server is shutting down; try again later", request.id)
        self._move(session, Event.REQUEST)
        session.request = request
        session.requested_at = now
        self._running[session.id] = session
        self._arrived[session.id] = session

    def cancel(self, session: Session, request_id: str) -> None:
        """End a running request; one that has ended, or another id, is no error: a cancel may cross the end."""
        if session.running and session.request is not None and session.request.id == request_id:
            self.finish(session, FinishReason.CANCELLED)

    def abandon(self, session: Session) -> None:
        """The client is gone: nothing is delivered any more."""
        if session.state not in (State.DONE, State.ERRORED):
            self._end(session, Event.FINISH)
        session.outbox.clear()
        self._with_output.pop(session.id, None)

    def hold(self, session: Session) -> None:
        """Its reader is behind: stop decoding it."""
        if session.state is State.DECODE:
            self._move(session, Event.HOLD)

    def release(self, session: Session) -> None:
        """Its reader has caught up."""
        if session.state is State.STREAM:
            self._move(session, Event.RELEASE)

    def prompt_done(self, session: Session) -> None:
        self._move(session, Event.PROMPT_DONE)

    def put(self, session: Session, output: Output | RequestError) -> None:
        """Queue ``output`` for the next ``deliver``."""
        session.outbox.append(output)
        self._with_output[session.id] = session

    def finish(self, session: Session, reason: FinishReason) -> None:
        """End with ``reason``, after what was queued and the text that was held back."""
        self._end(session, Event.FINISH)
        held_back = "" if session.prepared is None else session.prepared.text.finish()
        if held_back:
            self.put(session, Token(held_back, session.generated[-1]))
        self.put(session, Finished(reason, session.usage))

    def fail(self, session: Session, error: RequestError) -> None:
        """End with an error after what was queued."""
        if session.request is not None:
            error.request_id = session.request.id
        self._end(session, Event.FAIL)
        self.put(session, error)

    def _end(self, session: Session, event: Event) -> None:
        self._move(session, event)
        self._running.pop(session.id, None)
        self._arrived.pop(session.id, None)

    def take_arrived(self) -> list[Session]:
        """Sessions whose request came since the last call and still stands."""
        arrived, self._arrived = self._arrived, {}
        return list(arrived.values())

    def get(self, session_id: int) -> Session:
        """The running session of this id."""
        return self._running[session_id]

    def running(self) -> Iterator[Session]:
        """Sessions with a request that has not ended, oldest first."""
        return iter(self._running.values())

    @property
    def undelivered(self) -> bool:
        """Whether outputs wait for ``deliver``."""
        return bool(self._with_output)

    def deliver(self) -> Iterator[tuple[Session, Output | RequestError]]:
        """Hand each queued output to its sink, and give it to the caller as well, after it was handed over."""
        while self._with_output:
            sessions, self._with_output = self._with_output, {}
            for session in sessions.values():
                # One by one, since a sink may abandon this session or another.
                while session.outbox:
                    output = session.outbox.popleft()
                    session.sink(output)
                    yield session, output

    def _move(self, session: Session, event: Event) -> None:
        state = TRANSITIONS.get((session.state, event))
        if state is None:
            raise TransitionError(f"session {session.id}: {event.value!r} in state {session.state.value}")
        log.debug("session %d: %s -> %s (%s)", session.id, session.state.value, state.value, event.value)
        session.state = state
