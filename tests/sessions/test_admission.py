"""Admission: each refusal names its reason and when to try again, and costs nobody anything."""

from __future__ import annotations

import pytest

from umaserve.core.errors import Fault, RequestError
from umaserve.sessions.admission import Admission
from umaserve.sessions.caller import Caller
from umaserve.sessions.rates import RateLimits, Rates

ORIGIN = Caller("uds", "uid:1000")
KEYED = Caller("openai", "192.0.2.1", "garden")


def admission(
    requests: float = 0, tokens: float = 0, max_queue: int = 3, reserve: int = 0, available: int = 0
) -> Admission:
    return Admission(Rates(requests, tokens), max_queue, reserve, lambda: available)


def refused(admission: Admission, caller: Caller = ORIGIN, waiting: int = 0, now: float = 0.0) -> RequestError:
    with pytest.raises(RequestError) as refusal:
        admission(caller, waiting, now)
    return refusal.value


def test_as_many_may_wait_as_the_queue_is_long() -> None:
    admit = admission(max_queue=3)
    admit(ORIGIN, 2, 0.0)
    error = refused(admit, waiting=3)
    assert (error.fault, error.retry_after_s) == (Fault.QUEUE_FULL, 1.0)
    assert error.message.startswith("request: 3 requests are waiting")


@pytest.mark.parametrize(("reserve", "available", "taken"), [(0, 0, True), (100, 100, True), (100, 99, False)])
def test_what_is_reserved_of_the_memory_stays_free(reserve: int, available: int, taken: bool) -> None:
    admit = admission(reserve=reserve, available=available)
    if taken:
        admit(ORIGIN, 0, 0.0)
    else:
        error = refused(admit)
        assert (error.fault, error.retry_after_s) == (Fault.MEMORY_PRESSURE, 5.0)
        assert error.message.startswith("request: the server is short of memory")


def test_memory_is_not_measured_where_none_is_reserved() -> None:
    def measure() -> int:
        raise AssertionError("measured")

    Admission(Rates(0, 0), 3, 0, measure)(ORIGIN, 0, 0.0)


def test_nothing_is_taken_while_memory_is_short() -> None:
    admit = admission()
    admit.memory_short = True
    assert (refused(admit).fault, refused(admit).retry_after_s) == (Fault.MEMORY_PRESSURE, 5.0)
    admit.memory_short = False
    admit(ORIGIN, 0, 0.0)


def test_each_tenant_has_its_own_rate() -> None:
    admit = admission(requests=2)
    for caller in (ORIGIN, KEYED):
        admit(caller, 0, 0.0)
        admit(caller, 0, 0.0)
        assert refused(admit, caller).fault is Fault.RATE_LIMITED
    admit(Caller("uds", "uid:1001"), 0, 0.0)
    assert refused(admit, Caller("uds", "192.0.2.7", "garden")).fault is Fault.RATE_LIMITED, "a key is one everywhere"


def test_a_refusal_says_after_how_long_another_try_is_taken() -> None:
    admit = admission(requests=2)
    admit(ORIGIN, 0, 0.0)
    admit(ORIGIN, 0, 0.0)
    wait = refused(admit).retry_after_s
    assert wait is not None
    assert 29.9 < wait < 30.1
    admit(ORIGIN, 0, wait)


@pytest.mark.parametrize("reason", ["queue", "memory"])
def test_who_is_refused_for_another_reason_pays_nothing(reason: str) -> None:
    available = [0]
    admit = Admission(Rates(1, 0), 3, 100, lambda: available[0])
    if reason == "queue":
        refused(admit, waiting=3)
    else:
        refused(admit)
    available[0] = 100
    admit(ORIGIN, 0, 0.0)
    assert refused(admit).fault is Fault.RATE_LIMITED


def test_generated_tokens_count_against_who_asked_for_them() -> None:
    admit = admission(tokens=60)
    admit(ORIGIN, 0, 0.0)
    admit.spend(ORIGIN, 70, 0.0)
    error = refused(admit)
    assert error.fault is Fault.RATE_LIMITED
    assert error.retry_after_s == pytest.approx(10.0, abs=0.01)
    admit(KEYED, 0, 0.0)


def test_a_key_may_have_limits_of_its_own() -> None:
    admit = admission(requests=1, tokens=1)
    free = Caller("uds", "uid:1", "free", limits=RateLimits(0, 0))
    strict = Caller("uds", "uid:1", "strict", limits=RateLimits(None, 5))
    for _ in range(5):
        admit(free, 0, 0.0)
        admit.spend(free, 1000, 0.0)
    admit(strict, 0, 0.0)
    assert refused(admit, strict).fault is Fault.RATE_LIMITED, "the server's rate of requests"
    admit.spend(strict, 6, 0.0)
    assert refused(admit, strict, now=60.0 / 60).fault is Fault.RATE_LIMITED
