"""Spans for an OpenTelemetry collector, by OTLP over HTTP. A thread of its SDK sends them; what can't be sent is
dropped, and logged."""

from __future__ import annotations

import logging
import os

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from umaserve import __version__
from umaserve.system.threads import JobThread

log = logging.getLogger(__name__)

PATH = "/v1/traces"
"""Where a collector takes them, below its endpoint."""
MAX_VALUE = 256
"""Characters of an attribute: some are clients' words."""
STOP_S = 2.0
"""How long the end of the program waits for what is not sent yet."""


class Collector:
    """``tracer`` makes spans for ``processor``."""

    def __init__(self, processor: SpanProcessor, service: str) -> None:
        # Other variables of OpenTelemetry (OTEL_TRACES_SAMPLER and so on) are read by its SDK.
        name = os.environ.get("OTEL_SERVICE_NAME") or service
        self._provider = TracerProvider(
            resource=Resource.create({SERVICE_NAME: name, SERVICE_VERSION: __version__}),
            span_limits=SpanLimits(max_attribute_length=MAX_VALUE),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self.tracer = self._provider.get_tracer("umaserve", __version__)

    def stop(self) -> None:
        """Send what is left, within ``STOP_S``."""
        thread = JobThread("traces", lambda: None)
        thread.submit(self._provider.shutdown, lambda _result: None)
        if not thread.stop(STOP_S):
            log.warning("the latest traces could not be sent to the collector in time")


def sending(endpoint: str) -> SpanProcessor:
    """Sends to the collector at ``endpoint``."""
    return BatchSpanProcessor(OTLPSpanExporter(endpoint.rstrip("/") + PATH))
