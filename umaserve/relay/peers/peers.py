"""Other relays with the same workers and keys, met at Redis or Valkey: they hear our load, and we hear theirs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from umaserve.core.errors import ConfigError
from umaserve.net.loop import Loop
from umaserve.relay.peers.peer_updates import Used
from umaserve.relay.pool.accounts import Accounts
from umaserve.relay.pool.pool import Pool
from umaserve.system.threads import JobThread
from umaserve.wire.fields import Fields, out_of_range, parse_json

if TYPE_CHECKING:
    from umaserve.relay.peers.redis_link import Credentials, RedisLink

MAX_ENTRIES = 65536
MAX_NAME_BYTES = 256
MAX_LOAD = 1 << 20
MAX_USED = 1 << 40
THREAD_S = 0.5
"""How long the end waits for a thread, which may wait for somebody else."""


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """Redis or Valkey at a URL, where relays of one ``fleet`` share their state. No ``credentials``: none needed."""

    url: str
    fleet: str
    credentials: Callable[[], Credentials] | None


class Peers:
    """Implements ``peer_updates.PublishedState``."""

    def __init__(self, loop: Loop, redis: RedisConfig, pool: Pool, accounts: Accounts | None) -> None:
        """Raises ``ConfigError`` where Redis' client is not installed."""
        self._pool = pool
        self._accounts = accounts
        self._name = secrets.token_hex(8)
        self._link = _redis_link()(loop, redis.url, redis.credentials, redis.fleet, self._name, self, self.hear)
        self.threads: Sequence[JobThread] = self._link.threads
        """The link's threads, to be watched."""

    def start(self) -> None:
        self._link.start()

    def collect(self) -> None:
        """Run the callbacks of the threads' jobs."""
        for thread in self.threads:
            thread.collect()

    def stop(self) -> bool:
        """Disconnect, and stop the threads; returns whether they have ended."""
        self._link.close()
        ended = [thread.stop(THREAD_S) for thread in self.threads]
        return all(ended)

    # -- what is told --------------------------------------------------------------------------------------------

    @property
    def changes(self) -> int:
        return self._pool.workers.changes + (0 if self._accounts is None else self._accounts.changes)

    def loads(self) -> Mapping[str, int]:
        return {one.instance: one.occupied for one in self._pool.workers if one.instance and one.occupied}

    def used(self) -> Used:
        used = {} if self._accounts is None else self._accounts.used
        return {name: (one.requests_total, one.generated_tokens_total) for name, one in used.items()}

    # -- what is heard -------------------------------------------------------------------------------------------

    def hear(self, body: bytes, age_s: float) -> None:
        """What a relay has told, so many seconds ago, of its workers or its keys; raises ``RequestError``."""
        fields = Fields(Fields.of(parse_json(body, 8 * MAX_ENTRIES), "body").values)
        relay = fields.string("relay", max_bytes=MAX_NAME_BYTES) or ""
        loads = _entries(fields, "workers")
        keys = _entries(fields, "keys")
        given = {name: loads.integer(name, 0, MAX_LOAD) or 0 for name in loads.values}
        used = {name: _pair(keys, name) for name in keys.values}
        if relay == self._name:
            return  # A relay reads its own news, too.
        if "workers" in fields.values:
            self._pool.elsewhere.hear(relay, given)
        if self._accounts is not None:
            self._accounts.charge(used, age_s)


def _redis_link() -> type[RedisLink]:
    # Imported only where it is wanted: it may not be there, and takes time.
    try:
        from umaserve.relay.peers.redis_link import RedisLink
    except ImportError as error:
        problem = f"redis is set, and its client is not installed ({error})"
        raise ConfigError(f"{problem}: pip install 'umaserve[redis]', or remove the setting") from None
    return RedisLink


def _entries(fields: Fields, key: str) -> Fields:
    found = fields.object(key) or Fields({})
    if len(found.values) > MAX_ENTRIES:
        raise out_of_range(key, f"at most {MAX_ENTRIES} entries", len(found.values))
    return found


def _pair(fields: Fields, name: str) -> tuple[int, int]:
    """Requests and tokens."""
    pair = fields.values[name]
    if not (
        isinstance(pair, list) and len(pair) == 2 and all(type(one) is int and 0 <= one <= MAX_USED for one in pair)
    ):
        raise out_of_range(fields.name(name), f"two whole numbers from 0 to {MAX_USED}", str(pair))
    return pair[0], pair[1]
