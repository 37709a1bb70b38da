"""Other relays with the same workers and keys: each is told our load, and we hear theirs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from umaserve.net.loop import Loop
from umaserve.relay.accounts import Accounts
from umaserve.relay.peer_link import PeerLink, Used
from umaserve.relay.pool import Pool
from umaserve.system.threads import JobThread
from umaserve.wire.fields import Fields, out_of_range, parse_json
from umaserve.worker.dialer import Dialer

MAX_ENTRIES = 65536
MAX_NAME_BYTES = 256
MAX_LOAD = 1 << 20
MAX_USED = 1 << 40
RESOLVER_S = 0.5


class Peers:
    """Implements ``peer_link.News``; without ``urls`` it tells nobody, but still hears."""

    def __init__(
        self, loop: Loop, urls: tuple[str, ...], pool: Pool, accounts: Accounts | None, secret: Callable[[], str]
    ) -> None:
        """``secret``: the workers', which all relays that share workers have. Raises ``ConfigError`` where the system's
        certificate authorities can't be used."""
        self._pool = pool
        self._accounts = accounts
        self._name = secrets.token_hex(8)
        self.threads: list[JobThread] = []
        """Its threads, to be watched."""
        self._links: list[PeerLink] = []
        if urls:
            self.threads.append(JobThread("resolving", loop.wake))
            dialer = Dialer(loop, self.threads[0].submit)
            self._links = [PeerLink(loop, dialer, url, self._name, secret, self) for url in urls]

    def start(self) -> None:
        for link in self._links:
            link.start()

    def collect(self) -> None:
        """Run the callbacks of resolved names."""
        for thread in self.threads:
            thread.collect()

    def stop(self) -> bool:
        """Disconnect, and stop the thread; returns whether it has ended."""
        for link in self._links:
            link.close()
        return all(thread.stop(RESOLVER_S) for thread in self.threads)

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

    def hear(self, body: bytes) -> None:
        """Another relay's news; raises ``RequestError``."""
        fields = Fields(Fields.of(parse_json(body, 8 * MAX_ENTRIES), "body").values)
        relay = fields.string("relay", max_bytes=MAX_NAME_BYTES) or ""
        loads = _entries(fields, "workers")
        keys = _entries(fields, "keys")
        given = {name: loads.integer(name, 0, MAX_LOAD) or 0 for name in loads.values}
        used = {name: _pair(keys, name) for name in keys.values}
        if relay == self._name:
            return  # Its operator lists all relays at each of them.
        self._pool.elsewhere.hear(relay, given)
        if self._accounts is not None:
            for name, (requests, tokens) in used.items():
                self._accounts.charge(name, requests, tokens)


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
