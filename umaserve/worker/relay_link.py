"""The link to one relay: dials, and dials again whenever the connection is lost."""

from __future__ import annotations

import logging
import random
import secrets
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field

from umaserve.net.channel import Channel
from umaserve.net.dial import DialError, Dialing
from umaserve.net.loop import Loop
from umaserve.net.timers import Timer
from umaserve.wire.relay_messages import Register
from umaserve.wire.websocket import CloseCode
from umaserve.wire.websocket_handshake import client_handshake
from umaserve.worker.backend import Backend
from umaserve.worker.dialer import CONNECT_S, Dialer, ServerUrl
from umaserve.worker.relay_connection import Opening, RelayConnection
from umaserve.worker.versions import VERSIONS, RelayVersions

log = logging.getLogger(__name__)

CONNECT_PATH = "/v1/worker/connect"
SECRET_HEADER = "x-worker-secret"
HIGH_WATER = 256 * 1024
STALL_S = 90.0
SHORTEST_WAIT_S, MAX_WAIT_S, JITTER_S = 1.0, 30.0, 0.5
DISMISSED_WAIT_S = 2.0


@dataclass(slots=True)
class WorkerIdentity:
    """How a worker introduces itself to a relay."""

    secret: str
    """May be changed; the next connection uses the new one."""
    provider: str
    name: str
    max_concurrent: int
    instance: str = field(default_factory=lambda: secrets.token_hex(8))
    """By which relays that know each other see that it is the same worker."""


class RelayLink:
    """Serves one relay from ``start`` until ``drain`` is done; then it is ``over``. ``acked`` is called each time the
    relay acknowledges our registration."""

    def __init__(
        self,
        loop: Loop,
        dialer: Dialer,
        url: str,
        introduction: WorkerIdentity,
        backend: Backend,
        acked: Callable[[], None],
        versions: RelayVersions,
    ) -> None:
        self.over = False
        self._loop = loop
        self._dialer = dialer
        self._url = ServerUrl.parse(url)
        self._introduction = introduction
        self._backend = backend
        self._acked = acked
        self._configured_url = url
        self._versions = versions
        self._version = VERSIONS.index(versions.get(url))
        """The index in ``VERSIONS`` to announce: the one acknowledged last, or the next to try."""
        self._failures = 0
        """Failed attempts since the last acknowledgement."""
        self._said = ""
        """The last failure that was logged."""
        self._draining = False
        self._tried_at = 0.0
        self._dialing: Dialing | None = None
        self._timer: Timer | None = None
        self._connection: RelayConnection | None = None

    @property
    def running(self) -> int:
        """The number of this relay's running requests."""
        return 0 if self._connection is None else self._connection.running

    def start(self) -> None:
        """Dial."""
        self._timer = None
        self._tried_at = self._loop.now()
        self._dialing = self._dialer.connect(
            self._url,
            self._connected,
            high_water=HIGH_WATER,
            stall_timeout=STALL_S,
        )

    def say_models(self) -> None:
        """Tell the relay that the backend's models have changed."""
        if self._connection is not None:
            self._connection.say_models()

    def drain(self) -> None:
        """Accept nothing new, finish running requests, then disconnect."""
        self._draining = True
        if self._timer is not None:
            self._timer.cancel()
        if self._dialing is not None:
            self._dialing.cancel()
        if self._connection is None:
            self.over = True
        else:
            self._connection.leave()

    def close(self) -> None:
        """End the drain now: the relay may give running requests to other workers."""
        if self._connection is not None:
            self._connection.close(CloseCode.NORMAL_CLOSURE, "the worker is shutting down")

    # -- connections ---------------------------------------------------------------------------------------------

    def _connected(self, found: Channel | DialError) -> None:
        self._dialing = None
        if isinstance(found, DialError):
            self._failed(str(found), "check the URL, and that the relay runs")
            return
        mine = self._introduction
        query = urllib.parse.urlencode({"provider": mine.provider})
        path = f"{self._url.prefix}{CONNECT_PATH}?{query}"
        handshake, key = client_handshake(self._url.authority, path, [(SECRET_HEADER, mine.secret)])
        register = Register(
            mine.name,
            tuple(self._backend.models),
            mine.max_concurrent,
            VERSIONS[self._version],
            self._backend.load,
            tuple(self._backend.features),
            mine.instance,
            self._backend.contexts or None,
        )
        left_s = max(0.0, self._tried_at + CONNECT_S - self._loop.now())
        opening = Opening(handshake, key, register, left_s)
        self._connection = RelayConnection(self._loop, found, opening, self._backend, self._on_ack, self._on_lost)

    def _on_ack(self) -> None:
        self._versions.put(self._configured_url, VERSIONS[self._version])
        self._failures = 0
        self._said = ""
        self._acked()

    def _on_lost(self, connection: RelayConnection) -> None:
        self._connection = None
        if self._draining:
            self.over = True
        elif connection.dismissed:
            log.info("disconnected from a relay that had asked for it", extra={"fields": {"url": self._url.text}})
            self._dial_in(DISMISSED_WAIT_S)
        elif connection.registered:
            log.warning("connection to a relay lost: %s", connection.reason, extra={"fields": {"url": self._url.text}})
            self._dial_in(SHORTEST_WAIT_S)
        else:
            if connection.close_code == CloseCode.PROTOCOL_ERROR:
                self._version = (self._version + 1) % len(VERSIONS)
            self._failed(connection.reason, self._advice(connection))

    def _advice(self, connection: RelayConnection) -> str:
        if connection.close_code == CloseCode.PROTOCOL_ERROR:
            return f"it may speak another version: announcing {VERSIONS[self._version]} next"
        if connection.close_code == CloseCode.POLICY_VIOLATION:
            if "authentication" in connection.reason:
                return "check that worker_secret and provider are the relay's"
            return "ask the relay's operator"
        if connection.status is not None:
            return f"check that the URL is a relay's, which answers {self._url.prefix}{CONNECT_PATH}"
        if self._url.secure:
            return "check the URL, and that ca_file has the authority of the relay's certificate"
        return "check the URL, and whether the relay wants https"

    def _failed(self, reason: str, advice: str) -> None:
        wait_s = min(MAX_WAIT_S, SHORTEST_WAIT_S * 2 ** min(self._failures, 10))
        self._failures += 1
        # Repeats are logged at powers of two only.
        if reason != self._said or self._failures.bit_count() == 1:
            self._said = reason
            fields = {"url": self._url.text, "failures": self._failures, "next_try_s": wait_s}
            log.warning("no connection to a relay: %s: %s", reason, advice, extra={"fields": fields})
        self._dial_in(wait_s)

    def _dial_in(self, wait_s: float) -> None:
        # Jitter, so that workers don't all reconnect at once after a relay's restart.
        self._timer = self._loop.call_later(wait_s + random.uniform(0, JITTER_S), self.start)
