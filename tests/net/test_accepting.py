"""Listeners, on real Unix sockets and in invented seconds."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from clock import Clock
from watched_loop import WatchedLoop

from umaserve.net import listeners
from umaserve.net.listeners import COMPLAIN_EVERY_S, PAUSE_S, Listener
from umaserve.system.peer_credentials import user_of


def path_in(directory: Path) -> str:
    return str(directory / "uma.sock")


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
