"""Relays that know each other: whom they give work, whose rates they share, and what comes of lost words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis_server import RedisServer
from relay_peers import Relay, Worker, wait_until

from umaserve.net.timers import Timer, Timers
from umaserve.relay.peers.peer_updates import REFILLED_S, UnackedUsage
from umaserve.relay.pool.peer_load import FORGET_S, PeerLoad
from umaserve.sessions.rates import RateLimits, Rates


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
    elsewhere = PeerLoad(clock, lambda changed: known.update({one: elsewhere.of(one) for one in changed}))
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


@pytest.fixture
def pair(start: Callable[..., Relay], redis_server: RedisServer, tmp_path: Path) -> tuple[Relay, Relay]:
    """Two that meet at Redis, and share their file of keys."""
    redis_server.start()
    settings = {"client_keys": str(tmp_path / "keys.json"), "redis": redis_server.url}
    relays = start(**settings), start(**settings)
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


@pytest.mark.parametrize("away_s", [0, 3, 50, 100, 1000])
def test_what_was_used_long_ago_is_not_told(away_s: int) -> None:
    clock, total = Clock(), 0
    untold = UnackedUsage(lambda: {"alice": (total, 0)}, clock.now)

    def told(arrives: bool) -> int:
        clock.advance(1.0)
        requests, _tokens = untold.take().get("alice", (0, 0))
        (untold.was_told if arrives else untold.was_lost)()
        return requests

    total = 6
    assert told(arrives=True) == 6
    for _ in range(away_s):
        total += 1
        told(arrives=False)
    assert min(away_s, REFILLED_S) <= told(arrives=True) <= min(away_s, 2 * REFILLED_S + 2)
    assert told(arrives=True) == 0
