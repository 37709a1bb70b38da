"""The spans of a relayed request, by what becomes of it."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from umaserve.relay.pool.request import RelayedRequest
from umaserve.relay.pool.states import Event
from umaserve.relay.traces import Traces

ABOVE = "00-" + "1" * 32 + "-00f067aa0ba902b7-01"


def spans_of(*events: Event, headers: dict[str, str] | None = None) -> tuple[RelayedRequest, list[ReadableSpan]]:
    kept = InMemorySpanExporter()
    request = RelayedRequest("r-1", "chat", "/generate", True, "", headers or {}, None)  # type: ignore[arg-type]
    Traces(SimpleSpanProcessor(kept)).follow(request)
    for event in events:
        request.move(event)
    return request, list(kept.get_finished_spans())


SERVED = (Event.SUBMIT, Event.DISPATCH, Event.OUTPUT)
REQUEUED = (Event.SUBMIT, Event.DISPATCH, Event.LOSE_WORKER, Event.DISPATCH)


@pytest.mark.parametrize(
    ("events", "queued", "status"),
    [
        ((*SERVED, Event.FINISH), 1, StatusCode.UNSET),
        ((*REQUEUED, Event.FINISH), 2, StatusCode.UNSET),
        ((*SERVED, Event.LEAVE), 1, StatusCode.UNSET),
        ((Event.SUBMIT, Event.LEAVE), 1, StatusCode.UNSET),
        ((Event.SUBMIT, Event.FAIL), 1, StatusCode.ERROR),
    ],
)
def test_a_request_has_a_span_and_one_for_each_time_in_the_queue(
    events: tuple[Event, ...], queued: int, status: StatusCode
) -> None:
    _, spans = spans_of(*events)
    *parts, whole = spans
    assert [part.name for part in parts] == ["relay queue"] * queued
    assert all(part.parent is not None and part.parent.span_id == whole.context.span_id for part in parts)
    assert (whole.name, whole.status.status_code, whole.parent) == ("relay chat", status, None)
    assert dict(whole.attributes or {}) == {"gen_ai.request.model": "chat", "url.path": "/generate"}


def test_its_workers_span_is_below_it_and_its_clients_above() -> None:
    headers = {"traceparent": ABOVE, "x-other": "kept"}
    request, (*_, whole) = spans_of(*SERVED, Event.FINISH, headers=headers)
    assert whole.parent is not None
    assert (f"{whole.context.trace_id:032x}", f"{whole.parent.span_id:016x}") == ("1" * 32, "00f067aa0ba902b7")
    assert request.headers == {"traceparent": f"00-{'1' * 32}-{whole.context.span_id:016x}-01", "x-other": "kept"}
    assert headers["traceparent"] == ABOVE, "a WebSocket's headers are the handshake's"
