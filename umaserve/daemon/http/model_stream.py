"""Stream of what happens to the models: each client gets what has changed since it was told last, and so one that reads
slowly gets fewer events. Without clients nothing is looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import orjson

from umaserve.daemon.http.exchange import PING_S
from umaserve.daemon.http.status_stream import Watcher
from umaserve.daemon.model_downloads import ModelDownloads
from umaserve.dialects import sse
from umaserve.dialects.http import AS_IT_COMES
from umaserve.dialects.llama_server.model_events import Known, changes
from umaserve.http.connection import HttpConnection
from umaserve.models.registry import Models
from umaserve.net.loop import Loop
from umaserve.net.timers import Timer

PERIOD_S = 0.25


class _Told(NamedTuple):
    """What a client knows, and when something was sent last."""

    known: Known
    at: float


class ModelStream:
    """All clients that watch the models."""

    def __init__(self, loop: Loop, models: Models, downloads: ModelDownloads) -> None:
        self._loop = loop
        self._models = models
        self._downloads = downloads
        self._told: dict[Watcher, _Told] = {}
        self._timer: Timer | None = None

    def add(self, connection: HttpConnection, may_look: Callable[[], bool]) -> None:
        """Answer the connection's request for events. How the models are now is no event."""
        watcher = Watcher(connection, may_look, self._remove)
        if not self._told:
            self._timer = self._loop.call_later(PERIOD_S, self._look)
        self._told[watcher] = _Told(self._now(), self._loop.now())
        connection.pending = watcher
        connection.begin(200, [("Content-Type", sse.CONTENT_TYPE), *AS_IT_COMES])

    def _look(self) -> None:
        self._timer = self._loop.call_later(PERIOD_S, self._look)
        known, now = self._now(), self._loop.now()
        for watcher, told in list(self._told.items()):
            events = b"".join(sse.event(orjson.dumps(event)) for event in changes(told.known, known))
            if not events and now - told.at >= PING_S:
                events = sse.ping()
            if watcher.tell(events):
                self._told[watcher] = _Told(known, now if events else told.at)

    def _now(self) -> Known:
        return Known(self._models.listed(), self._downloads.listed())

    def _remove(self, watcher: Watcher) -> None:
        self._told.pop(watcher, None)
        if not self._told and self._timer is not None:
            self._timer.cancel()
            self._timer = None
