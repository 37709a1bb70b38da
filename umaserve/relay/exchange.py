"""One HTTP request through the relay: the client's side of it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import orjson

from umaserve.dialects import sse
from umaserve.http.connection import JSON, HttpConnection
from umaserve.relay.pool import Pool
from umaserve.relay.request import RelayedRequest
from umaserve.wire.event_stream import is_event_stream
from umaserve.wire.forwarding import end_to_end, via
from umaserve.wire.http_head import Headers

MAX_UNREAD = 4 * 1024 * 1024
"""Bytes that may wait for a client whose worker can't be told to pause."""
WITHOUT_BODY = (204, 304)
BAD_GATEWAY = 502
CORS_PREFIX = "access-control-"
"""Whose pages may read a reply is for the relay to say, and browsers read nothing where it is said twice."""

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class RelayExchange:
    """Implements ``relay.request.Client`` on an HTTP connection, whose ``pending`` it is."""

    def __init__(self, connection: HttpConnection, pool: Pool) -> None:
        self._connection = connection
        self._pool = pool
        self._request: RelayedRequest | None = None
        self._begun = False
        self._bodiless = False
        """Whether the reply that has begun has a status that allows no body, whatever its worker sends."""
        self._events = False
        """Whether it is a stream of events."""
        self._last = ""
        """Its last chunk."""

    def start(self, request: RelayedRequest) -> None:
        self._request = request
        # Until an answer has begun another worker may be asked.
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

    def respond(self, status: int, headers: Mapping[str, str], body: str) -> None:
        self._request = None
        self._connection.input.keep(0)
        self._connection.respond(status, _passed(headers), b"" if status in WITHOUT_BODY else body.encode())

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self._connection.input.keep(0)
        self._begun = True
        self._bodiless = status in WITHOUT_BODY
        self._events = is_event_stream(headers)
        self._connection.begin(status if status >= 200 else BAD_GATEWAY, _passed(headers))

    def write(self, chunk: str) -> None:
        if self._bodiless:
            return
        connection = self._connection
        # Before what comes now, which may be larger than that by itself.
        if connection.channel.queued > MAX_UNREAD:
            connection.channel.abort()
            return
        self._last = chunk
        connection.write(chunk.encode())
        if connection.congested and self._request is not None:
            self._pool.pause(self._request, True)

    def end(self) -> None:
        self._request = None
        self._connection.end()

    def fail(self, status: int, error: str) -> None:
        self._connection.input.keep(0)
        self._request = None
        body = orjson.dumps({"error": error})
        if not self._begun:
            self._connection.respond(status, [JSON], body)
        elif self._bodiless:
            self._connection.end()
        elif self._events:
            # The worker may have left an event unfinished, and this one is not to be part of that.
            end = b"" if self._last.endswith("\n\n") else b"\n\n"
            self._connection.write(end + sse.event(body))
            self._connection.end()
        else:
            # Its reader takes no events: that the body is not whole says it.
            self._connection.channel.close()


def _passed(headers: Mapping[str, str]) -> Headers:
    """A worker's headers that may go to a client: it may say anything."""
    passed = [
        (name, value)
        for name, value in end_to_end(headers.items())
        if name.lower() not in ("date", "via")  # The one is made anew, the other added to.
        and not name.lower().startswith(CORS_PREFIX)
        and _NAME.fullmatch(name)
        and _VALUE.fullmatch(value)
    ]
    before = next((value for name, value in headers.items() if name.lower() == "via" and _VALUE.fullmatch(value)), None)
    return [*passed, ("Via", via("1.1", before))]
