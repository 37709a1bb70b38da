"""The pool: dispatches requests to workers and tracks both. It has no sockets: it calls links and clients.

The rules, and why:

1. A request goes to a worker that has its model and a free slot, and has read what it was sent. Of those, the turns of
   a conversation go to the same one, which has computed their beginning, as long as its load is not far above the mean;
   else to the next one in an order of the conversation's own. All others go to the one with the lowest load; among
   equals, to the one whose last dispatch is oldest.
2. If there is none, the request is queued, in order of arrival, and background work after all other. A slot that
   becomes free goes to the first queued request that its worker can serve, so a request never waits for requests of
   other models. Instead of that, it goes to the first one whose conversation's own worker it is, if this is of the
   same class, and came so soon after that no more than one arrival lies between for each slot of all workers: else a
   busy fleet would compute each prompt anew. No slot stays free for that, and nobody is passed by more requests than
   there are slots: about the time of one answer. A request that no worker could serve is refused.
3. A request that loses its worker returns to its position in the queue, at most ``MAX_REQUEUES`` times, and never after
   output has reached its client, which would get that output twice.
4. A cancelled request occupies its worker's slot until the worker answers, at most for ``CANCEL_GRACE_S``: its backend
   may still be busy, and some workers never answer.
5. When a request ends, queued requests are dispatched before its client is told, since the client may send another one
   at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from umaserve.relay.pool.in_flight import InFlight
from umaserve.relay.pool.outcomes import Outcomes
from umaserve.relay.pool.peer_load import PeerLoad
from umaserve.relay.pool.queue import Queue
from umaserve.relay.pool.registry import Registry
from umaserve.relay.pool.replies import Replies
from umaserve.relay.pool.request import MAX_MESSAGE_BYTES, Clock, RelayedRequest, fits
from umaserve.relay.pool.states import Event, State
from umaserve.relay.pool.worker import Link, Worker
from umaserve.wire.relay_messages import (
    BYTES,
    FORMS,
    MCP,
    REALTIME,
    WEBSOCKET,
    CancelReason,
    GracefulShutdown,
    ModelsRefresh,
    OtherReason,
)
from umaserve.wire.websocket import CloseCode

MAX_REQUEUES = 3
TOO_LARGE = f"request: larger than {MAX_MESSAGE_BYTES} bytes as a message to a worker"
LACKING = {
    WEBSOCKET: "websocket: no worker with this model carries WebSockets, only HTTP: use /v1/chat/completions, or have "
    "an umaserve daemon work for the relay",
    BYTES: "speech: no worker with this model carries sound, only text: have an umaserve daemon or worker work for the "
    "relay",
    FORMS: "form: no worker with this model takes forms with files: have an umaserve daemon or worker work for the "
    "relay",
    REALTIME: "realtime: no worker with this model has sessions of the Realtime API: have an umaserve daemon of this "
    "version work for the relay",
    MCP: "tool: no worker with this model has tools of MCP: have an umaserve daemon work for the relay",
}
"""The error of a request that needs a feature which no worker with its model has."""
SHUTTING_DOWN = "the relay is shutting down"
COMPLETE, TIMED_OUT = "graceful shutdown complete", "graceful shutdown timed out"


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits of the pool. Times are in seconds. At most ``queue_len`` requests are queued, and a response has at most
    ``response_bytes`` of UTF-8. A WebSocket has no time limit, but may be silent only for ``silence``."""

    queue_len: int
    queue_timeout: float
    request_timeout: float
    silence: float
    response_bytes: int


class Pool:
    """All workers and requests of a relay."""

    def __init__(
        self, clock: Clock, limits: PoolLimits, follow: Callable[[RelayedRequest], None] | None = None
    ) -> None:
        """``follow`` is told of each new request."""
        outcomes = Outcomes(clock)
        self.totals = outcomes.totals
        self._fail = outcomes.fail
        self.workers = Registry()
        self.queue = Queue(clock, limits.queue_timeout, self._on_queue_timeout)
        self.in_flight = InFlight(
            clock,
            limits.request_timeout,
            limits.silence,
            self._on_request_timeout,
            self._on_freed,
            self.workers.noted,
        )
        self.replies = Replies(self.in_flight, outcomes, limits.response_bytes, self._on_freed)
        self.elsewhere = PeerLoad(clock, self._on_elsewhere)
        self.closing = False
        """Whether new requests and workers are refused."""
        self._clock = clock
        self._limits = limits
        self._follow = follow
        self._numbers = 0

    # -- from clients --------------------------------------------------------------------------------------------

    def submit(self, request: RelayedRequest) -> None:
        """Dispatch a request to a worker, queue it or refuse it; its client is told."""
        if self._follow is not None:
            self._follow(request)
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
        elif self.workers.lacks_feature(request):
            self._fail(request, 503, LACKING[request.needs])
        elif len(self.queue) >= self._limits.queue_len:
            self._fail(request, 429, "queue full")
        else:
            self._wait(request)

    def leave(self, request: RelayedRequest) -> None:
        """Withdraw a request whose client has disconnected."""
        self.totals["client_disconnects"] += 1
        self._withdraw(request, CancelReason.CLIENT_DISCONNECT)
        request.move(Event.LEAVE)

    def frame(self, request: RelayedRequest, text: str) -> None:
        """Pass on one more message from a WebSocket's client."""
        message = request.frame(text)
        if not fits(message):
            self._withdraw(request, OtherReason("message too large"))
            self._fail(request, 413, TOO_LARGE)
            return
        if not request.begun:
            request.frames.append(text)  # for the next worker, if this one is lost
        if request.in_flight:
            self.in_flight.send_frame(request, message)

    def takes_frames(self, request: RelayedRequest) -> bool:
        """Whether its worker keeps up with its client's messages."""
        return not request.in_flight or not self.in_flight.overfull(request)

    def pause(self, request: RelayedRequest, paused: bool) -> None:
        """Pause or resume a request: its client has fallen behind, or caught up."""
        if request.paused == paused:
            return
        request.paused = paused
        if request.in_flight:
            self.in_flight.report_backpressure(request)

    # -- from workers --------------------------------------------------------------------------------------------

    def register(
        self,
        link: Link,
        name: str,
        models: Sequence[str],
        max_concurrent: int,
        load: int,
        features: Iterable[str],
        instance: str = "",
        contexts: Mapping[str, int] | None = None,
    ) -> Worker:
        """Register a new worker. It gets requests from ``activate`` on, to be called after its acknowledgement was
        sent."""
        return self.workers.new(link, name, models, max_concurrent, load, features, instance, contexts or {})

    def activate(self, worker: Worker) -> None:
        worker.elsewhere = self.elsewhere.of(worker.instance)
        self.workers.add(worker)
        self._serve_queue(worker)

    def update(
        self, worker: Worker, models: Sequence[str], load: int, contexts: Mapping[str, int] | None = None
    ) -> None:
        """Take the worker's new models, its load and its models' ``contexts``. Requests in flight continue."""
        self.workers.change(worker, models, contexts or {})
        self.report(worker, load)

    def report(self, worker: Worker, load: int) -> None:
        """Take the load that the worker has reported."""
        worker.report(load)
        self.workers.noted(worker)
        self._serve_queue(worker)

    def drained(self, worker: Worker) -> None:
        """Serve the queue: the worker has read what it was sent."""
        self._serve_queue(worker)

    def lost(self, worker: Worker) -> None:
        """Requeue or fail the worker's requests: its connection has ended."""
        self.workers.remove(worker)
        if worker.drain is not None:
            worker.drain.cancel()
        # In order of arrival, except that requests that fail come last: their clients may send new ones at once.
        orphans = self.in_flight.take_all(worker)
        for request in sorted(orphans, key=lambda one: (not _may_go_back(one), one.number)):
            self._requeue(request)

    # -- from operators ------------------------------------------------------------------------------------------

    def drain(self, worker: Worker, reason: str, timeout_s: float) -> None:
        """Let the worker finish its requests, within ``timeout_s``, and close its connection."""
        if worker.draining:
            return
        worker.draining = True
        self.workers.noted(worker)
        worker.link.send(GracefulShutdown(reason, round(timeout_s)))
        worker.drain = self._clock.call_later(timeout_s, lambda: self._end_drain(worker))
        self._on_freed(worker)

    def refresh(self, worker: Worker, reason: str) -> None:
        """Ask the worker for its models."""
        worker.link.send(ModelsRefresh(reason))

    def shut_down(self, reason: str, timeout_s: float) -> None:
        """Refuse new requests, fail queued ones, and drain all workers."""
        self.closing = True
        for request in self.queue:
            self.queue.remove(request)
            self._fail(request, 503, SHUTTING_DOWN)
        for worker in self.workers:
            self.drain(worker, reason, timeout_s)

    def end_all(self) -> None:
        """Fail what is in flight and close all workers' connections: the drain has ended or timed out."""
        for worker in self.workers:
            running = list(worker.in_flight.values())
            for request in running:
                self.in_flight.cancel(request, CancelReason.SERVER_SHUTDOWN)
                self._fail(request, 503, SHUTTING_DOWN)
            worker.link.close(CloseCode.NORMAL_CLOSURE, TIMED_OUT if running else COMPLETE)

    def _end_drain(self, worker: Worker) -> None:
        worker.link.close(CloseCode.NORMAL_CLOSURE, TIMED_OUT if worker.in_flight else COMPLETE)

    # -- dispatch ------------------------------------------------------------------------------------------------

    def _wait(self, request: RelayedRequest) -> None:
        request.home = request.home or self.workers.home_of(request)
        self.queue.add(request)

    def _serve_queue(self, worker: Worker) -> None:
        """Dispatch queued requests to the worker's free slots."""
        while worker.free and (request := self.queue.next_for(worker, self.workers.slots)) is not None:
            self.queue.remove(request)
            self.in_flight.dispatch(worker, request)

    def _on_elsewhere(self, instances: Collection[str]) -> None:
        """Take in that other relays have given these workers more, or less."""
        for instance in instances:
            worker = self.workers.by_instance(instance)
            if worker is not None:
                worker.elsewhere = self.elsewhere.of(instance)
                self.workers.noted(worker)

    def _on_freed(self, worker: Worker) -> None:
        """Serve the queue, or end the drain: the worker has one more free slot."""
        if worker.draining and not worker.in_flight:
            worker.link.close(CloseCode.NORMAL_CLOSURE, COMPLETE)
        else:
            self._serve_queue(worker)

    def _requeue(self, request: RelayedRequest) -> None:
        """Dispatch, queue or fail a request that has lost its worker."""
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
                self._wait(request)
            else:
                self.in_flight.dispatch(worker, request)

    # -- how requests end ----------------------------------------------------------------------------------------

    def _withdraw(self, request: RelayedRequest, reason: CancelReason | OtherReason) -> None:
        """Cancel a request at its worker, or remove it from the queue."""
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


def _may_go_back(request: RelayedRequest) -> bool:
    return request.state is State.IN_FLIGHT and request.requeues < MAX_REQUEUES
