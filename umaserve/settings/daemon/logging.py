"""Settings of the daemon: logs and traces."""

from __future__ import annotations

from dataclasses import dataclass

from umaserve.settings.kinds import choice, share, url
from umaserve.settings.sources import setting


@dataclass(frozen=True)
class Logging:
    """Logs and traces."""

    log_level: str = setting(
        "info",
        choice("debug", "info", "warning", "error"),
        "logging",
        "least severe messages to log",
        about='Least severe messages to log: "debug", "info", "warning" or "error".',
    )
    log_format: str = setting(
        "text",
        choice("text", "json"),
        "logging",
        "format of log lines",
        about='Format of log lines: "text" for people, "json" for programs.',
    )
    access_log: float = setting(
        1.0,
        share(),
        "logging",
        "log this share of the requests, chosen at random; 0.01: one in a hundred; 0: none",
        about="The share of the requests to log, 0 to 1, chosen at random: 0.01 is one in a hundred, 0 none. All else "
        "is logged in any case; the daemon never logs prompts, answers and keys.",
    )
    otel_endpoint: str = setting(
        "",
        url("http", "https", or_empty=True),
        "logging",
        "OpenTelemetry collector for traces of requests (OTLP over HTTP), such as http://127.0.0.1:4318; empty: none",
        about="The OpenTelemetry collector that gets traces of requests, by OTLP over HTTP, such as "
        "\"http://127.0.0.1:4318\"; empty: none. Needs pip install 'umaserve[otel]'. OTEL_SERVICE_NAME, "
        "OTEL_TRACES_SAMPLER and others are environment variables.",
    )
