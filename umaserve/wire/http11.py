"""The server's HTTP/1.1 codec: bytes to whole requests, and responses to bytes. Sans-IO, over h11.

h11 tracks the request-response cycle and frames the responses. Its parser is too lenient for a server, so the head is
checked line by line before h11 sees it (``http_head``), and the body is read without h11 (``http_body``).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from types import MappingProxyType

import h11

from umaserve.wire.http_body import ChunkedBody, SizedBody
from umaserve.wire.http_head import Headers, Refusal, Request, body_length, check_content_encoding, parse_head, shown

_RESPONSE_START = b"HTTP/1.1 "
_CHUNK_START = b"0"
"""A leading zero, valid before any chunk size (RFC 9112, section 7.1)."""

_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Phase(enum.Enum):
    """Phase of the codec: what it waits for."""

    IDLE = enum.auto()
    """Nothing of the next request has arrived."""
    HEAD = enum.auto()
    BODY = enum.auto()
    RESPONSE = enum.auto()
    """A request was returned, and its response is not complete."""
    LAST_RESPONSE = enum.auto()
    """A request was refused, or answered before it was whole; the rest is as in ``RESPONSE``. Nothing more is read."""
    CLOSED = enum.auto()
    """No more requests."""


class _Event(enum.Enum):
    BYTES = enum.auto()
    NO_BYTES = enum.auto()
    """Only an empty line had arrived."""
    END_OF_INPUT = enum.auto()
    HEAD = enum.auto()
    """The head was read."""
    REQUEST = enum.auto()
    """The whole request was read."""
    REFUSED = enum.auto()
    RESPONDED = enum.auto()
    RESPONDED_LAST = enum.auto()
    """The connection ends after this response."""
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

    Limits: ``max_head_bytes`` for a head with its blank line; ``max_body_bytes`` for a body, or for POST the limit that
    ``bodies`` has for its path. Pipelined requests wait unparsed until the response before them is complete. An
    HTTP/1.0 connection ends after its first response.
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
        """Whether the response under way is chunked."""
        self._probed = False
        """Whether ``probe`` has already sent the first bytes of what comes next."""
        self.more = False
        """Whether ``next_request`` stopped at its work limit, not for lack of bytes: call again in a later turn."""

    @property
    def buffered(self) -> int:
        """Bytes received and not yet returned, including a partial body."""
        return len(self._buffer) + self._body.held

    @property
    def answering(self) -> bool:
        """Whether a response is due or incomplete."""
        return self.phase in (Phase.RESPONSE, Phase.LAST_RESPONSE)

    @property
    def _reading(self) -> bool:
        return self.phase in (Phase.HEAD, Phase.BODY)

    @property
    def head(self) -> Request | None:
        """The request whose body is still arriving, without that body, so that it can be refused early."""
        return self._request

    @property
    def refused(self) -> Request | None:
        """The request that ``next_request`` refused, without its body; ``None`` if its head was malformed."""
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
        """End of the peer's input; an incomplete request stays incomplete."""
        self._eof = True
        if self.phase is Phase.IDLE:
            self._move(_Event.END_OF_INPUT)

    def next_request(self) -> Request | None:
        """The next whole request, or ``None`` until it has arrived and the previous response is complete.

        Raises ``Refusal``; nothing more is read after it: ``respond`` with it, then close.
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
        """The next head up to its blank line, or ``None`` until that has arrived."""
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
        # Only for POST: methods that need no key, such as OPTIONS, get no large body.
        limit = self._bodies.get(request.path, self._max_body) if request.method == "POST" else self._max_body
        if length is not None and length > limit:
            raise Refusal(413, f"Content-Length: expected at most {limit}, got {length}")
        if length != 0:
            check_content_encoding(request)
        expectations = request.header_values("expect")
        if any(value.lower() != "100-continue" for value in expectations):
            raise Refusal(417, f"Expect: expected 100-continue, got {shown(', '.join(expectations))}")
        self._body = ChunkedBody(limit) if length is None else SizedBody(length)
        # RFC 9110, section 10.1.1: not in HTTP/1.0, and not to a client that already sends its body.
        self._owes_continue = bool(expectations) and version == b"HTTP/1.1" and length != 0 and not self._buffer

    def _refuse(self) -> None:
        """Read no more: where the next request would begin is unknown."""
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
        """The codec's own output: one "100 Continue" for a client that waits for it before it sends its body."""
        if not self._owes_continue:
            return b""
        self._owes_continue = False
        return self._http.send(h11.InformationalResponse(status_code=100, headers=[], reason=_REASONS[100]))

    def respond(self, status: int, headers: Headers, body: bytes) -> bytes:
        """A whole response with its ``Content-Length``; without the body for ``HEAD``.

        Sent before a whole request was returned (after a refusal or a timeout), it is the connection's last one.
        """
        if status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            headers = [*headers, ("Content-Length", str(len(body)))]
        return self.begin(status, headers) + self.chunk(body) + self.end()

    def probe(self) -> bytes:
        """The first bytes of the response that are certain before the rest is known; ``b""`` the second time.

        Written to find out whether a client that finished sending has left: the kernel of a closed socket answers only
        bytes with a reset. A client that still reads (RFC 9112, section 9.6) gets the same response as without a probe.
        """
        if self._probed or self.phase is not Phase.RESPONSE:
            return b""
        self._probed = True
        if self._http.our_state is h11.SEND_RESPONSE:
            return _RESPONSE_START
        return _CHUNK_START if self._chunked else b""

    def begin(self, status: int, headers: Headers) -> bytes:
        """The head of a response; its body follows through ``chunk`` until ``end``. Without a ``Content-Length`` the
        body is chunked, in HTTP/1.0 delimited by the connection's end."""
        if not self.answering:
            self._refuse()
        if self.phase is Phase.LAST_RESPONSE:
            headers = [*headers, ("Connection", "close")]
        reason = _REASONS.get(status, "")
        head = self._http.send(h11.Response(status_code=status, headers=_encoded(headers), reason=reason))
        self._chunked = not self._bodiless and b"\r\nTransfer-Encoding: chunked\r\n" in head
        return head.removeprefix(_RESPONSE_START) if self._probed else head

    def chunk(self, data: bytes) -> bytes:
        """The next bytes of the body, in a chunk of their own where it is chunked (RFC 9112, section 7.1)."""
        if self._bodiless or not data:
            return b""
        # Not by h11, whose state this does not change: each token is a chunk, and h11 takes most of its time.
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else self._http.send(h11.Data(data))

    def end(self) -> bytes:
        last = self._http.send(h11.EndOfMessage())
        if self._http.our_state is h11.DONE:
            self._start_over()
            self._move(_Event.RESPONDED)
        else:
            self._move(_Event.RESPONDED_LAST)
        return last

    def upgrade(self, headers: Headers) -> tuple[bytes, bytes]:
        """The 101 response with ``headers``, and the bytes received after the request, which are the new protocol's.

        The request must have had an ``Upgrade`` header. The codec must not be used afterwards.
        """
        response = h11.InformationalResponse(status_code=101, headers=_encoded(headers), reason=_REASONS[101])
        switch, rest = self._http.send(response), bytes(self._buffer)
        self._move(_Event.UPGRADED)
        return switch, rest


def _encoded(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
