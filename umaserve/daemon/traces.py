"""Traces of requests for OpenTelemetry: a span for each, made of its times at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from opentelemetry.context import Context
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from umaserve.core.events import FinishReason
from umaserve.net.collector import Collector, sending
from umaserve.sessions.caller import Caller
from umaserve.sessions.session import Session

PROVIDER = "umaserve"
_WHOLE = {"done", *(reason.value for reason in FinishReason)}
_PARTED = {"abandoned", "replaced", "left"}
"""The client's own ends, and those that are left to the next daemon: no errors."""

Value = str | int | float | list[str]


class Traces:
    """Makes the spans on the loop's thread, some 0.2 ms for a request, at its end."""

    def __init__(self, processor: SpanProcessor, clock: Callable[[], float]) -> None:
        """``clock``: the loop's."""
        self._collector = Collector(processor, "umaserve")
        self._tracer = self._collector.tracer
        self.stop = self._collector.stop
        self._now = clock

    def ended(self, session: Session, end: str) -> None:
        """Trace a request that has ended; ``end`` is as in ``SessionManager``."""
        request, now = session.request, self._now()
        at = _since_1970(now)
        operation = "chat" if isinstance(request.prompt, tuple) else "text_completion"
        span = self._span(operation, session.model, session.caller, at(session.requested_at))
        if span.is_recording():
            for name, value in _attributes(session, end):
                span.set_attribute(name, value)
            _close(span, end)
            within = set_span_in_context(span, Context())
            for name, begun, ended in _parts(session, now):
                self._tracer.start_span(name, within, start_time=at(begun)).end(at(ended))
        span.end(at(now))

    def answered(self, operation: str, model: str, caller: Caller, asked_at: float, end: str) -> None:
        """Trace what no session answers, such as embeddings; ``end`` is "done", or an error's name."""
        at = _since_1970(now := self._now())
        span = self._span(operation, model, caller, at(asked_at))
        span.set_attribute("gen_ai.provider.name", PROVIDER)
        if model:
            span.set_attribute("gen_ai.request.model", model)
        span.set_attribute("umaserve.dialect", caller.dialect)
        _close(span, end)
        span.end(at(now))

    def _span(self, operation: str, model: str, caller: Caller, begun: int) -> Span:
        parent = TraceContextTextMapPropagator().extract({"traceparent": caller.traceparent}, Context())
        span = self._tracer.start_span(f"{operation} {model}".rstrip(), parent, SpanKind.SERVER, start_time=begun)
        span.set_attribute("gen_ai.operation.name", operation)
        return span


def exported(endpoint: str, clock: Callable[[], float]) -> Traces:
    """Traces that go to the collector at ``endpoint``, by OTLP over HTTP."""
    return Traces(sending(endpoint), clock)


def _attributes(session: Session, end: str) -> Iterator[tuple[str, Value]]:
    """By OpenTelemetry's conventions for generative models, as far as they fit; no prompts, and no answers."""
    request, usage = session.request, session.usage
    sampling = request.sampling
    yield "gen_ai.provider.name", PROVIDER
    yield "gen_ai.request.model", request.model or session.model
    yield "gen_ai.response.model", session.model
    yield "gen_ai.response.id", request.id
    yield "gen_ai.request.temperature", sampling.temperature
    yield "gen_ai.request.top_p", sampling.top_p
    yield "gen_ai.request.top_k", sampling.top_k
    yield "gen_ai.request.frequency_penalty", sampling.frequency_penalty
    yield "gen_ai.request.presence_penalty", sampling.presence_penalty
    if sampling.seed is not None:
        yield "gen_ai.request.seed", sampling.seed
    if request.max_tokens is not None:
        yield "gen_ai.request.max_tokens", request.max_tokens
    yield "gen_ai.usage.input_tokens", usage.prompt_tokens
    yield "gen_ai.usage.output_tokens", usage.completion_tokens
    yield "gen_ai.usage.cache_read.input_tokens", usage.prefix_reused_tokens
    if session.first_made_at is not None:
        yield "gen_ai.response.time_to_first_chunk", session.first_made_at - session.requested_at
    if end in _WHOLE:
        yield "gen_ai.response.finish_reasons", [end]
    yield "umaserve.dialect", session.caller.dialect


def _close(span: Span, end: str) -> None:
    """Say how it ended."""
    span.set_attribute("umaserve.end", end)
    if end not in _WHOLE | _PARTED:
        span.set_attribute("error.type", end)
        span.set_status(Status(StatusCode.ERROR))


def _since_1970(now: float) -> Callable[[float], int]:
    """The loop's seconds in nanoseconds since 1970."""
    offset = time.time() - now
    return lambda seconds: int((seconds + offset) * 1e9)


def _parts(session: Session, now: float) -> Iterator[tuple[str, float, float]]:
    """What a request has gone through, each part with its beginning and its end. The queue ends where the prompt gets
    a slot, as in the metrics, and so contains its preparation."""
    preparing, started, first = session.preparing_at, session.started_at, session.first_made_at
    yield "queue", session.requested_at, now if started is None else started
    if preparing is not None:
        yield "preparation", preparing, now if session.prepared_at is None else session.prepared_at
    if started is not None:
        yield "prefill", started, now if first is None else first
    if first is not None:
        yield "decode", first, session.last_made_at or first
