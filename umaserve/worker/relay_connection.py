"""One connection to a relay: handshake, registration, requests and their answers, and the end."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.net.backlog import Backlog
from umaserve.net.channel import READ_PER_TURN, Channel
from umaserve.net.loop import Loop
from umaserve.net.pings import Pings
from umaserve.system import logs
from umaserve.wire.http_head import shown
from umaserve.wire.relay_codec import encode, parse_from_proxy
from umaserve.wire.relay_messages import (
    BYTES,
    WEBSOCKET,
    Cancel,
    Flow,
    FromWorker,
    GracefulShutdown,
    ModelsRefresh,
    ModelsUpdate,
    Ping,
    Pong,
    Register,
    RegisterAck,
    Request,
    ResponseChunk,
    ResponseComplete,
)
from umaserve.wire.websocket import CloseCode, State, WebSocketCodec
from umaserve.wire.websocket_handshake import HandshakeFailed, check_accept, read_answer
from umaserve.worker.backend import Backend
from umaserve.worker.running import Running

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""The limit of both kinds of relay, ModelRelay's and ours, in both directions."""
MESSAGES_PER_TURN = 64
PING_S = 30.0
"""Silence after which a relay is pinged. Some relays ping only a silent worker: while it streams, the answers to its
own pings are the only sign that the relay is alive."""
MAX_ENDED = 256
CANCELLED = 499
"""The non-standard status of a request that was cancelled."""


class _Phase(enum.Enum):
    HANDSHAKE = enum.auto()
    REGISTERING = enum.auto()
    SERVING = enum.auto()
    LEAVING = enum.auto()
    """Running requests are finished, then the connection is closed."""
    CLOSING = enum.auto()
    """Input is ignored; queued output is still written."""


@dataclass(frozen=True, slots=True)
class Opening:
    """How a connection begins: the handshake's request and key, and the first message; ``timeout`` seconds for all."""

    handshake: bytes
    key: str
    register: Register
    timeout: float


class RelayConnection:
    """Handler of a channel. ``acked`` is called when the relay acknowledges the registration, ``lost`` once at the
    end."""

    def __init__(
        self,
        loop: Loop,
        channel: Channel,
        opening: Opening,
        backend: Backend,
        acked: Callable[[], None],
        lost: Callable[[RelayConnection], None],
    ) -> None:
        self.channel = channel
        self.registered = False
        """Whether the registration was acknowledged."""
        self.dismissed = False
        """Whether the relay asked us to drain and leave."""
        self.reason = ""
        """Why the connection ended."""
        self.status: int | None = None
        """The HTTP status of a refused handshake."""
        self._loop = loop
        self._opening = opening
        self._backend = backend
        self._acked = acked
        self._lost = lost
        self._phase = _Phase.HANDSHAKE
        self._answer = bytearray()
        self._codec = WebSocketCodec(MAX_MESSAGE_BYTES, client=True)
        self._backlog = Backlog(loop, channel, self._handle_messages, MESSAGES_PER_TURN)
        self._features: frozenset[str] = frozenset()
        self._running: dict[str, Running] = {}
        self._ended: dict[str, None] = {}
        """The requests that ended last: a late WebSocket message for one of them is not a new request."""
        self._held = False
        """Whether all output is paused, since the relay reads slowly."""
        self._deadline = loop.call_later(opening.timeout, self._not_registered)
        self._pings: Pings | None = None
        channel.handler = self
        channel.write(opening.handshake)

    # -- from the link -------------------------------------------------------------------------------------------

    @property
    def close_code(self) -> int | None:
        """The code in the relay's close frame; ``None`` without one."""
        return self._codec.close_code

    @property
    def tells_late_errors(self) -> bool:
        """Only umaserve's relay, which agrees on features, reports a stream that ends with an error to its client."""
        return bool(self._features)

    @property
    def takes_bytes(self) -> bool:
        return BYTES in self._features

    @property
    def running(self) -> int:
        return len(self._running)

    def say_models(self) -> None:
        """Send the backend's models to the relay, unless we are leaving."""
        if self._phase is _Phase.SERVING:
            backend = self._backend
            self._send(ModelsUpdate(tuple(backend.models), backend.load, backend.contexts or None))

    def leave(self) -> None:
        """Drain: accept nothing new, finish running requests, then close."""
        if self._phase is _Phase.SERVING:
            self._send(ModelsUpdate((), self._backend.load))
            self._leave_when_done()
        elif self._phase is not _Phase.LEAVING:
            self.close(CloseCode.NORMAL_CLOSURE, "")

    def close(self, code: int, reason: str) -> None:
        """Close now; the relay may give running requests to other workers."""
        if self._phase is _Phase.CLOSING:
            return
        self._note(reason)
        if self._phase is _Phase.HANDSHAKE:
            self.channel.abort()
            return
        self.channel.write(self._codec.close(code, reason))
        self._end()

    def _end(self) -> None:
        self._phase = _Phase.CLOSING
        self._abort_jobs()
        self.channel.close()

    def _note(self, reason: str) -> None:
        # Only the first: it causes the others.
        self.reason = self.reason or reason

    # -- from the channel ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._phase is not _Phase.HANDSHAKE:
            self._codec.receive_data(data)
            self._handle_messages()
            return
        self._answer += data
        try:
            answer = read_answer(bytes(self._answer))
            if answer is not None:
                status, headers, rest = answer
                check_accept(status, headers, self._opening.key)
                self._begin(rest)
        except HandshakeFailed as error:
            self.status = error.status
            self._note(str(error))
            self.channel.abort()

    def _begin(self, rest: bytes) -> None:
        self._phase = _Phase.REGISTERING
        self._answer.clear()
        self._send(self._opening.register)
        self._codec.receive_data(rest)
        self._handle_messages()

    def input_ended(self) -> None:
        if self._phase is _Phase.HANDSHAKE:
            self._note("the relay ended the connection before it answered the handshake")
            self.channel.abort()
            return
        self._codec.receive_eof()
        self._handle_messages()

    def wants_data(self) -> bool:
        return not self._backlog.waiting or self._codec.buffered < READ_PER_TURN

    def drained(self) -> None:
        self._held = False
        for running in list(self._running.values()):
            # A resumed request may congest the channel again.
            if not self._held:
                running.pause_or_go_on(held=False)

    def connection_lost(self) -> None:
        self._note(self.channel.failure or "the connection was lost")
        self._phase = _Phase.CLOSING
        self._deadline.cancel()
        if self._pings is not None:
            self._pings.cancel()
        self._abort_jobs()
        self._lost(self)

    def _abort_jobs(self) -> None:
        running, self._running = self._running, {}
        for one in running.values():
            one.abort()

    def _not_registered(self) -> None:
        self.close(CloseCode.PROTOCOL_ERROR, f"no acknowledgement within {self._opening.timeout:.3g} s")

    # -- messages ------------------------------------------------------------------------------------------------

    def _handle_messages(self) -> None:
        self._backlog.run(self._handle_one)
        if not self.channel.open:
            return
        self.channel.write(self._codec.take_output())
        if self._codec.closed:
            self._note(self._why_closed())
            self._end()

    def _handle_one(self) -> bool:
        """Handle the next message; returns whether another one may be handled after it."""
        if not self.channel.open:
            return False
        payload = self._codec.next_payload()
        if payload is None:
            if self._codec.more:
                self._backlog.continue_later()
            return False
        try:
            self._take(payload)
        except RequestError as error:
            log.warning("invalid message from a relay: %s", error)
            self.close(CloseCode.PROTOCOL_ERROR, error.message)
        return True

    def _why_closed(self) -> str:
        if self._codec.state is State.LEFT:
            return f"the relay closed with {self._codec.close_code}: {shown(self._codec.close_reason)}"
        if self._codec.state is State.BROKEN:
            return "the relay broke the WebSocket protocol"
        return "the relay ended the connection"

    def _send(self, message: FromWorker) -> None:
        self.channel.write(self._codec.send(encode(message)))

    def _take(self, payload: bytes) -> None:
        message = parse_from_proxy(payload)
        if self._phase is _Phase.REGISTERING and not isinstance(message, RegisterAck | Ping):
            raise RequestError(Fault.BAD_REQUEST, "type", "expected register_ack first")
        match message:
            case RegisterAck():
                self._on_ack(message)
            case Ping():
                self._send(Pong(self._backend.load, message.timestamp_unix_ms))
            case Request():
                self._on_request(message)
            case Cancel(request_id):
                self._on_cancel(request_id)
            case Flow(request_id, paused):
                if request_id in self._running:
                    self._running[request_id].pause_or_go_on(by_client=paused)
            case ModelsRefresh():
                self._backend.refresh(self.say_models)
            case GracefulShutdown():
                self._on_graceful_shutdown(message)

    def _on_ack(self, ack: RegisterAck) -> None:
        if self._phase is not _Phase.REGISTERING:
            raise RequestError(Fault.BAD_REQUEST, "type", "expected register_ack only once")
        self._phase = _Phase.SERVING
        self.registered = True
        self._features = frozenset(ack.features)
        self._deadline.cancel()
        self._pings = Pings(self._loop, self.channel, PING_S, self._codec.ping, "a relay")
        fields = {"worker": ack.worker_id, "models": ",".join(ack.models), "features": ",".join(ack.features)}
        log.info("registered with a relay", extra={"fields": fields})
        for warning in ack.warnings:
            log.warning("warning from a relay: %s", shown(warning))
        # Some relays give a new worker no waiting requests until it sends a message.
        self.say_models()
        self._acked()

    def _on_graceful_shutdown(self, message: GracefulShutdown) -> None:
        log.info(
            "a relay asks this worker to disconnect",
            extra={"fields": {"reason": message.reason, "running": self.running}},
        )
        self.dismissed = True
        self._leave_when_done()

    def _leave_when_done(self) -> None:
        self._phase = _Phase.LEAVING
        for running in list(self._running.values()):
            running.leave()
        self._close_if_done()

    # -- requests ------------------------------------------------------------------------------------------------

    def _on_request(self, request: Request) -> None:
        running = self._running.get(request.request_id)
        if running is not None:
            running.frame(request.body if isinstance(request.body, str) else request.body.decode(errors="replace"))
            return
        if WEBSOCKET in self._features and request.request_id in self._ended:
            return
        running = Running(self, request, self._loop.now())
        self._running[request.request_id] = running
        if self.dismissed:
            running.complete(503, {}, orjson.dumps({"error": "the worker is leaving this relay"}).decode())
            return
        running.start(self._backend, held=self._held)

    def _on_cancel(self, request_id: str) -> None:
        running = self._running.get(request_id)
        if running is not None:
            running.abort()
            # The relay may count the request against our concurrency until it is complete.
            running.complete(CANCELLED, {}, "")

    def chunk(self, message: ResponseChunk) -> None:
        self._send(message)
        if self.channel.congested and not self._held:
            self._held = True
            for running in list(self._running.values()):
                running.pause_or_go_on(held=True)

    def complete(self, running: Running, message: ResponseComplete) -> None:
        del self._running[message.request_id]
        self._ended[message.request_id] = None
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        data = encode(message)
        if len(data) > MAX_MESSAGE_BYTES:
            # The relay would close the connection for it, and all other answers on it would be lost.
            error = f"response: expected at most {MAX_MESSAGE_BYTES} bytes as a message, got {len(data)}"
            message = ResponseComplete(message.request_id, 502, {}, orjson.dumps({"error": error}).decode())
            data = encode(message)
        self.channel.write(self._codec.send(data))
        fields = {
            "request": message.request_id,
            "path": running.request.endpoint_path,
            "status": message.status_code,
            "error": str(message.body or "")[:256] if message.status_code >= 500 else None,
            "total_ms": round((self._loop.now() - running.started_at) * 1000, 1),
        }
        logs.requests.info("request answered", extra={"fields": fields})
        self._loop.call_soon(self._close_if_done)

    def _close_if_done(self) -> None:
        if self._phase is _Phase.LEAVING and not self._running:
            self.close(CloseCode.NORMAL_CLOSURE, "")
