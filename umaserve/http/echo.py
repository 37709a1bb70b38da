"""``/debug/echo``: sends every message back, for conformance suites."""

from __future__ import annotations

from collections.abc import Callable

from umaserve.net.channel import READ_PER_TURN, Channel
from umaserve.net.loop import Loop
from umaserve.wire.websocket import WebSocketCodec

MESSAGES_PER_TURN = 32


class EchoConnection:
    """Handler of a channel after its upgrade."""

    def __init__(
        self, loop: Loop, channel: Channel, codec: WebSocketCodec, lost: Callable[[EchoConnection], None]
    ) -> None:
        self.channel = channel
        self._loop = loop
        self._codec = codec
        self._lost = lost
        channel.handler = self

    def data_received(self, data: bytes) -> None:
        self._codec.receive_data(data)
        self._echo()

    def input_ended(self) -> None:
        self._codec.receive_eof()
        self._echo()

    def wants_data(self) -> bool:
        return self._codec.buffered < READ_PER_TURN or not self._codec.more

    def drained(self) -> None:
        self._loop.call_soon(self._echo)

    def connection_lost(self) -> None:
        self._lost(self)

    def close(self) -> None:
        self.channel.write(self._codec.close(1001))
        self.channel.close()

    def _echo(self) -> None:
        for _ in range(MESSAGES_PER_TURN):
            if not self.channel.open or self.channel.overfull:
                return
            message = self._codec.next_message()
            self.channel.write(self._codec.take_output())
            if message is None:
                break
            self.channel.write(self._codec.send_message(message))
        else:
            self._loop.call_soon(self._echo)
        if self._codec.closed:
            self.channel.close()
        elif self._codec.more:
            self._loop.call_soon(self._echo)
