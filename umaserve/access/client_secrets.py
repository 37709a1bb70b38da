"""Short-lived keys that a program makes for its own clients, such as a page in a browser: in memory only."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.sessions.caller import Caller

MAX_SECRETS, MAX_OF_ONE = 1024, 32
"""Secrets in all, and those of one tenant, whose oldest one ends with the next."""
PREFIX = "ek_"


@dataclass(frozen=True, slots=True)
class ClientSecret:
    """What a secret grants: what the key of this name grants, and sessions that begin with these settings."""

    tenant: str
    key: str
    settings: Mapping[str, Any]
    until: float


class ClientSecrets:
    """All secrets that are valid. ``clock``: in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._secrets: dict[str, ClientSecret] = {}
        """By their hashes, the oldest first."""

    def new(self, caller: Caller, settings: Mapping[str, Any], seconds: float) -> str:
        """A secret that is valid for so long. Raises ``RequestError`` where there are too many."""
        now = self._clock()
        self._secrets = {digest: one for digest, one in self._secrets.items() if one.until > now}
        own = [digest for digest, one in self._secrets.items() if one.tenant == caller.tenant]
        for digest in own[: max(0, len(own) + 1 - MAX_OF_ONE)]:
            del self._secrets[digest]
        if len(self._secrets) >= MAX_SECRETS:
            problem = f"{MAX_SECRETS} client secrets are valid, which is the limit; try again later"
            raise RequestError(Fault.RATE_LIMITED, "request", problem, retry_after_s=60.0)
        value = PREFIX + secrets.token_urlsafe(32)
        self._secrets[_digest(value)] = ClientSecret(caller.tenant, caller.key, settings, now + seconds)
        return value

    def find(self, presented: str) -> ClientSecret | None:
        """What a presented key grants; ``None`` if it is no secret, or valid no more."""
        found = self._secrets.get(_digest(presented)) if presented.startswith(PREFIX) else None
        return found if found is not None and found.until > self._clock() else None


def _digest(presented: str) -> str:
    return hashlib.sha256(presented.encode(errors="surrogatepass")).hexdigest()
