"""Errors in the form of Ollama's API."""

from __future__ import annotations

import orjson

from umaserve.core.errors import ModelNotFound, RequestError
from umaserve.dialects.http import HTTP_STATUS, ErrorReply, ErrorShape, error_headers


def error_body(error: RequestError) -> ErrorReply:
    """The reply to a request that failed; its body is also the last line of a stream that failed."""
    status = HTTP_STATUS[error.fault]
    # Ollama's words, which clients look for, and then pull the model.
    message = f"model '{error.model[:64]}' not found" if isinstance(error, ModelNotFound) else error.message
    return ErrorReply(status, http_error(status, message), error_headers(error, status))


def http_error(_status: int, message: str) -> bytes:
    return orjson.dumps({"error": message})


ERRORS = ErrorShape(error_body, http_error)
