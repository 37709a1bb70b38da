"""One relayed HTTP request: the client's side."""

from __future__ import annotations

import re
from collections.abc import Mapping

import orjson

from umaserve.http.connection import JSON, HttpConnection
from umaserve.relay.pool.pool import Pool
from umaserve.relay.pool.request import RelayedRequest
from umaserve.wire.event_stream import is_event_stream, late_error
from umaserve.wire.forwarding import end_to_end, via
from umaserve.wire.http_head import Headers

MAX_UNREAD = 4 * 1024 * 1024
"""Bytes that may be queued for a client, as its worker may not support pausing."""
WITHOUT_BODY = (204, 304)
BAD_GATEWAY = 502
CORS_PREFIX = "access-control-"
"""Only the relay sets CORS headers: browsers reject a reply that has them twice."""

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class RelayExchange:
    """Implements ``relay.pool.request.Client`` on an HTTP connection; it is the connection's ``pending``."""

    def __init__(self, connection: HttpConnection, pool: Pool) -> None:
        self._connection = connection
        self._pool = pool
        self._request: RelayedRequest | None = None
        self._path = ""
        self._begun = False
        self._bodiless = False
        """Whether the status of the reply allows no body, whatever its worker sends."""
        self._events = False
        """Whether the reply is an event stream."""
        self._last = b""
        """The reply's last chunk."""

    def start(self, request: RelayedRequest) -> None:
        self._request, self._path = request, request.path
        # The body is kept until the answer begins, for a requeue.
        self._connection.input.keep(len(request.body))
        self._pool.submit(request)

    # -- from the connection -------------------------------------------------------------------------------------

    def release(self) -> None:
        if self._request is not None:
            self._pool.pause(self._request, False)

    def abandon(self) -> None:
        self._connection.input.keep(0)
        request, self._request = self._request, None
        if request is not None:
            self._pool.leave(request)

    # -- from the pool -------------------------------------------------------------------------------------------

    def respond(self, status: int, headers: Mapping[str, str], body: str | bytes) -> None:
        self._request = None
        self._connection.input.keep(0)
        self._connection.respond(status, _passed(headers), b"" if status in WITHOUT_BODY else _bytes(body))

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self._connection.input.keep(0 if self._request is None else len(self._request.body))
        self._begun = True
        self._bodiless = status in WITHOUT_BODY
        self._events = is_event_stream(headers)
        self._connection.begin(status if status >= 200 else BAD_GATEWAY, _passed(headers))

    def write(self, chunk: str | bytes) -> None:
        if self._bodiless:
            return
        connection = self._connection
        # Checked before this chunk is queued, which alone may be larger than the limit.
        if connection.channel.queued > MAX_UNREAD:
            connection.channel.abort()
            return
        self._last = _bytes(chunk)
        connection.write(self._last)
        if connection.congested and self._request is not None:
            self._pool.pause(self._request, True)

    def end(self) -> None:
        self._request = None
        self._connection.input.keep(0)
        self._connection.end()

    def fail(self, status: int, error: str) -> None:
        self._connection.input.keep(0)
        self._request = None
        if not self._begun:
            self._connection.respond(status, [JSON], orjson.dumps({"error": error}))
        elif self._bodiless:
            self._connection.end()
        elif self._events:
            # The worker may have left an event unfinished; the error must be an event of its own.
            end = b"" if self._last.endswith(b"\n\n") else b"\n\n"
            self._connection.write(end + late_error(self._path, error).encode())
            self._connection.end()
        else:
            # The body is no event stream: closing leaves it incomplete, which tells the client.
            self._connection.channel.close()


def _bytes(body: str | bytes) -> bytes:
    return body.encode() if isinstance(body, str) else body


def _passed(headers: Mapping[str, str]) -> Headers:
    """The headers of a worker, which are untrusted, that are passed on to a client."""
    passed = [
        (name, value)
        for name, value in end_to_end(headers.items())
        if name.lower() not in ("date", "via")  # Date is set again; Via is extended below.
        and not name.lower().startswith(CORS_PREFIX)
        and _NAME.fullmatch(name)
        and _VALUE.fullmatch(value)
    ]
    before = next((value for name, value in headers.items() if name.lower() == "via" and _VALUE.fullmatch(value)), None)
    return [*passed, ("Via", via("1.1", before))]
