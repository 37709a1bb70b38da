"""The peer of a connection."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import struct

log = logging.getLogger(__name__)

_UCRED = struct.Struct("iII")
_SOL_LOCAL = 0
_LOCAL_PEERCRED = 1
_XUCRED = struct.Struct("=IIhxx16I")
"""C's struct xucred of macOS: its version, then the user's id (sys/ucred.h)."""


def user_of(sock: socket.socket) -> int:
    """The id of the user whose process is at the other end, as the kernel reports it (unix(7), SO_PEERCRED). Raises
    OSError: macOS knows it only while the peer is connected."""
    if hasattr(socket, "SO_PEERCRED"):
        uid: int = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1]
    else:
        uid = _XUCRED.unpack(sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size))[1]
    return uid


def process_of(sock: socket.socket) -> int:
    """The id of the process at the other end, which was there when the socket was made (unix(7), SO_PEERCRED). Raises
    OSError where the kernel doesn't tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise OSError(errno.ENOTSUP, "this system doesn't report the process at the other end of a socket")
    pid: int = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[0]
    return pid


def peer_name(sock: socket.socket) -> str:
    """The peer's name that limits are counted by: "uid:1000", "ip:192.0.2.1", "ip:2001:db8:1:2::/64", "ip:::1".

    IPv6 addresses are counted by their /64, since one customer usually has all of it. "uid:gone" or "ip:gone" where
    the peer has already disconnected.
    """
    kind = "uid" if sock.family == socket.AF_UNIX else "ip"
    try:
        if kind == "uid":
            return f"uid:{user_of(sock)}"
        host: str = sock.getpeername()[0]
    except OSError as error:
        log.debug("the address of a peer is unknown: %s", error)
        return f"{kind}:gone"
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.version == 6 and address.ipv4_mapped:
        return f"ip:{address.ipv4_mapped}"
    if address.version == 4 or address.is_loopback:
        return f"ip:{address}"
    return f"ip:{ipaddress.ip_network((address, 64), strict=False)}"
