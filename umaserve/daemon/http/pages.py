"""The daemon's own pages: health, metrics, the OpenAPI document, the voice's reference recording, and the root."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.exposition import PROMETHEUS
from umaserve.daemon.http import health, web_page
from umaserve.daemon.http.reference import FRAME, REFERENCE
from umaserve.daemon.http.routes import DIALECTS
from umaserve.daemon.http.status import end, settings_page
from umaserve.daemon.services import Services
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import JSON
from umaserve.dialects.llama_server.metrics import llama_metrics
from umaserve.dialects.openai.errors import ERRORS
from umaserve.dialects.reference import document
from umaserve.dialects.routes import Document, Echo, HttpDialect, OperatorsPage, Page, Route, Watch
from umaserve.wire.http_head import Headers, Request


@functools.cache
def openapi() -> bytes:
    """The OpenAPI document of all routes but ``/debug/echo``."""
    references = [dialect.reference for dialect in DIALECTS if dialect.reference is not None]
    aliases = {alias: path for dialect in DIALECTS for alias, path in dialect.aliases.items()}
    return orjson.dumps(document(FRAME, [*references, REFERENCE], aliases))


def own_pages(services: Services) -> HttpDialect:
    """Their routes; ``/debug/echo`` is among them only with ``--debug-echo``."""

    page = web_page.WebPage(services.config.page_tool_servers)

    def root(request: Request) -> tuple[int, Headers, bytes]:
        if (request.header("user-agent") or "").startswith("ollama"):
            return (
                200,
                [("Content-Type", "text/plain; charset=utf-8")],
                b"Ollama is running",
            )  # What its clients look for.
        if services.config.page and web_page.wanted(request):
            return page.index(request)
        return 200, [("Content-Type", JSON), ("Vary", "Accept")], paths

    def probe(ask: Callable[[Services], tuple[int, bytes]]) -> Route:
        def answer(_facts: Facts, _request: Request) -> tuple[int, str, bytes]:
            status, body = ask(services)
            return status, JSON, body

        return Route("GET", Page(answer), public=True)

    def metrics(_request: Request) -> tuple[int, Headers, bytes]:
        told, headers = services.prometheus(), [("Content-Type", PROMETHEUS)]
        if services.config.llama_metrics:
            told += llama_metrics(services.metrics().values)
            headers.append(("Process-Start-Time-Unix", str(services.started_at)))
        return 200, headers, told

    def reference(_facts: Facts, _request: Request) -> tuple[int, str, bytes]:
        return 200, JSON, openapi()

    def ref_audio(_facts: Facts, _request: Request) -> tuple[int, str, bytes]:
        if services.ref_audio is None:
            problem = "this daemon has no voice to clone: --ref-audio and --tts-model give it one"
            raise RequestError(Fault.NOT_FOUND, "ref_audio", problem)
        return 200, JSON, services.ref_audio.reply()

    def settings(_facts: Facts, _request: Request) -> tuple[int, str, bytes]:
        return 200, JSON, settings_page(services.config)

    def end_one(_facts: Facts, request: Request) -> tuple[int, str, bytes]:
        end(services, request.body)
        return 200, JSON, b"{}"

    routes = {
        "/": Route("GET", Document(root), public=True),
        "/health": probe(health.health),
        "/health/live": probe(health.live),
        "/health/ready": probe(health.ready),
        "/v1/health": probe(health.health),
        "/metrics": Route("GET", Document(metrics)),
        "/openapi.json": Route("GET", Page(reference)),
        "/api/default_ref_audio": Route("GET", Page(ref_audio)),
        "/api/box": Route("GET", Watch(), operators=True),
        "/api/box/end": Route("POST", OperatorsPage(end_one), operators=True),
        "/api/settings": Route("GET", OperatorsPage(settings), operators=True),
    }
    if services.config.page:
        routes["/docs"] = Route("GET", Document(page.index), public=True)
        routes["/page/{file}"] = Route("GET", Document(page.file), public=True)
    if services.config.debug_echo:
        routes["/debug/echo"] = Route("GET", Echo())
    paths = _paths([*(dialect.routes for dialect in DIALECTS), routes])
    return HttpDialect("http", routes, ERRORS)


def _paths(tables: Sequence[Mapping[str, Route]]) -> bytes:
    """What a program finds at the root: all paths, with their methods."""
    methods = {path: route.methods for table in tables for path, route in table.items()}
    return orjson.dumps({"openapi": "/openapi.json", "paths": dict(sorted(methods.items()))})
