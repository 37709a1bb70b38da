"""The threads for calls that block: their order, pauses in lengthy jobs, and their end."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable

import pytest

from umaserve.system import threads
from umaserve.system.threads import JobThread, ThreadWatch, YieldPoint

WAIT_S = 10


class Worker:
    """A thread whose results are collected as they come."""

    def __init__(self) -> None:
        self.woken = threading.Semaphore(0)
        self.results: list[object] = []
        self.now = 0.0
        self.thread = JobThread("worker", self.woken.release, max_s=60.0, clock=lambda: self.now)

    def submit(self, job: Callable[[], object]) -> None:
        self.thread.submit(job, self.results.append)

    def collect(self, n: int) -> list[object]:
        for _ in range(n):
            assert self.woken.acquire(timeout=WAIT_S)
            self.thread.collect()
        return self.results


def test_jobs_run_in_order_and_errors_are_results() -> None:
    worker, error = Worker(), ValueError("no")

    def fail() -> object:
        raise error

    for job in (lambda: 1, fail, lambda: 3):
        worker.submit(job)
    assert worker.collect(3) == [1, error, 3]
    assert worker.thread.stop(WAIT_S)


def test_a_lengthy_job_lets_others_in_but_no_lengthy_one() -> None:
    worker, begun, go_on = Worker(), threading.Event(), threading.Event()

    def lengthy(pause: YieldPoint) -> str:
        begun.set()
        assert go_on.wait(WAIT_S)
        pause()
        return "lengthy"

    worker.thread.submit_lengthy(lengthy, worker.results.append)
    assert begun.wait(WAIT_S)
    worker.thread.submit_lengthy(lambda _pause: "second", worker.results.append)
    worker.submit(lambda: "short")
    worker.submit(lambda: "shorter")
    go_on.set()
    assert worker.collect(4) == ["short", "shorter", "lengthy", "second"]
    assert worker.thread.stop(WAIT_S)


def test_a_job_for_an_idle_urgent_thread_has_begun_when_it_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MAX_HANDOVER_S", -1)  # For ever.
    woken, results, go_on = threading.Semaphore(0), [], threading.Event()
    times: list[float] = []

    def clock() -> float:
        times.append(0.0)
        return 0.0

    thread = JobThread("worker", woken.release, urgent=True, clock=clock)
    for n in range(1, 200):
        thread.submit(lambda: None, results.append)
        assert len(times) == n, "the clock is read when a job begins"
        assert woken.acquire(timeout=WAIT_S)
    # Nor does the caller wait for a thread that has something to do.
    thread.submit(lambda: go_on.wait(WAIT_S), results.append)
    thread.submit(lambda: None, results.append)
    go_on.set()
    assert thread.stop(WAIT_S)
    thread.collect()
    assert results == [None] * 199 + [True, None]


def test_the_next_job_of_an_urgent_thread_has_begun_when_results_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MAX_HANDOVER_S", -1)  # For ever.
    begun, go_on = [threading.Event() for _ in range(100)], [threading.Semaphore(0) for _ in range(100)]
    woken = threading.Semaphore(0)
    thread = JobThread("worker", woken.release, urgent=True)

    def job(n: int) -> int:
        begun[n].set()
        assert go_on[n].acquire(timeout=WAIT_S)
        return n

    results: list[int] = []

    def done(n: int) -> None:
        assert n + 1 == len(begun) or begun[n + 1].is_set()
        results.append(n)

    for n in range(len(begun)):
        thread.submit(functools.partial(job, n), done)
    for semaphore in go_on:
        semaphore.release()
        assert woken.acquire(timeout=WAIT_S)
        thread.collect()
    assert results == list(range(100))
    assert thread.stop(WAIT_S)


def test_an_error_in_a_pause_is_the_short_jobs_own() -> None:
    worker, error, begun, go_on = Worker(), ValueError("no"), threading.Event(), threading.Event()

    def lengthy(pause: YieldPoint) -> str:
        begun.set()
        assert go_on.wait(WAIT_S)
        pause()
        return "lengthy"

    def fail() -> object:
        raise error

    worker.thread.submit_lengthy(lengthy, worker.results.append)
    assert begun.wait(WAIT_S)
    worker.submit(fail)
    go_on.set()
    assert worker.collect(2) == [error, "lengthy"]
    assert worker.thread.stop(WAIT_S)


def test_what_is_queued_is_done_before_the_end() -> None:
    worker, go_on = Worker(), threading.Event()
    worker.submit(lambda: go_on.wait(WAIT_S))
    worker.thread.submit_lengthy(lambda _pause: "lengthy", worker.results.append)
    worker.submit(lambda: "last")
    threading.Timer(0.05, go_on.set).start()
    assert worker.thread.stop(WAIT_S)
    worker.thread.collect()
    assert worker.results == [True, "lengthy", "last"]


def test_a_job_that_takes_too_long_makes_the_thread_stuck_until_it_ends() -> None:
    worker, begun, go_on = Worker(), threading.Event(), threading.Event()
    worker.now = 1000.0
    assert worker.thread.stuck_s() is None, "it has nothing to do"
    worker.submit(lambda: begun.set() or go_on.wait(WAIT_S))
    worker.submit(lambda: worker.thread.stuck_s())
    assert begun.wait(WAIT_S)
    worker.now += 60
    assert worker.thread.stuck_s() is None
    worker.now += 1
    assert worker.thread.stuck_s() == 61.0
    go_on.set()
    assert worker.collect(2) == [True, None], "the time of one job is counted for the next"
    worker.now += 1000
    assert worker.thread.stop(WAIT_S)
    assert worker.thread.stuck_s() is None


def test_a_lengthy_job_advances_whenever_it_pauses() -> None:
    worker, reached, go_on = Worker(), threading.Semaphore(0), threading.Semaphore(0)

    def lengthy(pause: YieldPoint) -> None:
        for _ in range(2):
            reached.release()
            assert go_on.acquire(timeout=WAIT_S)
            pause()
        reached.release()
        assert go_on.acquire(timeout=WAIT_S)

    worker.thread.submit_lengthy(lengthy, worker.results.append)
    for _ in range(3):
        assert reached.acquire(timeout=WAIT_S)
        worker.now += 59
        assert worker.thread.stuck_s() is None
        worker.submit(lambda: None)
        go_on.release()
    assert worker.thread.stop(WAIT_S)


def test_a_lengthy_job_is_stuck_after_its_last_pause_though_others_ran_in_it() -> None:
    worker, reached, go_on = Worker(), threading.Semaphore(0), threading.Semaphore(0)

    def lengthy(pause: YieldPoint) -> None:
        pause()
        reached.release()
        assert go_on.acquire(timeout=WAIT_S)

    worker.thread.submit_lengthy(lengthy, worker.results.append)
    worker.submit(lambda: None)
    assert reached.acquire(timeout=WAIT_S)
    worker.now += 61
    assert worker.thread.stuck_s() == 61.0
    go_on.release()
    assert worker.thread.stop(WAIT_S)


def test_the_log_tells_once_of_each_thread_that_is_stuck(caplog: pytest.LogCaptureFixture) -> None:
    idle, busy, begun, go_on = Worker(), Worker(), threading.Event(), threading.Event()
    watch = ThreadWatch([idle.thread, busy.thread])

    def wait() -> None:
        begun.set()
        assert go_on.wait(WAIT_S)

    busy.submit(wait)
    assert begun.wait(WAIT_S)
    assert watch.stuck() == {}
    busy.now += 75
    assert watch.stuck() == watch.stuck() == {"worker": 75.0}
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (logging.ERROR, "the worker thread has not advanced for 75 s: restart the program if this persists")
    ]
    go_on.set()
    assert busy.thread.stop(WAIT_S)
    assert idle.thread.stop(WAIT_S)
    assert watch.stuck() == {}
