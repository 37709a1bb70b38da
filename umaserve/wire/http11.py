"""The server's HTTP/1.1 codec: bytes to whole requests, and responses to bytes. Sans-IO, over h11.

h11 follows the exchange and frames the responses. It reads leniently where a careful server must not, so the head is
checked line by line before h11 sees it (``http_head``), and the body is read without it (``http_body``).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from types import MappingProxyType

import h11

from umaserve.wire.http_body import ChunkedBody, SizedBody
from umaserve.wire.http_head import (
    Headers,
    Refusal,
    Request,
    body_length,
    check_content_encoding,
    parse_head,
    shown,
)

_RESPONSE_START = b"HTTP/1.1 "
_CHUNK_START = b"0"
"""What may stand before any chunk's size (RFC 9112, section 7.1)."""

_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Phase(enum.Enum):
    """What the codec waits for."""

    IDLE = enum.auto()
    """Nothing of a next request has come."""
    HEAD = enum.auto()
    BODY = enum.auto()
    RESPONSE = enum.auto()
    """A request was given out, and its response is not complete."""
    LAST_RESPONSE = enum.auto()
    """The same of a request that was refused, or answered before it had come. Nothing more is read."""
    CLOSED = enum.auto()
    """There will be no more requests."""


class _Event(enum.Enum):
    BYTES = enum.auto()
    NO_BYTES = enum.auto()
    """What had come was no beginning of a request."""
    END_OF_INPUT = enum.auto()
    HEAD = enum.auto()
    """It was read, as is the whole request with ``REQUEST``."""
    REQUEST = enum.auto()
    REFUSED = enum.auto()
    RESPONDED = enum.auto()
    RESPONDED_LAST = enum.auto()
    """With a response after which the connection ends."""
    UPGRADED = enum.auto()


_TRANSITIONS: dict[tuple[Phase, _Event], Phase] = {
    (Phase.IDLE, _Event.BYTES): Phase.HEAD,
    (Phase.IDLE, _Event.END_OF_INPUT): Phase.CLOSED,
    (Phase.IDLE, _Event.REFUSED): Phase.LAST_RESPONSE,
    (Phase.HEAD, _Event.NO_BYTES): Phase.IDLE,
    (Phase.HEAD, _Event.HEAD): Phase.BODY,
    (Phase.HEAD, _Event.REFUSED): Phase.LAST_RESPONSE,
    (Phase.BODY, _Event.REQUEST): Phase.RESPONSE,
    (Phase.BODY, _Event.REFUSED): Phase.LAST_RESPONSE,
    (Phase.RESPONSE, _Event.RESPONDED): Phase.IDLE,
    (Phase.RESPONSE, _Event.RESPONDED_LAST): Phase.CLOSED,
    (Phase.RESPONSE, _Event.UPGRADED): Phase.CLOSED,
    (Phase.LAST_RESPONSE, _Event.RESPONDED_LAST): Phase.CLOSED,
}


class HttpCodec:
    """One connection's requests and responses in turn, in HTTP/1.1 (RFC 9112) and 1.0.

    A head may have ``max_head_bytes`` with its blank line, a body ``max_body_bytes``, or what ``bodies`` says for its
    path where it is POSTed. What a client sends after a request waits, unread, until that one's response is complete.
    A 1.0 connection ends with its first response.
    """

    def __init__(
        self, max_head_bytes: int, max_body_bytes: int, bodies: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        self._max_head = max_head_bytes
        self._max_body = max_body_bytes
        self._bodies = bodies
        self._buffer = bytearray()
        self._eof = False
        self.phase = Phase.IDLE
        self._start_over()

    def _start_over(self) -> None:
        self._http = h11.Connection(h11.SERVER)
        self._searched = 0
        self._blank_skipped = False
        self._request: Request | None = None
        """The request whose body is being read."""
        self._refused: Request | None = None
        self._body: SizedBody | ChunkedBody = SizedBody(0)
        self._owes_continue = False
        self._bodiless = False
        self._chunked = False
        """Whether the response that has begun is."""
        self._probed = False
        """Whether the beginning of what is to be sent next has been sent."""
        self.more = False
        """``next_request`` stopped for its bound of work, not for want of bytes: call again in a later turn."""

    @property
    def buffered(self) -> int:
        """Bytes received and not given out, the body so far among them."""
        return len(self._buffer) + self._body.held

    @property
    def answering(self) -> bool:
        """Whether a response is owed, or not complete."""
        return self.phase in (Phase.RESPONSE, Phase.LAST_RESPONSE)

    @property
    def _reading(self) -> bool:
        return self.phase in (Phase.HEAD, Phase.BODY)

    @property
    def head(self) -> Request | None:
        """The request whose body is still to come, without it: who won't have it can say so before."""
        return self._request

    @property
    def refused(self) -> Request | None:
        """The request that ``next_request`` refused, without its body, where its head was good."""
        return self._refused

    @property
    def keep_alive(self) -> bool:
        """After a complete response: whether another request may follow."""
        return self.phase is not Phase.CLOSED

    # -- requests ------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        if not data or self.phase in (Phase.LAST_RESPONSE, Phase.CLOSED):
            return
        self._buffer += data
        self._owes_continue = False
        if self.phase is Phase.IDLE:
            self._move(_Event.BYTES)

    def receive_eof(self) -> None:
        """The peer sends no more; a request that is not whole never will be."""
        self._eof = True
        if self.phase is Phase.IDLE:
            self._move(_Event.END_OF_INPUT)

    def next_request(self) -> Request | None:
        """The next whole request, or ``None`` until it has come and the last one's response is complete.

        Raises ``Refusal``, after which nothing more is read: ``respond`` with it, and close.
        """
        self.more = False
        if not self._reading:
            return None
        try:
            request = self._read()
            if request is None and self._eof and self._reading and not self.more:
                raise Refusal(400, "request: the connection's input ended before it was whole")
        except Refusal:
            self._refused = self._request
            self._refuse()
            raise
        return request

    def _read(self) -> Request | None:
        if self._request is None:
            head = self._take_head()
            if head is None:
                return None
            self._move(_Event.HEAD)
            self._request, version = parse_head(head)
            self._begin_body(self._request, version, head)
        body = self._body.take(self._buffer)
        if body is None:
            self.more = self._body.stopped
            return None
        request, self._request = replace(self._request, body=body), None
        self._body = SizedBody(0)
        self._move(_Event.REQUEST)
        return request

    def _take_head(self) -> bytes | None:
        """The next head up to its blank line, or ``None`` until that has come."""
        buffer = self._buffer
        while (end := buffer.find(b"\n", self._searched, self._max_head)) >= 0:
            self._searched = end + 1
            if buffer[end - 1 : end] != b"\r":
                raise Refusal(400, "head: expected lines ended by CR LF, got a bare LF")
            if end == 1:
                # RFC 9112, section 2.2: some clients send an empty line after a body.
                if self._blank_skipped:
                    raise Refusal(400, "request line: expected at most one empty line before it, got more")
                self._blank_skipped = True
                self._searched = 0
                del buffer[:2]
            elif buffer[end - 3 : end] == b"\r\n\r":
                head = bytes(buffer[: end - 3])
                del buffer[: end + 1]
                return head
        if len(buffer) >= self._max_head:
            raise Refusal(431, f"head: expected at most {self._max_head} bytes, got more")
        self._searched = len(buffer)
        if not buffer:
            self._move(_Event.NO_BYTES)
        return None

    def _begin_body(self, request: Request, version: bytes, head: bytes) -> None:
        length = body_length(request, version)
        self._http.receive_data(head + b"\r\n\r\n")
        self._http.next_event()
        self._bodiless = request.method == "HEAD"
        # What needs no key, such as OPTIONS, has no large body.
        limit = self._bodies.get(request.path, self._max_body) if request.method == "POST" else self._max_body
        if length is not None and length > limit:
            raise Refusal(413, f"Content-Length: expected at most {limit}, got {length}")
        if length != 0:
            check_content_encoding(request)
        expectations = request.header_values("expect")
        if any(value.lower() != "100-continue" for value in expectations):
            raise Refusal(417, f"Expect: expected 100-continue, got {shown(', '.join(expectations))}")
        self._body = ChunkedBody(limit) if length is None else SizedBody(length)
        # RFC 9110, section 10.1.1: none in 1.0, and none to a client that no longer waits for it.
        self._owes_continue = bool(expectations) and version == b"HTTP/1.1" and length != 0 and not self._buffer

    def _refuse(self) -> None:
        """Read no more: nobody can say where a next request would begin."""
        self._move(_Event.REFUSED)
        self._request = None
        self._owes_continue = False
        self._body = SizedBody(0)

    def _move(self, event: _Event) -> None:
        self.phase = _TRANSITIONS[self.phase, event]
        if self.phase is Phase.IDLE and self._buffer:
            self._move(_Event.BYTES)
        elif self.phase is Phase.IDLE and self._eof:
            self._move(_Event.END_OF_INPUT)
        elif self.phase in (Phase.LAST_RESPONSE, Phase.CLOSED):
            self._buffer.clear()

    # -- responses -----------------------------------------------------------------------------------------------

    def take_output(self) -> bytes:
        """What the codec itself has to say: "100 Continue", once, to a client that waits for it with its body."""
        if not self._owes_continue:
            return b""
        self._owes_continue = False
        return self._http.send(h11.InformationalResponse(status_code=100, headers=[], reason=_REASONS[100]))

    def respond(self, status: int, headers: Headers, body: bytes) -> bytes:
        """A whole response, with its ``Content-Length``; to ``HEAD`` without the body.

        Where no whole request was given out, refused or not (a timeout, say), it is the connection's last one.
        """
        if status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            headers = [*headers, ("Content-Length", str(len(body)))]
        return self.begin(status, headers) + self.chunk(body) + self.end()

    def probe(self) -> bytes:
        """As much of the response as is certain before the rest is known; ``b""`` the second time.

        Nothing but bytes on the wire makes the kernel of a client that has closed its socket say so. One that only
        finished sending (RFC 9112, section 9.6) gets the same response as without them.
        """
        if self._probed or self.phase is not Phase.RESPONSE:
            return b""
        self._probed = True
        if self._http.our_state is h11.SEND_RESPONSE:
            return _RESPONSE_START
        return _CHUNK_START if self._chunked else b""

    def begin(self, status: int, headers: Headers) -> bytes:
        """The head of a response whose body comes through ``chunk`` until ``end``: chunked, in 1.0 until the close."""
        if not self.answering:
            self._refuse()
        if self.phase is Phase.LAST_RESPONSE:
            headers = [*headers, ("Connection", "close")]
        reason = _REASONS.get(status, "")
        head = self._http.send(h11.Response(status_code=status, headers=_encoded(headers), reason=reason))
        self._chunked = not self._bodiless and b"\r\nTransfer-Encoding: chunked\r\n" in head
        return head.removeprefix(_RESPONSE_START) if self._probed else head

    def chunk(self, data: bytes) -> bytes:
        return b"" if self._bodiless else self._http.send(h11.Data(data))

    def end(self) -> bytes:
        last = self._http.send(h11.EndOfMessage())
        if self._http.our_state is h11.DONE:
            self._start_over()
            self._move(_Event.RESPONDED)
        else:
            self._move(_Event.RESPONDED_LAST)
        return last

    def upgrade(self, headers: Headers) -> tuple[bytes, bytes]:
        """The 101 response with ``headers``, and the bytes after the request, which are the next protocol's.

        The request must have had an ``Upgrade`` header. The codec does nothing more after this.
        """
        response = h11.InformationalResponse(status_code=101, headers=_encoded(headers), reason=_REASONS[101])
        switch, rest = self._http.send(response), bytes(self._buffer)
        self._move(_Event.UPGRADED)
        return switch, rest


def _encoded(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
