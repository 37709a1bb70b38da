"""Rates: nobody gets more than the limit, whoever waits as long as told gets in, and full buckets cost no memory."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.core.errors import Fault, RequestError
from umaserve.sessions import rates
from umaserve.sessions.rates import SWEEP_ABOVE, Bucket, RateLimits, Rates

# A busy box makes no test fail.

NONE = RateLimits(0, 0)


def refusal_of(rates: Rates, tenant: str, now: float, own: RateLimits | None = None) -> RequestError | None:
    try:
        rates.admit(tenant, now, own)
    except RequestError as error:
        return error
    return None


def refused(rates: Rates, tenant: str, now: float, own: RateLimits | None = None) -> RequestError:
    error = refusal_of(rates, tenant, now, own)
    assert error is not None
    assert error.fault is Fault.RATE_LIMITED
    return error


def admitted(rates: Rates, tenant: str, now: float, own: RateLimits | None = None) -> int:
    """How many requests get in at once."""
    return next(count for count in itertools.count() if refusal_of(rates, tenant, now, own))


def test_a_bucket_is_full_at_first_fills_at_its_rate_and_never_above_its_capacity() -> None:
    bucket = Bucket(rate=2, capacity=10, now=100)
    assert bucket.level(100) == 10
    bucket.take(14, 100)
    assert bucket.level(100) == -4
    assert bucket.wait(0, 100) == 2
    assert bucket.level(101) == -2
    assert bucket.level(100.5) == -2, "time that runs backwards fills nothing and takes nothing"
    assert bucket.level(104) == 4
    assert bucket.wait(4, 104) == 0
    assert bucket.level(1000) == 10


@pytest.mark.parametrize(
    ("per_minute", "burst"), [(1, 1), (60, 60), (2.5, 2), (0.5, 1), (1e-3, 1)], ids=lambda value: f"{value:g}"
)
def test_a_burst_is_one_minutes_worth_and_at_least_one(per_minute: float, burst: int) -> None:
    limited = Rates(per_minute, 0)
    assert admitted(limited, "a", 5.0) == burst
    assert admitted(limited, "b", 5.0) == burst, "tenants are apart"
    assert admitted(limited, "a", 5.0 + max(60, 60 / per_minute)) == burst, "full again after a minute"


def test_a_refusal_names_the_limit_and_the_wait() -> None:
    limited = Rates(30, 600)
    for _ in range(30):
        limited.admit("a", 0.0)
    error = refused(limited, "a", 0.5)
    assert error.message == "request: the limit of 30 requests a minute is used up; try again in 1.501 s"
    assert error.retry_after_s == 1.501
    limited.spend("a", 700, 0.5)
    error = refused(limited, "a", 0.5)
    assert error.message == "request: the limit of 600 tokens a minute is used up; try again in 10.001 s"
    assert error.retry_after_s == 10.001


def test_tokens_may_be_used_up_but_not_owed() -> None:
    limited = Rates(0, 60)
    limited.spend("a", 60, 0.0)
    limited.admit("a", 0.0)
    limited.spend("a", 1, 0.0)
    assert refused(limited, "a", 0.0).retry_after_s == 1.001
    limited.spend("a", 1, 0.0)
    assert refused(limited, "a", 1.0).retry_after_s == 1.001
    limited.admit("a", 2.0)


def test_a_refused_request_takes_nothing() -> None:
    limited = Rates(2, 60)
    limited.spend("a", 120, 0.0)
    for _ in range(10):
        refused(limited, "a", 0.0)
    assert admitted(limited, "a", 60.0) == 2


OWN = [
    (None, 3, True),
    (RateLimits(None, None), 3, True),
    (RateLimits(5, None), 5, True),
    (RateLimits(1, 0), 1, False),
    (RateLimits(7, 1000), 7, False),
]


@pytest.mark.parametrize(("own", "burst", "owes"), OWN)
def test_a_keys_own_numbers_go_before_the_servers(own: RateLimits | None, burst: int, owes: bool) -> None:
    limited = Rates(3, 10)
    assert admitted(limited, "key:a", 0.0, own) == burst
    limited.spend("key:b", 11, 0.0, own)
    assert admitted(limited, "key:b", 0.0, own) == (0 if owes else burst)


@pytest.mark.parametrize(("limited", "own"), [(Rates(0, 0), None), (Rates(1, 1), NONE)], ids=["server", "key"])
def test_0_is_no_limit_and_keeps_nothing(limited: Rates, own: RateLimits | None) -> None:
    for number in range(100):
        limited.admit("a", 0.0, own)
        limited.spend(f"{number}", 10**9, 0.0, own)
    assert limited._buckets == {}


def test_a_limit_that_was_changed_holds_at_once() -> None:
    limited = Rates(0, 0)
    assert admitted(limited, "key:a", 0.0, RateLimits(1, 0)) == 1
    assert admitted(limited, "key:a", 0.0, RateLimits(4, 0)) == 4
    assert admitted(limited, "key:a", 0.0, RateLimits(2, 0)) == 2


def test_peers_that_come_and_go_are_forgotten() -> None:
    limited = Rates(60, 60)
    for number in range(20 * SWEEP_ABOVE):
        limited.admit(f"peer:{number}", number * 0.01)
        assert len(limited._buckets) <= 2 * SWEEP_ABOVE


def test_those_who_are_not_full_are_kept_and_looked_at_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    class Counted(Bucket):
        def level(self, now: float) -> float:
            nonlocal looks
            looks += 1
            return super().level(now)

    monkeypatch.setattr(rates, "Bucket", Counted)
    limited = Rates(0, 60)
    many = 10 * SWEEP_ABOVE
    for number in range(many):
        limited.spend(f"{number}", 61, 0.0)
    assert looks <= 4 * many
    for number in range(many):
        refused(limited, f"{number}", 0.0)


def steps(times: st.SearchStrategy[float]) -> st.SearchStrategy[list[tuple[str, str | int, float]]]:
    """Tenants, what each does, and seconds since the step before."""
    later = times | st.sampled_from([0.0, 1.0, 60.0])
    return st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["admit", 1, 7, 90]), later), max_size=40)


STARTS = st.sampled_from([0.0, 1e7])
EXACT = st.integers(0, 40 * 1024).map(lambda parts: parts / 1024)


@given(steps(EXACT), STARTS)
def test_sweeping_changes_nothing(taken: list[tuple[str, str | int, float]], now: float) -> None:
    # Powers of two, since a bucket that is looked at more often rounds differently.
    kept, swept = Rates(30, 60), Rates(30, 60)
    for tenant, step, later in taken:
        now += later
        swept._sweep_above = 0
        if isinstance(step, int):
            kept.spend(tenant, step, now)
            swept.spend(tenant, step, now)
        else:
            assert str(refusal_of(kept, tenant, now)) == str(refusal_of(swept, tenant, now))


@given(steps(st.floats(0, 40)), STARTS, st.booleans())
def test_whoever_waits_as_told_gets_in(taken: list[tuple[str, str | int, float]], now: float, sweeps: bool) -> None:
    limited = Rates(6, 30)
    for tenant, step, later in taken:
        now += later
        if sweeps:
            limited._sweep_above = 0
        if isinstance(step, int):
            limited.spend(tenant, step, now)
        elif (refusal := refusal_of(limited, tenant, now)) is not None:
            assert refusal.retry_after_s is not None
            now += refusal.retry_after_s
            limited.admit(tenant, now)
