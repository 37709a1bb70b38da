"""Connects to servers by URL: parses the URL, and makes a channel."""

from __future__ import annotations

import socket
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass

from umaserve.net.channel import Channel
from umaserve.net.dial import DialError, Dialing, Submit, dial
from umaserve.net.loop import Loop
from umaserve.net.tls import Tls, TlsError, client_context
from umaserve.settings.reread import reread

CONNECT_S = 10.0
"""How long a connection, and what begins it, may take."""


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """The parts of an http, https, ws or wss URL that has no user, query or fragment."""

    text: str
    secure: bool
    host: str
    """A name or an IP address, without brackets."""
    port: int
    authority: str
    """For the ``Host`` header."""
    prefix: str
    """The URL's path, which our paths are appended to: empty, or with a leading and no trailing slash."""

    @classmethod
    def parse(cls, text: str) -> ServerUrl:
        """``text`` must have been accepted by ``kinds.url``."""
        split = urllib.parse.urlsplit(text)
        assert split.hostname is not None
        secure = split.scheme in ("https", "wss")
        port = split.port or (443 if secure else 80)
        return cls(text, secure, split.hostname, port, split.netloc, split.path.rstrip("/"))


class Dialer:
    """Makes channels; with TLS if the URL says so, and then the certificate must be the host's."""

    def __init__(self, loop: Loop, submit: Submit, ca_file: str = "") -> None:
        """``submit`` runs name look-ups on another thread. Raises ``ConfigError`` for an unusable ``ca_file``."""
        self._loop = loop
        self._submit = submit
        self._ca_file = ca_file
        self._context = client_context(ca_file)

    def reread_authorities(self) -> None:
        """Read ``ca_file`` again, for future connections. If it can't be used, that is logged, and the old authorities
        stay."""
        self._context = reread(lambda: client_context(self._ca_file), self._context)

    def connect(
        self,
        url: ServerUrl,
        done: Callable[[Channel | DialError], None],
        *,
        high_water: int,
        stall_timeout: float,
    ) -> Dialing:
        """Like `dial`, but ``done`` gets a channel without a handler, and must set one before it returns."""

        def connected(found: socket.socket | DialError) -> None:
            if isinstance(found, DialError):
                done(found)
                return
            try:
                cipher = Tls(self._context, url.host) if url.secure else None
                channel = Channel(self._loop, found, high_water=high_water, stall_timeout=stall_timeout, cipher=cipher)
            except (OSError, TlsError) as error:
                # ``done`` must be called, or the caller would never dial again.
                found.close()
                done(DialError(f"can't connect to {url.text}: {error}"))
                return
            done(channel)

        return dial(self._loop, self._submit, url.host, url.port, timeout=CONNECT_S, done=connected)
