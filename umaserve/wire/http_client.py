"""The client's HTTP/1.1 codec: one request at a time to bytes, and bytes to the events of its response. Sans-IO."""

from __future__ import annotations

import re
from dataclasses import dataclass

import h11

from umaserve.wire.http_head import MAX_HEADERS, TEXT, Headers, shown

MAX_HEAD_BYTES = 16 * 1024

_TEXT = re.compile(TEXT)
_FRAMING = ("content-length", "transfer-encoding")
_WITH_BODY = ("POST", "PUT", "PATCH")
"""Methods that send ``Content-Length`` even for an empty body (RFC 9110, section 8.6)."""


class HttpClientError(Exception):
    """A request that can't be sent, or an invalid response; after the latter the connection can't be used again.

    ``midway``: the response's head was already returned, and its body is incomplete.
    """

    def __init__(self, message: str, *, midway: bool = False) -> None:
        super().__init__(message)
        self.midway = midway


@dataclass(frozen=True, slots=True)
class Head:
    """A final status, 200 to 599, and the headers: names in lower case, values decoded as Latin-1."""

    status: int
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Body:
    """More bytes of the body, without its framing."""

    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    """The response is whole."""


Event = Head | Body | End


class HttpClientCodec:
    """One connection's requests and responses in turn (RFC 9112); the next request may follow after ``End``.

    A body may have a length, be chunked, or end with the connection. Informational responses are skipped.
    """

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._eof = False
        self._waiting = False
        """Whether a request's response is incomplete."""
        self._midway = False
        self.answered = False
        """Whether anything arrived since the last request. A kept-alive connection that ends before that may have been
        closed by the server before it saw the request."""

    @property
    def keep_alive(self) -> bool:
        """After ``End``: whether another request may follow. Not if the server closed, or sent unrequested bytes."""
        done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        return done and not self._eof and not self._http.trailing_data[0]

    def request(self, method: str, path: str, headers: Headers, body: bytes = b"") -> bytes:
        """A whole request. ``headers`` includes ``Host``, but no framing headers, which are added here.

        Raises ``HttpClientError`` for what a request's head can't hold; the connection stays usable.
        """
        assert not self._waiting
        for name, _ in headers:
            if name.lower() in _FRAMING:
                raise HttpClientError(f"{name}: expected none, since the body decides on it, got one")
        if body or method in _WITH_BODY:
            headers = [*headers, ("Content-Length", str(len(body)))]
        try:
            fields = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers]
            head = h11.Request(method=method.encode("ascii"), target=path.encode("ascii"), headers=fields)
        except (UnicodeEncodeError, h11.LocalProtocolError) as error:
            raise HttpClientError(f"request: {error}") from None
        if self._http.our_state is not h11.IDLE:
            assert self.keep_alive
            self._http.start_next_cycle()
        self._waiting, self._midway, self.answered = True, False, False
        return b"".join(self._http.send(part) for part in (head, h11.Data(body), h11.EndOfMessage()))

    def receive_data(self, data: bytes) -> None:
        assert not self._eof
        # h11 takes empty data for the end of input.
        if data:
            self.answered = True
            self._http.receive_data(data)

    def receive_eof(self) -> None:
        """End of the server's input. It ends a body without a length; any other is incomplete."""
        self._eof = True

    def next_event(self) -> Event | None:
        """The next event of the response; ``None`` until more bytes arrive, and when no response is awaited.

        Raises ``HttpClientError`` for a malformed response, and for one that is incomplete at the connection's end.
        """
        ended = False
        while self._waiting:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise self._failed("the connection ended before it was whole" if ended else str(error)) from None
            match event:
                case h11.Response():
                    return self._head(event)
                case h11.Data():
                    return Body(bytes(event.data))
                case h11.EndOfMessage():
                    self._waiting = False
                    return End()
                case h11.InformationalResponse():
                    if event.status_code == 101:
                        raise self._failed("expected no change of protocol, got one")
                case _:
                    if not self._eof:
                        return None
                    # Only now, so that any error from here on is due to the end of input.
                    self._http.receive_data(b"")
                    ended = True
        return None

    def _head(self, response: h11.Response) -> Head:
        status, fields = response.status_code, list(response.headers)
        if status > 599:
            raise self._failed(f"expected a status from 200 to 599, got {status}")
        # h11 caps only a head that arrives in parts.
        n_bytes = sum(len(name) + len(value) for name, value in fields)
        if len(fields) > MAX_HEADERS or n_bytes > MAX_HEAD_BYTES:
            expected = f"at most {MAX_HEADERS} headers in {MAX_HEAD_BYTES} bytes"
            raise self._failed(f"expected {expected}, got {len(fields)} in {n_bytes}")
        for name, value in fields:
            if not _TEXT.fullmatch(value):
                raise self._failed(f"{name.decode()}: expected no control characters, got {shown(bytes(value))}")
        self._midway = True
        return Head(status, tuple((name.decode(), value.decode("latin-1")) for name, value in fields))

    def _failed(self, message: str) -> HttpClientError:
        self._waiting = False
        return HttpClientError(f"response: {message}", midway=self._midway)
