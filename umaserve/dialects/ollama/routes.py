"""The paths of Ollama's API."""

from __future__ import annotations

from umaserve.dialects.facts import Facts
from umaserve.dialects.http import JSON
from umaserve.dialects.ollama import embeddings, models
from umaserve.dialects.ollama.answers import LINES, ChatBody, GenerateBody, line
from umaserve.dialects.ollama.errors import ERRORS
from umaserve.dialects.ollama.reference import REFERENCE
from umaserve.dialects.ollama.schemas import OllamaRequest
from umaserve.dialects.parameters import json_body
from umaserve.dialects.routes import Asked, EngineQuestion, HttpDialect, Page, Route, TextReply, ask
from umaserve.wire.http_head import Request


def _version(_facts: Facts, _request: Request) -> tuple[int, str, bytes]:
    return 200, JSON, models.version()


def _tags(facts: Facts, _request: Request) -> tuple[int, str, bytes]:
    return 200, JSON, models.tags(facts)


def _running(facts: Facts, _request: Request) -> tuple[int, str, bytes]:
    return 200, JSON, models.running(facts)


def _show(facts: Facts, request: Request) -> tuple[int, str, bytes]:
    return 200, JSON, models.show(request.body, facts)


def _pull(facts: Facts, request: Request) -> tuple[int, str, bytes]:
    stream, status = models.pull(request.body, facts)
    return (200, LINES, line(status)) if stream else (200, JSON, status)


def _refuse(_facts: Facts, _request: Request) -> tuple[int, str, bytes]:
    return models.refuse()


def _embed(body: bytes, facts: Facts) -> Asked:
    asked_at = facts.clock()
    fields = json_body(body)
    model = OllamaRequest.view(fields).model
    info = facts.loaded(model)
    query, dimensions = embeddings.parse_embed(fields, facts.limits, info)
    return ask(query, lambda answer: embeddings.embed_result(answer, dimensions, info, facts.clock() - asked_at), model)


def _embeddings(body: bytes, facts: Facts) -> Asked:
    fields = json_body(body)
    model = OllamaRequest.view(fields).model
    query = embeddings.parse_embeddings(fields, facts.limits, facts.loaded(model))
    return ask(query, embeddings.embeddings_result, model)


DIALECT = HttpDialect(
    "ollama",
    {
        "/api/version": Route("GET", Page(_version)),
        "/api/tags": Route("GET", Page(_tags)),
        "/api/ps": Route("GET", Page(_running)),
        "/api/show": Route("POST", Page(_show)),
        "/api/chat": Route("POST", TextReply(lambda facts: ChatBody(facts, facts.new_id("chat-")), media=True)),
        "/api/generate": Route("POST", TextReply(lambda facts: GenerateBody(facts, facts.new_id("gen-")), media=True)),
        "/api/embed": Route("POST", EngineQuestion(_embed)),
        "/api/embeddings": Route("POST", EngineQuestion(_embeddings)),
        "/api/pull": Route("POST", Page(_pull)),
        "/api/create": Route("POST", Page(_refuse)),
        "/api/copy": Route("POST", Page(_refuse)),
        "/api/push": Route("POST", Page(_refuse)),
        "/api/delete": Route("DELETE", Page(_refuse)),
        "/api/blobs/{digest}": Route("POST", Page(_refuse)),
    },
    ERRORS,
    REFERENCE,
)
