"""A peer's input in portions, and its signs of life, on a loop whose clock the test moves."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from world import World

from umaserve.net.backlog import Backlog
from umaserve.net.channel import Channel
from umaserve.net.pings import Pings

PER_TURN = 3
INTERVAL_S = 10.0


class Owner:
    """Handler of a channel: each byte is a step."""

    def __init__(self, pair: Pair, channel: Channel) -> None:
        self.channel = channel
        self.bytes: list[int] = []
        self.handled: list[int] = []
        """How many in each call of ``handle``."""
        self.behind = False
        self.full = False
        self.lost = False
        self.backlog = Backlog(pair.loop, channel, self.handle, PER_TURN)
        channel.handler = self

    def data_received(self, data: bytes) -> None:
        self.bytes += data
        self.handle()

    def handle(self) -> None:
        before = len(self.bytes)
        self.backlog.run(self.step)
        self.handled.append(before - len(self.bytes))

    def step(self) -> bool:
        if self.behind:
            self.backlog.wait()
            return False
        if not self.bytes:
            return False
        self.bytes.pop()
        return True

    def input_ended(self) -> None: ...

    def wants_data(self) -> bool:
        return not self.backlog.waiting and not self.full

    def drained(self) -> None: ...

    def connection_lost(self) -> None:
        self.lost = True


class Pair(World):
    """A channel with its owner, and its peer."""

    def __init__(self) -> None:
        super().__init__()
        ours, self.peer = socket.socketpair()
        self.peer.setblocking(False)
        self.channel = Channel(self.loop, ours, high_water=1 << 20, stall_timeout=1e6)
        self.owner = Owner(self, self.channel)

    def said(self) -> bytes:
        try:
            return self.peer.recv(4096)
        except BlockingIOError:
            return b""


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.channel.abort()
    pair.peer.close()
    pair.close()


def test_a_flood_is_handled_in_portions_and_not_read_meanwhile(pair: Pair) -> None:
    pair.peer.send(bytes(8))
    pair.turn(count=2)
    assert (pair.owner.handled, pair.owner.backlog.waiting, pair.channel.reading) == ([3, 3], True, False)
    pair.turn(count=4)
    assert (pair.owner.handled, pair.owner.backlog.waiting) == ([3, 3, 2], False)
    # The steps wrote nothing, and the channel is read all the same.
    pair.peer.send(bytes(1))
    pair.turn(count=2)
    assert pair.owner.handled == [3, 3, 2, 1]


def test_what_waits_is_handled_once_a_turn_however_often_that_is_asked_for(pair: Pair) -> None:
    pair.owner.bytes += bytes(6)
    for _ in range(5):
        pair.owner.backlog.continue_later()
    pair.turn()
    assert pair.owner.handled == [3]
    pair.turn(count=5)
    assert pair.owner.handled == [3, 3, 0]


def test_what_waits_for_something_else_is_not_asked_for_in_each_turn(pair: Pair) -> None:
    pair.owner.behind = True
    pair.peer.send(bytes(2))
    pair.turn(count=5)
    assert (pair.owner.handled, pair.owner.backlog.waiting, pair.channel.reading) == ([0], True, False)
    pair.owner.behind = False
    pair.owner.backlog.continue_later()
    pair.turn(count=2)
    assert (pair.owner.handled, pair.channel.reading) == ([0, 2], True)


# Signs of life.


@pytest.fixture
def pings(pair: Pair) -> Iterator[Callable[[], bytes]]:
    pings = Pings(pair.loop, pair.channel, INTERVAL_S, lambda: b"ping", "a peer")
    yield pair.said
    pings.cancel()


@pytest.mark.usefixtures("pings")
def test_a_silent_peer_is_pinged_once_and_then_given_up(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    pair.turn(INTERVAL_S)
    assert pair.said() == b""
    pair.turn(INTERVAL_S)
    assert (pair.said(), pair.owner.lost) == (b"ping", False)
    pair.turn(INTERVAL_S)
    assert pair.owner.lost
    assert "a peer: closed: no answer to a ping within 10 s" in caplog.text


@pytest.mark.usefixtures("pings")
def test_any_byte_is_a_sign_of_life(pair: Pair) -> None:
    for _ in range(5):
        pair.turn(INTERVAL_S)
        assert (pair.said(), pair.owner.lost) == (b"", False)
        pair.turn(INTERVAL_S)
        assert pair.said() == b"ping"
        pair.peer.send(b"!")
        pair.turn()


@pytest.mark.usefixtures("pings")
def test_a_peer_that_is_not_read_can_show_none(pair: Pair) -> None:
    for _ in range(2):
        pair.turn(INTERVAL_S)
    assert pair.said() == b"ping"
    pair.owner.full = True
    pair.channel.reconsider()
    pair.turn()
    pair.peer.send(b"pong")
    for _ in range(5):
        pair.turn(INTERVAL_S)
    assert not pair.owner.lost
    # From when it is read it has its whole time, and no answer to an old ping is asked for.
    pair.owner.full = False
    pair.turn(INTERVAL_S)
    assert (pair.said(), pair.owner.lost) == (b"ping", False)


def test_nobody_is_pinged_who_has_gone(pair: Pair, pings: Callable[[], bytes]) -> None:
    pair.channel.abort()
    for _ in range(5):
        pair.turn(INTERVAL_S)
    assert pings() == b""
