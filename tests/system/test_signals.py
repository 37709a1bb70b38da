"""What signals do to a program: sent to this very process, which has the handlers meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from umaserve.net.loop import Loop
from umaserve.system.signals import Signals, handle_early

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture
def loop() -> Iterator[Loop]:
    before = {number: signal.getsignal(number) for number in HANDLED}
    loop = Loop()
    yield loop
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.set_wakeup_fd(-1)
    loop.close()


def send(loop: Loop, number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    # It ends the poll, which would sleep for good.
    loop.turn()


def test_a_hangup_has_the_files_read_again_each_time_and_ends_nothing(loop: Loop) -> None:
    reread: list[bool] = []
    signals = Signals(loop, lambda: None, lambda: reread.append(True))
    signals.handle()
    for times in (1, 2, 3):
        send(loop, signal.SIGHUP)
        assert len(reread) == times
    assert signals.count == 0


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_without_a_meaning_is_logged_and_ends_nothing(
    number: signal.Signals, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    reread: list[bool] = []
    signals = Signals(loop, lambda: None, lambda: reread.append(True))
    signals.handle()
    send(loop, number)
    assert (signals.count, reread) == (0, [])
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [f"ignored {number.name}"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_end_is_counted(number: signal.Signals, loop: Loop) -> None:
    signals = Signals(loop, lambda: None, lambda: None)
    signals.handle()
    send(loop, number)
    assert signals.count == 1


def test_a_hangup_before_the_loop_is_there_has_the_files_read_once(loop: Loop) -> None:
    handle_early()
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGHUP)
    reread: list[bool] = []
    Signals(loop, lambda: None, lambda: reread.append(True)).handle()
    loop.turn()
    assert reread == [True]
    send(loop, signal.SIGHUP)
    assert reread == [True, True]


def test_a_program_that_is_not_up_ends_with_a_word() -> None:
    program = """
import signal
from umaserve.system.signals import handle_early
handle_early()
signal.raise_signal(signal.SIGHUP)
print("goes on", flush=True)
signal.raise_signal(signal.SIGTERM)
print("is not reached")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("goes on\n", "umaserve: ended by SIGTERM before startup was complete\n")


def test_handlers_take_the_place_of_the_early_ones(loop: Loop) -> None:
    handle_early()
    signals = Signals(loop, lambda: None, lambda: None)
    signals.handle()
    send(loop, signal.SIGTERM)
    assert signals.count == 1
