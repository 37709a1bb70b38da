"""Requests in flight: what workers are told of each, from its dispatch to its answer, cancel or the worker's loss."""

from __future__ import annotations

from collections.abc import Callable

from umaserve.relay.request import Clock, RelayedRequest
from umaserve.relay.states import Event
from umaserve.relay.worker import Worker
from umaserve.wire.relay_messages import FLOW, Cancel, CancelReason, Flow, OtherReason, Request

CANCEL_GRACE_S = 2.0


class InFlight:
    """``timed_out`` gets each request that has no answer within ``request_timeout`` seconds, or whose conversation was
    silent for ``silence``; ``freed`` each worker that has kept the place of a cancelled request long enough."""

    def __init__(
        self,
        clock: Clock,
        request_timeout: float,
        silence: float,
        timed_out: Callable[[RelayedRequest], None],
        freed: Callable[[Worker], None],
    ) -> None:
        self._clock = clock
        self._request_timeout = request_timeout
        self._silence = silence
        self._timed_out = timed_out
        self._freed = freed
        self._dispatches = 0
        self._workers: dict[str, Worker] = {}
        """Who has a request, by the request's id."""

    def __len__(self) -> int:
        return len(self._workers)

    def dispatch(self, worker: Worker, request: RelayedRequest) -> None:
        """Give ``request`` to ``worker``, with all that its client has said."""
        request.move(Event.DISPATCH)
        self._dispatches += 1
        worker.given_at = self._dispatches
        worker.in_flight[request.id] = request
        self._workers[request.id] = worker
        # Of an earlier worker's output nothing has reached the client.
        request.held, request.output_bytes = "", 0
        request.waited_s += self._clock.now() - request.queued_at
        timeout = self._silence if request.is_websocket else self._request_timeout
        request.timer = self._clock.call_later(timeout, lambda: self._timed_out(request))
        worker.link.send(request.opening())
        for text in request.frames:
            worker.link.send(request.frame(text))
        if request.paused:
            self.tell_paused(request)

    # -- while it is in flight -----------------------------------------------------------------------------------

    def send_frame(self, request: RelayedRequest, frame: Request) -> None:
        """One more message of a WebSocket's client."""
        self.heard(request)
        self._workers[request.id].link.send(frame)

    def tell_paused(self, request: RelayedRequest) -> None:
        """Tell its worker whether the client is behind, if it understands."""
        worker = self._workers[request.id]
        if FLOW in worker.features:
            worker.link.send(Flow(request.id, request.paused))

    def overfull(self, request: RelayedRequest) -> bool:
        """Whether its worker is behind with what it was sent."""
        return self._workers[request.id].link.overfull

    def heard(self, request: RelayedRequest) -> None:
        """A conversation's worker or client has said something."""
        assert request.timer is not None
        request.timer.postpone(self._clock.now() + self._silence)

    # -- how it ends ---------------------------------------------------------------------------------------------

    def take(self, worker: Worker, request_id: str) -> RelayedRequest | None:
        """The request that ``worker`` has ended, which is in flight no more; ``None`` where it has none of that id."""
        request = worker.in_flight.pop(request_id, None)
        if request is not None:
            del self._workers[request_id]
            request.stop_timer()
        return request

    def take_all(self, worker: Worker) -> list[RelayedRequest]:
        """All that ``worker`` had: it is lost."""
        for timer in worker.cancelled.values():
            timer.cancel()
        worker.cancelled.clear()
        return [request for request_id in list(worker.in_flight) if (request := self.take(worker, request_id))]

    def cancel(self, request: RelayedRequest, reason: CancelReason | OtherReason) -> None:
        """Its worker keeps the place taken until it answers, or for ``CANCEL_GRACE_S``."""
        worker = self._workers[request.id]
        self.take(worker, request.id)
        worker.cancelled[request.id] = self._clock.call_later(
            CANCEL_GRACE_S, lambda: self._end_grace(worker, request.id)
        )
        worker.link.send(Cancel(request.id, reason))

    def end_cancelled(self, worker: Worker, request_id: str) -> bool:
        """Whether ``worker`` had a cancelled request of that id, whose place is free now."""
        timer = worker.cancelled.pop(request_id, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def _end_grace(self, worker: Worker, request_id: str) -> None:
        self.end_cancelled(worker, request_id)
        self._freed(worker)
