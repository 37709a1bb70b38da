"""A client's WebSocket: one relayed request, from its first message to its close."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.generate.generation import error_message
from umaserve.net.backlog import Backlog
from umaserve.net.channel import Channel
from umaserve.net.input_budget import InputShare
from umaserve.net.loop import Loop
from umaserve.net.pings import Pings
from umaserve.net.timers import Timer
from umaserve.relay.http.exchange import MAX_UNREAD
from umaserve.relay.pool.pool import Pool
from umaserve.relay.pool.request import RelayedRequest
from umaserve.wire.fields import MAX_VALUES, parse_json
from umaserve.wire.websocket import CloseCode, Message, WebSocketCodec

FRAMES_PER_TURN = 32
MAX_FRAMES_BEFORE_OUTPUT = 64
WORKER_BEHIND_S = 0.05
"""Interval of the checks whether a worker has read what it was sent."""
CHAT = "/ws/chat"
_FAULTS = {
    400: Fault.BAD_REQUEST,
    404: Fault.BAD_REQUEST,
    413: Fault.FRAME_TOO_LARGE,
    429: Fault.RATE_LIMITED,
    503: Fault.SHUTTING_DOWN,
    504: Fault.TIMED_OUT,
}
"""By the status of a failed request; all others mean that the worker failed."""


class Conversation:
    """The channel's handler after the upgrade; implements ``relay.pool.request.Client``."""

    _max_frames: float = MAX_FRAMES_BEFORE_OUTPUT
    """The most messages after the first one that are kept until the answer begins."""

    def __init__(
        self,
        loop: Loop,
        pool: Pool,
        channel: Channel,
        codec: WebSocketCodec,
        path: str,
        new_request: Callable[[str, Conversation], RelayedRequest],
        later_message: Callable[[str], str],
        lost: Callable[[Conversation], None],
        memory: InputShare,
        *,
        ping_interval: float,
        idle_timeout: float,
        max_bytes: int,
    ) -> None:
        """``path`` selects the contract. ``new_request`` makes the request from the first message, ``later_message``
        what its worker gets of each later one; both may raise ``RequestError``. ``max_bytes`` limits the later messages
        until the answer begins. ``memory`` counts received bytes that wait."""
        self.channel = channel
        self._loop = loop
        self._pool = pool
        self._codec = codec
        self._path = path
        self._new_request = new_request
        self._later_message = later_message
        self._lost = lost
        self._input = memory
        self._kept = 0
        """Bytes of messages kept for a requeue."""
        self._idle_timeout = idle_timeout
        self._max_bytes = max_bytes
        self._request: RelayedRequest | None = None
        self._backlog = Backlog(loop, channel, self._handle_frames, FRAMES_PER_TURN)
        self._behind: Timer | None = None
        """Runs while the worker is behind; handles frames again."""
        self._idle = loop.call_later(idle_timeout, self._on_idle)
        self._pings = Pings(loop, channel, ping_interval, codec.ping, "a client")
        channel.handler = self

    # -- from the channel ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._codec.receive_data(data)
        self._handle_frames()

    def input_ended(self) -> None:
        self._codec.receive_eof()
        self._handle_frames()

    def wants_data(self) -> bool:
        return not self._backlog.waiting and self._input.may_grow

    def drained(self) -> None:
        if self._request is not None:
            self._pool.pause(self._request, False)
        self._loop.call_soon(self._handle_frames)

    def connection_lost(self) -> None:
        self._idle.cancel()
        self._pings.cancel()
        self._input.close()
        self._leave()
        self._lost(self)

    def _handle_frames(self) -> None:
        if self._behind is not None:
            self._behind.cancel()
        self._backlog.run(self._handle_one)
        if not self.channel.open or self.channel.overfull:
            return
        if self._codec.mistake is not None:
            self._codec.explain(self._error(self._codec.mistake))
        self.channel.write(self._codec.take_output())
        if self._codec.closed:
            self._leave()
            self.channel.close()
        self._input.hold(self._codec.buffered)

    def _handle_one(self) -> bool:
        """Handle the next frame; returns whether another one may be handled after it."""
        if not self.channel.open or self.channel.overfull:
            return False
        if self._request is not None and not self._pool.takes_frames(self._request):
            self._backlog.wait()
            self._behind = self._loop.call_later(WORKER_BEHIND_S, self._backlog.continue_later)
            return False
        payload = self._codec.next_payload()
        if payload is None:
            if self._codec.more:
                self._backlog.continue_later()
            return False
        self._idle.postpone(self._loop.now() + self._idle_timeout)
        try:
            self._take(payload.decode())
        except RequestError as error:
            if error.fault is Fault.RATE_LIMITED:
                # What runs goes on.
                self.channel.write(self._codec.send(self._error(error)))
            else:
                self._say_and_close(error)
        return True

    def _take(self, text: str) -> None:
        if self._request is not None:
            text = self._later_message(text)
        if self._request is None:
            self._submit(text)
        elif not self._request.begun and len(self._request.frames) >= self._max_frames:
            problem = f"expected at most {self._max_frames} frames before the answer begins, got more"
            self._say_and_close(RequestError(Fault.BAD_REQUEST, "message", problem))
        elif not self._request.begun and sum(map(len, self._request.frames)) + len(text) > self._max_bytes:
            problem = f"expected at most {self._max_bytes} bytes before the answer begins, got more"
            self._say_and_close(RequestError(Fault.FRAME_TOO_LARGE, "message", problem))
        else:
            if not self._request.begun:
                self._keep(self._kept + len(text))
            self._pool.frame(self._request, text)

    def _submit(self, text: str) -> None:
        self._keep(len(text))
        self._request = request = self._new_request(text, self)
        self._pool.submit(request)

    def _keep(self, n_bytes: int) -> None:
        self._kept = n_bytes
        self._input.keep(n_bytes)

    # -- from the pool -------------------------------------------------------------------------------------------

    def respond(self, status: int, headers: Mapping[str, str], body: str | bytes) -> None:
        """A reply instead of a stream: a worker without such WebSockets answers so."""
        if status >= 400 or body:
            self.fail(status, _said(_message(body).data) or f"the worker answered with status {status}")
        else:
            self.end()

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Nothing to do: a WebSocket begins with its handshake."""

    def write(self, chunk: str | bytes) -> None:
        if self._kept:
            self._keep(0)
        if self.channel.queued > MAX_UNREAD:
            self.channel.abort()
            return
        self.channel.write(self._codec.send_message(_message(chunk)))
        if self.channel.congested and self._request is not None:
            self._pool.pause(self._request, True)

    def end(self) -> None:
        self._request = None
        self._close(CloseCode.NORMAL_CLOSURE)

    def fail(self, status: int, error: str) -> None:
        self._request = None
        self._say_and_close(RequestError.of_text(_FAULTS.get(status, Fault.DECODE_FAILED), error))

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._close(CloseCode.GOING_AWAY)

    def _on_idle(self) -> None:
        if self._request is not None and not self._input.growing:
            self._idle = self._loop.call_later(self._idle_timeout, self._on_idle)
            return
        if waited := self._input.take_waited():
            # The time in which we didn't read the client's input doesn't count as idle.
            self._idle = self._loop.call_later(waited, self._on_idle)
            return
        self._say_and_close(RequestError(Fault.TIMED_OUT, "request", "it did not arrive in time"), CloseCode.GOING_AWAY)

    def _say_and_close(self, error: RequestError, code: int = CloseCode.INTERNAL_ERROR) -> None:
        self.channel.write(self._codec.send(self._error(error)))
        self._close(code)

    def _close(self, code: int) -> None:
        self._input.close()
        self._leave()
        self.channel.write(self._codec.close(code))
        self.channel.close()

    def _leave(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            self._pool.leave(request)

    def _error(self, error: RequestError) -> bytes:
        """The error message in the format of the contract for the path."""
        if self._path == CHAT:
            return orjson.dumps({"type": "error", "error": error.message})
        return error_message(error, None)


def _message(chunk: str | bytes) -> Message:
    return Message(chunk.encode(), True) if isinstance(chunk, str) else Message(chunk, False)


def _said(body: bytes) -> str:
    """The error message in a worker's reply, taken out of an HTTP error's JSON."""
    try:
        value = parse_json(body, MAX_VALUES)
    except RequestError:
        return body.decode(errors="replace")
    match value:
        case {"error": {"message": str(message)}} | {"error": str(message)}:
            return message
    return body.decode(errors="replace")
