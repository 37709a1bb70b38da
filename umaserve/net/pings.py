"""Pings silent peers, to detect those that are gone without closing the connection."""

from __future__ import annotations

import logging
from collections.abc import Callable

from umaserve.net.channel import Channel
from umaserve.net.loop import Loop

log = logging.getLogger(__name__)


class Pings:
    """Pings a peer after ``interval`` seconds without input, and aborts its channel after as long without an answer.

    ``ping`` makes the bytes of a ping. While the channel isn't read, an answer can't be seen: the peer counts as alive.
    """

    def __init__(self, loop: Loop, channel: Channel, interval: float, ping: Callable[[], bytes], peer: str) -> None:
        self._loop = loop
        self._channel = channel
        self._interval = interval
        self._ping = ping
        self._peer = peer
        self._received = -1
        """The channel's ``bytes_received`` at the last check."""
        self._pinged = False
        self._timer = loop.call_later(interval, self._look)

    def cancel(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        received = self._channel.bytes_received
        if received != self._received or not self._channel.reading:
            self._received, self._pinged = received, False
        elif self._pinged:
            log.info("%s: closed: no answer to a ping within %g s", self._peer, self._interval)
            self._channel.abort()
            return
        else:
            self._pinged = True
            self._channel.write(self._ping())
        self._timer = self._loop.call_later(self._interval, self._look)
