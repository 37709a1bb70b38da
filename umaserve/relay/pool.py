"""The pool: which worker gets which request, and what becomes of both. No sockets: links and clients are told.

The rules, and why:

1. A request goes to the worker with the lowest load of those that have its model and a free place, and have read what
   they were sent; among equals to the one that was given work longest ago.
2. Who finds none waits, in the order of arrival. A place that becomes free goes to the first in that order that its
   worker can serve: one model's wait is nobody else's. Who would wait for what no worker does is refused.
3. A request that loses its worker goes back to its place in that order, ``MAX_REQUEUES`` times; never after output has
   reached its client, who would get it twice.
4. A worker that was told to cancel keeps the place taken until it answers, or for ``CANCEL_GRACE_S``: its backend may
   still be busy, and some workers never answer.
5. A worker that says no status with its first output may be passing on its backend's error, as ModelRelay's does when
   it streams. What does not begin like events is held back until the end, which has the status.
6. When a request ends, those who wait come first, and then its client is told: it may ask again at once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from umaserve.relay.in_flight import InFlight
from umaserve.relay.queue import Queue
from umaserve.relay.registry import Registry
from umaserve.relay.request import MAX_MESSAGE_BYTES, Clock, RelayedRequest, fits
from umaserve.relay.states import Event, State
from umaserve.relay.worker import Link, Worker
from umaserve.wire.event_stream import begins_event
from umaserve.wire.relay_messages import (
    CancelReason,
    GracefulShutdown,
    ModelsRefresh,
    OtherReason,
    ResponseChunk,
    ResponseComplete,
    WorkerError,
)
from umaserve.wire.websocket import CloseCode

log = logging.getLogger(__name__)

MAX_REQUEUES = 3
MAX_HELD = 64 * 1024
"""Characters that an error's whole body has at most; what is longer is a stream."""
EVENT_STREAM = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}
"""The headers of a stream whose worker names none."""
TOO_LARGE = f"request: larger than {MAX_MESSAGE_BYTES} bytes as a message to a worker"
NO_WEBSOCKETS = (
    "websocket: no worker with this model carries WebSockets, only HTTP: use /v1/chat/completions, or have an umaserve "
    "daemon work for the relay"
)
SHUTTING_DOWN = "the relay is shutting down"
COMPLETE, TIMED_OUT = "graceful shutdown complete", "graceful shutdown timed out"


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Times in seconds; ``queue_len`` requests may wait, ``response_bytes`` of UTF-8 go to one client. A conversation
    may take any time, and be silent for ``silence``."""

    queue_len: int
    queue_timeout: float
    request_timeout: float
    silence: float
    response_bytes: int


class Pool:
    """All workers and requests of one relay."""

    COUNTED = (
        "requests",
        "completed",
        "failed",
        "requeues",
        "client_disconnects",
        "queue_timeouts",
        "request_timeouts",
        "late_messages",
        "connections_refused",
    )
    """The names of ``totals``."""

    def __init__(self, clock: Clock, limits: PoolLimits) -> None:
        self.workers = Registry()
        self.queue = Queue(clock, limits.queue_timeout, self._on_queue_timeout)
        self.in_flight = InFlight(
            clock, limits.request_timeout, limits.silence, self._on_request_timeout, self._on_freed
        )
        self.totals: Counter[str] = Counter()
        """What has happened so far, by name."""
        self.closing = False
        """Whether nothing new is taken."""
        self._clock = clock
        self._limits = limits
        self._numbers = 0

    # -- from clients --------------------------------------------------------------------------------------------

    def submit(self, request: RelayedRequest) -> None:
        """Give it to a worker, or let it wait; its client is told of the end."""
        request.move(Event.SUBMIT)
        request.asked_at = request.queued_at = self._clock.now()
        self._numbers += 1
        request.number = self._numbers
        self.totals["requests"] += 1
        if self.closing:
            self._fail(request, 503, SHUTTING_DOWN)
            return
        if not fits(request.opening()):
            self._fail(request, 413, TOO_LARGE)
            return
        worker = self.workers.best_for(request)
        if worker is not None:
            self.in_flight.dispatch(worker, request)
        elif not self.workers.provides(request):
            self._fail(request, 404, f"no provider for model {request.model}" if request.model else "no provider")
        elif request.is_websocket and self.workers.without_websockets(request.model):
            self._fail(request, 503, NO_WEBSOCKETS)
        elif len(self.queue) >= self._limits.queue_len:
            self._fail(request, 429, "queue full")
        else:
            self.queue.add(request)

    def leave(self, request: RelayedRequest) -> None:
        """Its client has gone."""
        self.totals["client_disconnects"] += 1
        self._withdraw(request, CancelReason.CLIENT_DISCONNECT)
        request.move(Event.LEAVE)

    def frame(self, request: RelayedRequest, text: str) -> None:
        """One more message of a WebSocket's client."""
        message = request.frame(text)
        if not fits(message):
            self._withdraw(request, OtherReason("message too large"))
            self._fail(request, 413, TOO_LARGE)
            return
        if not request.begun:
            request.frames.append(text)  # for the next worker, should this one be lost
        if request.in_flight:
            self.in_flight.send_frame(request, message)

    def takes_frames(self, request: RelayedRequest) -> bool:
        """Whether its worker keeps up with what its client says."""
        return not request.in_flight or not self.in_flight.overfull(request)

    def pause(self, request: RelayedRequest, paused: bool) -> None:
        """Its client reads too slowly, or does so no more."""
        if request.paused == paused:
            return
        request.paused = paused
        if request.in_flight:
            self.in_flight.tell_paused(request)

    # -- from workers --------------------------------------------------------------------------------------------

    def register(
        self, link: Link, name: str, models: Sequence[str], max_concurrent: int, load: int, features: Iterable[str]
    ) -> Worker:
        """A worker that gets requests once ``welcome`` is called, after its acknowledgement was sent."""
        return self.workers.new(link, name, models, max_concurrent, load, features)

    def welcome(self, worker: Worker) -> None:
        self.workers.add(worker)
        self._serve_queue(worker)

    def update(self, worker: Worker, models: Sequence[str], load: int) -> None:
        """It has other models now. What it does already it may finish."""
        worker.models = models
        self.workers.note(models)
        self.report(worker, load)

    def report(self, worker: Worker, load: int) -> None:
        """It says how much it does."""
        worker.report(load)
        self._serve_queue(worker)

    def drained(self, worker: Worker) -> None:
        """It has read what it was sent."""
        self._serve_queue(worker)

    def chunk(self, worker: Worker, message: ResponseChunk) -> None:
        """A part of a reply; dropped where it comes too late."""
        request = worker.in_flight.get(message.request_id)
        if request is None:
            self.totals["late_messages"] += 1
            return
        # Characters are at least a byte each, and counting those that are more would cost a copy.
        request.output_bytes += len(message.chunk)
        if request.output_bytes > self._limits.response_bytes:
            self.in_flight.cancel(request, OtherReason("response too large"))
            self._fail(request, 502, f"response: larger than {self._limits.response_bytes} bytes")
            return
        if request.is_websocket:
            self.in_flight.heard(request)
        if request.begun:
            request.client.write(message.chunk)
            return
        request.held += message.chunk
        if request.is_websocket or _is_stream(message, request.held):
            self._begin(request, message)

    def _begin(self, request: RelayedRequest, message: ResponseChunk) -> None:
        request.move(Event.OUTPUT)
        # No other worker will be asked.
        request.body = ""
        request.frames.clear()
        output, request.held = request.held, ""
        request.client.begin(message.status_code or 200, message.headers or EVENT_STREAM)
        request.client.write(output)

    def complete(self, worker: Worker, message: ResponseComplete) -> None:
        """The end of a reply, or the answer to a cancel."""
        request = self._take_back(worker, message.request_id)
        if request is None:
            return
        fields = self._about(request, message.status_code) | {"worker": worker.id}
        log.info("request relayed", extra={"fields": fields})
        begun, body = request.begun, request.held + (message.body or "")
        if begun and message.status_code >= 400:
            self._fail(request, 502, "the worker failed after it had begun to answer")
        elif not begun and len(body) > self._limits.response_bytes:
            self._fail(request, 502, f"response: larger than {self._limits.response_bytes} bytes")
        else:
            request.move(Event.FINISH)
            self.totals["completed"] += 1
            if begun:
                request.client.end()
            else:
                request.client.respond(message.status_code, message.headers or {}, body)

    def error(self, worker: Worker, message: WorkerError) -> None:
        """A request has failed at its worker; an error without one is the link's."""
        request = None if message.request_id is None else self._take_back(worker, message.request_id)
        if request is not None:
            self._fail(request, 502, message.message)

    def lost(self, worker: Worker) -> None:
        """Its connection has ended."""
        self.workers.remove(worker)
        if worker.drain is not None:
            worker.drain.cancel()
        # In the order of arrival, but last those that fail, whose clients may ask again when they are told.
        orphans = self.in_flight.take_all(worker)
        for request in sorted(orphans, key=lambda one: (not _may_go_back(one), one.number)):
            self._requeue(request)

    # -- from operators ------------------------------------------------------------------------------------------

    def drain(self, worker: Worker, reason: str, timeout_s: float) -> None:
        """Let it finish what it has, within ``timeout_s``, and go."""
        if worker.draining:
            return
        worker.draining = True
        worker.link.send(GracefulShutdown(reason, round(timeout_s)))
        worker.drain = self._clock.call_later(timeout_s, lambda: self._end_drain(worker))
        self._on_freed(worker)

    def refresh(self, worker: Worker, reason: str) -> None:
        """Ask it for its models."""
        worker.link.send(ModelsRefresh(reason))

    def shut_down(self, reason: str, timeout_s: float) -> None:
        """Take nothing new, fail what waits, and let the workers finish."""
        self.closing = True
        for request in self.queue:
            self.queue.remove(request)
            self._fail(request, 503, SHUTTING_DOWN)
        for worker in self.workers:
            self.drain(worker, reason, timeout_s)

    def end_all(self) -> None:
        """The time to drain is over."""
        for worker in self.workers:
            running = list(worker.in_flight.values())
            for request in running:
                self.in_flight.cancel(request, CancelReason.SERVER_SHUTDOWN)
                self._fail(request, 503, SHUTTING_DOWN)
            worker.link.close(CloseCode.NORMAL_CLOSURE, TIMED_OUT if running else COMPLETE)

    def _end_drain(self, worker: Worker) -> None:
        worker.link.close(CloseCode.NORMAL_CLOSURE, TIMED_OUT if worker.in_flight else COMPLETE)

    # -- who is next ---------------------------------------------------------------------------------------------

    def _serve_queue(self, worker: Worker) -> None:
        """Fill its free places with those who wait."""
        for request in self.queue:
            if not worker.free:
                return
            if worker.serves(request):
                self.queue.remove(request)
                self.in_flight.dispatch(worker, request)

    def _on_freed(self, worker: Worker) -> None:
        """It has a place more."""
        if worker.draining and not worker.in_flight:
            worker.link.close(CloseCode.NORMAL_CLOSURE, COMPLETE)
        else:
            self._serve_queue(worker)

    def _take_back(self, worker: Worker, request_id: str) -> RelayedRequest | None:
        """The request that a worker says has ended; ``None`` where it was cancelled, or is none of that worker's."""
        request = self.in_flight.take(worker, request_id)
        if request is None and not self.in_flight.end_cancelled(worker, request_id):
            self.totals["late_messages"] += 1
        else:
            self._on_freed(worker)
        return request

    def _requeue(self, request: RelayedRequest) -> None:
        """It has lost its worker."""
        if request.begun:
            self._fail(request, 502, "the worker disconnected after it had begun to answer")
        elif self.closing:
            self._fail(request, 503, SHUTTING_DOWN)
        elif request.requeues >= MAX_REQUEUES:
            self._fail(request, 503, "requeue attempts exhausted")
        else:
            request.move(Event.LOSE_WORKER)
            request.requeues += 1
            self.totals["requeues"] += 1
            request.queued_at = self._clock.now()
            worker = self.workers.best_for(request)
            if worker is None:
                self.queue.add(request)
            else:
                self.in_flight.dispatch(worker, request)

    # -- how requests end ----------------------------------------------------------------------------------------

    def _withdraw(self, request: RelayedRequest, reason: CancelReason | OtherReason) -> None:
        """No worker is to answer it any more."""
        if request.in_flight:
            self.in_flight.cancel(request, reason)
        else:
            self.queue.remove(request)

    def _on_queue_timeout(self, request: RelayedRequest) -> None:
        self.totals["queue_timeouts"] += 1
        self._fail(request, 504, "queue timeout: no worker available within deadline")

    def _on_request_timeout(self, request: RelayedRequest) -> None:
        self.totals["request_timeouts"] += 1
        self.in_flight.cancel(request, CancelReason.TIMEOUT)
        silent = f"conversation: nothing was said for {self._limits.silence:g} s"
        self._fail(request, 504, silent if request.is_websocket else "request timeout")

    def _fail(self, request: RelayedRequest, status: int, error: str) -> None:
        request.move(Event.FAIL)
        self.totals["failed"] += 1
        # The error among the fields, since it may quote what a client or a worker chose.
        log.info("request failed", extra={"fields": self._about(request, status) | {"error": error}})
        request.client.fail(status, error)

    def _about(self, request: RelayedRequest, status: int) -> dict[str, object]:
        """For a line of the log."""
        return {
            "request": request.id,
            "path": request.path,
            "model": request.model,
            "status": status,
            "requeues": request.requeues,
            "queue_ms": round(request.waited_s * 1000, 1),
            "total_ms": round((self._clock.now() - request.asked_at) * 1000, 1),
        }


def _is_stream(message: ResponseChunk, output: str) -> bool:
    """Whether all that a worker has said, ``message`` last, is the beginning of a stream."""
    head = message.status_code is not None or message.headers is not None
    return head or begins_event(output) or len(output) > MAX_HELD


def _may_go_back(request: RelayedRequest) -> bool:
    return request.state is State.IN_FLIGHT and request.requeues < MAX_REQUEUES
