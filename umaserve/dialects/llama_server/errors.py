"""Errors in the form of llama-server's own API."""

from __future__ import annotations

import orjson

from umaserve.core.errors import ContextExceeded, Fault, RequestError
from umaserve.dialects.http import HTTP_STATUS, ErrorReply, ErrorShape, error_headers

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


def error_body(error: RequestError) -> ErrorReply:
    """The reply to a request that failed."""
    # OpenAI's clients repeat a request after a 501; those of llama-server expect it.
    status = 501 if error.fault is Fault.NOT_SUPPORTED else HTTP_STATUS[error.fault]
    kind = "exceed_context_size_error" if error.fault is Fault.CONTEXT_EXCEEDED else _type(status)
    counts = {}
    if isinstance(error, ContextExceeded):
        counts = {"n_prompt_tokens": error.prompt_tokens, "n_ctx": error.context_tokens}
    return ErrorReply(status, _body(status, error.message, kind, **counts), error_headers(error, status))


def http_error(status: int, message: str) -> bytes:
    """The body for an error of HTTP itself, such as 404 or 415."""
    return _body(status, message, _type(status))


def _type(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def _body(status: int, message: str, kind: str, **counts: int) -> bytes:
    return orjson.dumps({"error": {"code": status, "message": message, "type": kind, **counts}})


ERRORS = ErrorShape(error_body, http_error)
