"""What workers answer: chunks, ends and errors, which are passed on to the clients.

A worker whose first output has no status may be passing on its backend's error, as ModelRelay's does when it streams.
Output that doesn't begin like events is held back until the end, which has the status.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from umaserve.relay.pool.in_flight import InFlight
from umaserve.relay.pool.outcomes import Outcomes
from umaserve.relay.pool.request import RelayedRequest
from umaserve.relay.pool.states import Event
from umaserve.relay.pool.worker import Worker
from umaserve.wire.event_stream import begins_event, has_only_comments
from umaserve.wire.relay_messages import REALTIME, OtherReason, ResponseChunk, ResponseComplete, WorkerError

log = logging.getLogger(__name__)

MAX_HELD = 64 * 1024
"""The longest body of an error, in characters; longer output is a stream."""
EVENT_STREAM = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}
"""The headers of a stream whose worker sent none."""


class Replies:
    """Each response has at most ``max_bytes`` of UTF-8. ``freed`` gets each worker that has one more free slot."""

    def __init__(
        self, in_flight: InFlight, outcomes: Outcomes, max_bytes: int, freed: Callable[[Worker], None]
    ) -> None:
        self._in_flight = in_flight
        self._outcomes = outcomes
        self._max_bytes = max_bytes
        self._freed = freed

    def chunk(self, worker: Worker, message: ResponseChunk) -> None:
        """A part of a reply; dropped where its request has ended."""
        request = worker.in_flight.get(message.request_id)
        if request is None:
            self._outcomes.totals["late_messages"] += 1
            return
        if request.tally is not None:
            request.tally.chunk(message.chunk)
        # A lower bound: a character has at least a byte, and counting exactly would cost a copy.
        # A session's messages are of many answers: each counts alone.
        request.output_bytes = len(message.chunk) + (0 if request.needs == REALTIME else request.output_bytes)
        if request.output_bytes > self._max_bytes:
            self._in_flight.cancel(request, OtherReason("response too large"))
            self._outcomes.fail(request, 502, f"response: larger than {self._max_bytes} bytes")
            return
        if request.is_websocket:
            self._in_flight.heard(request)
        if request.begun:
            request.client.write(message.chunk)
            return
        if request.is_websocket or _is_stream(message, request.held):
            if isinstance(message.chunk, str) and has_only_comments(request.held + message.chunk):
                self._open(request, message)
                request.client.write(request.held + message.chunk)
                request.held = ""
            else:
                self._begin(request, message)
        else:
            request.held += str(message.chunk)

    def _open(self, request: RelayedRequest, message: ResponseChunk) -> None:
        if not request.opened:
            request.opened = True
            request.client.begin(message.status_code or 200, message.headers or EVENT_STREAM)

    def _begin(self, request: RelayedRequest, message: ResponseChunk) -> None:
        request.move(Event.OUTPUT)
        # There is no requeue any more.
        request.body = ""
        request.frames.clear()
        held, request.held = request.held, ""
        self._open(request, message)
        if held:
            request.client.write(held)
        request.client.write(message.chunk)

    def complete(self, worker: Worker, message: ResponseComplete) -> None:
        """The end of a reply, or the answer to a cancel."""
        request = self._take_back(worker, message.request_id)
        if request is None:
            return
        fields = self._outcomes.about(request, message.status_code) | {"worker": worker.id}
        log.info("request relayed", extra={"fields": fields})
        if request.tally is not None:
            request.tally.end(message.body, message.token_counts)
        body = message.body or ""
        if isinstance(body, str):
            body = request.held + body
        begun = request.opened
        # After comments alone, another worker may have answered with a whole reply.
        if begun and (message.status_code >= 400 or (body and not request.begun)):
            self._outcomes.fail(request, 502, "the worker failed after it had begun to answer")
        elif not begun and len(body) > self._max_bytes:
            self._outcomes.fail(request, 502, f"response: larger than {self._max_bytes} bytes")
        else:
            request.move(Event.FINISH)
            self._outcomes.totals["completed"] += 1
            if begun:
                request.client.end()
            else:
                request.client.respond(message.status_code, message.headers or {}, body)

    def error(self, worker: Worker, message: WorkerError) -> None:
        """A request has failed at its worker. An error without a request id is only logged, by the link."""
        request = None if message.request_id is None else self._take_back(worker, message.request_id)
        if request is not None:
            self._outcomes.fail(request, 502, message.message)

    def _take_back(self, worker: Worker, request_id: str) -> RelayedRequest | None:
        """The request that a worker reports as ended; ``None`` where it was cancelled, or isn't the worker's."""
        request = self._in_flight.take(worker, request_id)
        if request is None and not self._in_flight.end_cancelled(worker, request_id):
            self._outcomes.totals["late_messages"] += 1
        else:
            self._freed(worker)
        return request


def _is_stream(message: ResponseChunk, held: str) -> bool:
    """Whether a worker's output so far, ``held`` and then ``message``, is the start of a stream."""
    if message.status_code is not None or message.headers is not None or isinstance(message.chunk, bytes):
        return True
    output = held + message.chunk
    return begins_event(output) or len(output) > MAX_HELD
