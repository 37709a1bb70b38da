"""What the daemon does now, for people who look at it: requests, batches, models, figures, settings; and the end of a
request or a batch.

Nothing of it has a text of a client's, or an id that resumes a generation.
"""

from __future__ import annotations

import heapq
import logging
import time

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import ListedModel
from umaserve.daemon.services import Services
from umaserve.dialects.batches.stored_batch import StoredBatch
from umaserve.dialects.parameters import json_body
from umaserve.sessions.session import Session
from umaserve.sessions.states import State
from umaserve.sessions.waiting import held_by
from umaserve.settings.daemon import SETTINGS, Config
from umaserve.system.memory import available_bytes
from umaserve.wire.fields import Fields, bad_request

log = logging.getLogger(__name__)

MAX_LISTED = 100
"""Requests in one snapshot, those with a slot first."""
MAX_BATCHES = 20
"""Batches in one snapshot, those that have not ended first."""
MAX_ID_BYTES = 64
_FIGURES = {
    "waiting": "waiting_sessions",
    "running": "active_sessions",
    "kv_cells_used": "kv_cells_used",
    "kv_cells_cached": "kv_cells_cached",
    "kv_cells_total": "kv_cells_total",
    "memory_bytes": "rss_bytes",
    "threads": "threads",
    "threads_reason": "threads_reason",
    "crashes": "engine_crashes_total",
}
"""Names of the flat metrics."""
_STATES = {State.PREFILL: "prompt", State.DECODE: "writing", State.STREAM: "held"}


class Box:
    """Makes snapshots. Rates are those since the snapshot before."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._at: float | None = None
        """When the latest snapshot was made."""
        self._tokens: dict[int, int] = {}
        """By the numbers of sessions, in the latest snapshot."""
        self._all_tokens = 0

    def forget(self) -> None:
        """The next snapshot has none before it."""
        self._at = None
        self._tokens = {}

    def snapshot(self) -> dict[str, object]:
        """JSON values, as the OpenAPI document has them."""
        now = self._services.loop.now()
        since_s = 0.0 if self._at is None else now - self._at
        running = sorted(self._services.models.running(), key=lambda one: (one.slot is None, one.requested_at))
        listed = running[:MAX_LISTED]
        requests = [self._request(session, now, since_s) for session in listed]
        figures = self._figures(since_s)
        self._at = now
        self._tokens = {session.id: len(session.generated) for session in listed}
        return {
            "at": round(time.time(), 3),
            "requests": requests,
            "not_listed": len(running) - len(listed),
            "batches": [_batch(tenant, batch) for tenant, batch in self._batches()],
            "models": [_model(model) for model in self._services.models.listed()],
            "figures": figures,
        }

    def _batches(self) -> list[tuple[str, StoredBatch]]:
        """Batches of all tenants, each with its tenant: those that have not ended first, then the newest."""
        files = self._services.store.files
        every = [] if files is None else files.kept.batches.everyones()
        return heapq.nsmallest(MAX_BATCHES, every, key=lambda one: (one[1].ended, -one[1].created_at))

    def _request(self, session: Session, now: float, since_s: float) -> dict[str, object]:
        request, usage, host = session.request, session.usage, self._services.models.of(session)
        placed = session.slot is not None
        why = held_by(session) if placed else host.why_waiting(session)
        target_s = request.target_tbt_s or host.spec.config.slo_tbt_ms / 1000
        return {
            "session": session.id,
            "key": session.caller.key or None,
            "peer": session.caller.peer,
            "dialect": session.caller.dialect,
            "model": session.model,
            "class": request.priority.name.lower(),
            "state": _STATES[session.state] if placed else "waiting",
            "why": None if why is None else why.value,
            "age_s": round(now - session.requested_at, 1),
            "prompt_tokens": usage.prompt_tokens,
            "prompt_tokens_done": min(session.computed, usage.prompt_tokens),
            "tokens": usage.completion_tokens,
            "tokens_per_s": round(self._rate(session, since_s), 1),
            "gap_ms": None if session.last_gap_s is None else round(session.last_gap_s * 1000, 1),
            "target_gap_ms": round(target_s * 1000, 1),
            "kv_cells": session.computed,
        }

    def _rate(self, session: Session, since_s: float) -> float:
        """Tokens a second since the latest snapshot; of a session that was not in it, on average."""
        tokens = len(session.generated)
        if session.id in self._tokens and since_s > 0:
            return (tokens - self._tokens[session.id]) / since_s
        first, last = session.first_made_at, session.last_made_at
        return (tokens - 1) / (last - first) if first is not None and last is not None and last > first else 0.0

    def _figures(self, since_s: float) -> dict[str, object]:
        values = self._services.metrics().values
        tokens = int(values["tokens_generated_total"])
        new = tokens - self._all_tokens if self._at is not None else None
        self._all_tokens = tokens
        return {
            "tokens_per_s": None if new is None or since_s <= 0 else round(new / since_s, 1),
            # Of the latest tokens, which may have been long ago.
            "gap_ms_p95": values["tbt_ms_p95"] if new else None,
            "target_gap_ms": self._services.config.slo_tbt_ms,
            "available_bytes": available_bytes(),
            **{name: values[metric] for name, metric in _FIGURES.items()},
        }


def _batch(tenant: str, batch: StoredBatch) -> dict[str, object]:
    key = tenant.removeprefix("key:")
    return {
        "batch": batch.id,
        "key": None if key == tenant else key,
        "peer": tenant if key == tenant else "",
        "endpoint": batch.endpoint,
        "status": batch.status,
        "total": batch.total,
        "completed": batch.completed,
        "failed": batch.failed,
        "problem": batch.problems[0].code if batch.problems else None,
        "created_at": batch.created_at,
    }


def _model(model: ListedModel) -> dict[str, object]:
    return {
        "name": model.name,
        "default": model.default,
        "state": model.state,
        "progress": round(model.progress, 3),
        "needed_bytes": model.needed_bytes,
        "last_used_at": None if model.last_used_at is None else int(model.last_used_at),
    }


def end(services: Services, body: bytes) -> None:
    """End the request of the session, or the batch, that ``body`` names; raises ``RequestError`` where there is none
    that could end."""
    given = Fields(json_body(body).values)
    number, batch_id = given.integer("session", 1), given.string("batch", max_bytes=MAX_ID_BYTES)
    if batch_id is not None:
        _end_batch(services, batch_id)
        return
    if number is None:
        raise bad_request("session", "a whole number of at least 1, or the id of a batch as batch", None)
    session = next((one for one in services.models.running() if one.id == number), None)
    if session is None:
        raise RequestError(
            Fault.NOT_FOUND, "session", f"no request with the number {number} is running: it may have ended"
        )
    log.info("an operator has ended a request", extra={"fields": {"request": session.request.id}})
    session.manager.fail(session, RequestError(Fault.ENDED, "request", "the operator of this server has ended it"))


def _end_batch(services: Services, batch_id: str) -> None:
    every = [] if services.store.files is None else services.store.files.kept.batches.everyones()
    cancel = next((batch.cancel for _tenant, batch in every if batch.id == batch_id), None)
    if cancel is None:
        raise RequestError(Fault.NOT_FOUND, "batch", "no batch with this id is running: it may have ended")
    log.info("an operator has cancelled a batch", extra={"fields": {"batch": batch_id}})
    cancel()


def settings_page(config: Config) -> bytes:
    """All settings as JSON, each value as in a TOML file; secrets are not shown."""
    settings = [
        {
            "name": one.key,
            "value": one.kind.render(getattr(config, one.key)),
            "default": one.kind.render(one.default),
            "about": one.help,
        }
        for one in SETTINGS.by_key.values()
    ]
    return orjson.dumps({"settings": settings})
