"""Outgoing connections: addresses in turn, the time each has, and what is said when none answers."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from clock import RunningClock
from hooked_loop import HookedLoop

from umaserve.net import dial as dial_module
from umaserve.net.dial import MAX_ADDRESSES, DialError, Dialing, dial, dial_file
from umaserve.net.loop import Loop
from umaserve.system.threads import JobThread

NEVER_S = 60.0
UNROUTED = "192.0.2.1"
"""RFC 5737: for documentation; the tests let nobody really dial it."""


class Resolver:
    """Takes the jobs, and does them when the test says."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.jobs.append((job, done))

    def run(self) -> None:
        for job, done in self.jobs:
            try:
                result = job()
            except Exception as error:
                result = error
            done(result)
        self.jobs.clear()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def clock() -> RunningClock:
    return RunningClock()


@pytest.fixture
def loop(stack: ExitStack, clock: RunningClock) -> Loop:
    loop = HookedLoop(clock)
    stack.callback(loop.close)
    return loop


@pytest.fixture
def resolver() -> Resolver:
    return Resolver()


@pytest.fixture
def ends(stack: ExitStack) -> list[socket.socket | DialError]:
    """What ``done`` was called with."""
    ends: list[socket.socket | DialError] = []
    stack.callback(lambda: [end.close() for end in ends if isinstance(end, socket.socket)])
    return ends


@pytest.fixture
def listener(stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_server(("127.0.0.1", 0)))


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def resolves_to(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> list[str]:
    """Make any name stand for ``hosts``; what was asked for."""
    resolve, asked = socket.getaddrinfo, []

    def getaddrinfo(host: str, port: int, **options: int) -> list[tuple]:
        if "flags" in options:
            return resolve(host, port, **options)
        asked.append(host)
        return [found for known in hosts for found in resolve(known, port, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Make UNROUTED an address that never answers; what was dialed in all."""
    dialed: list[tuple] = []

    class Socket(socket.socket):
        def connect_ex(self, address: Any) -> int:
            dialed.append(address)
            if address[0] != UNROUTED:
                return super().connect_ex(address)
            # A full backlog swallows what asks for a connection.
            return super().connect_ex(full.getsockname())

    with socket.socket() as full, ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(2):
            filler = waiting.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        monkeypatch.setattr(dial_module.socket, "socket", Socket)
        yield dialed


def until_over(loop: Loop, dialing: Dialing) -> None:
    """Turn the loop, which must not sleep for good if nothing comes."""
    deadline = loop.call_later(NEVER_S, lambda: None)
    while not dialing.over and deadline.callback is not None:
        loop.turn()
    assert dialing.over
    deadline.cancel()


def turn(loop: Loop) -> None:
    loop.call_soon(lambda: None)
    loop.turn()


def watched(loop: Loop) -> int:
    """Sockets of others than the loop itself."""
    return len(loop._selector.get_map()) - 1


def at_rest(loop: Loop) -> bool:
    return watched(loop) == 0 and loop._timers.next_at() is None


def test_an_ip_address_is_dialed_without_the_resolver(
    loop: Loop, resolver: Resolver, listener: socket.socket, ends: list
) -> None:
    dialing = dial(loop, resolver.submit, "127.0.0.1", port_of(listener), timeout=NEVER_S, done=ends.append)
    assert ends == [], "not before the call returns"
    until_over(loop, dialing)
    (sock,) = ends
    assert not resolver.jobs
    assert not sock.getblocking()
    assert not sock.get_inheritable()
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    sock.send(b"hello")
    accepted, _ = listener.accept()
    with accepted:
        assert accepted.recv(100) == b"hello"
    assert at_rest(loop)
    dialing.cancel()
    assert sock.fileno() >= 0, "it is no longer the dialing's"


def test_a_name_is_resolved_on_the_thread(loop: Loop, listener: socket.socket, ends: list, stack: ExitStack) -> None:
    thread = JobThread("resolving", loop.wake)
    stack.callback(thread.stop, 10.0)
    loop.after_poll = thread.collect
    until_over(loop, dial(loop, thread.submit, "localhost", port_of(listener), timeout=NEVER_S, done=ends.append))
    assert isinstance(ends[0], socket.socket)


def test_addresses_are_tried_in_turn_each_once(
    loop: Loop,
    resolver: Resolver,
    listener: socket.socket,
    ends: list,
    monkeypatch: pytest.MonkeyPatch,
    silent: list[tuple],
) -> None:
    asked = resolves_to(monkeypatch, "127.0.0.2", "127.0.0.2", "127.0.0.3", "127.0.0.1", "127.0.0.4")
    dialing = dial(loop, resolver.submit, "relay.example", port_of(listener), timeout=NEVER_S, done=ends.append)
    resolver.run()
    until_over(loop, dialing)
    assert ends[0].getpeername() == listener.getsockname()
    assert asked == ["relay.example"]
    assert [host for host, _ in silent] == ["127.0.0.2", "127.0.0.3", "127.0.0.1"]


def test_the_error_says_what_failed_for_each_address(
    loop: Loop, resolver: Resolver, closed_port: int, ends: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolves_to(monkeypatch, "127.0.0.1", "127.0.0.2")
    dialing = dial(loop, resolver.submit, "relay.example", closed_port, timeout=NEVER_S, done=ends.append)
    resolver.run()
    until_over(loop, dialing)
    assert str(ends[0]) == (
        f"can't connect to relay.example:{closed_port}: Connection refused (127.0.0.1:{closed_port}); "
        f"Connection refused (127.0.0.2:{closed_port})"
    )
    assert len(ends) == 1
    assert at_rest(loop)


def test_an_ip_address_is_named_once(loop: Loop, resolver: Resolver, closed_port: int, ends: list) -> None:
    until_over(loop, dial(loop, resolver.submit, "127.0.0.1", closed_port, timeout=NEVER_S, done=ends.append))
    assert str(ends[0]) == f"can't connect to 127.0.0.1:{closed_port}: Connection refused"


def test_an_ipv6_address_stands_in_brackets(loop: Loop, resolver: Resolver, ends: list) -> None:
    # Port 0 can't be dialed, whether or not this box has IPv6.
    until_over(loop, dial(loop, resolver.submit, "::1", 0, timeout=NEVER_S, done=ends.append))
    assert str(ends[0]).startswith("can't connect to [::1]:0: ")
    assert "(" not in str(ends[0])


# RFC 6761 keeps "invalid" from ever meaning anything.
@pytest.mark.parametrize("host", ["umaserve.invalid", "a" * 64 + ".example", "a\0b"])
def test_a_name_that_does_not_resolve_is_an_error(host: str, loop: Loop, resolver: Resolver, ends: list) -> None:
    dial(loop, resolver.submit, host, 443, timeout=NEVER_S, done=ends.append)
    resolver.run()
    turn(loop)
    (start, reason) = str(ends[0]).split("resolved: ")
    assert start == f"can't connect to {host}:443: the name can't be "
    assert reason
    assert len(ends) == 1


def test_a_mistake_of_whoever_dials_a_name_does_not_end_the_loop(
    loop: Loop, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_found: socket.socket | DialError) -> None:
        raise LookupError("a mistake of ours")

    resolving = JobThread("resolving", loop.wake)
    stack.callback(resolving.stop, NEVER_S)
    loop.after_poll = resolving.collect
    until_over(loop, dial(loop, resolving.submit, "a\0b", 443, timeout=NEVER_S, done=fail))
    assert "a mistake of ours" in caplog.text


def test_no_more_than_a_few_addresses_are_tried(
    loop: Loop, resolver: Resolver, closed_port: int, ends: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolves_to(monkeypatch, *(f"127.0.1.{number}" for number in range(100)))
    dialing = dial(loop, resolver.submit, "many.example", closed_port, timeout=NEVER_S, done=ends.append)
    resolver.run()
    until_over(loop, dialing)
    assert str(ends[0]).count("Connection refused") == MAX_ADDRESSES


# Deadlines.


def test_a_silent_address_leaves_the_next_its_share_of_the_time(
    loop: Loop,
    clock: RunningClock,
    resolver: Resolver,
    listener: socket.socket,
    ends: list,
    monkeypatch: pytest.MonkeyPatch,
    silent: list[tuple],
) -> None:
    resolves_to(monkeypatch, UNROUTED, "127.0.0.1")
    dialing = dial(loop, resolver.submit, "relay.example", port_of(listener), timeout=NEVER_S, done=ends.append)
    resolver.run()
    clock.ahead += NEVER_S / 3
    turn(loop)
    assert len(silent) == 1
    clock.ahead += NEVER_S / 3
    until_over(loop, dialing)
    assert ends[0].getpeername() == listener.getsockname()
    assert at_rest(loop)


def test_silent_addresses_end_with_the_deadline(
    loop: Loop,
    clock: RunningClock,
    resolver: Resolver,
    ends: list,
    monkeypatch: pytest.MonkeyPatch,
    silent: list[tuple],
) -> None:
    resolves_to(monkeypatch, UNROUTED)
    dial(loop, resolver.submit, "relay.example", 443, timeout=10 * NEVER_S, done=ends.append)
    resolver.run()
    turn(loop)
    clock.ahead += 9 * NEVER_S
    turn(loop)
    assert ends == []
    clock.ahead += 2 * NEVER_S
    turn(loop)
    assert [str(end) for end in ends] == [
        f"can't connect to relay.example:443: no answer within 600 s ({UNROUTED}:443)"
    ]
    assert at_rest(loop)


def test_a_resolver_that_hangs_ends_with_the_deadline(
    loop: Loop, clock: RunningClock, resolver: Resolver, ends: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = resolves_to(monkeypatch, "127.0.0.1")
    dial(loop, resolver.submit, "relay.example", 443, timeout=NEVER_S, done=ends.append)
    clock.ahead += NEVER_S
    turn(loop)
    assert [str(end) for end in ends] == ["can't connect to relay.example:443: the name wasn't resolved within 60 s"]
    resolver.run()
    turn(loop)
    assert (len(ends), asked) == (1, []), "nobody waits for it any more"


@pytest.mark.parametrize("result", [[(socket.AF_INET, 0, 0, "", ("127.0.0.1", 1))], OSError(1, "too late")])
def test_what_the_resolver_says_after_the_deadline_is_ignored(
    result: Any, loop: Loop, clock: RunningClock, resolver: Resolver, ends: list
) -> None:
    dial(loop, resolver.submit, "relay.example", 443, timeout=NEVER_S, done=ends.append)
    clock.ahead += NEVER_S
    turn(loop)
    ((_job, done),) = resolver.jobs
    done(result)
    turn(loop)
    assert (len(ends), watched(loop)) == (1, 0)


# Cancelling.


@pytest.mark.parametrize("stage", ["at once", "resolving", "connecting"])
def test_who_cancels_hears_no_more(
    stage: str,
    loop: Loop,
    clock: RunningClock,
    resolver: Resolver,
    ends: list,
    monkeypatch: pytest.MonkeyPatch,
    silent: list,
) -> None:
    asked = resolves_to(monkeypatch, UNROUTED)
    host = UNROUTED if stage == "at once" else "relay.example"
    dialing = dial(loop, resolver.submit, host, 443, timeout=NEVER_S, done=ends.append)
    if stage == "connecting":
        resolver.run()
        turn(loop)
        assert watched(loop) == 1
    dialing.cancel()
    dialing.cancel()
    resolver.run()
    turn(loop)
    clock.ahead += 2 * NEVER_S
    turn(loop)
    assert ends == []
    assert at_rest(loop)
    connecting = stage == "connecting"
    assert (len(asked), len(silent)) == (connecting, connecting)


def test_who_cancels_another_that_is_ready_too_ends_it_quietly(
    loop: Loop, resolver: Resolver, listener: socket.socket, caplog: pytest.LogCaptureFixture, stack: ExitStack
) -> None:
    dialings: list[Dialing] = []
    found: list[socket.socket | DialError] = []

    def done(result: socket.socket | DialError) -> None:
        found.append(result)
        for dialing in dialings:
            dialing.cancel()

    stack.callback(lambda: [one.close() for one in found if isinstance(one, socket.socket)])
    dialings += [
        dial(loop, resolver.submit, "127.0.0.1", port_of(listener), timeout=NEVER_S, done=done) for _ in range(16)
    ]
    until_over(loop, dialings[0])
    turn(loop)
    assert len(found) == 1
    assert caplog.records == []
    assert at_rest(loop)


# What the kernel may do.


def test_a_connection_to_itself_is_none(
    loop: Loop, resolver: Resolver, closed_port: int, ends: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bound(socket.socket):
        def connect_ex(self, address: Any) -> int:
            self.bind(address)
            return super().connect_ex(address)

    monkeypatch.setattr(dial_module.socket, "socket", Bound)
    until_over(loop, dial(loop, resolver.submit, "127.0.0.1", closed_port, timeout=NEVER_S, done=ends.append))
    assert str(ends[0]) == f"can't connect to 127.0.0.1:{closed_port}: Connection refused"


def test_descriptors_that_have_run_out_are_an_error(
    loop: Loop, resolver: Resolver, ends: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> socket.socket:
        raise OSError(24, os.strerror(24))

    dialing = dial(loop, resolver.submit, "127.0.0.1", 443, timeout=NEVER_S, done=ends.append)
    monkeypatch.setattr(dial_module.socket, "socket", none_left)
    until_over(loop, dialing)
    assert str(ends[0]) == "can't connect to 127.0.0.1:443: Too many open files"


# Unix sockets.


def test_a_unix_socket_is_dialed_by_its_path(loop: Loop, ends: list, stack: ExitStack, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(path)
    listener.listen()
    dialing = dial_file(loop, path, timeout=NEVER_S, done=ends.append)
    assert ends == []
    until_over(loop, dialing)
    assert ends[0].getpeername() == path
    assert not ends[0].getblocking()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing", "No such file or directory"), ("x" * 200, "AF_UNIX path too long"), ("a\0b", "")],
)
def test_a_path_without_a_listener_is_an_error(name: str, reason: str, loop: Loop, ends: list, tmp_path: Path) -> None:
    path = f"{tmp_path}/{name}"
    until_over(loop, dial_file(loop, path, timeout=NEVER_S, done=ends.append))
    assert str(ends[0]).startswith(f"can't connect to {path}: {reason}")


def test_a_cancelled_unix_socket_is_not_dialed(loop: Loop, ends: list, tmp_path: Path) -> None:
    dial_file(loop, str(tmp_path / "s"), timeout=NEVER_S, done=ends.append).cancel()
    turn(loop)
    assert ends == []
