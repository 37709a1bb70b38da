"""Relays that know each other: whom they give work, whose rates they share, and what comes of lost words."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_peers import SECRET, TOKEN, Relay, Worker, wait_until

from umaserve.net.dial import DialError
from umaserve.net.timers import Timer, Timers
from umaserve.relay.peers.peer_link import PATH, PeerLink
from umaserve.relay.peers.peer_updates import LOOK_S, REFILLED_S
from umaserve.relay.pool.peer_load import FORGET_S, Elsewhere
from umaserve.sessions.rates import RateLimits, Rates

NEWS: dict[str, Any] = {"relay": "a relay of the test", "workers": {}, "keys": {}}


class Clock:
    def __init__(self) -> None:
        self.time = 0.0
        self._timers = Timers()

    def now(self) -> float:
        return self.time

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return self._timers.add(self.time + delay, callback)

    def advance(self, seconds: float) -> None:
        self.time += seconds
        for callback in self._timers.due(self.time):
            callback()


# What others say.

LOADS = st.dictionaries(st.sampled_from("xyz"), st.integers(0, 3))


@given(st.lists(st.tuples(st.sampled_from("ab"), LOADS, st.sampled_from([0.0, 2.0, FORGET_S])), max_size=20))
def test_what_each_relay_said_last_counts_until_it_is_silent(said: list[tuple[str, dict[str, int], float]]) -> None:
    clock, known = Clock(), dict.fromkeys("xyz", 0)
    elsewhere = Elsewhere(clock, lambda changed: known.update({one: elsewhere.of(one) for one in changed}))
    heard: dict[str, tuple[float, dict[str, int]]] = {}
    for relay, loads, wait_s in said:
        elsewhere.hear(relay, loads)
        heard[relay] = (clock.time, loads)
        clock.advance(wait_s)
        fresh = [loads for at, loads in heard.values() if clock.time - at < FORGET_S]
        assert known == {one: sum(loads.get(one, 0) for loads in fresh) for one in "xyz"}
        assert len(elsewhere) == len(fresh)


def test_what_is_used_elsewhere_is_taken_from_the_rates() -> None:
    rates, own = Rates(0, 0), RateLimits(3, 60)
    rates.admit("alice", 0.0, own)
    rates.spend("alice", 0, 0.0, own, requests=2)
    with pytest.raises(Exception, match="3 requests a minute"):
        rates.admit("alice", 0.0, own)
    rates.spend("alice", 90, 0.0, own)
    with pytest.raises(Exception, match="60 tokens a minute"):
        rates.admit("alice", 20.1, own)
    rates.admit("alice", 60.0, own)


# Two relays.


def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(params=["peer", "redis"])
def pair(request: pytest.FixtureRequest, start: Callable[..., Relay], tmp_path: Path) -> tuple[Relay, Relay]:
    """Two that know each other, and share their file of keys."""
    keys, one, other = str(tmp_path / "keys.sqlite"), address(), address()
    first: dict[str, Any] = {"peer": (f"http://{other}",)}
    second: dict[str, Any] = {"peer": (f"http://{one}", f"http://{other}")}
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        server.start()
        first = second = {"redis": server.url}
    relays = start(listen=one, client_keys=keys, **first), start(listen=other, client_keys=keys, **second)
    for relay in relays:
        relay.wait_for("peers", 1)
    return relays


def load(relay: Relay, worker: Worker) -> int:
    return next(shown["load"] for shown in relay.workers() if shown["id"] == worker.id)


def test_a_worker_of_both_gets_no_more_while_another_is_idle(pair: tuple[Relay, Relay]) -> None:
    one, other = pair
    shared = {relay: relay.worker(max_concurrent=2, instance="shared") for relay in pair}
    headers = one.key()
    waiting = [one.ask(headers), one.ask(headers)]
    requests = [shared[one].request() for _ in waiting]
    wait_until(lambda: load(other, shared[other]) == 2)
    idle = other.worker(max_concurrent=2, instance="idle")
    more = [other.ask(headers), other.ask(headers)]
    for _ in more:
        idle.answer()
    for request in requests:
        shared[one].complete(request)
    wait_until(lambda: load(other, shared[other]) == 0)
    assert [client.receive().status for client in (*waiting, *more)] == [200] * 4


def test_a_relay_that_ends_is_forgotten(pair: tuple[Relay, Relay]) -> None:
    one, other = pair
    worker = other.worker(instance="shared")
    one.worker(instance="shared")
    one.ask(one.key())
    wait_until(lambda: load(other, worker) == 1)
    one.end()
    other.wait_for("peers", 0)
    assert load(other, worker) == 0


def test_a_keys_rate_holds_over_both(pair: tuple[Relay, Relay]) -> None:
    one, other = pair
    worker, headers = one.worker(), one.key(requests_per_minute=2, tokens_per_minute=60)
    for _ in range(2):
        client = one.ask(headers)
        worker.answer('{"usage":{"prompt_tokens":1,"completion_tokens":40}}')
        assert client.receive().status == 200
    refused = wait_until(lambda: (answer := other.ask(headers).receive()).status == 429 and answer)
    assert "a minute is used up" in refused.error["message"]
    shown = other.admin("GET", "/keys").json["keys"][0]["used"]
    assert shown["generated_tokens_total"] == 0, "each relay tells what was used there"


def test_a_relay_that_comes_back_is_told_again(start: Callable[..., Relay]) -> None:
    one, other = address(), address()
    first = start(listen=one, peer=(f"http://{other}",))
    wait_until(lambda: any("is not told our load" in record.getMessage() for record in first.records))
    second = start(listen=other)
    second.wait_for("peers", 1)
    wait_until(lambda: any("is told our load" in record.getMessage() for record in first.records))
    assert first.stat("peers") == 0, "the other one is not told of it"


def test_a_relay_is_told_of_what_was_used_while_it_was_away(start: Callable[..., Relay], tmp_path: Path) -> None:
    keys, other = str(tmp_path / "keys.sqlite"), address()
    first = start(peer=(f"http://{other}",), client_keys=keys)
    worker, headers = first.worker(), first.key(requests_per_minute=2)
    for _ in range(2):
        client = first.ask(headers)
        worker.answer()
        assert client.receive().status == 200
    second = start(listen=other, client_keys=keys)
    second.wait_for("peers", 1)
    assert second.ask(headers).receive().status == 429


class Away:
    """A dialer, and the channel to a relay that answers while it is there; what the link has to tell."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.changes = 0
        self.here = False
        self.total = 0
        self.heard: list[tuple[int, int]] = []
        self.handler: PeerLink
        self.link = PeerLink(self.clock, self, "http://box", "a", lambda: SECRET, self)  # type: ignore[arg-type]

    def loads(self) -> dict[str, int]:
        return {}

    def used(self) -> dict[str, tuple[int, int]]:
        return {"alice": (self.total, 0)} if self.total else {}

    def connect(self, _url: object, done: Callable[[Any], None], **_limits: float) -> None:
        done(self if self.here else DialError("it is away"))

    def write(self, data: bytes) -> None:
        if self.here:
            self.heard += json.loads(data.partition(b"\r\n\r\n")[2])["keys"].values()
            self.clock.call_later(
                0, lambda: self.handler.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            )

    def abort(self) -> None: ...

    def pass_time(self, seconds: float, used_each_second: int) -> None:
        for _ in range(round(seconds)):
            self.total += used_each_second
            self.changes += 1
            self.clock.advance(1.0)
            self.clock.advance(LOOK_S)


@pytest.mark.parametrize("away_s", [0, 3, 50, 100, 1000])
def test_what_was_used_long_ago_is_not_told(away_s: int) -> None:
    away = Away()
    away.here = True
    away.link.start()
    away.pass_time(3, 2)
    assert sum(requests for requests, _ in away.heard) == 6
    if away_s:
        away.here = False
        away.link.connection_lost()
        away.pass_time(away_s, 1)
        away.here = True
    away.heard.clear()
    away.pass_time(3, 0)
    told = sum(requests for requests, _ in away.heard)
    assert min(away_s, REFILLED_S) <= told <= min(away_s, 2 * REFILLED_S + 2)


def test_a_relay_with_another_secret_is_told_nothing(start: Callable[..., Relay]) -> None:
    second = start(worker_secret="another")
    first = start(peer=(f"http://{second.address}",))
    wait_until(lambda: any("status 401" in record.getMessage() for record in first.records))
    assert second.stat("peers") == 0


# What comes in.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"relay": 5}, "relay: expected "),
        ({"workers": []}, "workers: expected an object"),
        ({"workers": {"x": -1}}, "workers.x: expected "),
        ({"workers": {"x": "many"}}, "workers.x: expected "),
        ({"keys": {"alice": 1}}, "keys.alice: expected "),
        ({"keys": {"alice": [1]}}, "keys.alice: expected "),
        ({"keys": {"alice": [1, True]}}, "keys.alice: expected "),
        ({"keys": {"alice": [1, -1]}}, "keys.alice: expected "),
    ],
)
def test_wrong_news_change_nothing(start: Callable[..., Relay], wrong: dict[str, Any], message: str) -> None:
    relay = start()
    answer = relay.client().ask("POST", PATH, NEWS | wrong, {"X-Worker-Secret": SECRET})
    assert answer.status == 400
    assert answer.error["message"].startswith(message)
    assert relay.stat("peers") == 0


def test_news_need_the_workers_secret(start: Callable[..., Relay]) -> None:
    relay = start()
    for headers in ({}, {"X-Worker-Secret": "wrong"}, {"Authorization": f"Bearer {TOKEN}"}):
        assert relay.client().ask("POST", PATH, NEWS, headers).status == 401
    assert relay.client().ask("POST", PATH, NEWS, {"X-Worker-Secret": SECRET}).status == 200
    assert json.loads(relay.client().ask("GET", "/health").body)["status"] == "ok"
    assert relay.stat("peers") == 1
