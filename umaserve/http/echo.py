"""``/debug/echo``: sends every message back, for conformance suites."""

from __future__ import annotations

import logging
from collections.abc import Callable

from umaserve.net.backlog import Backlog
from umaserve.net.channel import Channel
from umaserve.net.loop import Loop
from umaserve.net.pings import Pings
from umaserve.wire.websocket import CloseCode, WebSocketCodec

log = logging.getLogger(__name__)

MESSAGES_PER_TURN = 32


class EchoConnection:
    """Handler of a channel after its upgrade. A client that sends no message for ``idle_timeout`` seconds is closed."""

    def __init__(
        self,
        loop: Loop,
        channel: Channel,
        codec: WebSocketCodec,
        peer: str,
        lost: Callable[[EchoConnection], None],
        *,
        ping_interval: float,
        idle_timeout: float,
    ) -> None:
        self.channel = channel
        self._loop = loop
        self._codec = codec
        self._peer = peer
        self._lost = lost
        self._idle_timeout = idle_timeout
        self._idle = loop.call_later(idle_timeout, self._on_idle)
        self._pings = Pings(loop, channel, ping_interval, codec.ping, peer)
        self._backlog = Backlog(loop, channel, self._echo, MESSAGES_PER_TURN)
        channel.handler = self

    def data_received(self, data: bytes) -> None:
        self._codec.receive_data(data)
        self._echo()

    def input_ended(self) -> None:
        self._codec.receive_eof()
        self._echo()

    def wants_data(self) -> bool:
        return not self._backlog.waiting

    def drained(self) -> None:
        self._backlog.continue_later()

    def connection_lost(self) -> None:
        self._idle.cancel()
        self._pings.cancel()
        self._lost(self)

    def close(self) -> None:
        self.channel.write(self._codec.close(CloseCode.GOING_AWAY))
        self.channel.close()

    def _on_idle(self) -> None:
        if self.channel.open:
            log.info("%s: closed: no message within %g s", self._peer, self._idle_timeout)
            self.close()

    def _echo(self) -> None:
        self._backlog.run(self._echo_one)
        if self._codec.closed:
            self.channel.close()

    def _echo_one(self) -> bool:
        """Handle the next message; returns whether another one may be handled after it."""
        if not self.channel.open or self.channel.overfull:
            return False
        message = self._codec.next_message()
        self.channel.write(self._codec.take_output())
        if message is None:
            if self._codec.more:
                self._backlog.continue_later()
            return False
        self._idle.postpone(self._loop.now() + self._idle_timeout)
        self.channel.write(self._codec.send_message(message))
        return True
