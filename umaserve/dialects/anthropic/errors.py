"""Errors in the form of Anthropic's API."""

from __future__ import annotations

import orjson

from umaserve.core.errors import ContextExceeded, RequestError
from umaserve.dialects.http import HTTP_STATUS, ErrorReply, ErrorShape, error_headers

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""The error's ``type`` by status."""


def error_body(error: RequestError, request_id: str | None = None, max_tokens: int | None = None) -> ErrorReply:
    """The reply to a request that failed; ``max_tokens`` is what it asked for."""
    status = HTTP_STATUS[error.fault]
    body = _body(status, _message(error, max_tokens), request_id)
    return ErrorReply(status, body, [*_request_id(request_id), *error_headers(error, status)])


def http_error(status: int, message: str) -> bytes:
    """The body for an error of HTTP itself, such as 404 or 415."""
    return _body(status, message, None)


def _request_id(request_id: str | None) -> list[tuple[str, str]]:
    return [] if request_id is None else [("request-id", request_id)]


def _message(error: RequestError, max_tokens: int | None) -> str:
    if not isinstance(error, ContextExceeded):
        return error.message
    got, holds, wanted = error.prompt_tokens, error.context_tokens, max_tokens or 1
    # Agents look for both of these phrases, with their numbers, and then shorten the conversation.
    too_long = f"prompt is too long: {got} tokens > {holds - 1} maximum"
    return f"{too_long}; input length and `max_tokens` exceed context limit: {got} + {wanted} > {holds}"


def _body(status: int, message: str, request_id: str | None) -> bytes:
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    error = {"type": kind, "message": message}
    return orjson.dumps({"type": "error", "error": error, "request_id": request_id})


ERRORS = ErrorShape(error_body, http_error)
