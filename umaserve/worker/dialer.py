"""Connections to servers that are named by URLs: where each leads, and a channel to there."""

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


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """The parts of an http, https, ws or wss URL without user, query and fragment."""

    text: str
    secure: bool
    host: str
    """A name or an address, without brackets."""
    port: int
    authority: str
    """For the ``Host`` header."""
    prefix: str
    """The path before ours, without its last slash; empty, or with its first."""

    @classmethod
    def parse(cls, text: str) -> ServerUrl:
        """``text`` is one that ``kinds.url`` took."""
        split = urllib.parse.urlsplit(text)
        assert split.hostname is not None
        secure = split.scheme in ("https", "wss")
        port = split.port or (443 if secure else 80)
        return cls(text, secure, split.hostname, port, split.netloc, split.path.rstrip("/"))


class Dialer:
    """Makes channels, with TLS where the URL says so, whose certificate must then be the host's."""

    def __init__(self, loop: Loop, submit: Submit, ca_file: str = "") -> None:
        """``submit`` runs the look-up of names on another thread. Raises ``ConfigError`` for a ``ca_file`` that is no
        good."""
        self._loop = loop
        self._submit = submit
        self._ca_file = ca_file
        self._context = client_context(ca_file)

    def reread_authorities(self) -> None:
        """For the connections that are made from now on; a file that can't be used is logged, and what was read before
        stays."""
        self._context = reread(lambda: client_context(self._ca_file), self._context)

    def connect(
        self,
        url: ServerUrl,
        done: Callable[[Channel | DialError], None],
        *,
        timeout: float,
        high_water: int,
        stall_timeout: float,
    ) -> Dialing:
        """As `dial`; ``done`` gets a channel that has no handler yet and must have one when ``done`` returns."""

        def connected(found: socket.socket | DialError) -> None:
            if isinstance(found, DialError):
                done(found)
                return
            try:
                cipher = Tls(self._context, url.host) if url.secure else None
                channel = Channel(self._loop, found, high_water=high_water, stall_timeout=stall_timeout, cipher=cipher)
            except (OSError, TlsError) as error:
                # Whoever dials must hear of it, or would never dial again.
                found.close()
                done(DialError(f"can't connect to {url.text}: {error}"))
                return
            done(channel)

        return dial(self._loop, self._submit, url.host, url.port, timeout=timeout, done=connected)
