"""Settings of the daemon: the Unix socket, Wyoming, and the daemon's end."""

from __future__ import annotations

from dataclasses import dataclass

from umaserve.settings.kinds import choice, mode, path, place, real, switch
from umaserve.settings.sources import setting


@dataclass(frozen=True)
class Serving:
    """The Unix socket, Wyoming, and the daemon's end."""

    socket: str = setting(
        "/run/uma.sock",
        path(),
        "serving",
        "Unix socket for clients",
        about="The Unix socket for clients. The daemon must be able to write to its directory, which must exist.\n"
        "If it isn't set, ordinary users who start the daemon themselves get uma.sock in $XDG_RUNTIME_DIR.",
        env="UMA_SOCK",
    )
    socket_mode: int = setting(
        0o660,
        mode(),
        "serving",
        "permissions of the socket",
        about='Permissions of the socket, as an octal string from "0000" to "0777". "0660" admits the daemon\'s user '
        'and group, "0666" everybody on the machine.',
    )
    protocol: str = setting(
        "json",
        choice("json", "newline"),
        "serving",
        "on the Unix socket: length-prefixed JSON, or one prompt per line, for debugging",
        about='The protocol on the socket. "json": length-prefixed JSON. "newline": one prompt per line, and the '
        "answer as plain text, for trying things out with nc -U.",
    )
    keep_alive: bool = setting(
        False,
        switch(),
        "serving",
        "keep a connection open for another request after its answer",
        about="Whether a connection stays open for another request after an answer. A request may ask for it with "
        '"keep_alive": true. After an error the connection is closed in any case.',
    )
    idle_timeout: float = setting(
        300.0,
        real("seconds", 0.05, 86400),
        "serving",
        "close a connection that sends no complete request, or reads nothing, for this long",
        about="Seconds, 0.05 to 86400. A connection is closed when it sends no complete request for this long, or "
        "reads nothing of an answer. Raise it for clients that keep connections open between requests.",
    )
    drain_grace: float = setting(
        0.0,
        real("seconds", 0, 3600),
        "serving",
        "after SIGTERM, serve as before for this long, with 503 at /health/ready, so that load balancers notice",
        about="Seconds, 0 to 3600, in which the daemon serves as before after SIGTERM, new connections too, while "
        "/health/ready says 503: as long as load balancers take to see that. A second SIGTERM ends the daemon "
        "at once.",
    )
    drain_timeout: float = setting(
        10.0,
        real("seconds", 0, 3600),
        "serving",
        "after SIGTERM, let running requests finish for this long",
        about="Seconds, 0 to 3600, that running requests may take to finish after that. Where systemd holds the "
        "sockets, those that have no token by then get as long again. systemd is told how long the shutdown takes in"
        " all; keep that below the stop timeout of any other service manager.",
    )
    wyoming: str = setting(
        "",
        place(),
        "serving",
        "address for the Wyoming protocol, Home Assistant's for voices; empty: off; port 0: any free port",
        about="The address for Wyoming, the protocol in which Home Assistant has texts spoken and speech transcribed: "
        'HOST:PORT, as in "127.0.0.1:10200", or unix:PATH. It has neither keys nor encryption, so an address '
        "other than loopback needs insecure: use it on a network that you trust. Port 0: any free port. Empty: "
        "off.",
    )
