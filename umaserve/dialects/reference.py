"""The parts of an OpenAPI document (3.1): operations with their bodies, replies and examples, by path.

Schemas come from what `wire/declared` declares; here is what only people know of an operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from umaserve import __version__
from umaserve.wire.declared import Declared, Kind, Schema, string
from umaserve.wire.schema_components import Components

Described = Kind[Any] | type[Declared]

_REFUSED = (
    "The request was refused: 400 for what is in it, 401 without a valid key, 403 for a Host or an Origin that is not "
    "allowed{forbidden}, 404 and 405 for its path and method, 408 where it arrived too slowly{conflict}, 413, 414 and"
    " 431 "
    "where it is too large, 415 where it is no JSON{form}, 429 where there were too many requests."
)
_FAILED = (
    "500 for a fault of the server{unable}, 503 while the model loads, memory or slots are short or the server is"
    " shutting down, "
    "504 where --request-timeout was reached."
)
_RETRY_AFTER: Schema = {
    "description": "Seconds until another attempt may succeed, where the server knows.",
    "schema": {"type": "integer", "minimum": 1},
}
_CHALLENGE: Schema = {"description": "With 401.", "schema": {"const": "Bearer"}}
_ALLOW: Schema = {"description": "With 405: the methods that the path allows.", "schema": {"type": "string"}}
MAX_TOKENS: Schema = {
    "description": "The server's --max-tokens, where the operator set it.",
    "schema": {"type": "integer", "minimum": 1},
}
CACHE_MISS: Schema = {"$ref": "#/components/headers/CacheMiss"}


def refused(*, forbidden: str = "", conflict: str = "", form: str = "") -> str:
    """What the statuses from 400 to 499 mean, with what an API adds to some of them."""
    return _REFUSED.format(forbidden=forbidden, conflict=conflict, form=form)


def failed(*, unable: str = "") -> str:
    """What the statuses from 500 to 599 mean, with what an API adds."""
    return _FAILED.format(unable=unable)


@dataclass(frozen=True, slots=True)
class Errors:
    """The replies to requests that are refused or fail, in one API's form."""

    name: str
    """The prefix of their names among the document's components."""
    error: Described
    refused: str = field(default_factory=refused)
    failed: str = field(default_factory=failed)
    headers: Mapping[str, Schema] = field(default_factory=dict)
    """Headers of both, besides ``Retry-After``."""
    plain: bool = False
    """Whether they have no headers that the document describes."""

    def components(self, components: Components) -> dict[str, Any]:
        """Both replies, by their names among the document's components."""
        retry = {} if self.plain else {"Retry-After": _RETRY_AFTER}
        names = {} if self.plain else {"WWW-Authenticate": _CHALLENGE, "Allow": _ALLOW}
        return {
            f"{self.name}Refused": Reply(self.refused, self.error, headers={**retry, **names, **self.headers}).document(
                components
            ),
            f"{self.name}Failed": Reply(self.failed, self.error, headers={**retry, **self.headers}).document(
                components
            ),
        }


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of one status."""

    about: str
    json: Described | None = None
    events: tuple[Described, str] | None = None
    """Server-sent events: the JSON of each, and what people should know of the stream."""
    lines: tuple[Described, str] | None = None
    """Lines of JSON, likewise."""
    content: Mapping[str, Described | None] = field(default_factory=dict)
    """Other types of content; ``None``: bytes that no schema describes."""
    headers: Mapping[str, Schema] = field(default_factory=dict)
    also: Schema = field(default_factory=dict)

    def document(self, components: Components) -> Schema:
        content: Schema = {}
        if self.json is not None:
            content["application/json"] = {"schema": self.json}
        if self.events is not None:
            each, about = self.events
            content["text/event-stream"] = {"schema": {"type": "string", "description": about}, "x-event": each}
        if self.lines is not None:
            each, about = self.lines
            content["application/x-ndjson"] = {"schema": {"type": "string", "description": about}, "x-line": each}
        content |= {media: {} if of is None else {"schema": of} for media, of in self.content.items()}
        made: Schema = {"description": self.about}
        if content:
            made["content"] = content
        if self.headers:
            made["headers"] = self.headers
        rendered: Schema = components.rendered({**made, **self.also})
        return rendered


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request."""

    schema: Described
    examples: Mapping[str, object] = field(default_factory=dict)
    media: str = "application/json"
    required: bool = True

    def document(self, components: Components) -> Schema:
        content: Schema = {"schema": components.rendered(self.schema)}
        if self.examples:
            content["examples"] = {name: {"value": value} for name, value in self.examples.items()}
        required = {"required": True} if self.required else {}
        return {**required, "content": {self.media: content}}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the path, the query or a header (``place``)."""

    name: str
    place: str
    kind: Described = field(default_factory=string)
    about: str = ""

    def document(self, components: Components) -> Schema:
        made: Schema = {"name": self.name, "in": self.place, "schema": components.rendered(self.kind)}
        if self.place == "path":
            made["required"] = True
        return made | _described(self.about)


def query_of(declared: type[Declared]) -> tuple[Parameter, ...]:
    """The parameters of the query that ``declared`` reads."""
    made = []
    for name, field_ in declared.declared.items():
        default = {} if field_.default is None else {"default": field_.default}
        made.append(Parameter(name, "query", Kind({**field_.kind.schema, **default}), field_.about))
    return tuple(made)


HANDSHAKE = (
    Parameter(
        "model", "query", about='The model of messages that name none, or "default"; without it, the default model.'
    ),
    Parameter(
        "Sec-WebSocket-Protocol",
        "header",
        string(description="`umaserve`, and `bearer.KEY` where a key is needed."),
    ),
)
"""Parameters of a request for a WebSocket."""


def upgraded(error: Described, about: str = ".", *, also: Schema | None = None) -> dict[str, Reply]:
    """Replies to a request for a WebSocket. ``about``: what is said besides of the one that comes of it; ``also``: the
    schemas of its messages."""
    return {
        "101": Reply(f"The connection is a WebSocket from here on{about}", also=also or {}),
        "426": Reply(
            "The request is no WebSocket handshake of version 13.",
            error,
            headers={"Upgrade": {"schema": {"const": "websocket"}}},
        ),
    }


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    name: str
    """The ``operationId``."""
    summary: str
    about: str = ""
    replies: Mapping[str, Reply] = field(default_factory=dict)
    """Replies by their status."""
    body: Body | None = None
    parameters: Sequence[Parameter] = ()
    tag: str = ""
    """The group that it is listed in; empty: that of the reference."""
    errors: Errors | None = None
    """The form of its errors; ``None``: that of the reference."""
    security: Sequence[Schema] | None = None
    """The keys that it needs; ``None``: a client's, where the server wants keys; none: it is for everybody."""

    def document(self, reference: Reference, components: Components) -> Schema:
        made: Schema = {"tags": [self.tag or reference.tag], "operationId": self.name, "summary": self.summary}
        made |= _described(self.about)
        if self.security is not None:
            made["security"] = list(self.security)
        if self.parameters:
            made["parameters"] = [parameter.document(components) for parameter in self.parameters]
        if self.body is not None:
            made["requestBody"] = self.body.document(components)
        made["responses"] = {status: reply.document(components) for status, reply in self.replies.items()}
        errors = self.errors or reference.errors
        for status, kind in (("4XX", "Refused"), ("5XX", "Failed")):
            made["responses"][status] = {"$ref": f"#/components/responses/{errors.name}{kind}"}
        return made


@dataclass(frozen=True, slots=True)
class Reference:
    """The operations of one API, by method and path."""

    tag: str
    about: str
    """The description of the tag; empty: none, or another reference has it."""
    errors: Errors
    operations: Mapping[tuple[str, str], Operation]


@dataclass(frozen=True, slots=True)
class Frame:
    """What an OpenAPI document has besides operations and schemas."""

    title: str
    about: str
    keys: Mapping[str, Schema]
    """The security schemes; clients need ``key``, where the server wants keys."""
    tags: Sequence[Schema] = ()
    """The groups of operations that are no reference's own."""
    headers: Mapping[str, Schema] = field(default_factory=dict)
    """Headers of replies that operations refer to."""


def document(frame: Frame, references: Iterable[Reference]) -> dict[str, Any]:
    """The OpenAPI document with the operations of all ``references``."""
    components = Components()
    paths: dict[str, Schema] = {}
    responses: dict[str, Schema] = {}
    tags = {tag["name"]: tag for tag in frame.tags}
    for reference in references:
        tags.setdefault(reference.tag, {"name": reference.tag} | _described(reference.about))
        for (method, path), operation in reference.operations.items():
            paths.setdefault(path, {})[method.lower()] = operation.document(reference, components)
            responses |= (operation.errors or reference.errors).components(components)
    return {
        "openapi": "3.1.0",
        "info": {"title": frame.title, "version": __version__, "description": frame.about},
        "servers": [{"url": "/"}],
        "security": [{}, {"key": []}],
        "tags": list(tags.values()),
        "paths": paths,
        "components": {
            "securitySchemes": frame.keys,
            "responses": responses,
            **({"headers": frame.headers} if frame.headers else {}),
            "schemas": components.schemas,
        },
    }


def _described(about: str) -> Schema:
    return {"description": about} if about else {}
