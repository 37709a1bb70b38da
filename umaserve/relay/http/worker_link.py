"""A worker's connection: registration, messages, heartbeats, close."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from umaserve.core.errors import Fault, RequestError
from umaserve.net.backlog import Backlog
from umaserve.net.channel import Channel
from umaserve.net.loop import Loop
from umaserve.relay.pool.pool import Pool
from umaserve.relay.pool.worker import Worker
from umaserve.wire.relay_codec import accepted_models, encode, parse_from_worker
from umaserve.wire.relay_messages import (
    FEATURES,
    FromProxy,
    ModelsUpdate,
    Ping,
    Pong,
    Register,
    RegisterAck,
    ResponseChunk,
    ResponseComplete,
    WorkerError,
)
from umaserve.wire.websocket import CloseCode, WebSocketCodec

log = logging.getLogger(__name__)

MESSAGES_PER_TURN = 64
MAX_LOGGED = 1024
VERSIONS = ("1", "2026-04-bridge-v1", None)
MAX_MODELS = 256
"""Models that one worker may offer."""


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Times, in seconds."""

    heartbeat_interval: float
    heartbeat_timeout: float
    register_timeout: float


class WorkerLink:
    """The channel's handler after the upgrade. A worker that breaks the protocol is disconnected, without effect on
    others."""

    def __init__(
        self,
        loop: Loop,
        pool: Pool,
        channel: Channel,
        codec: WebSocketCodec,
        limits: LinkLimits,
        peer: str,
        lost: Callable[[WorkerLink], None],
    ) -> None:
        self.channel = channel
        self._loop = loop
        self._pool = pool
        self._codec = codec
        self._limits = limits
        self._peer = peer
        self._lost = lost
        self._worker: Worker | None = None
        self._backlog = Backlog(loop, channel, self._handle_messages, MESSAGES_PER_TURN)
        self._heard_at = loop.now()
        self._heartbeat = loop.call_later(limits.register_timeout, self._not_registered)
        channel.handler = self

    # -- from the pool -------------------------------------------------------------------------------------------

    @property
    def overfull(self) -> bool:
        return self.channel.overfull

    def send(self, message: FromProxy) -> None:
        self.channel.write(self._codec.send(encode(message)))

    def close(self, code: int = CloseCode.GOING_AWAY, reason: str = "") -> None:
        """Close the connection with a code and a reason."""
        if self._worker is not None:
            fields = {"worker": self._worker.id, "name": self._worker.name, "code": code, "reason": reason}
            log.info("closing a worker's connection", extra={"fields": fields})
        self.channel.write(self._codec.close(code, reason))
        self.channel.close()
        # Its later messages are ignored: its requests go to other workers.
        self._forget_worker()

    # -- from the channel ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.now()
        self._codec.receive_data(data)
        self._handle_messages()

    def input_ended(self) -> None:
        # Messages already received are still handled, some in later turns; then the connection ends.
        self._codec.receive_eof()
        self._handle_messages()

    def wants_data(self) -> bool:
        return not self._backlog.waiting

    def drained(self) -> None:
        if self._worker is not None:
            self._pool.drained(self._worker)

    def connection_lost(self) -> None:
        self._heartbeat.cancel()
        self._forget_worker()
        self._lost(self)

    def _forget_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            log.info("worker lost", extra={"fields": {"worker": worker.id, "name": worker.name, "peer": self._peer}})
            self._pool.lost(worker)

    # -- messages ------------------------------------------------------------------------------------------------

    def _handle_messages(self) -> None:
        self._backlog.run(self._handle_one)
        if not self.channel.open:
            return
        self.channel.write(self._codec.take_output())
        if self._codec.closed:
            # At once, or it would get requests until the channel is gone.
            self._forget_worker()
            self.channel.close()

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
            fields = {"peer": self._peer, "error": str(error)}
            log.warning("closed a worker's connection: invalid message", extra={"fields": fields})
            what = "worker protocol error" if self._worker is not None else "worker registration protocol error"
            self.close(CloseCode.PROTOCOL_ERROR, what)
        return True

    def _take(self, payload: bytes) -> None:
        message = parse_from_worker(payload)
        worker = self._worker
        if worker is None:
            self._register(message)
            return
        match message:
            case ResponseChunk():
                self._pool.replies.chunk(worker, message)
            case ResponseComplete():
                self._pool.replies.complete(worker, message)
            case Pong():
                self._pool.report(worker, message.current_load)
            case ModelsUpdate():
                models, _warnings = accepted_models(message.models, MAX_MODELS)
                self._pool.update(worker, models, message.current_load, message.contexts)
            case WorkerError():
                about = {"worker": worker.id, "request": message.request_id, "code": message.code}
                fields = about | {"error": message.message[:MAX_LOGGED]}
                log.warning("error reported by a worker", extra={"fields": fields})
                self._pool.replies.error(worker, message)
            case Register():
                raise RequestError(Fault.BAD_REQUEST, "type", "expected register only once")

    def _register(self, message: object) -> None:
        if not isinstance(message, Register):
            raise RequestError(Fault.BAD_REQUEST, "type", "expected register first")
        if message.protocol_version not in VERSIONS:
            raise RequestError(
                Fault.BAD_REQUEST, "protocol_version", f'expected "1", got "{message.protocol_version[:64]}"'
            )
        models, warnings = accepted_models(message.models, MAX_MODELS)
        features = [feature for feature in FEATURES if feature in message.features]
        worker = self._pool.register(
            self,
            message.worker_name,
            models,
            message.max_concurrent,
            message.current_load or 0,
            features,
            message.instance or "",
            message.contexts,
        )
        self._worker = worker
        self.send(RegisterAck(worker.id, models, message.protocol_version, warnings, tuple(features)))
        about = {"worker": worker.id, "name": worker.name, "peer": self._peer, "models": ",".join(models)}
        log.info("worker registered", extra={"fields": {**about, "max_concurrent": worker.max_concurrent}})
        self._heartbeat.cancel()
        self._heartbeat = self._loop.call_later(self._limits.heartbeat_interval, self._beat)
        self._pool.activate(worker)

    # -- heartbeats ----------------------------------------------------------------------------------------------

    def _not_registered(self) -> None:
        log.info("%s: closed: it did not register in time", self._peer)
        self.close(CloseCode.PROTOCOL_ERROR, "worker registration protocol error")

    def _beat(self) -> None:
        """Ping at a fixed interval, also while there is other traffic: some workers leave a relay that doesn't."""
        if self._loop.now() - self._heard_at >= self._limits.heartbeat_timeout:
            self.close(CloseCode.NORMAL_CLOSURE, "worker heartbeat timed out")
            return
        self.send(Ping(int(time.time() * 1000)))
        self._heartbeat = self._loop.call_later(self._limits.heartbeat_interval, self._beat)
