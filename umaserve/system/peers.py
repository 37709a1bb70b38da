"""The peer of a connection."""

from __future__ import annotations

import ipaddress
import logging
import socket
import struct
from dataclasses import dataclass

log = logging.getLogger(__name__)

_UCRED = struct.Struct("iII")


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as the kernel reports it (unix(7), SO_PEERCRED)."""

    pid: int
    uid: int


def peer_of(sock: socket.socket) -> Peer:
    pid, uid, _gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid, uid)


def peer_name(sock: socket.socket) -> str:
    """The peer's name that limits are counted by: "uid:1000", "ip:192.0.2.1", "ip:2001:db8:1:2::/64", "ip:::1".

    IPv6 addresses are counted by their /64, since one customer usually has all of it. "ip:gone" where the peer has
    already disconnected.
    """
    if sock.family == socket.AF_UNIX:
        return f"uid:{peer_of(sock).uid}"
    try:
        host: str = sock.getpeername()[0]
    except OSError as error:
        log.debug("no name for a peer: %s", error)
        return "ip:gone"
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.version == 6 and address.ipv4_mapped:
        return f"ip:{address.ipv4_mapped}"
    if address.version == 4 or address.is_loopback:
        return f"ip:{address}"
    return f"ip:{ipaddress.ip_network((address, 64), strict=False)}"
