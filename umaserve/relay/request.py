"""One client's request on its way through the relay, and what the relay tells that client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from umaserve.net.timers import Timer
from umaserve.relay.states import TRANSITIONS, WITH_WORKER, Event, State, TransitionError
from umaserve.wire.relay_codec import encode
from umaserve.wire.relay_messages import Request

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""What workers take in one message. A larger one would cost a worker its connection, and others their answers."""
MAX_ESCAPED = 6
"""Bytes that a character has in JSON, at most."""


class Clock(Protocol):
    """What requests need of the loop."""

    def now(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer: ...


class Client(Protocol):
    """Who asked. Is told of one end: ``respond``, ``end`` or ``fail``; never called back in the middle of its own call
    into the pool but to be given that end."""

    def respond(self, status: int, headers: Mapping[str, str], body: str) -> None:
        """The whole reply."""

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """A reply that comes in parts."""

    def write(self, chunk: str) -> None: ...

    def end(self) -> None: ...

    def fail(self, status: int, error: str) -> None:
        """No reply, or no more of it."""


@dataclass(slots=True, eq=False)
class RelayedRequest:
    """A request, from when the relay has taken it until its client was given the end. Times are the loop's, seconds."""

    id: str
    model: str
    """Empty: any, which only a WebSocket's may be."""
    path: str
    is_streaming: bool
    body: str
    headers: Mapping[str, str]
    client: Client
    is_websocket: bool = False

    state: State = State.NEW
    number: int = 0
    """Its place in the order of arrival, which a requeue does not change."""
    asked_at: float = 0.0
    waited_s: float = 0.0
    """In the queue, until its last worker had it."""
    queued_at: float = 0.0
    requeues: int = 0
    frames: list[str] = field(default_factory=list)
    """Of a WebSocket: what the client sent after its first message and before any output."""
    held: str = ""
    """Output that has not reached the client, since it may prove to be no stream."""
    output_bytes: int = 0
    paused: bool = False
    timer: Timer | None = None
    """In the queue and in flight: the deadline."""

    @property
    def in_flight(self) -> bool:
        """Whether a worker has it."""
        return self.state in WITH_WORKER

    @property
    def begun(self) -> bool:
        """Whether output has reached the client."""
        return self.state is State.STREAMING

    def move(self, event: Event) -> None:
        """The one place where its state changes."""
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            raise TransitionError(f"request {self.id}: {event.value!r} in state {self.state.value!r}")
        self.state = state

    def opening(self) -> Request:
        """What its worker is told first."""
        return Request(self.id, self.model, self.path, self.is_streaming, self.body, self.headers)

    def frame(self, text: str) -> Request:
        """One more message of a WebSocket, without the headers, which each would repeat."""
        return Request(self.id, self.model, self.path, self.is_streaming, text)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def __repr__(self) -> str:
        return f"RelayedRequest({self.id})"


def fits(message: Request) -> bool:
    """Whether a worker takes it."""
    if MAX_ESCAPED * len(message.body) < MAX_MESSAGE_BYTES // 2:
        return True  # A head has 16 KiB at most.
    return len(encode(message)) <= MAX_MESSAGE_BYTES
