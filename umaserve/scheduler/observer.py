"""Metrics of requests by dialect and model, and a log line for each request."""

from __future__ import annotations

from umaserve.core.errors import RequestError
from umaserve.core.events import Finished, Output, Token
from umaserve.core.metrics import Of, ServingMetrics
from umaserve.sessions.cache_miss import Difference
from umaserve.sessions.session import Session
from umaserve.sessions.targets import Targets
from umaserve.system import logs


def observe_delivery(
    metrics: ServingMetrics, session: Session, output: Output | RequestError, now: float, targets: Targets
) -> None:
    """Count an output that was just delivered; ``targets`` are for requests that name none."""
    if isinstance(output, Token):
        if session.last_token_at is None:
            metrics.observe_first_token(_of(session), now - session.requested_at)
        else:
            session.last_gap_s = now - session.last_token_at
            metrics.observe_next_token(_of(session), session.last_gap_s)
        session.last_token_at = now
    elif isinstance(output, Finished | RequestError):
        _observe_attained(metrics, session, targets)


def observe_start(metrics: ServingMetrics, session: Session, waited_s: float) -> None:
    """Count a request whose prompt has got its slot."""
    metrics.observe_start(_of(session), waited_s)


def _observe_attained(metrics: ServingMetrics, session: Session, targets: Targets) -> None:
    request, first, last = session.request, session.first_made_at, session.last_made_at
    if first is None or last is None:
        return
    metrics.ttft_attained.add(first - session.requested_at <= (request.target_ttft_s or targets.ttft_s))
    gaps = len(session.generated) - 1
    if gaps > 0:
        metrics.tbt_attained.add((last - first - session.held_s) / gaps <= (request.target_tbt_s or targets.tbt_s))


def observe_end(metrics: ServingMetrics, session: Session, end: str, now: float) -> None:
    """Count and log a request that has ended; ``end`` says how."""
    usage = session.usage
    ran_s = 0.0 if session.started_at is None else now - session.started_at
    took_s = now - session.requested_at
    if session.started_at is not None and session.first_made_at is not None:
        metrics.prompt_s += session.first_made_at - session.started_at
        metrics.generation_s += (session.last_made_at or session.first_made_at) - session.first_made_at
    metrics.observe_end(_of(session), end, usage.prompt_tokens, usage.completion_tokens, took_s, ran_s)
    _log_end(session, end, now)


def log_difference(session: Session, found: Difference) -> None:
    """Log why no more of a prompt was reused; without its text, which belongs to its client."""
    fields = {
        "request": session.request.id,
        "dialect": session.caller.dialect,
        "key": session.caller.key,
        "differs_at_token": found.at + 1,
        "prompt_tokens": session.usage.prompt_tokens,
        "known_tokens": found.known_tokens,
        "prefix_reused_tokens": session.reused,
    }
    logs.requests.info("prompt differs from a cached one", extra={"fields": fields})


def _log_end(session: Session, end: str, now: float) -> None:
    usage, timing = session.usage, session.timing(now)
    first = session.first_made_at
    logs.requests.info(
        "request ended",
        extra={
            "fields": {
                "request": session.request.id,
                "dialect": session.caller.dialect,
                "peer": session.caller.peer,
                "key": session.caller.key,
                "end": end,
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "prefix_reused_tokens": usage.prefix_reused_tokens,
                "queue_ms": _ms(timing.started_s),
                "ttft_ms": None if first is None else _ms(timing.first_token_s),
                "total_ms": _ms(timing.total_s),
            }
        },
    )


def _of(session: Session) -> Of:
    return Of(session.caller.dialect, session.model)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
