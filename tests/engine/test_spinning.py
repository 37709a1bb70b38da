"""Whether compute threads spin or sleep at barriers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from umaserve.engine import spinning
from umaserve.engine.spinning import IDLE_CORES, LOOKS, TAKEN_CORES, Spinning
from umaserve.system.cores import CoreCounter, CoreUse
from umaserve.system.openmp import VARIABLES

TAKEN = CoreUse(idle=0.0, others=TAKEN_CORES)


class StandInBarriers:
    """Barriers that tell what was wanted of them last."""

    def __init__(self, *, may_sleep: bool = True) -> None:
        self.may_sleep = may_sleep
        self.asleep = self.was_asleep = self.fails = False

    def sleep(self, wanted: bool) -> None:
        if wanted and self.fails:
            raise RuntimeError("can't start new thread")
        self.asleep = wanted
        self.was_asleep |= wanted


class Box:
    """A box whose use of the cores a test sets, and which counts the looks at it."""

    def __init__(self) -> None:
        self.use: CoreUse | None = TAKEN
        self.looks = 0

    def __call__(self) -> CoreUse | None:
        self.looks += 1
        return self.use

    def until(self, found: Callable[[], bool]) -> None:
        """Wait for it, and for another look."""
        looks = self.looks
        while not (found() and self.looks > looks):
            time.sleep(0.001)


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Box:
    monkeypatch.setattr(CoreCounter, "WINDOW_S", 0.001)
    return Box()


@contextmanager
def watching(box: Box, *, may_sleep: bool = True) -> Iterator[tuple[StandInBarriers, Spinning]]:
    barriers = StandInBarriers(may_sleep=may_sleep)
    watched = Spinning(2, barriers, box)
    watched.watch()
    yield barriers, watched
    watched.close()


def test_barriers_sleep_while_others_need_the_cores(box: Box) -> None:
    with watching(box) as (barriers, _):
        box.until(lambda: barriers.asleep)
        box.use = CoreUse(idle=0.0, others=0.9 * TAKEN_CORES)
        box.until(lambda: not barriers.asleep)
        box.use = TAKEN
        box.until(lambda: barriers.asleep)
    while barriers.asleep:
        time.sleep(0.001)


@pytest.mark.parametrize("use", [None, CoreUse(idle=IDLE_CORES, others=9.0)], ids=["unknown", "idle cores"])
def test_barriers_spin_where_nobody_is_known_to_need_the_core(box: Box, use: CoreUse | None) -> None:
    with watching(box) as (barriers, _):
        box.until(lambda: barriers.asleep)
        box.use = use
        box.until(lambda: not barriers.asleep)


@pytest.mark.usefixtures("box")
def test_barriers_spin_where_a_program_only_starts() -> None:
    class Starting(Box):
        def __call__(self) -> CoreUse | None:
            self.use = TAKEN if self.looks % LOOKS else CoreUse(idle=0.0, others=0.0)
            return super().__call__()

    starting = Starting()
    with watching(starting) as (barriers, _):
        starting.until(lambda: starting.looks > 10 * LOOKS)
        assert not barriers.was_asleep


def test_nothing_is_watched_long_after_the_last_tick(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spinning, "WATCHED_S", 0.01)
    with watching(box) as (barriers, watched):
        while watched._computing.is_set():
            time.sleep(0.001)
        looks = box.looks
        assert not barriers.asleep
        watched.watch()
        while box.looks == looks:
            time.sleep(0.001)


def test_nothing_is_watched_where_barriers_can_not_sleep(box: Box) -> None:
    # Those of other tests may end meanwhile.
    threads = threading.enumerate()
    with watching(box, may_sleep=False):
        assert set(threading.enumerate()) <= set(threads)
    assert not box.looks


def test_a_thread_that_can_not_be_had_is_logged_and_tried_again(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    with watching(box) as (barriers, _):
        barriers.fails = True
        box.until(lambda: "can't start" in caplog.text)
        barriers.fails = False
        box.until(lambda: barriers.asleep)


REAL = """
import os
import time
from umaserve.engine.files.row_times import decode_s, load_small
from umaserve.settings.model_files import default_model
from umaserve.system.openmp import Barriers
from umaserve.system.threads import own_switches

def threads():
    return len(os.listdir("/proc/self/task"))

model = load_small(default_model(), 2, 2, 64)
barriers = Barriers(2)
decode_s(model, 1)
computing = threads()
for asleep in (False, True, False) if barriers.may_sleep else ():
    barriers.sleep(asleep)
    # One that keeps the pool, and one in it at least.
    while (threads() > computing + 1) != asleep:
        time.sleep(0.01)
    decode_s(model, 1)
    before = own_switches()
    for _ in range(10):
        decode_s(model, 1)
    print((own_switches() - before) // 10)
"""


def switches(**variables: str) -> list[int]:
    """The context switches of a decode while its barriers spin, sleep and spin again; none where they can't sleep."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES} | variables
    command = [sys.executable, "-c", REAL]
    return [
        int(line) for line in subprocess.run(command, env=environment, capture_output=True, check=True).stdout.split()
    ]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc, where libgomp is found")
def test_the_barriers_of_libgomp_sleep_and_spin_again() -> None:
    found = switches()
    if not found:
        pytest.skip("this build of llama.cpp does not use GCC's OpenMP (libgomp)")
    spins, asleep, again = found
    # Where a test beside this one has a core, some last longer than threads spin.
    assert asleep > 2 * max(spins, again), found


@pytest.mark.parametrize("name", VARIABLES)
def test_the_operator_decides(name: str) -> None:
    assert switches(**{name: "1000" if name == "GOMP_SPINCOUNT" else "active"}) == []
