"""A relayed request, and the interface of its client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from umaserve.dialects.parameters import PRIORITY_HEADER
from umaserve.net.timers import Timer
from umaserve.relay.pool.accounts import Tally
from umaserve.relay.pool.states import ENDED, TRANSITIONS, WITH_WORKER, Event, State, TransitionError
from umaserve.wire.relay_codec import encode
from umaserve.wire.relay_messages import WEBSOCKETS, Request

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""The largest message that workers accept. A larger one would close a worker's connection, with all its requests."""
MAX_ESCAPED = 6
"""The most bytes of one character in JSON."""


class Clock(Protocol):
    """Clock and timers that the pool needs of the loop."""

    def now(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer: ...


class Client(Protocol):
    """A request's client. Exactly one of ``respond``, ``end`` and ``fail`` is called; only these may be called during
    the client's own call into the pool."""

    def respond(self, status: int, headers: Mapping[str, str], body: str | bytes) -> None:
        """Send the whole reply."""

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the start of a reply that comes in parts."""

    def write(self, chunk: str | bytes) -> None: ...

    def end(self) -> None: ...

    def fail(self, status: int, error: str) -> None:
        """Tell that there is no reply, or that the rest of it is missing."""


class Trace(Protocol):
    """Follows a request through its states."""

    def moved(self, state: State) -> None: ...


@dataclass(slots=True, eq=False)
class RelayedRequest:
    """A request, from its arrival until its client is told of the end. Times are the loop's, in seconds."""

    id: str
    model: str
    """Name of the model; empty means any model, for WebSockets and for tools without one."""
    path: str
    is_streaming: bool
    body: str | bytes
    headers: Mapping[str, str]
    client: Client
    needs: str = ""
    """The feature that its worker must have, if any."""
    beginning: int | None = None
    """Number for what all turns of its conversation have in common, in 64 bits: by that it goes to where the last one
    was."""
    tally: Tally | None = None
    """Counts its tokens for its key, if it has one."""
    home: str = ""
    """The place of its conversation's own worker, where it had to wait: that of the time when it first did."""

    trace: Trace | None = None

    state: State = State.NEW
    number: int = 0
    """Number in order of arrival, which a requeue does not change."""
    asked_at: float = 0.0
    waited_s: float = 0.0
    """The time in the queue up to its last dispatch."""
    queued_at: float = 0.0
    requeues: int = 0
    frames: list[str] = field(default_factory=list)
    """A WebSocket's messages from the client after the first one, up to the first output."""
    opened: bool = False
    """Whether its client has the head of a stream, and perhaps comments: it may still be requeued."""
    held: str = ""
    """Output held back from the client until it is clear whether it is a stream."""
    output_bytes: int = 0
    paused: bool = False
    timer: Timer | None = None
    """The deadline, in the queue and in flight."""

    @property
    def order(self) -> tuple[bool, int]:
        """Order in which it waits: by arrival, and in the background after all others."""
        return self.headers.get(PRIORITY_HEADER) == "background", self.number

    @property
    def is_websocket(self) -> bool:
        return self.needs in WEBSOCKETS

    @property
    def in_flight(self) -> bool:
        """Whether a worker has it."""
        return self.state in WITH_WORKER

    @property
    def over(self) -> bool:
        """Whether its client was told of the end, or has left."""
        return self.state in ENDED

    @property
    def begun(self) -> bool:
        """Whether output has reached the client."""
        return self.state is State.STREAMING

    def move(self, event: Event) -> None:
        """Change the state; no other code does."""
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            raise TransitionError(f"request {self.id}: {event.value!r} in state {self.state.value!r}")
        self.state = state
        if self.trace is not None:
            self.trace.moved(state)
        if self.over and self.tally is not None:
            self.tally.close()

    def opening(self) -> Request:
        """The first message to its worker."""
        return Request(self.id, self.model, self.path, self.is_streaming, self.body, self.headers)

    def frame(self, text: str) -> Request:
        """Make one more message of a WebSocket; only the first one has the headers."""
        return Request(self.id, self.model, self.path, self.is_streaming, text)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def __repr__(self) -> str:
        return f"RelayedRequest({self.id})"


def fits(message: Request) -> bool:
    """Whether the message is small enough for workers."""
    if MAX_ESCAPED * len(message.body) < MAX_MESSAGE_BYTES // 2:
        return True  # The headers have at most 16 KiB.
    return len(encode(message)) <= MAX_MESSAGE_BYTES
