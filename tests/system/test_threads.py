"""The threads for calls that block: their order, pauses in lengthy jobs, and their end."""

from __future__ import annotations

import threading
from collections.abc import Callable

from umaserve.system.threads import JobThread, YieldPoint

WAIT_S = 10


class Worker:
    """A thread whose results are collected as they come."""

    def __init__(self) -> None:
        self.woken = threading.Semaphore(0)
        self.results: list[object] = []
        self.thread = JobThread("worker", self.woken.release)

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
