"""A dialect over HTTP: its routes, the shape of its errors, its part of the OpenAPI document."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from umaserve.dialects.dialect import Dialect
from umaserve.dialects.parameters import RequestLimits
from umaserve.errors import Fault, RequestError
from umaserve.messages import Answer, Generate, ModelInfo, Output, Query, SoundFormat, VoiceInfo
from umaserve.wire.http_head import Headers, Refusal, Request

JSON = "application/json"

Authenticate = Callable[[str], bool]
"""Whether a key is good."""


HTTP_STATUS: Mapping[Fault, int] = {
    Fault.FRAME_TOO_LARGE: 413,
    Fault.INVALID_JSON: 400,
    Fault.BAD_REQUEST: 400,
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
    Fault.MODEL_NOT_LOADED: 503,
    Fault.DECODE_FAILED: 500,
    Fault.SHUTTING_DOWN: 503,
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What a dialect may know of its daemon."""

    limits: RequestLimits
    model: Callable[[], ModelInfo | None]
    """``None`` while it loads."""
    voice: VoiceInfo | None
    """``None`` where the daemon can't speak."""
    new_id: Callable[[str], str]
    """Makes a random id with the given prefix. Ids are secrets: they allow a lost generation to be resumed."""
    now: Callable[[], int]
    """Seconds since 1970."""
    started_at: int
    """The same, of the daemon's start."""
    parallel: int
    """Sequences that are decoded at once."""
    resumable: bool
    """Whether a lost connection's generation is kept for another connection."""
    recorded: bool
    """Whether conversations are recorded, so that requests keep their payload."""

    def loaded(self) -> ModelInfo:
        """The model; raises ``RequestError`` while it loads."""
        info = self.model()
        if info is None:
            raise RequestError(
                Fault.MODEL_NOT_LOADED, "model", "it is being loaded; try again later", retry_after_s=1.0
            )
        return info


class Body(Protocol):
    """One HTTP request for text: its body in, the reply's parts out."""

    stream_type: str
    """The content type of a stream."""

    @property
    def streaming(self) -> bool:
        """Whether the reply is a stream of events; known once the body is."""

    @property
    def done(self) -> bool:
        """Whether the last ``Finished`` has come."""

    @property
    def end(self) -> bytes | None:
        """The data of the event that ends a stream, if one does."""

    @property
    def headers(self) -> Headers:
        """Headers of the reply besides its content type."""

    def receive(self, body: bytes) -> Sequence[Generate]:
        """The requests in ``body``; raises ``RequestError``."""

    def send(self, index: int, output: Output) -> list[bytes]:
        """The data of the events for an output of the request number ``index``; none unless streaming."""

    def fail(self, index: int, error: RequestError) -> list[bytes]:
        """The data of the last events of a stream that has begun."""

    def frame(self, data: bytes) -> bytes:
        """The bytes of one event of the stream."""

    def result(self) -> bytes:
        """The whole reply, once ``done``."""

    def error(self, error: RequestError) -> ErrorReply:
        """The reply where no stream has begun."""


class ErrorReply(NamedTuple):
    """An error as an HTTP reply; ``body`` is JSON."""

    status: int
    body: bytes
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How a dialect words errors that come before or instead of a reply."""

    of_request: Callable[[RequestError], ErrorReply]
    of_http: Callable[[int, str], bytes]
    """The body for a status and a message of HTTP's own, such as 404 or 415."""

    def reply(self, error: RequestError | Refusal) -> ErrorReply:
        if isinstance(error, RequestError):
            return self.of_request(error)
        return ErrorReply(error.status, self.of_http(error.status, error.message), error.headers)


def cap_headers(limits: RequestLimits) -> Headers:
    """The header that tells clients of ``--max-tokens``, where it is set."""
    return () if limits.max_tokens is None else (("x-umaserve-max-tokens", str(limits.max_tokens)),)


def error_headers(error: RequestError, status: int) -> Headers:
    """The headers of an error: ``Retry-After`` in seconds, and ``WWW-Authenticate``."""
    headers = []
    if error.retry_after_s is not None:
        headers.append(("Retry-After", str(max(1, math.ceil(error.retry_after_s)))))
    if status == 401:
        headers.append(("WWW-Authenticate", "Bearer"))  # RFC 9110 section 11.6.1 demands it.
    return headers


# What may answer a path.


@dataclass(frozen=True, slots=True)
class Page:
    """Answered at once, with status, content type and body; may raise ``RequestError``."""

    make: Callable[[Facts, Request], tuple[int, str, bytes]]


@dataclass(frozen=True, slots=True)
class EngineQuestion:
    """A query to the engine out of a body, and how its answer is rendered; may raise ``RequestError``."""

    parse: Callable[[bytes, Facts], tuple[Query, Callable[[Answer], bytes]]]


@dataclass(frozen=True, slots=True)
class TextReply:
    """Generated text, in one piece or as a stream of events. ``media``: bodies may be as large as ``--max-chat-bytes``
    allows."""

    new_body: Callable[[Facts], Body]
    media: bool = False


@dataclass(frozen=True, slots=True)
class SpokenText:
    """A text to be spoken, and the form of its sound."""

    text: str
    file_format: str
    """"wav" or "pcm", of 16-bit samples, or a compressed one."""
    compressed: SoundFormat | None
    """The codec for the encoder; ``None`` for "wav" and "pcm", which need none."""


@dataclass(frozen=True, slots=True)
class SpeechReply:
    """The sound of a text; may raise ``RequestError``."""

    parse: Callable[[bytes, Facts], SpokenText]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A WebSocket's messages. The dialect gets an ``Authenticate`` where the client has shown no key yet.

    ``resumable``: the dialect is a ``ResumableDialect``, whose generation outlives a lost connection. ``media``: as of
    ``TextReply``, for who has shown a key or needs none.
    """

    new_dialect: Callable[[Facts, Authenticate | None], Dialect]
    resumable: bool = False
    media: bool = False


@dataclass(frozen=True, slots=True)
class Echo:
    """A WebSocket that sends everything back, for conformance suites."""


@dataclass(frozen=True, slots=True)
class Route:
    """What answers a path. ``public``: no key is needed."""

    method: str
    endpoint: Page | EngineQuestion | TextReply | SpeechReply | Conversation | Echo
    public: bool = False

    @property
    def methods(self) -> tuple[str, ...]:
        """Those that it answers, besides OPTIONS."""
        return ("GET", "HEAD") if self.method == "GET" else (self.method,)


@dataclass(frozen=True, slots=True)
class HttpDialect:
    """One API or contract over HTTP."""

    name: str
    """Its label in metrics and the log."""
    routes: Mapping[str, Route]
    """By path. A path that ends in "{NAME}" stands for all that go on there, to the end."""
    errors: ErrorShape
    openapi: bytes = b"{}"
    """Its ``tags``, ``paths`` and ``components``, as JSON; nothing where another dialect of its folder has them."""


def page_of_model(make: Callable[[ModelInfo, Facts], bytes]) -> Page:
    """A page of JSON about the model, once that is loaded."""
    return Page(lambda facts, _request: (200, JSON, make(facts.loaded(), facts)))
