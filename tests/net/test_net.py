"""Timers, loop, channel and listeners, over socket pairs and real Unix sockets, in invented seconds."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import random
import resource
import selectors
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clock import Clock
from examples import examples
from hooked_loop import HookedLoop
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.core.errors import ConfigError
from umaserve.net import channel as channel_module
from umaserve.net import listeners
from umaserve.net.channel import HALF_CLOSED_POLL_S, LINGER_S, READ_PER_TURN, Channel
from umaserve.net.listeners import COMPLAIN_EVERY_S, PAUSE_S, Listener, SocketFile
from umaserve.net.loop import READ, TRY_AGAIN_S, WRITE, Loop
from umaserve.net.timers import Timer, Timers
from umaserve.system.peer_credentials import user_of
from umaserve.system.threads import JobThread

STALL_S = 30.0
HIGH_WATER = 1024
LONG_AGO_S = 1e6

# A busy box makes no test fail.


def nothing() -> None:
    pass


def fail() -> None:
    raise RuntimeError("a mistake of ours")


class WatchedLoop(HookedLoop):
    """Remembers what is watched, and how often it was asked to."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.interest: dict[int, int] = {}
        super().__init__(clock)

    def set_interest(self, sock: socket.socket, events: int, ready: Callable[[int], None]) -> None:
        self.interest[sock.fileno()] = events
        super().set_interest(sock, events, ready)

    def turns(self, count: int = 1) -> None:
        for _ in range(count):
            # A turn with a posted call never sleeps.
            self.call_soon(nothing)
            self.turn()


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def loop(clock: Clock) -> Iterator[WatchedLoop]:
    loop = WatchedLoop(clock)
    yield loop
    loop.close()


# Timers.


def run_due(timers: Timers, now: float) -> None:
    for callback in timers.due(now):
        callback()


class TimerModel:
    """The plainest timers there can be: a table of deadlines, searched whole."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.now = 0.0
        self.handles: list[Timer] = []
        self.deadlines: dict[int, float] = {}
        self.fired: list[int] = []

    def add(self, delay: float) -> None:
        id_ = len(self.handles)
        self.handles.append(self.timers.add(self.now + delay, lambda: self.fired.append(id_)))
        self.deadlines[id_] = self.now + delay

    def postpone(self, id_: int, delay: float) -> None:
        at = max(self.now, self.handles[id_].at) + delay
        self.handles[id_].postpone(at)
        if id_ in self.deadlines:
            self.deadlines[id_] = at

    def cancel(self, id_: int) -> None:
        self.handles[id_].cancel()
        self.deadlines.pop(id_, None)

    def check(self) -> None:
        at = self.timers.next_at()
        if self.deadlines:
            # Early is allowed, late never.
            assert at is not None
            assert at <= min(self.deadlines.values())
        run_due(self.timers, self.now)
        due = sorted(id_ for id_, at in self.deadlines.items() if at <= self.now)
        assert sorted(self.fired) == due
        for id_ in due:
            del self.deadlines[id_]
        self.fired.clear()
        at = self.timers.next_at()
        assert (at is None) == (not self.deadlines)
        assert at is None or at > self.now


delays = st.integers(0, 20).map(lambda quarters: quarters / 4)
timer_moves = st.one_of(
    st.tuples(st.just("add"), delays),
    st.tuples(st.just("postpone"), st.integers(0, 50), delays),
    st.tuples(st.just("cancel"), st.integers(0, 50)),
    st.tuples(st.just("advance"), delays),
)


@given(st.lists(timer_moves, max_size=60))
def test_timers_do_what_the_plainest_timers_do(kv_operations: list[tuple]) -> None:
    model = TimerModel()
    for name, *arguments in kv_operations:
        if name == "advance":
            model.now += arguments[0]
        elif name == "add":
            model.add(arguments[0])
        elif model.handles:
            id_ = arguments[0] % len(model.handles)
            getattr(model, name)(id_, *arguments[1:])
        model.check()


def test_timers_run_in_the_order_of_their_deadlines() -> None:
    timers, fired = Timers(), []
    for at in (3.0, 1.0, 2.0):
        timers.add(at, lambda at=at: fired.append(at))
    run_due(timers, 2.0)
    assert fired == [1.0, 2.0]


def test_a_timer_may_cancel_and_add_others_that_are_due() -> None:
    timers, fired = Timers(), []

    def first() -> None:
        second.cancel()
        timers.add(1.0, lambda: fired.append("third"))

    timers.add(1.0, first)
    second = timers.add(2.0, lambda: fired.append("second"))
    run_due(timers, 5.0)
    assert fired == ["third"]
    assert timers.next_at() is None


@pytest.mark.parametrize("alive", [0, 10, 1000])
def test_cancelled_timers_do_not_pile_up(alive: int) -> None:
    timers = Timers()
    for _ in range(alive):
        timers.add(1.0, nothing)
    sizes = []
    for _ in range(10_000):
        timers.add(2.0, nothing).cancel()
        sizes.append(len(timers))
    assert max(sizes) <= max(alive + 65, 2 * alive + 2)
    assert max(sizes[5000:]) > alive + 50, "a sweep for every cancel would cost more than it saves"
    assert timers.next_at() == (1.0 if alive else None)


@pytest.mark.parametrize("seed", range(5))
def test_a_sweep_keeps_the_rest_in_order(seed: int) -> None:
    timers, fired = Timers(), []
    dice = random.Random(seed)
    all_of_them = [timers.add(at, lambda at=at: fired.append(at)) for at in dice.sample(range(1000), 200)]
    for timer in dice.sample(all_of_them, 150):
        timer.cancel()
    assert len(timers) < 200, "it was swept"
    run_due(timers, 1000)
    assert len(fired) == 50
    assert fired == sorted(fired)


def test_cancelling_twice_or_too_late_counts_once() -> None:
    timers = Timers()
    gone = [timers.add(1.0, nothing) for _ in range(100)]
    run_due(timers, 1.0)
    kept = [timers.add(2.0, nothing) for _ in range(100)]
    for timer in kept[:10] * 20 + gone:
        timer.cancel()
    assert len(timers) == 100, "a wrong count would have swept too soon"


def test_those_that_came_up_dead_count_no_more() -> None:
    timers = Timers()
    for _ in range(60):
        timers.add(1.0, nothing).cancel()
    run_due(timers, 1.0)
    kept = [timers.add(2.0, nothing) for _ in range(100)]
    for timer in kept[:10]:
        timer.cancel()
    assert len(timers) == 100, "a wrong count would have swept too soon"


# The loop.


def test_the_order_within_a_turn(loop: WatchedLoop, clock: Clock) -> None:
    order: list[str] = []
    left, right = socket.socketpair()
    with left, right:
        left.send(b"x")
        loop.after_poll = lambda: order.append("after poll")
        loop.set_interest(right, READ, lambda _events: order.append("ready"))
        loop.call_later(0.0, lambda: order.append("timer"))
        loop.call_soon(lambda: order.append("posted"))
        loop.before_sleep = lambda: order.append("before sleep")
        loop.call_at_turn_end(lambda: order.append("turn end"))
        loop.turn()
        loop.set_interest(right, 0, nothing)
    assert order == ["after poll", "ready", "timer", "posted", "before sleep", "turn end"]


def test_a_turn_end_call_runs_once_however_often_it_is_asked_for(loop: WatchedLoop) -> None:
    calls: list[str] = []

    def again() -> None:
        calls.append("again")

    def once() -> None:
        calls.append("once")
        loop.call_at_turn_end(again)

    for _ in range(3):
        loop.call_at_turn_end(once)
    for _ in range(2):
        loop.turns()
        assert calls == ["once", "again"], "and what it asks for then comes before the loop sleeps, too"


def test_a_call_that_posts_itself_runs_once_a_turn(loop: WatchedLoop) -> None:
    calls: list[int] = []

    def again() -> None:
        calls.append(len(calls))
        loop.call_soon(again)

    loop.call_soon(again)
    for turn in range(1, 4):
        loop.turn()
        assert len(calls) == turn


def test_how_long_a_poll_may_sleep(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    sleeps: list[float | None] = []

    class Sleepless(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> list:
            sleeps.append(timeout)
            return super().select(0)

    monkeypatch.setattr(selectors, "DefaultSelector", Sleepless)
    loop = Loop(clock)
    loop.turn()
    timer = loop.call_later(5.0, nothing)
    loop.turn()
    clock.now += 7.0
    loop.turn()
    loop.turn()
    timer = loop.call_later(5.0, nothing)
    timer.cancel()
    loop.turn()
    loop.call_later(5.0, nothing)
    loop.call_soon(nothing)
    loop.turn()
    loop.stop()
    loop.turn()
    loop.close()
    assert sleeps == [None, 5.0, 0.0, None, None, 0.0, 0.0]


def test_another_thread_ends_the_poll() -> None:
    with_deadline = Loop()
    late: list[bool] = []
    with_deadline.call_later(20.0, lambda: late.append(True))
    waker = threading.Thread(target=with_deadline.wake)
    waker.start()
    with_deadline.turn()
    waker.join()
    with_deadline.close()
    assert not late


def test_wake_ups_neither_block_nor_keep_the_loop_awake(loop: WatchedLoop) -> None:
    # Enough to fill the buffer of any socket pair, a byte at a time.
    for _ in range(10_000):
        loop.wake()
    loop.turns(3)
    with pytest.raises(BlockingIOError):
        loop._wake_out.recv(1)


class ShortOfMemory:
    """A wake-up's socket, in a kernel that has no buffer for it some times."""

    def __init__(self, sock: socket.socket, failures: int) -> None:
        self._sock = sock
        self._failures = failures
        self.fileno, self.close = sock.fileno, sock.close

    def send(self, data: bytes) -> int:
        if self._failures:
            self._failures -= 1
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        return self._sock.send(data)


def test_a_wake_up_that_could_not_be_sent_is_sent_again(loop: WatchedLoop) -> None:
    loop._wake_in = ShortOfMemory(loop._wake_in, 3)
    results: list[int] = []
    worker = JobThread("worker", loop.wake)
    loop.after_poll = worker.collect
    for number in range(2):
        worker.submit(lambda number=number: number, results.append)
        loop.call_later(20.0, nothing)
        loop.turn()
        assert results[number:] == [number]
    assert worker.stop(20.0)


def test_waking_a_loop_that_has_ended_does_nothing() -> None:
    loop = Loop()
    loop.close()
    loop.wake()


def test_a_wake_up_that_cannot_be_read_ends_nothing(loop: WatchedLoop) -> None:
    class Unreadable:
        fileno, close = loop._wake_out.fileno, loop._wake_out.close

        def recv(self, _size: int) -> bytes:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    readable = loop._wake_out
    loop.wake()
    loop._wake_out = Unreadable()
    loop._selector.unregister(readable)
    loop._selector.register(loop._wake_out, READ, loop._on_wake)
    collected: list[bool] = []
    loop.after_poll = lambda: collected.append(True)
    loop.turn()
    loop.turn()
    assert len(collected) == 2


def test_a_wake_up_while_results_are_collected_is_not_lost(loop: WatchedLoop) -> None:
    collected: list[bool] = []

    def collect() -> None:
        # As from a worker that finishes its next job while the results of the last are being collected.
        if not collected:
            loop.wake()
        collected.append(True)

    loop.after_poll = collect
    loop.wake()
    loop.turn()
    loop.call_later(20.0, nothing)
    loop.turn()
    assert len(collected) == 2


def test_the_wake_descriptor_takes_signal_numbers(loop: WatchedLoop) -> None:
    os.write(loop.wake_fd, b"\x0f")
    turned: list[bool] = []
    loop.after_poll = lambda: turned.append(True)
    loop.turn()
    assert turned


def test_stop_ends_run_after_the_present_turn(loop: WatchedLoop) -> None:
    calls: list[str] = []
    loop.call_soon(loop.stop)
    loop.call_soon(lambda: calls.append("same turn"))
    loop.before_sleep = lambda: calls.append("delivered")
    loop.run()
    assert calls == ["same turn", "delivered"]


def test_interest_in_each_direction(loop: WatchedLoop) -> None:
    left, right = socket.socketpair()
    seen: list[int] = []
    with left, right:
        left.send(b"x")
        for events, expected in [(READ, READ), (WRITE, WRITE), (READ | WRITE, READ | WRITE), (0, None), (0, None)]:
            seen.clear()
            loop.set_interest(right, events, seen.append)
            loop.turns()
            assert seen == ([] if expected is None else [expected])
        loop.set_interest(right, READ, seen.append)
        loop.set_interest(right, READ, lambda events: seen.append(-events))
        loop.turns()
        assert seen == [-READ]
        loop.set_interest(right, 0, seen.append)


CALLS: dict[str, Callable[[Loop, Callable[[], None]], object]] = {
    "timer": lambda loop, callback: loop.call_later(0.0, callback),
    "posted call": lambda loop, callback: loop.call_soon(callback),
    "turn-end call": lambda loop, callback: loop.call_at_turn_end(callback),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_callback_that_fails_is_logged_and_ends_nothing(
    call: Callable, loop: WatchedLoop, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []
    call(loop, fail)
    call(loop, lambda: called.append("the next"))
    loop.before_sleep = lambda: called.append("hook")
    loop.turns(2)
    assert sorted(called) == ["hook", "hook", "the next"]
    assert [record.message for record in caplog.records] == ["a callback failed"]
    assert "a mistake of ours" in caplog.text, "with its traceback"


@pytest.mark.parametrize("unwatch", [False, True])
@pytest.mark.parametrize("close", [False, True])
def test_a_socket_whose_callback_fails_is_watched_no_more(
    close: bool, unwatch: bool, loop: WatchedLoop, caplog: pytest.LogCaptureFixture
) -> None:
    bad, others = socket.socketpair(), socket.socketpair()
    seen: list[int] = []

    def ready(events: int) -> None:
        if unwatch:
            loop.set_interest(bad[0], 0, ready)
        if close:
            bad[0].close()
        fail()

    for pair, callback in ((bad, ready), (others, seen.append)):
        pair[1].send(b"x")
        loop.set_interest(pair[0], READ, callback)
    loop.turns(3)
    assert seen == [READ] * 3
    assert [record.message for record in caplog.records] == ["a callback failed: its socket is watched no more"]
    # A key left behind would be in the way of the next socket with this descriptor.
    assert all(key.fileobj is not bad[0] for key in loop._selector.get_map().values())
    for sock in bad + others:
        sock.close()


class Refusing(selectors.DefaultSelector):
    """A selector in front of a kernel that may lack memory for more."""

    error = 0

    def register(self, fileobj: object, events: int, data: object = None) -> selectors.SelectorKey:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return super().register(fileobj, events, data)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Iterator[WatchedLoop]:
    """A loop on such a selector."""
    monkeypatch.setattr(selectors, "DefaultSelector", Refusing)
    loop = WatchedLoop(clock)
    yield loop
    loop.close()


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.ENOSPC])
def test_a_socket_that_the_kernel_cannot_watch_now_is_watched_later(
    error: int, refusing: WatchedLoop, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    watched, left, closed = (socket.socketpair() for _ in range(3))
    seen: list[int] = []
    for mine, other in (watched, left, closed):
        other.send(b"x")
        refusing._selector.error = error
        refusing.set_interest(mine, READ, lambda _events, mine=mine: seen.append(mine.fileno()))
    refusing.set_interest(left[0], 0, lambda _events: None)
    closed[0].close()
    for _ in range(3):
        clock.now += TRY_AGAIN_S * 1.01
        refusing.turns(2)
    assert seen == []
    assert len(caplog.records) == 1, "once, however often it is tried"
    refusing._selector.error = 0
    clock.now += TRY_AGAIN_S * 1.01
    refusing.turns(2)
    assert seen == [watched[0].fileno()]
    for sock in (*watched, *left, *closed):
        sock.close()


def test_a_socket_whose_interest_could_not_be_changed_is_heard_again(refusing: WatchedLoop, clock: Clock) -> None:
    mine, other = socket.socketpair()
    seen: list[int] = []
    refusing.set_interest(mine, READ, seen.append)
    refusing._selector.error = errno.ENOMEM
    refusing.set_interest(mine, READ | WRITE, seen.append)
    refusing.turns(2)
    assert seen == []
    refusing._selector.error = 0
    clock.now += TRY_AGAIN_S * 1.01
    refusing.turns(2)
    assert seen == [WRITE]
    mine.close()
    other.close()


def test_an_error_of_ours_in_watching_is_raised(refusing: WatchedLoop) -> None:
    mine, other = socket.socketpair()
    refusing._selector.error = errno.EEXIST
    with pytest.raises(FileExistsError):
        refusing.set_interest(mine, READ, lambda _events: None)
    mine.close()
    other.close()


def test_who_is_closed_by_another_in_the_same_turn_is_not_called_back(
    loop: WatchedLoop, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = [socket.socketpair() for _ in range(4)]
    called: list[socket.socket] = []

    def end_the_others(mine: socket.socket) -> None:
        called.append(mine)
        for other, _ in pairs:
            if other is not mine:
                loop.set_interest(other, 0, nothing)
                other.close()

    for mine, peer in pairs:
        loop.set_interest(mine, READ, lambda _events, mine=mine: end_the_others(mine))
        peer.send(b"x")
    loop.turn()
    assert len(called) == 1
    assert caplog.records == []
    for pair in pairs:
        for sock in pair:
            sock.close()


def test_a_new_socket_is_not_called_back_for_what_was_found_of_the_last_one_of_its_number(loop: WatchedLoop) -> None:
    old, peer = socket.socketpair()
    peer.send(b"x")
    fresh: list[socket.socket] = []
    called: list[str] = []

    def replace() -> None:
        number = old.fileno()
        loop.set_interest(old, 0, nothing)
        old.close()
        fresh.extend(socket.socketpair())
        assert fresh[0].fileno() == number
        loop.set_interest(fresh[0], READ, lambda _events: called.append("new"))
        loop.after_poll = nothing

    loop.set_interest(old, READ, lambda _events: called.append("old"))
    loop.after_poll = replace
    loop.turns(2)
    assert called == []
    for sock in (peer, *fresh):
        sock.close()


def test_who_is_not_interested_any_more_is_told_only_of_the_rest(loop: WatchedLoop) -> None:
    mine, peer = socket.socketpair()
    peer.send(b"x")
    seen: list[int] = []
    loop.set_interest(mine, READ | WRITE, seen.append)
    loop.after_poll = lambda: loop.set_interest(mine, WRITE, seen.append)
    loop.turn()
    assert seen == [WRITE]
    mine.close()
    peer.close()


def test_a_turn_that_fails_ends_the_loop(loop: WatchedLoop) -> None:
    loop.call_soon(nothing)
    with pytest.raises(RuntimeError):
        loop.run(fail)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_order_to_end_passes(call: Callable, error: type[BaseException], loop: WatchedLoop) -> None:
    def end() -> None:
        raise error

    call(loop, end)
    loop.call_soon(nothing)
    with pytest.raises(error):
        loop.turn()


# The channel.


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
    assert not pair.channel.deserted, "it may still read"
    pair.peer.close()
    pair.loop.turns(2)
    assert pair.channel.deserted
    assert pair.handler.calls == []
    pair.channel.abort()
    assert not pair.channel.deserted


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


# The socket's file.


def path_in(directory: Path) -> str:
    return str(directory / "uma.sock")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
@pytest.mark.parametrize("mode", [0o660, 0o600, 0o666])
def test_the_mode_is_exact_and_never_wider(
    mode: int, umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_in(tmp_path)
    real_chmod = os.chmod
    before: list[int] = []

    def chmod(name: str, to: int) -> None:
        before.append(stat.S_IMODE(os.stat(name).st_mode))
        real_chmod(name, to)

    monkeypatch.setattr(os, "chmod", chmod)
    previous = os.umask(umask)
    try:
        file = SocketFile(path, mode)
    finally:
        os.umask(previous)
    assert before == [mode & ~umask]
    assert stat.S_IMODE(os.stat(path).st_mode) == mode
    assert stat.S_IMODE(os.stat(f"{path}.lock").st_mode) & ~0o600 == 0
    file.socket.close()
    file.remove()


def test_it_listens_and_leaves_nothing_behind(tmp_path: Path) -> None:
    file = SocketFile(path_in(tmp_path), 0o660)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(file.path)
    assert not file.socket.getblocking()
    file.socket.close()
    file.remove()
    assert os.listdir(tmp_path) == []


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
        dead.listen()
    (tmp_path / "uma.sock.lock").write_text("999999\n")
    file = SocketFile(path, 0o660)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    assert (tmp_path / "uma.sock.lock").read_text() == f"{os.getpid()}\n"
    file.socket.close()
    file.remove()


def test_a_live_one_is_refused_and_named(tmp_path: Path) -> None:
    file = SocketFile(path_in(tmp_path), 0o660)
    before = sorted(os.listdir(tmp_path))
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"uma\.sock.*pid {os.getpid()}\b.*--socket"):
            SocketFile(file.path, 0o660)
    assert sorted(os.listdir(tmp_path)) == before
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(file.path)
    file.socket.close()
    file.remove()
    SocketFile(file.path, 0o660).socket.close()


@pytest.mark.parametrize("type_", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM])
def test_another_programs_socket_is_refused(type_: socket.SocketKind, tmp_path: Path) -> None:
    path = path_in(tmp_path)
    with socket.socket(socket.AF_UNIX, type_) as foreign:
        foreign.bind(path)
        if type_ != socket.SOCK_DGRAM:
            foreign.listen(0)
        inode = os.stat(path).st_ino
        # The second try finds the listener's queue full.
        for _ in range(3):
            with pytest.raises(ConfigError, match="another program"):
                SocketFile(path, 0o660)
        assert os.stat(path).st_ino == inode
        assert os.listdir(tmp_path) == ["uma.sock"]


def make_file(path: Path) -> None:
    path.write_text("precious")


@pytest.mark.parametrize("make", [make_file, Path.mkdir, os.mkfifo, lambda path: path.symlink_to("elsewhere")])
def test_what_is_no_socket_is_refused_and_untouched(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "uma.sock"
    make(path)
    before = os.lstat(path)
    with pytest.raises(ConfigError, match="is not a socket"):
        SocketFile(str(path), 0o660)
    after = os.lstat(path)
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert os.listdir(tmp_path) == ["uma.sock"]


def test_the_longest_path_and_one_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Bytes count, not characters.
    longest = "ö" * 53 + "x"
    file = SocketFile(longest, 0o660)
    file.socket.close()
    file.remove()
    with pytest.raises(ConfigError, match=r"108 bytes long, the kernel allows 107.*--socket"):
        SocketFile(longest + "x", 0o660)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("parent", ["missing", "file"])
def test_a_directory_that_is_none(parent: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=rf"{parent}/uma\.sock: (No such file|Not a directory).*--socket"):
        SocketFile(str(tmp_path / parent / "uma.sock"), 0o660)


@pytest.mark.parametrize("what", ["uma.sock", "uma.sock.lock"])
@pytest.mark.parametrize("replaced", [False, True])
def test_remove_takes_only_our_own(what: str, replaced: bool, tmp_path: Path) -> None:
    file = SocketFile(path_in(tmp_path), 0o660)
    os.unlink(tmp_path / what)
    if replaced:
        (tmp_path / what).write_text("somebody else's")
    file.socket.close()
    file.remove()
    assert os.listdir(tmp_path) == ([what] if replaced else [])
    # A second signal may come in the middle of the end.
    file.remove()
    assert os.listdir(tmp_path) == ([what] if replaced else [])


def test_a_second_signal_may_come_while_the_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SocketFile(path_in(tmp_path), 0o660)
    unlink = os.unlink

    def interrupted(path: str) -> None:
        unlink(path)
        file.remove()

    monkeypatch.setattr(os, "unlink", interrupted)
    file.socket.close()
    file.remove()
    assert os.listdir(tmp_path) == []


def test_a_socket_file_that_cannot_be_removed_is_logged_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = SocketFile(path_in(tmp_path), 0o660)

    def refuse(_path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        file.remove()
    assert "it can't be removed: Read-only file system" in caplog.text
    file.socket.close()
    again = SocketFile(path_in(tmp_path), 0o660)
    again.socket.close()
    again.remove()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("recreated", [False, True])
def test_a_lock_that_changes_between_open_and_flock(
    recreated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "uma.sock.lock"
    real_flock = fcntl.flock
    calls: list[int] = []

    def flock(fd: int, operation: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            lock.unlink()
            if recreated:
                lock.touch()
        real_flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    file = SocketFile(path_in(tmp_path), 0o660)
    # Holding the lock of a file that nobody can find any more would let a second daemon in.
    with pytest.raises(ConfigError, match="running umaserve"):
        SocketFile(file.path, 0o660)
    file.socket.close()
    file.remove()


def test_a_failure_after_the_lock_gives_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chmod(name: str, to: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "chmod", chmod)
        with pytest.raises(ConfigError, match="Operation not permitted"):
            SocketFile(path_in(tmp_path), 0o660)
    assert not (tmp_path / "uma.sock.lock").exists()
    file = SocketFile(path_in(tmp_path), 0o660)
    file.socket.close()
    file.remove()


# Accepting.


class Accepting:
    """A listener on a real socket, whose ``accept`` may be told to fail."""

    class Socket(socket.socket):
        error = 0
        accepts = 0

        def accept(self) -> tuple[socket.socket, object]:
            self.accepts += 1
            if self.error:
                raise OSError(self.error, os.strerror(self.error))
            return super().accept()

    def __init__(self, loop: WatchedLoop, path: str) -> None:
        self.loop = loop
        self.path = path
        self.socket = self.Socket(socket.AF_UNIX)
        self.socket.bind(path)
        self.socket.listen()
        self.accepted: list[socket.socket] = []
        self.clients: list[socket.socket] = []
        self.listener = Listener(loop, self.socket, self.accepted.append)

    def connect(self, count: int = 1) -> None:
        for _ in range(count):
            client = socket.socket(socket.AF_UNIX)
            client.connect(self.path)
            self.clients.append(client)

    def close(self) -> None:
        if self.socket.fileno() >= 0:
            self.listener.close()
        for sock in self.accepted + self.clients:
            sock.close()


@pytest.fixture
def accepting(loop: WatchedLoop, tmp_path: Path) -> Iterator[Accepting]:
    accepting = Accepting(loop, path_in(tmp_path))
    yield accepting
    accepting.close()


def test_all_who_wait_are_accepted_some_in_each_turn(accepting: Accepting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "ACCEPTS_PER_TURN", 3)
    accepting.connect(7)
    for expected in (3, 6, 7, 7):
        accepting.loop.turns()
        assert len(accepting.accepted) == expected


def test_the_peer_is_who_the_kernel_says(accepting: Accepting) -> None:
    accepting.connect()
    accepting.loop.turns()
    (sock,) = accepting.accepted
    assert user_of(sock) == os.getuid()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_accepting_pauses_when_the_system_has_no_more(error: int, accepting: Accepting, clock: Clock) -> None:
    accepting.connect()
    accepting.socket.error = error
    for pause in range(1, 4):
        # The waiting connection keeps the socket readable: each turn would try again.
        accepting.loop.turns(10)
        assert accepting.socket.accepts == pause
        clock.now += PAUSE_S * 1.01
        accepting.loop.turns()
    accepting.socket.error = 0
    clock.now += PAUSE_S * 1.01
    accepting.loop.turns(2)
    assert len(accepting.accepted) == 1


def test_pauses_are_logged_once_a_minute_and_say_what_to_do(
    accepting: Accepting, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    accepting.connect()
    accepting.socket.error = errno.EMFILE
    for minute in (1, 2):
        for _ in range(100):
            accepting.loop.turns(2)
            clock.now += PAUSE_S * 1.01
        assert len(caplog.records) == minute
        clock.now += COMPLAIN_EVERY_S
    assert "raise this program's limit of open files" in caplog.text


def test_accepting_with_no_descriptor_left(accepting: Accepting, clock: Clock) -> None:
    accepting.connect(2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 1, hard))
    try:
        accepting.loop.turns(10)
        assert len(accepting.accepted) == 1
        assert accepting.socket.accepts == 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    clock.now += PAUSE_S * 1.01
    accepting.loop.turns(2)
    assert len(accepting.accepted) == 2


def test_a_client_that_left_the_queue_is_skipped(accepting: Accepting) -> None:
    accepting.connect()
    accepting.socket.error = errno.ECONNABORTED
    accepting.loop.turns()
    accepting.socket.error = 0
    accepting.loop.turns()
    assert len(accepting.accepted) == 1


def test_an_error_that_is_our_own_is_logged_and_does_not_spin(
    accepting: Accepting, caplog: pytest.LogCaptureFixture
) -> None:
    accepting.connect()
    accepting.socket.error = errno.EINVAL
    accepting.loop.turns(3)
    assert caplog.text.count(os.strerror(errno.EINVAL)) == len(caplog.records) == 1


def test_closing_while_accepting_pauses(accepting: Accepting, clock: Clock) -> None:
    accepting.connect()
    accepting.socket.error = errno.EMFILE
    accepting.loop.turns()
    accepting.listener.close()
    clock.now += PAUSE_S * 1.01
    accepting.loop.turns(2)
    assert accepting.accepted == []


def test_closing_in_the_turn_that_finds_it_ready(accepting: Accepting) -> None:
    accepting.connect()
    accepting.loop.after_poll = accepting.listener.close
    accepting.loop.turn()
    assert accepting.accepted == []


def test_closing_at_the_first_client(loop: WatchedLoop, tmp_path: Path) -> None:
    accepting = Accepting(loop, path_in(tmp_path))
    accepting.listener.close()
    os.unlink(accepting.path)
    taken: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(accepting.path)
        sock.listen()

        def take_one(client: socket.socket) -> None:
            taken.append(client)
            listener.close()

        listener = Listener(loop, sock, take_one)
        accepting.connect(2)
        loop.turns(2)
    accepting.accepted = taken
    accepting.close()
    assert len(taken) == 1
