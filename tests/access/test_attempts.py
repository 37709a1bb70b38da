"""Who has failed too often, and whose address a request came from."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from umaserve.access.attempts import MAX_ADDRESSES, MAX_HOPS, FailedAttempts, peer_address


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def attempts(clock: Clock) -> FailedAttempts:
    return FailedAttempts(clock)


# Counting.


def test_the_fifth_failure_within_a_minute_blocks_until_the_first_is_a_minute_old(
    attempts: FailedAttempts, clock: Clock
) -> None:
    for _ in range(5):
        assert not attempts.blocked("192.0.2.1")
        attempts.failed("192.0.2.1")
        clock.now += 10
    assert attempts.blocked("192.0.2.1")
    assert not attempts.blocked("192.0.2.2")
    clock.now = 1059.9
    assert attempts.blocked("192.0.2.1")
    clock.now = 1060.0
    assert not attempts.blocked("192.0.2.1")
    attempts.failed("192.0.2.1")
    assert attempts.blocked("192.0.2.1"), "four of the others are still young"


steps = st.lists(st.tuples(st.sampled_from(["192.0.2.1", "192.0.2.2", "2001:db8::1"]), st.floats(0, 40)), max_size=60)


@given(steps=steps, most=st.integers(1, 6))
def test_blocked_is_who_failed_so_often_in_the_window(steps: list[tuple[str, float]], most: int) -> None:
    clock = Clock(1000.0)
    attempts = FailedAttempts(clock, most, 60.0)
    failures: list[tuple[str, float]] = []
    for address, pause in steps:
        clock.now += pause
        for one in ("192.0.2.1", "192.0.2.2", "2001:db8::1"):
            recent = [at for who, at in failures if who == one and at > clock.now - 60.0]
            assert attempts.blocked(one) == (len(recent) >= most)
        attempts.failed(address)
        failures.append((address, clock.now))


@pytest.mark.parametrize(
    ("failing", "asking", "same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:DB8:1:2::1", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("uid:1000", "uid:1000", True),
        ("uid:1000", "uid:1001", False),
    ],
)
def test_what_counts_as_one_address(failing: str, asking: str, same: bool, attempts: FailedAttempts) -> None:
    for _ in range(5):
        attempts.failed(failing)
    assert attempts.blocked(asking) == same


def test_the_one_that_failed_longest_ago_is_forgotten_first(attempts: FailedAttempts) -> None:
    for address in ("192.0.2.1", "192.0.2.2", "192.0.2.1"):
        for _ in range(5):
            attempts.failed(address)
    for number in range(MAX_ADDRESSES - 2):
        attempts.failed(str(ip_address("10.0.0.0") + number))
    assert attempts.blocked("192.0.2.2")
    attempts.failed("10.1.0.0")
    assert not attempts.blocked("192.0.2.2")
    assert attempts.blocked("192.0.2.1")
    assert len(attempts._failures) == MAX_ADDRESSES


# Behind proxies.

TRUSTED = [ip_network("10.0.0.0/8"), ip_network("127.0.0.0/8"), ip_network("fd00::/8")]


@pytest.mark.parametrize(
    ("peer", "headers", "whose"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["198.51.100.7"], "192.0.2.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["198.51.100.6, 198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["198.51.100.7 ,\t10.0.0.2"], "198.51.100.7"),
        ("10.0.0.1", ["198.51.100.6", "198.51.100.7", "10.0.0.2,10.0.0.3"], "198.51.100.7"),
        ("10.0.0.1", ["10.0.0.9, 10.0.0.2"], "10.0.0.9"),
        ("::ffff:10.0.0.1", ["::ffff:198.51.100.7"], "198.51.100.7"),
        ("fd00::1", ["2001:DB8::1"], "2001:db8::1"),
        ("fe80::1%eth0", ["198.51.100.7"], "fe80::1"),
        ("gone", ["198.51.100.7"], "gone"),
        # Junk, and what stands before it.
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7,"], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7, x, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["198.51.100.7:80"], "10.0.0.1"),
        ("10.0.0.1", ["[2001:db8::1]"], "10.0.0.1"),
        ("10.0.0.1", ["fd00::1%junk"], "10.0.0.1"),
        ("10.0.0.1", ["\u0661.1.1.1"], "10.0.0.1"),
        ("10.0.0.1", ["010.0.0.1"], "10.0.0.1"),
    ],
)
def test_whose_address_it_is(peer: str, headers: list[str], whose: str) -> None:
    assert peer_address(peer, headers, TRUSTED) == whose


def test_without_trusted_proxies_no_header_is_believed() -> None:
    assert peer_address("127.0.0.1", ["198.51.100.7"], []) == "127.0.0.1"


def test_so_many_hops_are_followed_and_no_more() -> None:
    proxies = ["10.0.0.2"] * (MAX_HOPS - 1)
    assert peer_address("10.0.0.1", [", ".join(["198.51.100.7", *proxies])], TRUSTED) == "198.51.100.7"
    assert peer_address("10.0.0.1", [", ".join(["198.51.100.7", *proxies, "10.0.0.2"])], TRUSTED) == "10.0.0.2"


outside = st.ip_addresses().filter(
    lambda address: not any((getattr(address, "ipv4_mapped", None) or address) in network for network in TRUSTED)
)
junk = st.text(max_size=20)


@given(invented=st.lists(junk | st.ip_addresses().map(str), max_size=5), client=outside, hops=st.integers(0, 5))
def test_no_invention_of_the_client_changes_whose_address_it_is(invented: list[str], client: object, hops: int) -> None:
    headers = [*invented, ", ".join([str(client), *["10.0.0.2"] * hops])]
    assert peer_address("10.0.0.1", headers, TRUSTED) == peer_address(str(client), [], [])


@given(peer=junk | st.ip_addresses().map(str), headers=st.lists(junk | st.ip_addresses().map(str), max_size=5))
def test_whatever_the_headers_say_only_an_address_is_believed(peer: str, headers: list[str]) -> None:
    whose = peer_address(peer, headers, [ip_network("0.0.0.0/0"), ip_network("::/0")])
    assert whose == peer or ip_address(whose)
