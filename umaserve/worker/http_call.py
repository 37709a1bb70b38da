"""One HTTP request to a server, over a connection of its own."""

from __future__ import annotations

from typing import Protocol

from umaserve.net.channel import Channel
from umaserve.net.dial import DialError, Dialing
from umaserve.net.loop import Loop
from umaserve.wire.http_client import Body, End, Head, HttpClientCodec, HttpClientError
from umaserve.wire.http_head import Headers
from umaserve.worker.dialer import Dialer, ServerUrl

MIN_HIGH_WATER = 64 * 1024


class Answer(Protocol):
    """A call's callbacks: the response's head, parts of its body and the end; or, at any point, a failure."""

    def head(self, status: int, headers: Headers) -> None: ...

    def body(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def failed(self, reason: str, *, timed_out: bool) -> None: ...


class HttpCall:
    """Handler of a channel. The answer is not called before the constructor returns, nor after ``end``, ``failed`` or
    ``abort``.

    ``timeout``, which is for the whole call, is in seconds.
    """

    def __init__(
        self,
        loop: Loop,
        dialer: Dialer,
        url: ServerUrl,
        method: str,
        path: str,
        headers: Headers,
        body: bytes,
        answer: Answer,
        *,
        timeout: float,
    ) -> None:
        self._answer = answer
        self._codec = HttpClientCodec()
        self._dialing: Dialing | None = None
        self._channel: Channel | None = None
        self._paused = False
        self._over = False
        self._timer = loop.call_later(
            timeout, lambda: self._fail(f"no whole answer within {timeout:g} s", timed_out=True)
        )
        own = (("Host", url.authority), ("Connection", "close"))
        try:
            self._request = self._codec.request(method, url.prefix + path, [*own, *headers], body)
        except HttpClientError as error:
            reason = str(error)
            loop.call_soon(lambda: self._fail(reason))
            return
        self._dialing = dialer.connect(
            url,
            self._connected,
            # The whole request fits, so that the answer is read even before the server has read all of it.
            high_water=max(MIN_HIGH_WATER, len(self._request)),
            stall_timeout=timeout,
        )

    def pause(self, paused: bool) -> None:
        """Stop or resume reading the response, as backpressure on the server."""
        self._paused = paused
        if self._channel is not None:
            self._channel.reconsider()

    def abort(self) -> None:
        """Close at once."""
        self._over = True
        self._timer.cancel()
        if self._channel is not None:
            self._channel.abort()
        elif self._dialing is not None:
            self._dialing.cancel()

    def _connected(self, found: Channel | DialError) -> None:
        if isinstance(found, DialError):
            self._fail(str(found))
            return
        self._channel = found
        found.handler = self
        found.write(self._request)

    # -- from the channel ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._codec.receive_data(data)
        self._handle_events()

    def input_ended(self) -> None:
        self._codec.receive_eof()
        self._handle_events()

    def wants_data(self) -> bool:
        return not self._paused

    def drained(self) -> None:
        """Nothing more to write: the request was written at once."""

    def connection_lost(self) -> None:
        assert self._channel is not None
        self._fail(self._channel.failure or "the connection was lost")

    def _handle_events(self) -> None:
        parts: list[bytes] = []
        while not self._over:
            try:
                event = self._codec.next_event()
            except HttpClientError as error:
                self._tell(parts)
                self._fail(str(error))
                return
            match event:
                case Head(status, headers):
                    self._answer.head(status, headers)
                case Body(data):
                    parts.append(data)
                case End():
                    self._tell(parts)
                    self._end()
                case None:
                    self._tell(parts)
                    return

    def _tell(self, parts: list[bytes]) -> None:
        """Pass on what arrived together in one piece, however many chunks it had."""
        if parts and not self._over:
            self._answer.body(b"".join(parts))

    def _end(self) -> None:
        if not self._over:
            self.abort()
            self._answer.end()

    def _fail(self, reason: str, *, timed_out: bool = False) -> None:
        if not self._over:
            self.abort()
            self._answer.failed(reason, timed_out=timed_out)
