"""A peer's input in portions, and its signs of life, on a loop whose clock the test moves."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from umaserve.net.backlog import Backlog
from umaserve.net.channel import Channel
from umaserve.net.loop import Loop
from umaserve.net.pings import Pings

PER_TURN = 3
INTERVAL_S = 10.0


class Owner:
    """Handler of a channel: each byte is a step."""

    def __init__(self, world: World, channel: Channel) -> None:
        self.channel = channel
        self.bytes: list[int] = []
        self.handled: list[int] = []
        """How many in each call of ``handle``."""
        self.behind = False
        self.full = False
        self.lost = False
        self.backlog = Backlog(world.loop, channel, self.handle, PER_TURN)
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


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.loop = Loop(lambda: self.now)
        ours, self.peer = socket.socketpair()
        self.peer.setblocking(False)
        self.channel = Channel(self.loop, ours, high_water=1 << 20, stall_timeout=1e6)
        self.owner = Owner(self, self.channel)

    def turn(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.loop.call_soon(lambda: None)
        self.loop.turn()

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn()

    def said(self) -> bytes:
        try:
            return self.peer.recv(4096)
        except BlockingIOError:
            return b""


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.channel.abort()
    world.peer.close()
    world.loop.close()


def test_a_flood_is_handled_in_portions_and_not_read_meanwhile(world: World) -> None:
    world.peer.send(bytes(8))
    world.turns(2)
    assert (world.owner.handled, world.owner.backlog.waiting, world.channel.reading) == ([3, 3], True, False)
    world.turns(4)
    assert (world.owner.handled, world.owner.backlog.waiting) == ([3, 3, 2], False)
    # The steps wrote nothing, and the channel is read all the same.
    world.peer.send(bytes(1))
    world.turns(2)
    assert world.owner.handled == [3, 3, 2, 1]


def test_what_waits_is_handled_once_a_turn_however_often_that_is_asked_for(world: World) -> None:
    world.owner.bytes += bytes(6)
    for _ in range(5):
        world.owner.backlog.continue_later()
    world.turn()
    assert world.owner.handled == [3]
    world.turns(5)
    assert world.owner.handled == [3, 3, 0]


def test_what_waits_for_something_else_is_not_asked_for_in_each_turn(world: World) -> None:
    world.owner.behind = True
    world.peer.send(bytes(2))
    world.turns(5)
    assert (world.owner.handled, world.owner.backlog.waiting, world.channel.reading) == ([0], True, False)
    world.owner.behind = False
    world.owner.backlog.continue_later()
    world.turns(2)
    assert (world.owner.handled, world.channel.reading) == ([0, 2], True)


# Signs of life.


@pytest.fixture
def pings(world: World) -> Iterator[Callable[[], bytes]]:
    pings = Pings(world.loop, world.channel, INTERVAL_S, lambda: b"ping", "a peer")
    yield world.said
    pings.cancel()


@pytest.mark.usefixtures("pings")
def test_a_silent_peer_is_pinged_once_and_then_given_up(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world.turn(INTERVAL_S)
    assert world.said() == b""
    world.turn(INTERVAL_S)
    assert (world.said(), world.owner.lost) == (b"ping", False)
    world.turn(INTERVAL_S)
    assert world.owner.lost
    assert "a peer: closed, since it did not answer a ping for 10 s" in caplog.text


@pytest.mark.usefixtures("pings")
def test_any_byte_is_a_sign_of_life(world: World) -> None:
    for _ in range(5):
        world.turn(INTERVAL_S)
        assert (world.said(), world.owner.lost) == (b"", False)
        world.turn(INTERVAL_S)
        assert world.said() == b"ping"
        world.peer.send(b"!")
        world.turn()


@pytest.mark.usefixtures("pings")
def test_a_peer_that_is_not_read_can_show_none(world: World) -> None:
    for _ in range(2):
        world.turn(INTERVAL_S)
    assert world.said() == b"ping"
    world.owner.full = True
    world.channel.reconsider()
    world.turn()
    world.peer.send(b"pong")
    for _ in range(5):
        world.turn(INTERVAL_S)
    assert not world.owner.lost
    # From when it is read it has its whole time, and no answer to an old ping is asked for.
    world.owner.full = False
    world.turn(INTERVAL_S)
    assert (world.said(), world.owner.lost) == (b"ping", False)


def test_nobody_is_pinged_who_has_gone(world: World, pings: Callable[[], bytes]) -> None:
    world.channel.abort()
    for _ in range(5):
        world.turn(INTERVAL_S)
    assert pings() == b""
