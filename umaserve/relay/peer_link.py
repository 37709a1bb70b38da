"""The link to one other relay, which is told what ours has given to workers, and what its keys have used.

It is told all anew each time, but of the keys only what is new since the last post that was answered. After a time
without any, that is what the last minute or two have used: what was used before would be in no bucket any more. A key
may be charged twice for what a post said whose answer was lost, but its rate holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

import orjson

from umaserve.net.channel import Channel
from umaserve.net.dial import DialError
from umaserve.net.loop import Loop
from umaserve.net.timers import Timer
from umaserve.wire.http_client import End, Head, HttpClientCodec, HttpClientError
from umaserve.worker.dialer import Dialer, ServerUrl

log = logging.getLogger(__name__)

PATH = "/v1/peer/load"
SECRET_HEADER = "x-worker-secret"
LOOK_S = 0.02
"""How often ours is looked at for changes: for as long, both relays may give a worker, or a key, the same place."""
TELL_S = 1.0
"""How often it is told without any: it forgets relays that say nothing."""
TIMEOUT_S = 5.0
REFILLED_S = 60.0
"""A key's bucket is full again after so long, whatever was taken, unless that was too much."""
RETRY_S = 1.0
HIGH_WATER = 1 << 20

Used = Mapping[str, tuple[int, int]]
"""Requests and tokens of each key since the start."""


class News(Protocol):
    """What a relay has to tell."""

    @property
    def changes(self) -> int:
        """Another number after each change."""

    def loads(self) -> Mapping[str, int]: ...

    def used(self) -> Used: ...


class PeerLink:
    """Handler of a channel; dials again whenever the connection is lost."""

    def __init__(self, loop: Loop, dialer: Dialer, url: str, name: str, secret: Callable[[], str], news: News) -> None:
        """``name`` is this relay's, another one after each start."""
        self._loop = loop
        self._dialer = dialer
        self._url = ServerUrl.parse(url)
        self._name = name
        self._secret = secret
        self._news = news
        self._channel: Channel | None = None
        self._codec = HttpClientCodec()
        self._told: Used = {}
        self._lately: Used = {}
        """As ``_told``, but of a later time while no post is answered."""
        self._lately_at = loop.now()
        self._telling: Used | None = None
        """What an unanswered post has told."""
        self._changes = -1
        self._told_at = 0.0
        self._timer: Timer | None = None
        self._problem = ""
        """The last one that was logged."""

    def start(self) -> None:
        """Dial."""
        self._dialer.connect(
            self._url, self._connected, timeout=TIMEOUT_S, high_water=HIGH_WATER, stall_timeout=TIMEOUT_S
        )

    def close(self) -> None:
        """At the relay's end."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.abort()

    def _connected(self, found: Channel | DialError) -> None:
        if isinstance(found, DialError):
            self._again(str(found))
            return
        self._channel, self._codec = found, HttpClientCodec()
        self._telling, self._changes = None, -1
        found.handler = self
        self._look()

    def _look(self) -> None:
        """Tell what has changed."""
        now = self._loop.now()
        if self._telling is not None:
            if now - self._told_at > TIMEOUT_S:
                self._fail(f"no answer within {TIMEOUT_S:g} s")
                return
        elif self._changes != self._news.changes or now - self._told_at >= TELL_S:
            self._changes, self._told_at = self._news.changes, now
            self._tell()
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def _tell(self) -> None:
        assert self._channel is not None
        self._telling = used = self._news.used()
        fresh = {name: _minus(now, self._told.get(name, (0, 0))) for name, now in used.items()}
        news = {
            "relay": self._name,
            "workers": self._news.loads(),
            "keys": {name: new for name, new in fresh.items() if any(new)},
        }
        headers = [
            ("Host", self._url.authority),
            ("Content-Type", "application/json"),
            (SECRET_HEADER, self._secret()),
        ]
        self._channel.write(self._codec.request("POST", self._url.prefix + PATH, headers, orjson.dumps(news)))

    # -- from the channel ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._codec.receive_data(data)
        try:
            while (event := self._codec.next_event()) is not None:
                if isinstance(event, Head) and event.status != 200:
                    advice = "check that it is a relay with the same worker_secret"
                    self._fail(f"it answered with status {event.status}: {advice}")
                    return
                if isinstance(event, End) and self._telling is not None:
                    self._told, self._telling = self._telling, None
                    self._lately, self._lately_at = self._told, self._loop.now()
                    if self._problem:
                        self._problem = ""
                        log.info("another relay is told our load", extra={"fields": {"url": self._url.text}})
        except HttpClientError as error:
            self._fail(str(error))
            return
        if self._telling is None and not self._codec.keep_alive:
            self._fail("it closed the connection")

    def input_ended(self) -> None:
        self._fail("it closed the connection")

    def wants_data(self) -> bool:
        return True

    def drained(self) -> None:
        """Nothing waits for it: one post is on its way at a time."""

    def connection_lost(self) -> None:
        self._fail("the connection was lost")

    def _fail(self, problem: str) -> None:
        channel, self._channel = self._channel, None
        if channel is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        channel.abort()
        self._again(problem)

    def _again(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            log.warning("another relay is not told our load: %s", problem, extra={"fields": {"url": self._url.text}})
        if self._loop.now() - self._lately_at >= REFILLED_S:
            self._told, self._lately, self._lately_at = self._lately, self._news.used(), self._loop.now()
        self._loop.call_later(RETRY_S, self.start)


def _minus(now: tuple[int, int], before: tuple[int, int]) -> tuple[int, int]:
    return now[0] - before[0], now[1] - before[1]
