"""Stream of the box's status: each client that looks at it gets the same event every second. Without clients nothing is
made."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from umaserve.daemon.http.status import Box
from umaserve.dialects import sse
from umaserve.dialects.http import AS_IT_COMES
from umaserve.http.connection import HttpConnection
from umaserve.net.loop import Loop
from umaserve.net.timers import Timer

PERIOD_S = 1.0


class Watcher:
    """A reply that lasts until its client leaves, or may not look any longer: a ``Pending``."""

    def __init__(
        self, connection: HttpConnection, may_look: Callable[[], bool], left: Callable[[Watcher], None]
    ) -> None:
        self._connection = connection
        self._may_look = may_look
        self._left = left

    def tell(self, events: bytes) -> bool:
        """Send the events, if there are any, unless the client has earlier ones still to read. Returns whether it knows
        them."""
        if not self._may_look():
            self._left(self)
            self._connection.end()
            return False
        if self._connection.channel.queued:
            return False
        if events:
            self._connection.write(events)
        return True

    def release(self) -> None:
        """Do nothing: the next event is a whole one."""

    def abandon(self) -> None:
        self._left(self)


class StatusStream:
    """All clients that look at the box."""

    def __init__(self, loop: Loop, box: Box) -> None:
        self._loop = loop
        self._box = box
        self._watchers: set[Watcher] = set()
        self._event = b""
        """The latest event, for those who come before the next."""
        self._timer: Timer | None = None

    def add(self, connection: HttpConnection, may_look: Callable[[], bool]) -> None:
        """Answer the connection's request for events."""
        watcher = Watcher(connection, may_look, self._remove)
        if not self._watchers:
            self._look()
        self._watchers.add(watcher)
        connection.pending = watcher
        connection.begin(200, [("Content-Type", sse.CONTENT_TYPE), *AS_IT_COMES])
        connection.write(self._event)

    def _look(self) -> None:
        self._timer = self._loop.call_later(PERIOD_S, self._look)
        self._event = sse.event(orjson.dumps(self._box.snapshot()))
        for watcher in list(self._watchers):
            watcher.tell(self._event)

    def _remove(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
        if not self._watchers and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._box.forget()
