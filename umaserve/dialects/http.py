"""A dialect over HTTP: its routes, the form of its errors, its part of the OpenAPI document."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar, cast

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import CacheMiss, Output
from umaserve.core.queries import Answer, AnsweredBy, Query
from umaserve.core.requests import Generate, SoundFormat
from umaserve.dialects.dialect import Dialect
from umaserve.dialects.facts import Facts
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.reference import Reference
from umaserve.wire.http_head import Headers, Refusal, Request

JSON = "application/json"
AS_IT_COMES = (
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),  # or nginx would hold tokens back
)
"""Headers of a reply that comes in parts."""

MAX_QUOTED = 48
"""Bytes of each text in a header, as JSON escapes them."""

A = TypeVar("A")

Authenticate = Callable[[str], bool]
"""Whether a key is valid."""


HTTP_STATUS: Mapping[Fault, int] = {
    Fault.FRAME_TOO_LARGE: 413,
    Fault.INVALID_JSON: 400,
    Fault.BAD_REQUEST: 400,
    Fault.NOT_SUPPORTED: 400,
    Fault.BUSY: 409,
    Fault.PROMPT_TOO_LARGE: 413,
    Fault.CONTEXT_EXCEEDED: 400,
    Fault.TOO_MANY_SESSIONS: 503,
    Fault.CONTENT_FILTERED: 400,
    Fault.NOT_FOUND: 404,
    Fault.UNAUTHORIZED: 401,
    Fault.RATE_LIMITED: 429,
    Fault.MEMORY_PRESSURE: 503,
    Fault.QUEUE_FULL: 503,
    Fault.TIMED_OUT: 504,
    Fault.MODEL_NOT_FOUND: 404,
    Fault.MODEL_NOT_LOADED: 503,
    Fault.DECODE_FAILED: 500,
    Fault.SHUTTING_DOWN: 503,
    Fault.ENDED: 403,  # Client libraries send most others again by themselves.
}


class HttpReply(Protocol):
    """The reply to one HTTP request, whole or a stream of events: outputs in, its parts out."""

    @property
    def stream_type(self) -> str:
        """The content type of a stream."""

    @property
    def streaming(self) -> bool:
        """Whether the reply is a stream of events; valid once the request is read."""

    @property
    def whole_type(self) -> str:
        """The content type of a whole reply; valid once the request is read."""

    @property
    def done(self) -> bool:
        """Whether all requests of the body have ended."""

    @property
    def end(self) -> bytes | None:
        """The data of the event that ends a stream, if there is one."""

    @property
    def headers(self) -> Headers:
        """Headers of the reply, without its content type."""

    def send(self, index: int, output: Output) -> list[bytes]:
        """The data of the events for an output of request number ``index``; none unless streaming. Raises
        ``RequestError`` where the answer ends in a way that its reply has no words for."""

    def fail(self, index: int, error: RequestError) -> list[bytes] | None:
        """The data of the events that report the error in a stream that has begun; ``None`` where none can, and the
        stream is cut off."""

    def frame(self, data: bytes) -> bytes:
        """The bytes of one event of the stream."""

    def result(self) -> bytes:
        """The whole reply, once ``done`` or without requests."""

    def error(self, error: RequestError) -> ErrorReply:
        """The reply to an error before a stream has begun."""


class Body(HttpReply, Protocol):
    """One HTTP request for generated text: its body in, the reply's parts out."""

    def receive(self, body: bytes) -> Sequence[Generate]:
        """The requests in ``body``; if there are none, ``result`` is the reply. Raises ``RequestError``."""

    def ping(self) -> bytes:
        """The bytes that a stream gets in which nothing else comes for a while; they change nothing for its reader."""


class KeptBody(Body, Protocol):
    """A body whose answer is kept, so that it may go on in the background."""

    @property
    def background(self) -> bool:
        """Whether the client gets ``result`` at once, and comes back for the answer; valid after ``receive``."""

    def go_on(self, cancel: Callable[[], None]) -> None:
        """The requests run in the background; ``cancel`` ends them."""


class ErrorReply(NamedTuple):
    """An error as an HTTP reply; ``body`` is JSON."""

    status: int
    body: bytes
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """The form of a dialect's errors that replace a reply."""

    of_request: Callable[[RequestError], ErrorReply]
    of_http: Callable[[int, str], bytes]
    """The body for an error of HTTP itself, such as 404 or 415: its status and message."""

    def reply(self, error: RequestError | Refusal) -> ErrorReply:
        if isinstance(error, RequestError):
            return self.of_request(error)
        return ErrorReply(error.status, self.of_http(error.status, error.message), error.headers)


def path_pattern(path: str) -> re.Pattern[str]:
    """What matches the paths that a route's path stands for, as of ``HttpDialect.routes``."""
    return re.compile(re.sub(r"\\{.*?\\}", ".*", re.escape(path)), re.DOTALL)


def cap_headers(limits: RequestLimits) -> Headers:
    """The header that gives ``--max-tokens`` to clients, if it is set."""
    return () if limits.max_tokens is None else (("x-umaserve-max-tokens", str(limits.max_tokens)),)


def miss_header(miss: CacheMiss) -> tuple[str, str]:
    """The header that says at which token, counted from 1, a prompt leaves one that is cached; up to 200 bytes."""
    value = f"token {miss.at + 1} of {miss.prompt_tokens}: {_quoted(miss.before, last=True)} then {_quoted(miss.here)}"
    return "x-umaserve-cache-miss", value if miss.known is None else f"{value} where it was {_quoted(miss.known)}"


def _quoted(text: str, *, last: bool = False) -> str:
    """The beginning, or the ``last`` part, of the text as a JSON string in ASCII. It may be empty."""
    shown = text[-MAX_QUOTED:] if last else text[:MAX_QUOTED]
    while len(quoted := json.dumps(shown).replace("\x7f", "\\u007f")) > MAX_QUOTED + 2:
        shown = shown[1:] if last else shown[:-1]
    return quoted


def error_headers(error: RequestError, status: int) -> Headers:
    """The headers of an error: ``Retry-After`` in seconds, and ``WWW-Authenticate``."""
    headers = []
    if error.retry_after_s is not None:
        headers.append(("Retry-After", str(max(1, math.ceil(error.retry_after_s)))))
    if status == 401:
        headers.append(("WWW-Authenticate", "Bearer"))  # Required by RFC 9110, section 11.6.1.
    return headers


# Endpoints: what may answer a path.


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
    """A WebSocket's messages. The dialect gets an ``Authenticate`` if the client has still to present a key.

    ``resumable``: the dialect is a ``ResumableDialect``, whose generation survives a lost connection. ``media``: as in
    ``TextReply``, for a client that has presented a key or needs none.
    """

    new_dialect: Callable[[Facts, Authenticate | None], Dialect]
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
class KeptEvents:
    """A stream of events that is kept, read on. ``place`` reads its name, and the bytes to pass over, from a request;
    raises ``RequestError``."""

    place: Callable[[Request], tuple[str, int]]


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
