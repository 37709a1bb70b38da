"""Threads for blocking calls. A thread has no state of its own: it runs a job and wakes the loop."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import queue
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from umaserve.system import macos

log = logging.getLogger(__name__)

T = TypeVar("T")

Job = Callable[[], Any]
YieldPoint = Callable[[], None]
LengthyJob = Callable[[YieldPoint], Any]
Done = Callable[[Any], None]

MAX_JOB_S = 600.0
"""The default limit of a job's time: longer than any working resolver or disk takes."""

SWITCH_S = 0.0005
"""Seconds for ``sys.setswitchinterval``, after which a thread that waits for Python's lock asks for it. The loop gives
it up in each system call, and each time waits while another thread decodes media, say: with Python's 5 ms a turn took
50 to 80."""

DISK_NICE = 10
"""The niceness of a thread that reads and writes what others computed."""

MEDIA_NICE = 10
"""The niceness of a thread that decodes and lays out clients' media."""

LOADING_NICE = 19
"""The niceness of a thread that loads a model while others run. What it starts inherits it: nothing that a stream will
wait for may be among that, since only root lowers a niceness again."""

PROC = Path("/proc")

_PR_SET_NAME = 15

MAX_HANDOVER_S = 0.001
"""How long the loop waits until an urgent thread has begun, which takes it some 50 us unless the box is busy."""


class JobThread:
    """Runs jobs in order of submission; the pauses of lengthy jobs let other jobs run. ``collect``, on the loop's
    thread, calls back with the results."""

    def __init__(
        self,
        name: str,
        wake: Callable[[], None],
        *,
        nice: int = 0,
        max_s: float = MAX_JOB_S,
        urgent: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``nice``: the thread's niceness, 0 to 19, as in nice(1). ``max_s``: how long a job, or a lengthy one between
        two pauses, may take before the thread counts as stuck. ``urgent``: a job for the idle thread begins before
        ``submit`` returns, and one behind a job that has finished before ``collect`` calls back. Otherwise it begins
        when the loop gives up Python's lock: in a system call, or when ``sys.getswitchinterval`` is over."""
        self.name = name
        self._wake = wake
        self._nice = nice
        self.max_s = max_s
        self._urgent = urgent
        self._begun = threading.Lock()
        """Lock that is released when a job begins."""
        self._clock = clock
        self._advanced_at: float | None = None
        """When the current job began or last paused; ``None`` while there is none."""
        self._jobs: queue.SimpleQueue[tuple[Job, Done] | None] = queue.SimpleQueue()
        """``None`` stands for the next lengthy job or, where there is none, for the end of the thread."""
        self._lengthy: deque[tuple[LengthyJob, Done]] = deque()
        self._results: deque[tuple[Done, Any]] = deque()
        # A daemon thread: a hung decode must not keep the process from exiting.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run ``job`` on the thread; ``done`` gets its result, or the exception it raised."""
        waits = self._urgent and self._advanced_at is None
        if waits:
            self._begun.acquire(blocking=False)
        self._jobs.put((job, done))
        if waits:
            self._begun.acquire(timeout=MAX_HANDOVER_S)

    def submit_lengthy(self, job: Callable[[YieldPoint], T], done: Callable[[T | BaseException], None]) -> None:
        """Submit a long job, as ``submit``: it calls its argument every few milliseconds, and that call runs the jobs
        submitted meanwhile, except lengthy ones."""
        self._lengthy.append((job, done))
        self._jobs.put(None)

    def collect(self) -> None:
        """Call back for the jobs that have finished. A job that finishes during the call wakes the loop again."""
        # The callbacks would keep Python's lock from an urgent thread that is about to begin its next job.
        self._begun.acquire(blocking=False)
        if self._urgent and self._advanced_at is None and not self._jobs.empty():
            self._begun.acquire(timeout=MAX_HANDOVER_S)
        for _ in range(len(self._results)):
            done, result = self._results.popleft()
            done(result)

    def stuck_s(self) -> float | None:
        """Seconds for which the current job has not advanced, where that exceeds ``max_s``; else ``None``."""
        since = self._advanced_at
        if since is None or (seconds := self._clock() - since) <= self.max_s:
            return None
        return seconds

    def stop(self, timeout: float) -> bool:
        """End the thread after the queued jobs; returns whether it ended within ``timeout`` seconds."""
        self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        be_called(self.name)
        if self._nice:
            set_own_niceness(self._nice)
        while (item := self._jobs.get() or self._next_lengthy()) is not None:
            self._do(*item)
            # An idle thread must not keep the last job's sessions and samplers alive.
            del item

    def _next_lengthy(self) -> tuple[Job, Done] | None:
        if not self._lengthy:
            return None
        job, done = self._lengthy.popleft()
        return lambda: job(self._pause), done

    def _pause(self) -> None:
        for _ in range(self._jobs.qsize()):
            item = self._jobs.get()
            if item is None:
                self._jobs.put(None)
            else:
                self._do(*item)
        self._advanced_at = self._clock()

    def _do(self, job: Job, done: Done) -> None:
        self._advanced_at = self._clock()
        if self._begun.locked():
            self._begun.release()
        try:
            result = job()
        except BaseException as error:
            result = error
        self._results.append((done, result))
        # Before the wake-up, on which the next job may be submitted at once.
        self._advanced_at = None
        self._wake()


def be_called(name: str) -> None:
    """Name the calling thread for those who look at the process (top -H); the threads that it starts inherit the name.
    Only its first 15 bytes count. Elsewhere than on Linux it stays as it is."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_NAME, name.encode())


def set_own_niceness(nice: int) -> None:
    """Give the calling thread this niceness; on macOS, where threads have none, a lower class."""
    if macos.HERE:
        macos.lower_this_thread()
    else:
        set_thread_niceness(threading.get_native_id(), nice)


def set_thread_niceness(thread: int, nice: int) -> None:
    """Give a thread, by its native id, this niceness."""
    # On Linux each thread has its own; elsewhere the id could be another process's. Where a sandbox forbids changing
    # it, others wait a bit longer.
    if not macos.HERE:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, nice)


def own_switches() -> int:
    """Voluntary context switches of this process so far (getrusage(2)): how often its threads have waited in the
    kernel."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def switches_of(pid: int, proc: Path = PROC) -> int:
    """Voluntary context switches so far of the threads that another process has now (proc(5), status). Raises
    ``OSError`` where they can't be read."""
    return sum(_switches(task / "status") for task in (proc / str(pid) / "task").iterdir())


def _switches(status: Path) -> int:
    try:
        lines = status.read_text().splitlines()
    except ProcessLookupError:
        return 0  # The thread has ended.
    (count,) = [line.partition(":")[2] for line in lines if line.startswith("voluntary_ctxt_switches")]
    return int(count)


class ThreadWatch:
    """Tells which of ``threads`` are stuck, and logs each once."""

    def __init__(self, threads: Sequence[JobThread]) -> None:
        self._threads = threads
        self._logged: set[str] = set()

    def stuck(self) -> dict[str, float]:
        """Seconds for which each stuck thread has not advanced, by its name."""
        stuck = {thread.name: seconds for thread in self._threads if (seconds := thread.stuck_s()) is not None}
        for name in stuck.keys() - self._logged:
            log.error(
                "the %s thread has not advanced for %d s: restart the program if this persists", name, stuck[name]
            )
        self._logged = set(stuck)
        return stuck
