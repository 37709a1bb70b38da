"""Errors in the form of JSON-RPC 2.0 (section 5.1), with the codes that the Model Context Protocol adds."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.http import HTTP_STATUS, ErrorReply, ErrorShape, error_headers

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022

Id = str | int


class ProtocolError(Exception):
    """A message that is answered with an error of JSON-RPC; ``status`` is that of HTTP."""

    def __init__(
        self,
        code: int,
        message: str,
        of: Id | None = None,
        status: int = 200,
        data: Mapping[str, object] | None = None,
    ) -> None:
        """``of``: the message's id; ``None``: it has none, or it could not be read."""
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.of = of
        self.status = status
        self.data = data

    def body(self) -> bytes:
        return error_body(self.code, self.message, self.of, self.data)


def error_body(code: int, message: str, of: Id | None = None, data: Mapping[str, object] | None = None) -> bytes:
    """An error response to the request ``of``, or without an id."""
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return orjson.dumps({"jsonrpc": "2.0", "id": of, "error": error})


def _of_request(error: RequestError) -> ErrorReply:
    status = HTTP_STATUS[error.fault]
    code = PARSE_ERROR if error.fault is Fault.INVALID_JSON else _code(status)
    return ErrorReply(status, error_body(code, error.message), error_headers(error, status))


def _of_http(status: int, message: str) -> bytes:
    return error_body(_code(status), message)


def _code(status: int) -> int:
    return INVALID_REQUEST if status < 500 else INTERNAL_ERROR


ERRORS = ErrorShape(_of_request, _of_http)
"""What is refused before a message is read."""
