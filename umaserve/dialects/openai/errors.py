"""Errors as OpenAI's API words them."""

from __future__ import annotations

import math
import re

import orjson

from umaserve.errors import Fault, RequestError

_INVALID, _SERVER = "invalid_request_error", "server_error"

_ERRORS: dict[Fault, tuple[int, str, str | None]] = {
    Fault.FRAME_TOO_LARGE: (413, _INVALID, "request_too_large"),
    Fault.INVALID_JSON: (400, _INVALID, None),
    Fault.BAD_REQUEST: (400, _INVALID, None),
    Fault.BUSY: (409, _INVALID, "busy"),
    Fault.PROMPT_TOO_LARGE: (413, _INVALID, "prompt_too_large"),
    Fault.CONTEXT_EXCEEDED: (400, _INVALID, "context_length_exceeded"),
    Fault.TOO_MANY_SESSIONS: (503, _SERVER, "too_many_sessions"),
    Fault.CONTENT_FILTERED: (400, _INVALID, "content_filter"),
    Fault.NOT_FOUND: (404, _INVALID, "not_found"),
    Fault.UNAUTHORIZED: (401, _INVALID, "invalid_api_key"),
    Fault.RATE_LIMITED: (429, "rate_limit_error", "rate_limit_exceeded"),
    Fault.MEMORY_PRESSURE: (503, _SERVER, "memory_pressure"),
    Fault.TIMED_OUT: (504, _SERVER, "timeout"),
    Fault.MODEL_NOT_LOADED: (503, _SERVER, "model_not_loaded"),
    Fault.DECODE_FAILED: (500, _SERVER, "server_error"),
    Fault.SHUTTING_DOWN: (503, _SERVER, "shutting_down"),
}
"""Status, ``type`` and ``code``."""

_FIELD = re.compile(r"([A-Za-z_][A-Za-z0-9_.\[\]-]*): ")


def error_body(error: RequestError) -> tuple[int, bytes, list[tuple[str, str]]]:
    """The HTTP status, the JSON body, and the headers that the error adds (seconds in ``Retry-After``)."""
    status, kind, code = _ERRORS[error.fault]
    field = _FIELD.match(error.message) if error.fault in (Fault.BAD_REQUEST, Fault.PROMPT_TOO_LARGE) else None
    headers = []
    if error.retry_after_s is not None:
        headers.append(("Retry-After", str(max(1, math.ceil(error.retry_after_s)))))
    if status == 401:
        headers.append(("WWW-Authenticate", "Bearer"))  # RFC 9110 section 11.6.1 demands it.
    return status, _body(error.message, kind, field and field[1], code), headers


def http_error(status: int, message: str) -> bytes:
    """The body for a refusal that is HTTP's own, such as 404 or 415."""
    return _body(message, _INVALID if status < 500 else _SERVER, None, None)


def _body(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})
