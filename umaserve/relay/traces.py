"""Traces of relayed requests for OpenTelemetry: a span for each, with its times in the queue, above its worker's."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from umaserve.net.collector import Collector
from umaserve.relay.pool.request import RelayedRequest
from umaserve.relay.pool.states import State
from umaserve.wire.http_head import TRACE_HEADER

_FORM = TraceContextTextMapPropagator()


class Traces:
    """Follows requests; spans go to ``processor``."""

    def __init__(self, processor: SpanProcessor) -> None:
        self._collector = Collector(processor, "umaserve-relay")
        self.stop = self._collector.stop

    def follow(self, request: RelayedRequest) -> None:
        """Make a span for the request, which is a part of its client's trace, if any, as its worker's of this one."""
        headers = dict(request.headers)
        parent = _FORM.extract({TRACE_HEADER: headers.get(TRACE_HEADER, "")}, Context())
        span = self._collector.tracer.start_span(f"relay {request.model}".rstrip(), parent, SpanKind.SERVER)
        span.set_attributes({"gen_ai.request.model": request.model, "url.path": request.path})
        request.trace = _Trace(self._collector.tracer, span)
        _FORM.inject(headers, set_span_in_context(span, Context()))
        request.headers = headers


class _Trace:
    """Implements ``request.Trace``."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._queue: Span | None = None

    def moved(self, state: State) -> None:
        if self._queue is not None:
            self._queue.end()
            self._queue = None
        match state:
            case State.WAITING:
                self._queue = self._tracer.start_span("relay queue", set_span_in_context(self._span, Context()))
            case State.FAILED:
                self._span.set_status(Status(StatusCode.ERROR))
                self._span.end()
            case State.DONE | State.LEFT:
                self._span.end()
