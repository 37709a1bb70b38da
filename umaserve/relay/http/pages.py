"""The relay's own pages: its models, also in Anthropic's and Ollama's forms, health, metrics and OpenAPI document."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.exposition import PROMETHEUS
from umaserve.dialects.anthropic import models as anthropic
from umaserve.dialects.ollama import models as ollama
from umaserve.dialects.openai import codex
from umaserve.dialects.openai import models as openai
from umaserve.dialects.reference import document
from umaserve.http.connection import JSON, HttpConnection, Serve
from umaserve.relay.http.intake import ANTHROPIC_HEADER, Intake
from umaserve.relay.http.reference import FRAME, REFERENCES
from umaserve.relay.http.relayed import ALIASES
from umaserve.relay.pool.accounts import Accounts
from umaserve.relay.pool.pool import Pool
from umaserve.wire.http_head import Request

MODELS = "/v1/models"
PROBES = ("/health", "/health/live", "/health/ready")
"""Pages that anybody may see."""


@functools.cache
def openapi() -> bytes:
    """The OpenAPI document of the relay."""
    return orjson.dumps(document(FRAME, REFERENCES, {**ALIASES, "/models": MODELS}))


class Pages:
    """Pages that answer GET."""

    def __init__(
        self,
        pool: Pool,
        intake: Intake,
        provider: str,
        metrics: Callable[[Sequence[str]], bytes],
        leaving: Callable[[], bool],
        key_of: Callable[[Request], str],
        accounts: Accounts | None,
    ) -> None:
        """``metrics`` gets the names of the keys whose usage is shown."""
        self._pool = pool
        self._intake = intake
        self._provider = provider
        self._metrics = metrics
        self._leaving = leaving
        self._key_of = key_of
        self._accounts = accounts
        self._started_at = int(time.time())
        self._by_path = {
            MODELS: self._models,
            "/models": self._models,
            "/api/tags": self._tags,
            "/api/ps": self._running,
            "/api/version": self._version,
            "/health": self._health,
            "/health/live": self._live,
            # Not by its workers: where they reach the relay through a load balancer, it has to be ready before them.
            "/health/ready": self._ready,
            "/metrics": self._show_metrics,
            "/openapi.json": self._show_document,
        }

    def find(self, path: str) -> Serve | None:
        """The handler of ``path``; ``None`` where it is not one of these pages."""
        if path.startswith(f"{MODELS}/"):
            return self._model
        return self._by_path.get(path)

    def _models(self, connection: HttpConnection, request: Request) -> None:
        models = self._visible(request)
        if request.header(ANTHROPIC_HEADER) is not None:
            all_ = [self._described_by_anthropic(model) for model in models]
            connection.respond(200, [JSON], anthropic.page(all_, request.query))
            return
        data = [self._described(model) for model in models]
        of_codex = codex.models((model, self._pool.workers.context(model), ()) for model in models)
        told = {"object": "list", "data": data, "models": of_codex if codex.ASKS in request.query else []}
        connection.respond(200, [JSON], orjson.dumps(told))

    def _model(self, connection: HttpConnection, request: Request) -> None:
        name = request.path.removeprefix(f"{MODELS}/")
        anthropics = request.header(ANTHROPIC_HEADER) is not None
        model = self._intake.model_for(name, aliases=anthropics)
        if model is None or model not in self._visible(request):
            raise RequestError(Fault.NOT_FOUND, "model", f"expected one that {MODELS} lists, got {name[:64] or 'none'}")
        found = self._described_by_anthropic(model) if anthropics else self._described(model)
        connection.respond(200, [JSON], orjson.dumps(found))

    def _described(self, model: str) -> dict[str, object]:
        of_openai = {"id": model, "object": "model", "created": int(time.time()), "owned_by": self._provider}
        return of_openai | openai.context(self._pool.workers.context(model))

    def _described_by_anthropic(self, model: str) -> dict[str, object]:
        return anthropic.described(model, self._started_at, self._pool.workers.context(model))

    def _contexts(self, request: Request) -> dict[str, int]:
        return {model: self._pool.workers.context(model) for model in self._visible(request)}

    def _visible(self, request: Request) -> Sequence[str]:
        """The models that the request's key may use."""
        models = self._pool.workers.models()
        return self._accounts.visible(self._key_of(request), models) if self._accounts else models

    def _tags(self, connection: HttpConnection, request: Request) -> None:
        connection.respond(200, [JSON], ollama.tags_of(self._contexts(request), self._started_at))

    def _running(self, connection: HttpConnection, request: Request) -> None:
        connection.respond(200, [JSON], ollama.running_of(self._contexts(request)))

    def _version(self, connection: HttpConnection, _request: Request) -> None:
        connection.respond(200, [JSON], ollama.version())

    def _health(self, connection: HttpConnection, _request: Request) -> None:
        self._tell(connection, draining=self._pool.closing)

    def _live(self, connection: HttpConnection, _request: Request) -> None:
        self._tell(connection, draining=False)

    def _ready(self, connection: HttpConnection, _request: Request) -> None:
        self._tell(connection, draining=self._leaving())

    def _tell(self, connection: HttpConnection, *, draining: bool) -> None:
        body = {"status": "draining" if draining else "ok", "workers": len(self._pool.workers)}
        connection.respond(503 if draining else 200, [JSON], orjson.dumps(body))

    def _show_metrics(self, connection: HttpConnection, request: Request) -> None:
        # Of the keys its own only; operators see all.
        page = self._metrics([self._key_of(request)] if self._accounts else [])
        connection.respond(200, [("Content-Type", PROMETHEUS)], page)

    def _show_document(self, connection: HttpConnection, _request: Request) -> None:
        connection.respond(200, [JSON], openapi())
