"""Parsing the text of an address before any socket is made: its host and port, or its path; whether it is loopback or
wildcard."""

from __future__ import annotations

import ipaddress
import re

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_MAX_NAME = 253


def parse_address(text: str) -> tuple[str, int]:
    """The host and port of ``HOST:PORT``; an IPv6 address is written in brackets, and returned without them.

    HOST is an IP address or a DNS name, PORT 0 to 65535. Raises ValueError, which says what is wrong with which part.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not text.isascii() or not text.isprintable():
        raise ValueError("address: expected HOST:PORT in ASCII")
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError("port: expected a whole number from 0 to 65535")
    if host.startswith("["):
        address = _ip(host[1:-1])
        if not host.endswith("]") or not isinstance(address, ipaddress.IPv6Address):
            raise ValueError("host: expected an IPv6 address between the brackets")
        return host[1:-1], int(port)
    if ":" in host:
        raise ValueError("host: expected an IPv6 address in brackets, as in [::1]:8080")
    if _ip(host) is None and not _is_name(host):
        raise ValueError("host: expected an IP address or a DNS name")
    return host, int(port)


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """The hosts and ports of addresses as of ``parse_address`` with commas between them; none of an empty text."""
    return [parse_address(one) for one in text.split(",")] if text else []


def parse_place(text: str) -> tuple[str, int] | str:
    """Host and port as of ``parse_address``, before which there may be ``tcp:``; or the path of ``unix:PATH``. Both may
    have URIs' slashes. Raises ValueError."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path or "\0" in path:
            raise ValueError("path: expected one behind unix:")
        path.encode()
        return path
    return parse_address(text.removeprefix("tcp:").removeprefix("//"))


def is_loopback(host: str) -> bool:
    """Whether ``host``, a name or an address without brackets, can only mean this machine (RFC 6761 section 6.3)."""
    address = _ip(host)
    if address is None:
        name = host.lower().removesuffix(".")
        return name == "localhost" or name.endswith(".localhost")
    return address.is_loopback


def is_wildcard(host: str) -> bool:
    """Whether listening on ``host``, an address without brackets, means listening on all addresses of this machine."""
    address = _ip(host)
    return address is not None and address.is_unspecified


def _ip(host: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_name(host: str) -> bool:
    labels = host.removesuffix(".").split(".")
    # The resolver takes "127.1" and "0x7f000001" for IPv4 addresses, but is_loopback and is_wildcard don't.
    return (
        len(host) <= _MAX_NAME
        and all(_LABEL.fullmatch(label) for label in labels)
        and not _NUMBER.fullmatch(labels[-1])
    )
