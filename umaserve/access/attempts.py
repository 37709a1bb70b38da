"""Limits failed authentication attempts per address, and finds the client's address behind proxies."""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Callable, Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_ADDRESSES = 4096
MAX_HOPS = 32
"""Entries of X-Forwarded-For that are evaluated: a client may send thousands of trusted addresses."""


class FailedAttempts:
    """Blocks addresses that have failed ``limit`` times within the last ``window_s`` seconds of ``clock``.

    An IPv6 address counts as its /64, the usual allocation of one household. At most ``MAX_ADDRESSES`` are kept; the
    one whose last failure is the oldest is forgotten.
    """

    def __init__(self, clock: Callable[[], float], limit: int = 5, window_s: float = 60.0) -> None:
        self._clock = clock
        self._max_failures = limit
        self._window_s = window_s
        self._failures: dict[str, deque[float]] = {}
        """The times of each address's last ``limit`` failures; addresses are ordered by their last failure."""

    def blocked(self, address: str) -> bool:
        times = self._failures.get(counted_as(address))
        return times is not None and len(times) == self._max_failures and times[0] > self._clock() - self._window_s

    def failed(self, address: str) -> None:
        counted = counted_as(address)
        times = self._failures.pop(counted, deque(maxlen=self._max_failures))
        times.append(self._clock())
        self._failures[counted] = times
        if len(self._failures) > MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]


def peer_address(socket_peer: str, forwarded_for: Sequence[str], trusted: Sequence[Network]) -> str:
    """The IP address that a request came from: the nearest one that is not a ``trusted`` proxy's.

    ``forwarded_for`` has the values of the X-Forwarded-For headers in order. Each proxy appends its peer's address at
    the right, so an entry is as trustworthy as the proxy that appended it: entries to the left of an untrusted address,
    or of an invalid one, may be forged. A ``socket_peer`` that is not an IP address is returned unchanged.
    """
    address = _ip(socket_peer.partition("%")[0])
    if address is None:
        return socket_peer
    for entry in reversed(",".join(forwarded_for).rsplit(",", MAX_HOPS)[-MAX_HOPS:]):
        if not any(address in network for network in trusted):
            break
        before = _ip(entry.strip(" \t"))
        if before is None:
            break
        address = before
    return str(address)


def counted_as(address: str) -> str:
    """What an address counts as: of an IPv6 address its /64."""
    ip = _ip(address)
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return address if ip is None else str(ip)


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    # A zone may be any text, and is only meaningful on its own machine.
    if "%" in text:
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
