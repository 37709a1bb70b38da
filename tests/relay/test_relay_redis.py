"""Relays that meet at Redis: what one that comes later is told, and what comes of a server that is away or full of what
nobody has told."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme
from redis_server import MISSING, PROGRAM, RedisServer
from relay_peers import SECRET, Relay, wait_until

from umaserve.core.errors import ConfigError
from umaserve.relay.server import RelayServer
from umaserve.settings.relay import RelayConfig

LOADS, USED = "umaserve:local:loads", "umaserve:local:used"
HOUR_MS = 3_600_000


class Fleet:
    """Relays that have one file of keys, and meet at one server."""

    def __init__(self, start: Callable[..., Relay], server: RedisServer, keys: str) -> None:
        self.server = server
        self._start = start
        self._keys = keys

    def relay(self, **settings: Any) -> Relay:
        return self._start(redis=self.server.url, client_keys=self._keys, **settings)


@pytest.fixture
def fleet(start: Callable[..., Relay], redis_server: RedisServer, tmp_path: Path) -> Fleet:
    """Its server is not started yet."""
    return Fleet(start, redis_server, str(tmp_path / "keys.json"))


@pytest.fixture
def client(fleet: Fleet) -> redis.Redis:
    """Of the server, which runs."""
    fleet.server.start()
    return fleet.server.client()


def use(relay: Relay, headers: dict[str, str], requests: int) -> None:
    worker = relay.worker()
    for _ in range(requests):
        client = relay.ask(headers)
        worker.answer()
        assert client.receive().status == 200
    worker.connection.close()
    relay.wait_for("workers", 0)


def status(relay: Relay, headers: dict[str, str]) -> int:
    """429 where the key's rate is used up, else 404: there is no worker."""
    return relay.ask(headers).receive().status


def logged(relay: Relay, words: str) -> bool:
    return any(words in record.getMessage() for record in relay.records)


def text(relay: Relay) -> str:
    return "".join(record.getMessage() + json.dumps(getattr(record, "fields", {})) for record in relay.records)


# Relays that come and go.


def test_a_relay_that_starts_is_told_what_keys_have_used(fleet: Fleet, client: redis.Redis) -> None:
    first = fleet.relay()
    headers = first.key(requests_per_minute=2)
    use(first, headers, 2)
    wait_until(lambda: client.xlen(USED))
    first.end()
    second = fleet.relay()
    wait_until(lambda: status(second, headers) == 429)


def test_what_was_used_long_ago_counts_no_more(fleet: Fleet, client: redis.Redis) -> None:
    relay = fleet.relay()
    headers = relay.key(requests_per_minute=60)
    seconds, _ = client.time()

    def used(requests: int, age_s: int) -> None:
        news = {"relay": "of the test", "keys": {"alice": [requests, 0]}}
        client.xadd(USED, {"news": json.dumps(news)}, id=f"{(seconds - age_s) * 1000}-0")

    used(1000, 100)
    used(60, 30)
    later = fleet.relay()
    later.wait_for("peers", 1)
    assert status(later, headers) == 404
    used(60, 0)
    wait_until(lambda: status(later, headers) == 429)


def test_nothing_is_left_in_redis_of_relays_that_are_gone(fleet: Fleet, client: redis.Redis) -> None:
    first, second = fleet.relay(), fleet.relay()
    use(first, first.key(), 1)
    wait_until(lambda: client.xlen(USED))
    assert set(client.keys()) == {LOADS.encode(), USED.encode()}
    assert 0 < client.pttl(LOADS) <= 5000
    assert 0 < client.pttl(USED) <= 60000
    second.worker(instance="shared")
    second.ask(second.key("bob"))

    def told() -> list[tuple[str, dict[str, int]]]:
        entries: Any = client.xrange(LOADS)
        news = [json.loads(fields[b"news"]) for _, fields in entries]
        return [(one["relay"], one["workers"]) for one in news]

    name = wait_until(lambda: next((relay for relay, loads in told() if loads == {"shared": 1}), ""))
    second.end()
    assert [loads for relay, loads in told() if relay == name][-1] == {}, "at its end it takes back what it has told"


def test_relays_of_another_provider_are_another_fleet(fleet: Fleet, client: redis.Redis) -> None:
    first, second, third = fleet.relay(), fleet.relay(), fleet.relay(provider="elsewhere")
    first.wait_for("peers", 1)
    second.wait_for("peers", 1)
    wait_until(lambda: client.xlen("umaserve:elsewhere:loads") > 1)
    assert third.stat("peers") == 0


# A server that is away.


def test_relays_serve_while_redis_is_away(fleet: Fleet) -> None:
    first = fleet.relay()
    wait_until(lambda: logged(first, "counters can't be shared through Redis"))
    headers = first.key(requests_per_minute=2)
    use(first, headers, 2)
    fleet.server.start()
    wait_until(lambda: logged(first, "counters are shared through Redis"))
    second = fleet.relay()
    wait_until(lambda: status(second, headers) == 429)
    assert sum("counters can't be shared" in record.getMessage() for record in first.records) == 1


def test_relays_hear_each_other_at_a_server_whose_clock_is_behind(fleet: Fleet, client: redis.Redis) -> None:
    first, second = fleet.relay(), fleet.relay()
    seconds, _ = client.time()
    news = {"relay": "of the test", "workers": {"shared": 1}}
    client.xadd(LOADS, {"news": json.dumps(news)}, id=f"{seconds * 1000 + HOUR_MS}-0")
    second.wait_for("peers", 2)
    fleet.server.kill()
    wait_until(lambda: logged(second, "counters can't be shared through Redis"))
    second.wait_for("peers", 0)
    fleet.server.start()
    for relay in (first, second):
        relay.wait_for("peers", 1)


# A server that wants a password.


@pytest.mark.parametrize("user", ["", "relays"])
def test_the_password_is_that_of_a_file(fleet: Fleet, tmp_path: Path, user: str) -> None:
    fleet.server.start()
    root = fleet.server.client()
    root.acl_setuser("relays", enabled=True, passwords=["+of-the-relays"], categories=["+@all"], keys=["umaserve:*"])
    root.config_set("requirepass", "of-all")
    password = tmp_path / "password"
    password.write_text("wrong")
    relay = fleet.relay(redis_user=user, redis_password_file=str(password))
    wait_until(lambda: logged(relay, "counters can't be shared through Redis"))
    password.write_text("of-the-relays\n" if user else "of-all\n")
    assert relay._server is not None
    relay._server._reread_files()
    wait_until(lambda: logged(relay, "counters are shared through Redis"))
    assert not any(word in text(relay) for word in ("of-the-relays", "of-all"))


# A server with TLS.


@pytest.mark.skipif(PROGRAM is None, reason=MISSING)
def test_a_server_with_tls_is_trusted_by_its_certificate(
    start: Callable[..., Relay], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    server = RedisServer(tmp_path, tmp_path / "cert.pem", tmp_path / "key.pem")
    server.start()
    try:
        relay = start(redis=server.url)
        wait_until(lambda: logged(relay, "certificate verify failed"))
        # The test's stand-in for the system's store of authorities.
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        wait_until(lambda: logged(relay, "counters are shared through Redis"))
    finally:
        server.kill()


# What comes in.


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"other": "field"}, "payload: not valid JSON"),
        ({"news": "{"}, "payload: not valid JSON"),
        ({"news": "[]"}, "body: expected an object"),
        ({"news": json.dumps({"relay": 5})}, "relay: expected "),
        ({"news": json.dumps({"relay": "x", "workers": []})}, "workers: expected an object"),
        ({"news": json.dumps({"relay": "x", "workers": {"x": -1}})}, "workers.x: expected "),
        ({"news": json.dumps({"relay": "x", "workers": {"x": "many"}})}, "workers.x: expected "),
        ({"news": json.dumps({"relay": "x", "keys": {"alice": 1}})}, "keys.alice: expected "),
        ({"news": json.dumps({"relay": "x", "keys": {"alice": [1]}})}, "keys.alice: expected "),
        ({"news": json.dumps({"relay": "x", "keys": {"alice": [1, True]}})}, "keys.alice: expected "),
        ({"news": json.dumps({"relay": "x", "keys": {"alice": [1, -1]}})}, "keys.alice: expected "),
    ],
)
def test_what_no_relay_has_told_changes_nothing(
    fleet: Fleet, client: redis.Redis, entry: dict[Any, Any], message: str
) -> None:
    relay = fleet.relay()
    wait_until(lambda: client.xlen(LOADS))
    for _ in range(3):
        client.xadd(LOADS, entry)
    wait_until(lambda: logged(relay, "ignored an update in Redis that no relay has written"))
    (complaint,) = [record.getMessage() for record in relay.records if "no relay" in record.getMessage()]
    assert message in complaint
    fleet.relay()
    relay.wait_for("peers", 1)


def test_a_key_of_another_kind_is_named(fleet: Fleet, client: redis.Redis) -> None:
    client.set(LOADS, "a string")
    relay = fleet.relay()
    wait_until(lambda: logged(relay, "WRONGTYPE"))
    client.delete(LOADS)
    wait_until(lambda: logged(relay, "counters are shared through Redis"))


# What it needs.


def test_without_its_client_the_relay_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umaserve.relay.peers.redis_link", None)
    with pytest.raises(ConfigError, match=r"pip install 'umaserve\[redis\]'"):
        RelayServer(RelayConfig(worker_secret=SECRET, redis="redis://127.0.0.1"))
