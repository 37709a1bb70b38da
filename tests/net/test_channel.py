"""The channel, over socket pairs and in invented seconds."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator

import pytest
from clock import Clock
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from watched_loop import WatchedLoop, nothing

from umaserve.net import channel as channel_module
from umaserve.net.channel import HALF_CLOSED_POLL_S, LINGER_S, READ_PER_TURN, Channel
from umaserve.net.loop import READ, WRITE

STALL_S = 30.0
HIGH_WATER = 1024
LONG_AGO_S = 1e6


def fail() -> None:
    raise RuntimeError("a mistake of ours")


class Recorder:
    """A handler that writes down what it is told; ``on`` may add something to be done at it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.calls: list[str] = []
        self.wants = True
        self.on: dict[str, Callable[[], None]] = {}

    def data_received(self, data: bytes) -> None:
        self.data += data
        self._called("data")

    def input_ended(self) -> None:
        self._called("ended")

    def wants_data(self) -> bool:
        self.on.get("asked", nothing)()
        return self.wants

    def drained(self) -> None:
        self._called("drained")

    def connection_lost(self) -> None:
        self._called("lost")

    def _called(self, name: str) -> None:
        self.calls.append(name)
        self.on.get(name, nothing)()


class Pair:
    """A channel, its handler, and the other end of its socket."""

    def __init__(self, loop: WatchedLoop, clock: Clock, high_water: int = HIGH_WATER) -> None:
        ours, self.peer = socket.socketpair()
        self.peer.setblocking(False)
        self.loop, self.clock = loop, clock
        self.fd = ours.fileno()
        self.handler = Recorder()
        self.channel = Channel(loop, ours, high_water=high_water, stall_timeout=STALL_S)
        self.channel.handler = self.handler
        loop.turns()

    @property
    def interest(self) -> int:
        return self.loop.interest[self.fd]

    @property
    def lost(self) -> int:
        return self.handler.calls.count("lost")

    def fill_kernel(self) -> int:
        """Write until the kernel takes no more and at least one byte waits; how many were written."""
        written = 0
        while not self.channel.queued:
            self.channel.write(b"k" * 4096)
            written += 4096
            self.loop.turns()
        return written

    def peer_reads(self, size: int = 1 << 20) -> bytes | None:
        """What has come; ``None`` when nothing has, ``b""`` at the end."""
        try:
            return self.peer.recv(size)
        except BlockingIOError:
            return None

    def peer_reads_all(self) -> bytes:
        """All up to the end, or until nothing more comes."""
        got = bytearray()
        while data := self.peer_reads():
            got += data
            self.loop.turns()
        return bytes(got)

    def peer_sends(self, limit: int = 1 << 30) -> int:
        """Send until the kernel takes no more, or ``limit`` bytes."""
        sent = 0
        try:
            while sent < limit:
                sent += self.peer.send(b"p" * min(4096, limit - sent))
        except BlockingIOError:
            pass
        return sent

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.loop.turns(2)


@pytest.fixture
def pair(loop: WatchedLoop, clock: Clock) -> Iterator[Pair]:
    pair = Pair(loop, clock)
    yield pair
    pair.channel.abort()
    pair.peer.close()


def test_what_is_written_goes_out_at_the_turns_end(pair: Pair) -> None:
    pair.channel.write(b"one ")
    pair.channel.write(b"two")
    assert pair.peer_reads() is None
    pair.loop.turns()
    assert pair.peer_reads() == b"one two"
    assert pair.channel.bytes_sent == 7


def test_bytes_come_in(pair: Pair) -> None:
    pair.peer.send(b"hello")
    pair.loop.turns()
    assert pair.handler.data == b"hello"
    assert pair.channel.bytes_received == 5


def test_partial_writes_lose_and_double_nothing(pair: Pair) -> None:
    text = bytes(itertools.islice(itertools.cycle(range(251)), 1_000_000))
    pair.channel.write(text)
    pair.loop.turns()
    assert pair.channel.queued > 0
    assert pair.interest & WRITE
    assert pair.peer_reads_all() == text
    assert pair.channel.queued == 0
    assert not pair.interest & WRITE


def test_write_interest_is_not_armed_for_what_the_kernel_took(pair: Pair) -> None:
    pair.channel.write(b"x" * 1000)
    pair.loop.turns()
    assert pair.interest == READ


def test_one_turn_moves_a_bounded_number_of_bytes(
    loop: WatchedLoop, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "READ_PER_TURN", 4096)
    monkeypatch.setattr(channel_module, "WRITE_PER_TURN", 8192)
    pair = Pair(loop, clock, high_water=1 << 20)
    pair.channel.write(b"x" * 20_000)
    pair.peer_sends(10_000)
    for received, sent in ((4096, 8192), (8192, 16384), (10_000, 20_000)):
        loop.turns()
        assert (pair.channel.bytes_received, pair.channel.bytes_sent) == (received, sent)
    pair.channel.abort()
    pair.peer.close()


def test_congested_above_the_high_water_mark_and_drained_at_half_of_it(loop: WatchedLoop, clock: Clock) -> None:
    pair = Pair(loop, clock, high_water=200_000)
    pair.fill_kernel()
    pair.channel.write(b"x" * (200_000 - pair.channel.queued))
    assert (pair.channel.queued, pair.channel.congested) == (200_000, False)
    pair.channel.write(b"x")
    assert pair.channel.congested
    pair.channel.write(b"x" * 50_000)
    while pair.channel.queued:
        pair.peer_reads(2000)
        loop.turns()
        low = pair.channel.queued <= 100_000
        assert pair.channel.congested != low
        assert pair.handler.calls == (["drained"] if low else [])
    pair.channel.abort()
    pair.peer.close()


def test_a_burst_that_the_kernel_takes_is_no_congestion(pair: Pair) -> None:
    pair.channel.write(b"x" * 10 * HIGH_WATER)
    assert (pair.channel.queued, pair.channel.congested) == (0, False)
    pair.loop.turns()
    assert pair.handler.calls == []


def test_a_burst_that_leaves_just_the_mark_is_no_congestion(
    loop: WatchedLoop, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "READ_PER_TURN", 4096)
    monkeypatch.setattr(channel_module, "WRITE_PER_TURN", 4096)
    for more, congested in ((0, False), (1, True)):
        pair = Pair(loop, clock, high_water=10_000)
        pair.channel.write(b"x" * (4096 + 10_000 + more))
        assert (pair.channel.queued, pair.channel.congested) == (10_000 + more, congested)
        pair.channel.abort()
        pair.peer.close()


def test_a_peer_that_does_not_read_its_replies_is_not_read_either(loop: WatchedLoop, clock: Clock) -> None:
    pair = Pair(loop, clock, high_water=10_000)
    pair.fill_kernel()
    pair.channel.write(b"x" * (20_000 - pair.channel.queued))
    loop.turns()
    assert (pair.channel.queued, pair.interest) == (20_000, READ | WRITE)
    pair.channel.write(b"x")
    loop.turns()
    assert (pair.channel.queued, pair.interest) == (20_001, WRITE)
    pair.peer.send(b"more")
    loop.turns(3)
    assert pair.handler.data == b""
    pair.peer_reads_all()
    loop.turns()
    assert pair.handler.data == b"more"
    pair.channel.abort()
    pair.peer.close()


def test_a_handler_without_room_is_given_nothing(pair: Pair) -> None:
    pair.handler.on["data"] = lambda: setattr(pair.handler, "wants", False)
    pair.peer.send(b"one")
    pair.loop.turns()
    assert pair.interest == 0
    pair.peer.send(b"two")
    pair.loop.turns(3)
    assert pair.handler.data == b"one"
    pair.handler.wants = True
    pair.channel.write(b"an answer")
    pair.loop.turns(2)
    assert pair.handler.data == b"onetwo"


def test_close_writes_what_waits_and_ends_the_stream(pair: Pair) -> None:
    written = pair.fill_kernel()
    pair.channel.write(b"last words")
    pair.channel.close()
    pair.channel.write(b"too late")
    assert not pair.channel.open
    got = pair.peer_reads_all()
    assert got == b"k" * written + b"last words"
    pair.loop.turns()
    assert pair.peer_reads() == b"", "the write side is shut"
    assert pair.lost == 0
    pair.peer.close()
    pair.loop.turns()
    assert pair.lost == 1


@pytest.mark.parametrize("room", [True, False])
def test_a_peer_in_the_middle_of_sending_reads_the_last_words(pair: Pair, room: bool) -> None:
    def refuse() -> None:
        pair.handler.wants = room
        pair.channel.write(b"too much")
        pair.channel.close()

    pair.peer_sends()
    pair.handler.on["data"] = refuse
    for _ in range(20):
        pair.loop.turns()
        # Without lingering this send fails, and a client never comes to read why it was refused.
        assert pair.peer_sends() > 0
    assert len(pair.handler.data) <= READ_PER_TURN
    assert pair.peer_reads() == b"too much"
    assert pair.peer_reads() == b""
    pair.peer.close()
    # What it had still sent is read and thrown away before its end is seen.
    pair.loop.turns(20)
    assert pair.lost == 1
    assert pair.handler.calls == ["data", "lost"]


def test_a_peer_that_never_leaves_is_left(pair: Pair) -> None:
    pair.channel.close()
    pair.loop.turns()
    pair.pass_time(LINGER_S * 0.9)
    assert pair.lost == 0
    pair.peer_sends(100)
    pair.pass_time(LINGER_S * 0.2)
    assert pair.lost == 1, "its sending on must not extend the deadline"


def test_the_linger_deadline_starts_when_all_is_written(pair: Pair) -> None:
    pair.fill_kernel()
    pair.channel.close()
    pair.pass_time(STALL_S * 0.9)
    assert pair.lost == 0
    pair.peer_reads_all()
    pair.loop.turns()
    pair.pass_time(LINGER_S * 0.9)
    assert pair.lost == 0
    pair.pass_time(LINGER_S * 0.2)
    assert pair.lost == 1


def test_a_half_closed_peer_gets_its_data_and_is_noticed_when_it_leaves(pair: Pair) -> None:
    pair.peer.send(b"a request")
    pair.peer.shutdown(socket.SHUT_WR)
    pair.loop.turns(2)
    assert pair.handler.calls == ["data", "ended"]
    assert pair.channel.ended
    assert pair.interest == 0, "the end of the stream stays readable: watching for it would spin"
    for _ in range(3):
        pair.pass_time(HALF_CLOSED_POLL_S)
        pair.channel.write(b"a token ")
    pair.loop.turns()
    assert pair.peer_reads() == b"a token " * 3
    assert pair.lost == 0
    pair.peer.close()
    pair.pass_time(HALF_CLOSED_POLL_S)
    assert pair.handler.calls == ["data", "ended", "lost"]


def test_that_a_peer_has_left_entirely_shows_though_nothing_is_read(pair: Pair) -> None:
    pair.handler.wants = False
    pair.channel.reconsider()
    pair.loop.turns()
    pair.peer.send(b"a request")
    pair.peer.shutdown(socket.SHUT_WR)
    pair.loop.turns(2)
    assert not pair.channel.peer_gone, "it may still read"
    pair.peer.close()
    pair.loop.turns(2)
    assert pair.channel.peer_gone
    assert pair.handler.calls == []
    pair.channel.abort()
    assert not pair.channel.peer_gone


def test_a_half_closed_peer_is_closed_without_lingering_once_all_is_written(pair: Pair) -> None:
    pair.peer.shutdown(socket.SHUT_WR)
    pair.loop.turns()
    written = pair.fill_kernel()
    pair.channel.close()
    pair.loop.turns()
    assert pair.lost == 0
    assert len(pair.peer_reads_all()) == written
    pair.loop.turns()
    assert pair.lost == 1


def test_a_peer_that_sends_and_leaves_is_heard_and_then_lost(pair: Pair) -> None:
    pair.peer.send(b"farewell")
    pair.peer.close()
    pair.loop.turns(2)
    assert pair.handler.data == b"farewell"
    assert pair.handler.calls == ["data", "lost"], "nobody is left to read: this is no end of input"


def test_a_failed_write_is_told_after_the_write(pair: Pair) -> None:
    pair.peer.close()
    pair.channel.write(b"x" * 10 * HIGH_WATER)
    assert pair.lost == 0, "the handler may be in the middle of something"
    assert not pair.channel.open
    pair.channel.write(b"x" * 10 * HIGH_WATER)
    pair.loop.turns()
    assert pair.lost == 1


def test_a_byte_now_and_then_does_not_keep_a_congested_channel_open(pair: Pair) -> None:
    pair.fill_kernel()
    pair.channel.write(b"x" * 1_000_000)
    assert pair.channel.congested
    for _ in range(2):
        pair.pass_time(STALL_S * 0.4)
        pair.peer_reads(200_000)
        pair.loop.turns()
        assert pair.lost == 0
    pair.pass_time(STALL_S * 0.3)
    assert pair.lost == 1


def test_a_stalled_peer_is_closed_and_one_that_reads_a_little_is_not(loop: WatchedLoop, clock: Clock) -> None:
    pair = Pair(loop, clock, high_water=2_000_000)
    pair.fill_kernel()
    pair.channel.write(b"x" * 1_000_000)
    pair.loop.turns()
    for _ in range(3):
        pair.pass_time(STALL_S * 0.9)
        assert pair.lost == 0
        before = pair.channel.queued
        # The kernel calls a Unix socket writable again only when most of its buffer has been read.
        pair.peer_reads(200_000)
        pair.loop.turns()
        assert 0 < pair.channel.queued < before
    pair.pass_time(STALL_S * 0.9)
    assert pair.lost == 0
    pair.pass_time(STALL_S * 0.2)
    assert pair.lost == 1


def test_writing_more_to_a_stalled_peer_changes_nothing(pair: Pair) -> None:
    pair.fill_kernel()
    for _ in range(9):
        pair.pass_time(STALL_S * 0.1)
        pair.channel.write(b"x")
    assert pair.lost == 0
    pair.pass_time(STALL_S * 0.2)
    assert pair.lost == 1


def test_the_time_counts_from_the_first_byte_that_waits(pair: Pair) -> None:
    written = pair.fill_kernel()
    pair.peer_reads_all()
    # All but the last write of before: as much as the kernel takes, with nothing left to wait.
    for _ in range(written // 4096 - 1):
        pair.channel.write(b"k" * 4096)
        pair.loop.turns()
    assert pair.channel.queued == 0
    pair.pass_time(STALL_S * 0.9)
    pair.channel.write(b"k" * 4096)
    pair.loop.turns()
    assert pair.channel.queued == 4096
    pair.pass_time(STALL_S * 0.2)
    pair.pass_time(STALL_S * 0.7)
    assert pair.lost == 0
    pair.pass_time(STALL_S * 0.2)
    assert pair.lost == 1


def test_no_deadline_outlives_its_channel(pair: Pair) -> None:
    pair.fill_kernel()
    pair.channel.close()
    pair.peer_reads_all()
    pair.loop.turns()
    pair.peer.close()
    pair.loop.turns(2)
    assert pair.lost == 1
    assert pair.loop._timers.next_at() is None
    other = Pair(pair.loop, pair.clock)
    other.fill_kernel()
    assert pair.loop._timers.next_at() is not None
    other.channel.abort()
    assert pair.loop._timers.next_at() is None
    other.peer.close()


def test_a_peer_that_owes_nothing_does_not_stall(pair: Pair) -> None:
    pair.fill_kernel()
    pair.peer_reads_all()
    pair.pass_time(STALL_S * 10)
    pair.channel.write(b"k" * 200_000)
    pair.loop.turns()
    assert pair.channel.queued
    pair.pass_time(STALL_S * 0.9)
    assert pair.lost == 0, "the time before these bytes were written counts for nothing"


def peer_resets(pair: Pair) -> None:
    """Closing with unread input is a Unix socket's way of a reset."""
    pair.channel.write(b"unread")
    pair.loop.turns()
    pair.peer.close()


def drop_input(pair: Pair, then: Callable[[], None]) -> None:
    pair.handler.on["data"] = then
    pair.peer.send(b"x")


def drop_drained(pair: Pair, then: Callable[[], None]) -> None:
    pair.fill_kernel()
    pair.channel.write(b"x" * 2 * HIGH_WATER)
    pair.handler.on["drained"] = then
    pair.peer_reads_all()


def closed_with_bytes_waiting(pair: Pair, then: Callable[[Pair], object]) -> None:
    pair.fill_kernel()
    pair.channel.close()
    pair.loop.turns()
    then(pair)


ENDS: dict[str, Callable[[Pair], object]] = {
    "abort": lambda pair: pair.channel.abort(),
    "abort twice": lambda pair: (pair.channel.abort(), pair.channel.abort()),
    "abort after close": lambda pair: (pair.channel.close(), pair.channel.abort()),
    "abort while bytes wait": lambda pair: (pair.fill_kernel(), pair.channel.abort()),
    "abort in data_received": lambda pair: drop_input(pair, pair.channel.abort),
    "close in data_received": lambda pair: drop_input(pair, pair.channel.close),
    "abort in drained": lambda pair: drop_drained(pair, pair.channel.abort),
    "close in drained": lambda pair: drop_drained(pair, pair.channel.close),
    "abort in input_ended": lambda pair: (
        pair.handler.on.update(ended=pair.channel.abort),
        pair.peer.shutdown(socket.SHUT_WR),
    ),
    "close in input_ended": lambda pair: (
        pair.handler.on.update(ended=pair.channel.close),
        pair.peer.shutdown(socket.SHUT_WR),
    ),
    "peer closes": lambda pair: pair.peer.close(),
    "peer half-closes, then closes": lambda pair: (
        pair.peer.shutdown(socket.SHUT_WR),
        pair.loop.turns(),
        pair.peer.close(),
    ),
    "peer half-closes, then closes before a write": lambda pair: (
        pair.peer.shutdown(socket.SHUT_WR),
        pair.loop.turns(),
        pair.peer.close(),
        pair.channel.write(b"x"),
    ),
    "peer resets": peer_resets,
    "peer closes while bytes wait": lambda pair: (pair.fill_kernel(), pair.peer.close()),
    "peer closes before a write": lambda pair: (pair.peer.close(), pair.channel.write(b"x")),
    "peer closes before a burst": lambda pair: (pair.peer.close(), pair.channel.write(b"x" * 10 * HIGH_WATER)),
    "write fails, then abort": lambda pair: (
        pair.peer.close(),
        pair.channel.write(b"x" * 10 * HIGH_WATER),
        pair.channel.abort(),
    ),
    "close, peer closes": lambda pair: (pair.channel.close(), pair.loop.turns(), pair.peer.close()),
    "close, peer had closed": lambda pair: (pair.peer.close(), pair.channel.close()),
    "close, peer half-closes": lambda pair: (
        pair.channel.close(),
        pair.loop.turns(),
        pair.peer.shutdown(socket.SHUT_WR),
    ),
    "close, peer stays": lambda pair: pair.channel.close(),
    "close twice": lambda pair: (pair.channel.close(), pair.loop.turns(), pair.channel.close()),
    "close with bytes waiting, peer stays": lambda pair: closed_with_bytes_waiting(pair, lambda _: None),
    "close with bytes waiting, peer reads": lambda pair: closed_with_bytes_waiting(pair, Pair.peer_reads_all),
    "close with bytes waiting, peer closes": lambda pair: closed_with_bytes_waiting(pair, lambda p: p.peer.close()),
    "close with bytes waiting, peer half-closes": lambda pair: closed_with_bytes_waiting(
        pair, lambda p: p.peer.shutdown(socket.SHUT_WR)
    ),
    "stall": Pair.fill_kernel,
}


def fail_in(pair: Pair, name: str, then: Callable[[], object]) -> None:
    pair.handler.on[name] = fail
    then()


FAULTS: dict[str, Callable[[Pair], object]] = {
    "data_received fails": lambda pair: drop_input(pair, fail),
    "input_ended fails": lambda pair: fail_in(pair, "ended", lambda: pair.peer.shutdown(socket.SHUT_WR)),
    "wants_data fails": lambda pair: fail_in(pair, "asked", lambda: pair.channel.write(b"x")),
    "drained fails": lambda pair: drop_drained(pair, fail),
    "connection_lost fails": lambda pair: fail_in(pair, "lost", pair.channel.abort),
    "connection_lost fails in a turn of its own": lambda pair: fail_in(pair, "lost", pair.peer.close),
    "connection_lost fails after a deadline": lambda pair: fail_in(pair, "lost", pair.fill_kernel),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_handler_that_fails_costs_its_own_channel_only(
    fault: Callable[[Pair], object], pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    other = Pair(pair.loop, pair.clock)
    fault(pair)
    pair.loop.turns(2)
    pair.pass_time(STALL_S)
    assert (pair.lost, pair.interest, pair.channel.open) == (1, 0, False)
    assert len(caplog.records) == 1
    assert "a mistake of ours" in caplog.text, "with its traceback"
    other.peer.send(b"still served")
    pair.loop.turns()
    assert other.handler.data == b"still served"
    other.channel.abort()
    other.peer.close()


@pytest.mark.parametrize("end", (ENDS | FAULTS).values(), ids=ENDS | FAULTS)
def test_connection_lost_is_called_once_whatever_ends_it(end: Callable[[Pair], object], pair: Pair) -> None:
    end(pair)
    pair.loop.turns(3)
    pair.pass_time(LINGER_S + STALL_S)
    pair.pass_time(LINGER_S + STALL_S)
    assert pair.lost == 1
    told = list(pair.handler.calls)
    pair.channel.write(b"x" * 10 * HIGH_WATER)
    pair.channel.close()
    pair.channel.abort()
    pair.pass_time(LONG_AGO_S)
    assert pair.handler.calls == told, "and nothing is heard of it afterwards"
    assert (pair.channel.queued, pair.channel.open) == (0, False)
    assert pair.interest == 0
    pair.peer.close()


def test_a_handler_may_abort_another_channel_that_is_ready(loop: WatchedLoop, clock: Clock) -> None:
    one, two = Pair(loop, clock), Pair(loop, clock)
    for this, other in ((one, two), (two, one)):
        this.handler.on["data"] = other.channel.abort
        this.peer.send(b"x")
    loop.turns(2)
    assert sorted(one.handler.calls + two.handler.calls) == ["data", "lost"]
    for pair in (one, two):
        pair.channel.abort()
        pair.peer.close()


channel_moves = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 100_000)),
    st.tuples(st.just("read"), st.integers(1, 200_000)),
    st.tuples(st.just("send"), st.integers(1, 100_000)),
    st.tuples(st.just("turn"), st.just(0)),
    st.tuples(st.just("time"), st.integers(0, 5)),
    st.tuples(st.just("half-close"), st.just(0)),
    st.tuples(st.just("close"), st.just(0)),
)


@settings(max_examples=examples(60))
@given(st.lists(channel_moves, max_size=25))
def test_bytes_arrive_in_order_and_whole_whatever_happens(kv_operations: list[tuple[str, int]]) -> None:
    clock = Clock(100.0)
    loop = WatchedLoop(clock)
    pair = Pair(loop, clock)
    counter = itertools.cycle(range(251))
    written, got, sent, half_closed = bytearray(), bytearray(), 0, False
    for name, number in kv_operations:
        if name == "write":
            data = bytes(itertools.islice(counter, number))
            if pair.channel.open:
                written += data
            pair.channel.write(data)
        elif name == "read":
            got += pair.peer_reads(number) or b""
        elif name == "send" and not half_closed:
            sent += pair.peer_sends(number)
        elif name == "half-close" and not half_closed:
            half_closed = True
            pair.peer.shutdown(socket.SHUT_WR)
        elif name == "close":
            pair.channel.close()
        elif name == "time":
            clock.now += number / 100
        loop.turns()
    for _ in range(40):
        got += pair.peer_reads_all()
        loop.turns()
    # The moves together take less than a linger or a stall: nobody was cut off.
    assert got == written
    # After close() the rest of the input is thrown away.
    assert len(pair.handler.data) == sent if pair.channel.open else len(pair.handler.data) <= sent
    pair.channel.abort()
    pair.peer.close()
    loop.close()
