"""The listening TCP sockets of one host and port."""

from __future__ import annotations

import errno
import logging
import socket

from umaserve.core.errors import ConfigError
from umaserve.net.listeners import BACKLOG

log = logging.getLogger(__name__)

_ABSENT = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}
_ALL = {"0.0.0.0", "::"}
_REMEDIES = {
    errno.EADDRINUSE: "stop the program that listens there, or choose another port",
    errno.EACCES: "ports below 1024 need CAP_NET_BIND_SERVICE: grant it, or choose a higher port",
    errno.EADDRNOTAVAIL: "choose an address of this machine",
    errno.EAFNOSUPPORT: "this machine lacks the address family: choose an address of another",
}


def tcp_sockets(host: str, port: int) -> list[socket.socket]:
    """Bound, listening, non-blocking sockets, one for each address of ``host`` that this machine has.

    All have the same port; for 0 the kernel chooses it. Raises ConfigError if the name doesn't resolve, none of its
    addresses is this machine's, or one of this machine's can't be used.
    """
    place = f"address [{host}]:{port}" if ":" in host else f"address {host}:{port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        advice = "check its spelling, or give an IP address"
        raise ConfigError(f"{place}: the host can't be resolved: {error.strerror}: {advice}") from None
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    try:
        # A hosts file may list an address twice.
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                sockets.append(_listening(family, (address[0], port, *address[2:])))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                log.info("%s: not listening on %s: %s", place, address[0], error.strerror)
                absent = error
            else:
                port = sockets[0].getsockname()[1]
        if absent is not None and not sockets:
            raise absent
    except OSError as error:
        for sock in sockets:
            sock.close()
        remedy = _REMEDIES.get(error.errno or 0, "choose another address")
        raise ConfigError(f"{place}: {error.strerror}: {remedy}") from None
    return sockets


def is_at(sock: socket.socket, host: str, port: int) -> bool:
    """Whether it has this port, or any for 0, and one of the addresses of ``host``. Those that mean all addresses of
    either family are the same: a socket for IPv6 mostly takes IPv4 too."""
    own_host, own_port = sock.getsockname()[:2]
    if port not in (0, own_port):
        return False
    try:
        found = {address[0] for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except socket.gaierror:
        return False
    return own_host in found or (own_host in _ALL and not _ALL.isdisjoint(found))


def _listening(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        # Connections of the last run stay in TIME_WAIT for a minute, which must not prevent a restart.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Otherwise this socket takes the IPv4 address too, and the IPv4 socket finds it in use.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
