"""The gate in front of all routes: checks Host, Origin and API keys."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from umaserve.access.key_entries import Key
from umaserve.access.keys import KeyFile
from umaserve.core.errors import Fault, RequestError
from umaserve.sessions.caller import Caller
from umaserve.settings.addresses import is_loopback, is_wildcard, parse_addresses
from umaserve.wire.http_head import Refusal, Request, parse_authority, shown
from umaserve.wire.multipart import MULTIPART

log = logging.getLogger(__name__)

SUBPROTOCOL = "umaserve"
REALTIME_SUBPROTOCOL = "realtime"
KEY_SUBPROTOCOLS = ("bearer.", "openai-insecure-api-key.")
"""Browsers can't set headers on a WebSocket, so a key may be offered as a subprotocol with one of these prefixes: ours,
or that of OpenAI's Realtime API."""
ANY = "*"
_CORS_METHODS = "GET, POST, DELETE, OPTIONS"
_CORS_HEADERS = "Authorization, Content-Type, X-Api-Key"
_CORS_AGE_S = "600"
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([^/]*)")
_DEFAULTS = ("", "application/octet-stream", "application/x-www-form-urlencoded")
"""Types that clients give a body where nobody has told them its type."""
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
"""Default ports by scheme, for origins without a port."""
_FORWARDED = ("x-forwarded-for", "forwarded")
"""Headers by which proxies tell whom a request is from."""
_HEADER_NAMES = re.compile(r"[A-Za-z0-9-]+( *, *[A-Za-z0-9-]+)*")


class Names(NamedTuple):
    """The hosts that we answer to, and the origins that may call: settings, and the addresses listened on."""

    addresses: str
    allow_host: Sequence[str]
    allow_origin: Sequence[str]
    cors_origin: Sequence[str]


class Gate:
    """Checks requests before any route sees them. Refuses by raising ``Refusal`` or ``RequestError``."""

    def __init__(self, names: Names, keys: KeyFile | None) -> None:
        self._keys = keys
        self._warned_of_proxy = False
        self._hosts = {host.lower() for host in names.allow_host}
        own = [host for host, _port in parse_addresses(names.addresses)]
        self._hosts |= {host.lower() for host in own if not is_wildcard(host)}
        self._origins = {origin.lower() for origin in (*names.allow_origin, *names.cors_origin)}
        self._cors = {origin.lower() for origin in names.cors_origin}

    @property
    def keyed(self) -> bool:
        """Whether requests need a key."""
        return self._keys is not None

    def reread_keys(self) -> None:
        """Read the key file again, if there is one. If it can't be used, that is logged, and the old keys stay."""
        if self._keys is not None:
            self._keys.reread()

    def check_names(self, request: Request, *, by_file: bool) -> None:
        """Check Host, against DNS rebinding, which can't reach a Unix socket (``by_file``); and Origin, against foreign
        pages."""
        at = _host(request)
        if at is not None and not (by_file or is_loopback(at[0]) or not self._hosts.isdisjoint((ANY, at[0]))):
            host = at[0][:64]
            raise Refusal(403, f"Host: expected a name that this server answers to, got {host}: see --allow-host")
        origins = request.header_values("origin")
        if len(origins) > 1:
            raise Refusal(400, f"Origin: expected at most one, got {len(origins)}")
        if origins and not self._may_call(origins[0].lower(), at):
            expected = "an allowed origin"
            raise Refusal(403, f"Origin: expected {expected}, got {shown(origins[0])}: see --allow-origin")

    def _may_call(self, origin: str, at: tuple[str, int | None] | None) -> bool:
        """Whether pages of ``origin`` may call this server; ``at`` is the request's host and port."""
        if not self._origins.isdisjoint((ANY, origin)):
            return True
        try:
            scheme, name, port = parse_origin(origin)
        except ValueError:
            return False
        default = _PORTS.get(scheme)
        return is_loopback(name) or (at is not None and (name, port or default) == (at[0], at[1] or default))

    def cors_headers(self, request: Request) -> list[tuple[str, str]]:
        """The headers that allow a browser's page to read the reply (Fetch standard, CORS protocol)."""
        origins = request.header_values("origin")
        if len(origins) != 1 or self._cors.isdisjoint((ANY, origins[0].lower())):
            return []
        origin = origins[0]
        return [
            ("Access-Control-Allow-Origin", origin),
            # All: clients read Retry-After, request-id and others.
            ("Access-Control-Expose-Headers", ANY),
            ("Vary", "Origin"),
        ]

    def preflight_headers(self, request: Request) -> list[tuple[str, str]]:
        """The headers that answer a CORS-preflight request (Fetch standard), besides ``cors_headers``."""
        if not self.cors_headers(request):
            return []
        # A page that may call may send any headers: client libraries add their own.
        wanted = request.header("access-control-request-headers") or ""
        return [
            ("Access-Control-Allow-Methods", _CORS_METHODS),
            ("Access-Control-Allow-Headers", wanted if _HEADER_NAMES.fullmatch(wanted) else _CORS_HEADERS),
            ("Access-Control-Max-Age", _CORS_AGE_S),
        ]

    def presented_key(self, request: Request) -> str | None:
        """The first key found in ``Authorization``, in ``x-api-key``, or among the WebSocket subprotocols."""
        scheme, _, credentials = (request.header("authorization") or "").partition(" ")
        if scheme.lower() == "bearer" and credentials.strip():
            return credentials.strip()
        if key := request.header("x-api-key"):
            return key
        for offered in request.header_items("sec-websocket-protocol"):
            for prefix in KEY_SUBPROTOCOLS:
                if offered.startswith(prefix):
                    return offered.removeprefix(prefix)
        return None

    def key_of(self, request: Request) -> Key | None:
        """The key of a request; ``None`` if none is needed. Raises ``RequestError`` for one that is missing or
        unknown."""
        if self._keys is None:
            return None
        presented = self.presented_key(request)
        key = None if presented is None else self._keys.match(presented)
        if key is None:
            found = "none" if presented is None else "an unknown one"
            ways = "Authorization: Bearer …, or x-api-key: …"
            raise RequestError(Fault.UNAUTHORIZED, "Authorization", f"expected an API key ({ways}), got {found}")
        return key

    def caller(self, request: Request, dialect: str, peer: str) -> Caller:
        """The caller of a request; raises ``RequestError`` as ``key_of``."""
        key = self.key_of(request)
        if key is not None:
            return _granted(Caller(dialect, peer), key)
        if not self._warned_of_proxy and _is_local(peer) and any(map(request.header, _FORWARDED)):
            self._warned_of_proxy = True
            log.warning(
                "requests arrive through a proxy on this machine, and no API keys are set: every client of the proxy"
                " counts as a local user with operator rights: set --api-keys, or let the proxy authenticate its"
                " clients"
            )
        return Caller(dialect, peer, operator=_is_local(peer))

    def with_key(self, caller: Caller, presented: str) -> Caller | None:
        """The caller with what this key grants; ``None`` if it is unknown."""
        key = None if self._keys is None else self._keys.match(presented)
        return None if key is None else _granted(caller, key)

    def renewed(self, caller: Caller) -> Caller | None:
        """The caller with what its key grants by now; ``None`` if it is no longer valid."""
        if self._keys is None:
            return caller
        key = self._keys.named(caller.key)
        return None if key is None else _granted(caller, key)

    def is_still_operator(self, caller: Caller) -> bool:
        """Whether the caller's key, if one is needed, still is an operator's."""
        renewed = self.renewed(caller)
        return renewed is not None and renewed.operator


def check_json(request: Request) -> None:
    """Refuse a body that isn't JSON by its type. Some clients name none, and ``curl -d`` calls JSON a form: they are
    believed."""
    content_type = request.header("content-type")
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type == "application/json" or (media_type in _DEFAULTS and not _is_from_browser(request)):
        return
    raise Refusal(415, f"Content-Type: expected application/json, got {(content_type or 'none')[:64]}")


def check_form(request: Request) -> None:
    """Refuse a body that isn't a form with files by its type. Foreign pages may send one without a CORS-preflight, but
    not without an ``Origin``, which the gate has checked."""
    content_type = request.header("content-type")
    if (content_type or "").partition(";")[0].strip().lower() != MULTIPART:
        raise Refusal(415, f"Content-Type: expected {MULTIPART}, got {(content_type or 'none')[:64]}")


def _is_from_browser(request: Request) -> bool:
    """A browser sends such bodies to foreign servers without a CORS-preflight, but not without one of these headers."""
    return request.header("origin") is not None or request.header("sec-fetch-site") is not None


def _granted(caller: Caller, key: Key) -> Caller:
    return replace(
        caller, key=key.name, priority=key.priority, limits=key.limits, models=key.models, operator=key.operator
    )


def _is_local(peer: str) -> bool:
    """Whether a peer, by its name in ``system.peer_credentials``, is on this machine."""
    return peer.startswith("uid:") or is_loopback(peer.removeprefix("ip:"))


def parse_origin(text: str) -> tuple[str, str, int | None]:
    """The scheme, host and port of an origin in lower case (RFC 6454, section 6.2), as from ``parse_authority``.

    Raises ``ValueError`` for anything else, such as ``null`` and lists of origins.
    """
    match = _ORIGIN.fullmatch(text)
    if match is None:
        raise ValueError("expected scheme://host or scheme://host:port")
    return (match[1], *parse_authority(match[2]))


def _host(request: Request) -> tuple[str, int | None] | None:
    """The Host header's host and port; ``None`` in HTTP/1.0 without one. The codec has checked its form."""
    value = request.header("host")
    return None if value is None else parse_authority(value)
