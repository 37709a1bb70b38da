"""The link to one other relay, which is told what ours has given to workers, and what its keys have used.

It is told all anew each time, but of the keys only what is new since the last post that was answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import orjson

from umaserve.net.channel import Channel
from umaserve.net.dial import DialError
from umaserve.net.loop import Loop
from umaserve.net.timers import Timer
from umaserve.relay.peers.peer_updates import LOOK_S, RETRY_S, TELL_S, News, Untold
from umaserve.wire.http_client import End, Head, HttpClientCodec, HttpClientError
from umaserve.worker.dialer import Dialer, ServerUrl

log = logging.getLogger(__name__)

PATH = "/v1/peer/load"
SECRET_HEADER = "x-worker-secret"
TIMEOUT_S = 5.0
HIGH_WATER = 1 << 20


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
        self._untold = Untold(news.used, loop.now)
        self._telling = False
        """Whether a post has no answer yet."""
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
        self._telling, self._changes = False, -1
        found.handler = self
        self._look()

    def _look(self) -> None:
        """Tell what has changed."""
        now = self._loop.now()
        if self._telling:
            if now - self._told_at > TIMEOUT_S:
                self._fail(f"no answer within {TIMEOUT_S:g} s")
                return
        elif self._changes != self._news.changes or now - self._told_at >= TELL_S:
            self._changes, self._told_at = self._news.changes, now
            self._tell()
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def _tell(self) -> None:
        assert self._channel is not None
        self._telling = True
        news = {"relay": self._name, "workers": self._news.loads(), "keys": self._untold.take()}
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
                if isinstance(event, End) and self._telling:
                    self._telling = False
                    self._untold.was_told()
                    if self._problem:
                        self._problem = ""
                        log.info("another relay is told our load", extra={"fields": {"url": self._url.text}})
        except HttpClientError as error:
            self._fail(str(error))
            return
        if not self._telling and not self._codec.keep_alive:
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
        self._untold.was_lost()
        self._loop.call_later(RETRY_S, self.start)
