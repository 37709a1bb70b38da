"""Requests in flight: messages to their workers, from dispatch to answer, cancel or loss of the worker."""

from __future__ import annotations

from collections.abc import Callable

from umaserve.relay.pool.request import Clock, RelayedRequest
from umaserve.relay.pool.states import Event
from umaserve.relay.pool.worker import Worker
from umaserve.wire.relay_messages import FLOW, Cancel, CancelReason, Flow, OtherReason, Request

CANCEL_GRACE_S = 2.0


class InFlight:
    """All requests in flight.

    ``timed_out`` is called with each HTTP request without an answer within ``request_timeout`` seconds, and with each
    WebSocket that was silent for ``silence`` seconds. ``freed`` is called with a worker when it gets a cancelled
    request's slot back after ``CANCEL_GRACE_S``, ``noted`` whenever its load has changed.
    """

    def __init__(
        self,
        clock: Clock,
        request_timeout: float,
        silence: float,
        timed_out: Callable[[RelayedRequest], None],
        freed: Callable[[Worker], None],
        noted: Callable[[Worker], None],
    ) -> None:
        self._clock = clock
        self._request_timeout = request_timeout
        self._silence = silence
        self._timed_out = timed_out
        self._freed = freed
        self._noted = noted
        self._dispatches = 0
        self._workers: dict[str, Worker] = {}
        """The worker of each request, by the request's id."""

    def __len__(self) -> int:
        return len(self._workers)

    def dispatch(self, worker: Worker, request: RelayedRequest) -> None:
        """Send ``request`` to ``worker``, with all messages from its client so far."""
        request.move(Event.DISPATCH)
        self._dispatches += 1
        worker.given_at = self._dispatches
        worker.in_flight[request.id] = request
        self._noted(worker)
        self._workers[request.id] = worker
        # Output of an earlier worker has not reached the client: drop it.
        request.held, request.output_bytes = "", 0
        request.waited_s += self._clock.now() - request.queued_at
        timeout = self._silence if request.is_websocket else self._request_timeout
        request.timer = self._clock.call_later(timeout, lambda: self._timed_out(request))
        worker.link.send(request.opening())
        for text in request.frames:
            worker.link.send(request.frame(text))
        if request.paused:
            self.report_backpressure(request)

    # -- while it is in flight -----------------------------------------------------------------------------------

    def send_frame(self, request: RelayedRequest, frame: Request) -> None:
        """Send the worker one more message from a WebSocket's client."""
        self.heard(request)
        self._workers[request.id].link.send(frame)

    def report_backpressure(self, request: RelayedRequest) -> None:
        """Tell the worker whether the client is behind, if the worker supports flow control."""
        worker = self._workers[request.id]
        if FLOW in worker.features:
            worker.link.send(Flow(request.id, request.paused))

    def overfull(self, request: RelayedRequest) -> bool:
        """Whether the worker is behind with reading what it was sent."""
        return self._workers[request.id].link.overfull

    def heard(self, request: RelayedRequest) -> None:
        """The worker or the client of a WebSocket has sent something: restart its silence timer."""
        assert request.timer is not None
        request.timer.postpone(self._clock.now() + self._silence)

    # -- how it ends ---------------------------------------------------------------------------------------------

    def take(self, worker: Worker, request_id: str) -> RelayedRequest | None:
        """Remove and return the worker's request of this id; ``None`` where it has none."""
        request = worker.in_flight.pop(request_id, None)
        if request is not None:
            del self._workers[request_id]
            request.stop_timer()
            self._noted(worker)
        return request

    def take_all(self, worker: Worker) -> list[RelayedRequest]:
        """Remove and return all requests of a lost worker."""
        for timer in worker.cancelled.values():
            timer.cancel()
        worker.cancelled.clear()
        return [request for request_id in list(worker.in_flight) if (request := self.take(worker, request_id))]

    def cancel(self, request: RelayedRequest, reason: CancelReason | OtherReason) -> None:
        """Cancel it at its worker. Its slot stays occupied until the worker answers, at most for ``CANCEL_GRACE_S``."""
        worker = self._workers[request.id]
        self.take(worker, request.id)
        worker.cancelled[request.id] = self._clock.call_later(
            CANCEL_GRACE_S, lambda: self._end_grace(worker, request.id)
        )
        self._noted(worker)
        worker.link.send(Cancel(request.id, reason))

    def end_cancelled(self, worker: Worker, request_id: str) -> bool:
        """Free the slot of a cancelled request; returns whether ``worker`` had one of this id."""
        timer = worker.cancelled.pop(request_id, None)
        if timer is not None:
            timer.cancel()
            self._noted(worker)
        return timer is not None

    def _end_grace(self, worker: Worker, request_id: str) -> None:
        self.end_cancelled(worker, request_id)
        self._freed(worker)
