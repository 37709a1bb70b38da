"""The pool: which worker gets which request, and what becomes of both. No sockets: links and clients are told.

The rules, and why:

1. A request goes to the worker with the lowest load of those that have its model and a free place, and have read what
   they were sent; among equals to the one that was given work longest ago.
2. Who finds none waits, in the order of arrival. A place that becomes free goes to the first in that order that its
   worker can serve: one model's wait is nobody else's.
3. A request that loses its worker goes back to its place in that order, ``MAX_REQUEUES`` times; never after output has
   reached its client, who would get it twice.
4. A worker that was told to cancel keeps the place taken until it answers, or for ``CANCEL_GRACE_S``: its backend may
   still be busy, and some workers never answer.
"""

from __future__ import annotations

import bisect
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from umaserve.net.timers import Timer
from umaserve.relay.request import MAX_MESSAGE_BYTES, RelayedRequest, fits
from umaserve.relay.worker import ANY_MODEL, Link, Worker
from umaserve.wire.relay_messages import (
    Cancel,
    CancelReason,
    Flow,
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
CANCEL_GRACE_S = 2.0
MAX_MODELS_KNOWN = 4096
EVENT_STREAM = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}
"""The headers of a stream whose worker names none."""
TOO_LARGE = f"request: larger than {MAX_MESSAGE_BYTES} bytes as a message to a worker"
COMPLETE, TIMED_OUT = "graceful shutdown complete", "graceful shutdown timed out"


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Times in seconds; ``queue_len`` requests may wait, ``response_bytes`` of UTF-8 go to one client. A conversation
    may take any time, and be silent for ``silence``."""

    queue_len: int
    queue_timeout: float
    request_timeout: float
    silence: float
    response_bytes: int


class Clock(Protocol):
    """What the pool needs of the loop."""

    def now(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer: ...


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

    def __init__(self, clock: Clock, limits: QueueLimits) -> None:
        self.workers: dict[str, Worker] = {}
        self.queue: list[RelayedRequest] = []
        """In the order of arrival."""
        self.totals: Counter[str] = Counter()
        """What has happened so far, by name."""
        self.closing = False
        """Whether nothing new is taken."""
        self._clock = clock
        self._limits = limits
        self._numbers = 0
        self._turns = 0
        self._workers_of: dict[str, Worker] = {}
        """Which worker has a request in flight, by the request's id."""
        self._known: dict[str, None] = {}
        """Models that some worker has or had."""

    # -- from clients --------------------------------------------------------------------------------------------

    def submit(self, asked: RelayedRequest) -> None:
        """Give it to a worker, or let it wait; its client is told of the end."""
        asked.asked_at = asked.queued_at = self._clock.now()
        self._numbers += 1
        asked.number = self._numbers
        self.totals["requests"] += 1
        if self.closing:
            self._fail(asked, 503, "the relay is shutting down")
            return
        if not fits(asked.opening()):
            self._fail(asked, 413, TOO_LARGE)
            return
        worker = self._best(asked)
        if worker is not None:
            self._give(worker, asked)
        elif not self._provided(asked):
            self._fail(asked, 404, f"no provider for model {asked.model}" if asked.model else "no provider")
        elif len(self.queue) >= self._limits.queue_len:
            self._fail(asked, 429, "queue full")
        else:
            self._enqueue(asked)

    def leave(self, asked: RelayedRequest) -> None:
        """Its client has gone."""
        self.totals["client_disconnects"] += 1
        self._drop(asked, CancelReason.CLIENT_DISCONNECT)

    def frame(self, asked: RelayedRequest, text: str) -> None:
        """One more message of a WebSocket's client."""
        message = asked.frame(text)
        if not fits(message):
            self._drop(asked, OtherReason("message too large"))
            self._fail(asked, 413, TOO_LARGE)
            return
        if not asked.begun:
            asked.frames.append(text)  # for the next worker, should this one be lost
        worker = self._workers_of.get(asked.id)
        if worker is not None:
            self._heard(asked)
            worker.link.send(message)

    def takes_frames(self, asked: RelayedRequest) -> bool:
        """Whether its worker keeps up with what its client says."""
        worker = self._workers_of.get(asked.id)
        return worker is None or not worker.link.overfull

    def pause(self, asked: RelayedRequest, paused: bool) -> None:
        """Its client reads too slowly, or does so no more: its worker is told, if it understands."""
        if asked.paused == paused:
            return
        asked.paused = paused
        worker = self._workers_of.get(asked.id)
        if worker is not None and "flow" in worker.features:
            worker.link.send(Flow(asked.id, paused))

    # -- from workers --------------------------------------------------------------------------------------------

    def register(
        self, link: Link, name: str, models: Sequence[str], max_concurrent: int, load: int, features: Iterable[str]
    ) -> Worker:
        """A worker that gets requests once ``welcome`` is called, after its acknowledgement was sent."""
        worker = Worker(_new_id(self.workers), name, link, models, max_concurrent, frozenset(features), load)
        self._know(models)
        return worker

    def welcome(self, worker: Worker) -> None:
        self.workers[worker.id] = worker
        self._serve_queue(worker)

    def update(self, worker: Worker, models: Sequence[str], load: int) -> None:
        """It has other models now. What it does already it may finish."""
        worker.models = models
        self._know(models)
        self.report(worker, load)

    def report(self, worker: Worker, load: int) -> None:
        worker.report(load)
        self._serve_queue(worker)

    def drained(self, worker: Worker) -> None:
        """It has read what it was sent."""
        self._serve_queue(worker)

    def chunk(self, worker: Worker, message: ResponseChunk) -> None:
        """A part of a reply; dropped where it comes too late."""
        asked = worker.in_flight.get(message.request_id)
        if asked is None:
            self.totals["late_messages"] += 1
            return
        # Characters are at least a byte each, and counting those that are more would cost a copy.
        asked.bytes_passed += len(message.chunk)
        if asked.bytes_passed > self._limits.response_bytes:
            self._cancel_in_flight(asked, OtherReason("response too large"))
            self._fail(asked, 502, f"response: larger than {self._limits.response_bytes} bytes")
            return
        if asked.is_websocket:
            self._heard(asked)
        if not asked.begun:
            asked.begun = True
            # No other worker will be asked.
            asked.body = ""
            asked.frames.clear()
            asked.client.begin(message.status_code or 200, message.headers or EVENT_STREAM)
        asked.client.write(message.chunk)

    def complete(self, worker: Worker, message: ResponseComplete) -> None:
        """The end of a reply, or the answer to a cancel."""
        asked = worker.in_flight.pop(message.request_id, None)
        if asked is None:
            self._answered_cancel(worker, message.request_id)
            return
        self._taken_back(worker, asked)
        log.info("request relayed", extra={"fields": {**self._about(asked, message.status_code), "worker": worker.id}})
        body = message.body or ""
        if not asked.begun and len(body) > self._limits.response_bytes:
            self._fail(asked, 502, f"response: larger than {self._limits.response_bytes} bytes")
        elif not asked.begun:
            self.totals["completed"] += 1
            asked.client.respond(message.status_code, message.headers or {}, body)
        elif message.status_code >= 400:
            self._fail(asked, 502, "the worker failed after it had begun to answer")
        else:
            self.totals["completed"] += 1
            asked.client.end()

    def error(self, worker: Worker, message: WorkerError) -> None:
        asked = None if message.request_id is None else worker.in_flight.pop(message.request_id, None)
        if asked is None:
            if message.request_id is not None:
                self._answered_cancel(worker, message.request_id)
            return
        self._taken_back(worker, asked)
        self._fail(asked, 502, message.message)

    def lost(self, worker: Worker) -> None:
        """Its connection has ended."""
        self.workers.pop(worker.id, None)
        if worker.drain is not None:
            worker.drain.cancel()
        for timer in worker.cancelled.values():
            timer.cancel()
        worker.cancelled.clear()
        # In the order of arrival, but last those that fail, whose clients may ask again when they are told.
        orphans = sorted(worker.in_flight.values(), key=lambda one: (not _may_go_back(one), one.number))
        worker.in_flight = {}
        for asked in orphans:
            self._stop_timer(asked)
            del self._workers_of[asked.id]
        for asked in orphans:
            self._requeue(asked)

    # -- for operators -------------------------------------------------------------------------------------------

    def drain(self, worker: Worker, reason: str, timeout_s: float) -> None:
        """Let it finish what it has, within ``timeout_s``, and go."""
        if worker.draining:
            return
        worker.draining = True
        worker.link.send(GracefulShutdown(reason, round(timeout_s)))
        worker.drain = self._clock.call_later(timeout_s, lambda: self._end_drain(worker))
        self._freed(worker)

    def refresh(self, worker: Worker, reason: str) -> None:
        """Ask it for its models."""
        worker.link.send(ModelsRefresh(reason))

    def shut_down(self, reason: str, timeout_s: float) -> None:
        """Take nothing new, fail what waits, and let the workers finish."""
        self.closing = True
        for asked in list(self.queue):
            self._unqueue(asked)
            self._fail(asked, 503, "the relay is shutting down")
        for worker in list(self.workers.values()):
            self.drain(worker, reason, timeout_s)

    def end_all(self) -> None:
        """The time to drain is over."""
        for worker in list(self.workers.values()):
            running = list(worker.in_flight.values())
            for asked in running:
                self._cancel_in_flight(asked, CancelReason.SERVER_SHUTDOWN)
                self._fail(asked, 503, "the relay is shutting down")
            self._close(worker, TIMED_OUT if running else COMPLETE)

    def models(self) -> list[str]:
        """Those that a connected worker has, in the order of registration."""
        found = dict.fromkeys(model for worker in self.workers.values() for model in worker.models)
        return [model for model in found if model != ANY_MODEL]

    @property
    def in_flight(self) -> int:
        return sum(len(worker.in_flight) for worker in self.workers.values())

    # -- who gets what -------------------------------------------------------------------------------------------

    def _provided(self, asked: RelayedRequest) -> bool:
        if not asked.model:
            return bool(self._known)
        # Of those connected too: what is known is only so many.
        models = (self._known, *(worker.models for worker in self.workers.values()))
        return any(asked.model in those or ANY_MODEL in those for those in models)

    def _know(self, models: Iterable[str]) -> None:
        for model in models:
            self._known.pop(model, None)
            self._known[model] = None
        while len(self._known) > MAX_MODELS_KNOWN:
            del self._known[next(iter(self._known))]

    def _best(self, asked: RelayedRequest) -> Worker | None:
        free = (worker for worker in self.workers.values() if worker.free and worker.serves(asked))
        return min(free, key=lambda worker: (worker.load, worker.given_at), default=None)

    def _give(self, worker: Worker, asked: RelayedRequest) -> None:
        self._turns += 1
        worker.given_at = self._turns
        worker.in_flight[asked.id] = asked
        self._workers_of[asked.id] = worker
        now = self._clock.now()
        asked.waited_s += now - asked.queued_at
        timeout = self._limits.silence if asked.is_websocket else self._limits.request_timeout
        asked.timer = self._clock.call_later(timeout, lambda: self._request_timeout(asked))
        worker.link.send(asked.opening())
        for text in asked.frames:
            worker.link.send(asked.frame(text))
        if asked.paused and "flow" in worker.features:
            worker.link.send(Flow(asked.id, True))

    def _enqueue(self, asked: RelayedRequest) -> None:
        asked.queued_at = self._clock.now()
        bisect.insort(self.queue, asked, key=lambda one: one.number)
        left_s = max(0.0, self._limits.queue_timeout - asked.waited_s)
        asked.timer = self._clock.call_later(left_s, lambda: self._queue_timeout(asked))

    def _unqueue(self, asked: RelayedRequest) -> None:
        self.queue.remove(asked)
        self._stop_timer(asked)

    def _serve_queue(self, worker: Worker) -> None:
        for asked in self._servable(worker):
            self._unqueue(asked)
            self._give(worker, asked)

    def _servable(self, worker: Worker) -> Iterator[RelayedRequest]:
        for asked in list(self.queue):
            if not worker.free or worker.id not in self.workers:
                return
            if worker.serves(asked):
                yield asked

    def _requeue(self, asked: RelayedRequest) -> None:
        if asked.begun:
            self._fail(asked, 502, "the worker disconnected after it had begun to answer")
        elif self.closing:
            self._fail(asked, 503, "the relay is shutting down")
        elif asked.requeues >= MAX_REQUEUES:
            self._fail(asked, 503, "requeue attempts exhausted")
        else:
            asked.requeues += 1
            self.totals["requeues"] += 1
            asked.queued_at = self._clock.now()
            worker = self._best(asked)
            if worker is None:
                self._enqueue(asked)
            else:
                self._give(worker, asked)

    def _taken_back(self, worker: Worker, asked: RelayedRequest) -> None:
        """Its worker has done with it. Those who wait come before what its client may ask when it is told."""
        self._stop_timer(asked)
        del self._workers_of[asked.id]
        self._freed(worker)

    def _freed(self, worker: Worker) -> None:
        if worker.draining and not worker.in_flight:
            self._close(worker, COMPLETE)
        else:
            self._serve_queue(worker)

    def _end_drain(self, worker: Worker) -> None:
        self._close(worker, TIMED_OUT if worker.in_flight else COMPLETE)

    def _close(self, worker: Worker, reason: str) -> None:
        worker.link.close(CloseCode.NORMAL_CLOSURE, reason)

    # -- how requests end ----------------------------------------------------------------------------------------

    def _fail(self, asked: RelayedRequest, status: int, error: str) -> None:
        self.totals["failed"] += 1
        # The error among the fields, since it may quote what a client or a worker chose.
        log.info("request failed", extra={"fields": self._about(asked, status) | {"error": error}})
        asked.client.fail(status, error)

    def _about(self, asked: RelayedRequest, status: int) -> dict[str, object]:
        """For a line of the log."""
        return {
            "request": asked.id,
            "path": asked.path,
            "model": asked.model,
            "status": status,
            "requeues": asked.requeues,
            "queue_ms": round(asked.waited_s * 1000, 1),
            "total_ms": round((self._clock.now() - asked.asked_at) * 1000, 1),
        }

    def _queue_timeout(self, asked: RelayedRequest) -> None:
        self._unqueue(asked)
        self.totals["queue_timeouts"] += 1
        self._fail(asked, 504, "queue timeout: no worker available within deadline")

    def _request_timeout(self, asked: RelayedRequest) -> None:
        self.totals["request_timeouts"] += 1
        self._cancel_in_flight(asked, CancelReason.TIMEOUT)
        silent = f"conversation: nothing was said for {self._limits.silence:g} s"
        self._fail(asked, 504, silent if asked.is_websocket else "request timeout")

    def _heard(self, asked: RelayedRequest) -> None:
        assert asked.timer is not None
        asked.timer.postpone(self._clock.now() + self._limits.silence)

    def _drop(self, asked: RelayedRequest, reason: CancelReason | OtherReason) -> None:
        if asked.id in self._workers_of:
            self._cancel_in_flight(asked, reason)
        elif asked in self.queue:
            self._unqueue(asked)

    def _cancel_in_flight(self, asked: RelayedRequest, reason: CancelReason | OtherReason) -> None:
        """Its worker keeps the place taken for a while."""
        worker = self._workers_of.pop(asked.id)
        self._stop_timer(asked)
        del worker.in_flight[asked.id]
        worker.cancelled[asked.id] = self._clock.call_later(
            CANCEL_GRACE_S, lambda: self._answered_cancel(worker, asked.id)
        )
        worker.link.send(Cancel(asked.id, reason))

    def _answered_cancel(self, worker: Worker, request_id: str) -> None:
        timer = worker.cancelled.pop(request_id, None)
        if timer is None:
            self.totals["late_messages"] += 1
            return
        timer.cancel()
        self._freed(worker)

    def _stop_timer(self, asked: RelayedRequest) -> None:
        if asked.timer is not None:
            asked.timer.cancel()
            asked.timer = None


def _may_go_back(asked: RelayedRequest) -> bool:
    return not asked.begun and asked.requeues < MAX_REQUEUES


def _new_id(taken: Iterable[str]) -> str:
    known = set(taken)
    while True:
        made = f"w-{secrets.token_hex(3)}"
        if made not in known:
            return made
