"""The parts of an OpenAPI document (3.1): operations with their bodies, replies and examples, by path.

Schemas come from what `wire/declared` declares; here is what only people know of an operation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from umaserve import __version__
from umaserve.wire.declared import Declared, Kind, Schema, string
from umaserve.wire.schema_components import Components

Described = Kind[Any] | type[Declared]

_REFUSED = (
    "The request was refused: 400 for what is in it, 401 without a valid key, 403 for a Host or an Origin that is not "
    "allowed{forbidden}, 404 and 405 for its path and method, 408 where it arrived too slowly{conflict}, 413, 414 and "
    "431 where it is too large, 415 where it is no JSON{form}, 429 where there were too many requests."
)
_FAILED = (
    "500 for a fault of the server{unable}, 503 while the model loads, memory or slots are short or the server is "
    "shutting down, 504 where --request-timeout was reached."
)
_RETRY_AFTER: Schema = {
    "description": "Seconds until another attempt may succeed, where the server knows.",
    "schema": {"type": "integer", "minimum": 1},
}
_CHALLENGE: Schema = {"description": "With 401.", "schema": {"const": "Bearer"}}
_ALLOW: Schema = {"description": "With 405: the methods that the path allows.", "schema": {"type": "string"}}
CAPPED: dict[str, Schema] = {
    "x-umaserve-max-tokens": {
        "description": "The server's --max-tokens, where the operator set it.",
        "schema": {"type": "integer", "minimum": 1},
    }
}
"""Headers of an answer that may not be longer than the server's ``--max-tokens``."""
CACHED: dict[str, Schema] = {"x-umaserve-cache-miss": {"$ref": "#/components/headers/CacheMiss"}}
"""Headers of an answer whose prompt may be cached."""
GENERATED = CAPPED | CACHED


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
        refused = Reply(self.refused, self.error, headers={**retry, **names, **self.headers})
        failed = Reply(self.failed, self.error, headers={**retry, **self.headers})
        return {
            f"{self.name}Refused": refused.document(components),
            f"{self.name}Failed": failed.document(components),
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

    @property
    def contents(self) -> dict[str, Schema]:
        """What its body may be, by the type of the content."""
        made: dict[str, Schema] = {}
        if self.json is not None:
            made["application/json"] = {"schema": self.json}
        if self.events is not None:
            each, about = self.events
            made["text/event-stream"] = {"schema": {"type": "string", "description": about}, "x-event": each}
        if self.lines is not None:
            each, about = self.lines
            made["application/x-ndjson"] = {"schema": {"type": "string", "description": about}, "x-line": each}
        return made | {media: {} if of is None else {"schema": of} for media, of in self.content.items()}

    def document(self, components: Components) -> Schema:
        made: Schema = {"description": self.about}
        if contents := self.contents:
            made["content"] = contents
        if self.headers:
            made["headers"] = self.headers
        rendered: Schema = components.rendered({**made, **self.also})
        return rendered


def streamed(whole: Described, each: Described, about: str, headers: Mapping[str, Schema] = GENERATED) -> Reply:
    """The reply that is a whole answer, or events with ``each`` as their data."""
    return Reply('The whole answer, or with `"stream": true` its events.', whole, (each, about), headers=headers)


METRICS = Reply("OK", content={"text/plain": string(description="Prometheus' text format.")})
NOT_CHANGED = {"304": Reply("It has not changed since the one in If-None-Match.")}
"""The further reply to a client that may have it already."""


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


def takes(schema: Described, **examples: object) -> Body:
    """A body of JSON, with examples by their names."""
    return Body(schema, examples)


def form(schema: Described) -> Body:
    """A body that is a form with a file."""
    return Body(schema, media="multipart/form-data")


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


def _query_of(declared: type[Declared]) -> tuple[Parameter, ...]:
    """The parameters of the query that ``declared`` reads."""
    made = []
    for name, field_ in declared.declared.items():
        default = {} if field_.default is None else {"default": field_.default}
        made.append(Parameter(name, "query", Kind({**field_.kind.schema, **default}), field_.about))
    return tuple(made)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    about: str
    """The summary as its first sentence, like that of a docstring, and then what else there is to know."""
    reply: Reply | Described | None = None
    """Reply of status 200; a schema stands for one with such JSON."""
    body: Body | None = None
    parameters: Sequence[Parameter] | type[Declared] = ()
    """Parameters; those of the path may be left out, and a class stands for those of the query that it reads."""
    replies: Mapping[str, Reply] = field(default_factory=dict)
    """Replies of other statuses."""
    tag: str = ""
    """The group that it is listed in; empty: that of the reference."""
    errors: Errors | None = None
    """The form of its errors; ``None``: that of the reference."""
    security: Sequence[Schema] | None = None
    """The keys that it needs; ``None``: a client's, where the server wants keys; none: it is for everybody."""

    @property
    def summary(self) -> str:
        return self.about.partition(". ")[0]

    @property
    def ok(self) -> dict[str, Reply]:
        """The reply of status 200, if it has one."""
        match self.reply:
            case None:
                return {}
            case Reply():
                return {"200": self.reply}
        return {"200": Reply("OK", json=self.reply)}

    def document(
        self, name: str, path: str, aliases: Sequence[str], reference: Reference, components: Components
    ) -> Schema:
        more = self.about.partition(". ")[2]
        made: Schema = {"tags": [self.tag or reference.tag], "operationId": name, "summary": self.summary}
        made |= _described(f"{_also_at(aliases)} {more}".strip())
        if self.security is not None:
            made["security"] = list(self.security)
        if parameters := self._parameters(path):
            made["parameters"] = [parameter.document(components) for parameter in parameters]
        if self.body is not None:
            made["requestBody"] = self.body.document(components)
        replies = {**self.ok, **self.replies}
        made["responses"] = {status: reply.document(components) for status, reply in replies.items()}
        errors = self.errors or reference.errors
        for status, kind in (("4XX", "Refused"), ("5XX", "Failed")):
            made["responses"][status] = {"$ref": f"#/components/responses/{errors.name}{kind}"}
        return made

    def _parameters(self, path: str) -> list[Parameter]:
        told = _query_of(self.parameters) if isinstance(self.parameters, type) else self.parameters
        named = {parameter.name for parameter in told}
        return [*(Parameter(name, "path") for name in re.findall("{(.*?)}", path) if name not in named), *told]


HANDSHAKE = (
    Parameter(
        "model", "query", about='The model of messages that name none, or "default"; without it, the default model.'
    ),
    Parameter(
        "Sec-WebSocket-Protocol", "header", string(description="`umaserve`, and `bearer.KEY` where a key is needed.")
    ),
)
"""Parameters of a request for a WebSocket."""


def websocket(
    about: str,
    messages: tuple[Described, Described] | None,
    error: Described,
    parameters: Sequence[Parameter] = HANDSHAKE,
) -> Operation:
    """A WebSocket. ``messages``: the client's and the server's, where they are texts of JSON."""
    refused = Reply(
        "The request is no WebSocket handshake of version 13.",
        error,
        headers={"Upgrade": {"schema": {"const": "websocket"}}},
    )
    upgraded = Reply("The connection is a WebSocket from here on.")
    if messages is not None:
        also = dict(zip(("x-client-message", "x-server-message"), messages, strict=True))
        upgraded = Reply(f"{upgraded.about} Its messages are text, each one JSON object.", also=also)
    return Operation(about, parameters=parameters, replies={"101": upgraded, "426": refused})


@dataclass(frozen=True, slots=True)
class Reference:
    """The operations of one API."""

    tag: str
    about: str
    """The description of the tag; empty: none, or another reference has it."""
    errors: Errors
    operations: Mapping[tuple[str, str], Operation]
    """By their ``operationId``, and their method and path: ("health", "GET /health")."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What an OpenAPI document has besides operations and schemas."""

    title: str
    about: str
    keys: Mapping[str, Schema]
    """The security schemes; clients need ``key``, where the server wants keys."""
    headers: Mapping[str, Schema] = field(default_factory=dict)
    """Headers of replies that operations refer to."""


def bearer(about: str) -> Schema:
    """The security scheme of a key in the header ``Authorization``."""
    return {"type": "http", "scheme": "bearer", "description": about}


def document(frame: Frame, references: Iterable[Reference], aliases: Mapping[str, str]) -> dict[str, Any]:
    """The OpenAPI document with the operations of all ``references``. ``aliases``: other names of their paths."""
    components = Components()
    paths: dict[str, Schema] = {}
    responses: dict[str, Schema] = {}
    tags: dict[str, Schema] = {}
    for reference in references:
        tags.setdefault(reference.tag, {"name": reference.tag} | _described(reference.about))
        for (name, at), operation in reference.operations.items():
            method, path = at.split()
            others = [alias for alias, of in aliases.items() if of == path]
            paths.setdefault(path, {})[method.lower()] = operation.document(name, path, others, reference, components)
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


def _also_at(aliases: Sequence[str]) -> str:
    *most, last = aliases or [""]
    return f"Also at {', '.join(most)}{' and ' if most else ''}{last}." if last else ""
