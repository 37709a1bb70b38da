"""Routes of a dialect over HTTP: its paths, what answers each, its part of the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar, cast

from umaserve.core.errors import RequestError
from umaserve.core.queries import Answer, AnsweredBy, Query
from umaserve.core.requests import SoundFormat
from umaserve.dialects.dialect import Dialect
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import Body, CallingBody, ErrorShape, HttpReply, KeptBody
from umaserve.dialects.reference import Reference
from umaserve.wire.http_head import Headers, Request

A = TypeVar("A")

Authenticate = Callable[[str], bool]
"""Whether a key is valid."""


def path_pattern(path: str) -> re.Pattern[str]:
    """What matches the paths that a route's path stands for, as of ``HttpDialect.routes``."""
    return re.compile(re.sub(r"\\{.*?\\}", ".*", re.escape(path)), re.DOTALL)


@dataclass(frozen=True, slots=True)
class Page:
    """A page that is answered at once; ``make`` returns status, content type and body, or raises ``RequestError``."""

    make: Callable[[Facts, Request], tuple[int, str, bytes]]


class OperatorsPage(Page):
    """A page for callers whom the daemon knows, and not through a relay."""


@dataclass(frozen=True, slots=True)
class LaterPage:
    """A page of JSON, for callers as of ``OperatorsPage``, that may take time: ``begin`` gets what to call with its
    body or an error, or raises ``RequestError``."""

    begin: Callable[[Facts, Request, Callable[[bytes | RequestError], None]], None]


@dataclass(frozen=True, slots=True)
class Document:
    """A page, as ``Page``, with headers of its own: ``make`` returns status, headers and body."""

    make: Callable[[Request], tuple[int, Headers, bytes]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A query to the engine, and how its answer is rendered."""

    query: Query
    render: Callable[[Answer], bytes]
    model: str
    """The name of the model that is asked; empty: the default one."""


def ask(query: AnsweredBy[A], render: Callable[[A], bytes], model: str = "") -> Asked:
    """A query, and how an answer to it is rendered."""
    return Asked(cast("Query", query), cast("Callable[[Answer], bytes]", render), model)


@dataclass(frozen=True, slots=True)
class Posted:
    """Answers the body of a POST, which may take time; one of those below."""


@dataclass(frozen=True, slots=True)
class EngineQuestion(Posted):
    """A query to the engine; ``parse`` reads it from a body, or raises ``RequestError``. ``media``: as in
    ``TextReply``."""

    parse: Callable[[bytes, Facts], Asked]
    media: bool = False


@dataclass(frozen=True, slots=True)
class TextReply(Posted):
    """Generated text, whole or as a stream of events. ``media``: bodies are limited by ``--max-chat-bytes``."""

    new_body: Callable[[Facts], Body]
    media: bool = False


@dataclass(frozen=True, slots=True)
class FormReply(Posted):
    """Generated text, as ``TextReply``, for a form with a file (multipart/form-data). ``new_body`` gets its
    ``Content-Type`` too, which says what parts the fields."""

    new_body: Callable[[Facts, str], Body]


@dataclass(frozen=True, slots=True)
class CallingTextReply(TextReply):
    """Generated text, as ``TextReply``, with answers in which the daemon may call tools."""

    new_body: Callable[[Facts], CallingBody]


@dataclass(frozen=True, slots=True)
class KeptTextReply(TextReply):
    """Generated text, as ``TextReply``, with answers that are kept and may go on in the background."""

    new_body: Callable[[Facts], KeptBody]


@dataclass(frozen=True, slots=True)
class SoundEvents:
    """Form of speech as a stream of events. An error is an event too, with the error's body."""

    stream_type: str
    delta: Callable[[bytes], bytes]
    """Makes the data of the event for the next bytes of the file."""
    done: bytes
    """The data of the last event."""
    frame: Callable[[bytes], bytes]
    """The bytes of one event."""


@dataclass(frozen=True, slots=True)
class SpokenText:
    """A text to be spoken, and its audio format."""

    text: str
    file_format: str
    """"wav" or "pcm", with 16-bit samples, or a compressed format."""
    compressed: SoundFormat | None
    """The encoder's format; ``None`` for "wav" and "pcm", which need no encoder."""
    events: SoundEvents | None = None
    """The form of a stream of events; ``None``: the reply is the file."""


class SpeechBody(HttpReply, Protocol):
    """One HTTP request for speech: its body in, the reply's parts out."""

    def receive(self, content: bytes) -> SpokenText:
        """The text in the request's body; raises ``RequestError``."""


@dataclass(frozen=True, slots=True)
class SpeechReply(Posted):
    """A text as speech."""

    new_body: Callable[[Facts], SpeechBody]


class Handed(NamedTuple):
    """A message that another endpoint answers, which gets the same body, with errors in the message's own form."""

    endpoint: Posted
    errors: ErrorShape


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Takes messages that say themselves what is to answer them. ``read`` returns status, headers and body, or what
    the message is handed to; it may raise ``RequestError``. ``media``: as in ``TextReply``."""

    read: Callable[[Facts, Request], tuple[int, Headers, bytes] | Handed]
    media: bool = False


@dataclass(frozen=True, slots=True)
class FileUpload:
    """Keeps the file of a form (multipart/form-data)."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """The content of a kept file."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A WebSocket's messages. The dialect gets an ``Authenticate`` if the client has still to present a key, which it
    may where ``key_in_message``: browsers' pages can't send one with a handshake.

    ``resumable``: the dialect is a ``ResumableDialect``, whose generation survives a lost connection. ``media``: as in
    ``TextReply``, for a client that has presented a key or needs none.
    """

    new_dialect: Callable[[Facts, Authenticate | None], Dialect]
    key_in_message: bool = False
    resumable: bool = False
    media: bool = False


@dataclass(frozen=True, slots=True)
class RealtimeSessions:
    """The sessions of OpenAI's Realtime API, each on a WebSocket."""


@dataclass(frozen=True, slots=True)
class Echo:
    """A WebSocket that sends everything back, for conformance suites."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A stream of events that tell what the daemon does, for as long as the client looks."""


@dataclass(frozen=True, slots=True)
class WatchModels(Watch):
    """A stream, as ``Watch``, of what happens to the models."""


@dataclass(frozen=True, slots=True)
class KeptEvents:
    """A stream of events that is kept, read on. ``place`` reads its name, and the bytes to pass over, from a request;
    raises ``RequestError``."""

    place: Callable[[Request], tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Absent:
    """Nothing, by no method; ``instead`` says what to do."""

    instead: str


@dataclass(frozen=True, slots=True)
class Route:
    """A path's method and endpoint. ``public``: no key is needed. ``operators``: it is for those only."""

    method: str
    endpoint: (
        Page
        | LaterPage
        | Document
        | Posted
        | Dispatch
        | FileUpload
        | FileContent
        | Conversation
        | RealtimeSessions
        | Echo
        | Watch
        | KeptEvents
        | Absent
    )
    public: bool = False
    operators: bool = False
    also: Route | None = None
    """The route of another method at the same path."""

    @property
    def each(self) -> tuple[Route, ...]:
        """The route, and the others of its path."""
        return (self,) if self.also is None else (self, *self.also.each)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that the path answers, besides OPTIONS."""
        own = ("GET", "HEAD") if self.method == "GET" else (self.method,)
        return own if self.also is None else (*own, *self.also.methods)

    def of(self, method: str) -> Route:
        """The route that answers ``method``, which is one of ``methods``."""
        return next((route for route in self.each if route.method == method), self)


@dataclass(frozen=True, slots=True)
class SharedPaths:
    """Routes at paths of another dialect, for requests that have ``header`` (its name in lower case)."""

    header: str
    routes: Mapping[str, Route]


@dataclass(frozen=True, slots=True)
class HttpDialect:
    """One API or contract over HTTP."""

    name: str
    """The dialect's label in metrics and the log."""
    routes: Mapping[str, Route]
    """Routes by path. A path with a "{NAME}" matches all paths with anything in that place, slashes included."""
    errors: ErrorShape
    reference: Reference | None = None
    """The operations of ``routes``; ``None`` if another dialect of its folder has them."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of paths in ``routes``; the OpenAPI document names them in the descriptions of these paths."""
    shared: SharedPaths | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    """What to do instead of requests of this API that aren't served, by method and path."""
