"""Errors in the form of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from umaserve.core.errors import ContextExceeded, Fault, PreviousNotFound, RequestError
from umaserve.dialects.http import HTTP_STATUS, ErrorReply, ErrorShape, error_headers

_INVALID, _SERVER = "invalid_request_error", "server_error"

_ERRORS: dict[Fault, tuple[str, str | None]] = {
    Fault.FRAME_TOO_LARGE: (_INVALID, "request_too_large"),
    Fault.INVALID_JSON: (_INVALID, None),
    Fault.BAD_REQUEST: (_INVALID, None),
    Fault.NOT_SUPPORTED: (_INVALID, None),
    Fault.BUSY: (_INVALID, "busy"),
    Fault.PROMPT_TOO_LARGE: (_INVALID, "prompt_too_large"),
    # The type as llama-server has it, the code as OpenAI's service.
    Fault.CONTEXT_EXCEEDED: ("exceed_context_size_error", "context_length_exceeded"),
    Fault.TOO_MANY_SESSIONS: (_SERVER, "too_many_sessions"),
    Fault.CONTENT_FILTERED: (_INVALID, "content_filter"),
    Fault.NOT_FOUND: (_INVALID, "not_found"),
    Fault.UNAUTHORIZED: (_INVALID, "invalid_api_key"),
    Fault.RATE_LIMITED: ("rate_limit_error", "rate_limit_exceeded"),
    Fault.MEMORY_PRESSURE: (_SERVER, "memory_pressure"),
    Fault.QUEUE_FULL: (_SERVER, "queue_full"),
    Fault.TIMED_OUT: (_SERVER, "timeout"),
    Fault.MODEL_NOT_FOUND: (_INVALID, "model_not_found"),
    Fault.MODEL_NOT_LOADED: (_SERVER, "model_not_loaded"),
    Fault.DECODE_FAILED: (_SERVER, "server_error"),
    Fault.SHUTTING_DOWN: (_SERVER, "shutting_down"),
    Fault.ENDED: (_SERVER, "ended"),
}
"""``type`` and ``code``."""
_OF_FIELDS = (Fault.BAD_REQUEST, Fault.NOT_SUPPORTED, Fault.PROMPT_TOO_LARGE, Fault.MODEL_NOT_FOUND)


def error_fields(error: RequestError) -> dict[str, str | None]:
    """What a reply tells of an error."""
    kind, code = _ERRORS[error.fault]
    if isinstance(error, PreviousNotFound):
        code = "previous_response_not_found"
    param = (error.field or None) if error.fault in _OF_FIELDS else None
    return {"message": error.message, "type": kind, "param": param, "code": code}


def error_body(error: RequestError) -> ErrorReply:
    """The reply to a request that failed."""
    status = HTTP_STATUS[error.fault]
    counts: dict[str, int] = {}
    if isinstance(error, ContextExceeded):
        counts = {"n_prompt_tokens": error.prompt_tokens, "n_ctx": error.context_tokens}
    return ErrorReply(status, _body({**error_fields(error), **counts}), error_headers(error, status))


def http_error(status: int, message: str) -> bytes:
    """The body for an error of HTTP itself, such as 404 or 415."""
    kind = _INVALID if status < 500 else _SERVER
    return _body({"message": message, "type": kind, "param": None, "code": None})


def _body(fields: Mapping[str, str | int | None]) -> bytes:
    return orjson.dumps({"error": fields})


ERRORS = ErrorShape(error_body, http_error)
