"""``/debug/echo``: sends every message back, for conformance suites."""

from __future__ import annotations

from collections.abc import Callable

from umaserve.net.backlog import Backlog
from umaserve.net.channel import Channel
from umaserve.net.loop import Loop
from umaserve.wire.websocket import CloseCode, WebSocketCodec

MESSAGES_PER_TURN = 32


class EchoConnection:
    """Handler of a channel after its upgrade."""

    def __init__(
        self, loop: Loop, channel: Channel, codec: WebSocketCodec, lost: Callable[[EchoConnection], None]
    ) -> None:
        self.channel = channel
        self._codec = codec
        self._lost = lost
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
        self._lost(self)

    def close(self) -> None:
        self.channel.write(self._codec.close(CloseCode.GOING_AWAY))
        self.channel.close()

    def _echo(self) -> None:
        self._backlog.run(self._echo_one)
        if self._codec.closed:
            self.channel.close()

    def _echo_one(self) -> bool:
        """The next message; whether another one may be handled after it."""
        if not self.channel.open or self.channel.overfull:
            return False
        message = self._codec.next_message()
        self.channel.write(self._codec.take_output())
        if message is None:
            if self._codec.more:
                self._backlog.continue_later()
            return False
        self.channel.write(self._codec.send_message(message))
        return True
