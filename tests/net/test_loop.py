"""The loop, over socket pairs and in invented seconds."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from clock import Clock
from watched_loop import WatchedLoop, nothing

from umaserve.net.loop import READ, TRY_AGAIN_S, WRITE, Loop
from umaserve.system.threads import JobThread


def fail() -> None:
    raise RuntimeError("a mistake of ours")


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
    assert [record.message for record in caplog.records] == ["a callback failed: its socket is no longer watched"]
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
