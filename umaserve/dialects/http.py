"""Replies over HTTP: what a body becomes, the form of its errors, their headers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import CacheMiss, Output
from umaserve.core.requests import Generate
from umaserve.core.server_tools import CallResult, ServerCall
from umaserve.dialects.parameters import RequestLimits
from umaserve.wire.http_head import Headers, Refusal

JSON = "application/json"
AS_IT_COMES = (
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),  # or nginx would hold tokens back
)
"""Headers of a reply that comes in parts."""

MAX_QUOTED = 48
"""Bytes of each text in a header, as JSON escapes them."""

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


class CallingBody(Body, Protocol):
    """A body whose answer may need tools of MCP servers."""

    def take_calls(self) -> Mapping[int, ServerCall]:
        """Calls to make before the answer begins, after ``receive``, or goes on, after the end of a request; by their
        numbers."""

    def called(self, number: int, result: CallResult) -> list[bytes]:
        """The data of the events for the result of the call of that number; the answer may be ``done`` then."""

    def next_request(self) -> Generate:
        """The request with which the answer goes on, once all calls have results. Raises ``RequestError``."""


class KeptBody(CallingBody, Protocol):
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
