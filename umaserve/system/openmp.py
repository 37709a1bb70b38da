"""GCC's OpenMP (libgomp), with which llama.cpp computes: whether threads that wait at a barrier spin or sleep.

A waiting thread looks 300,000 times whether it may go on, for 3 to 15 ms, before it sleeps; only 100 times where the
process has more threads in libgomp's pools than there are cores (libgomp's manual, GOMP_SPINCOUNT). Both numbers are
read once, so a pool of idle threads is the only way to have the barriers of a running process sleep.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

from umaserve.system.threads import be_called

PROC = Path("/proc")

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""Variables of the environment by which an operator says how threads wait."""
MAX_IDLE = 16
"""Most threads of an idle pool. With many more cores than compute threads, the kernel finds another core for one whose
core is taken."""
IDLE_POOL = "idle pool"
"""Name of the idle threads, for the kernel too."""


class Barriers:
    """The barriers of this process's compute threads. They spin until ``sleep`` is called."""

    def __init__(self, threads: int, proc: Path = PROC) -> None:
        """``threads``: those that compute."""
        self._library = None if any(name in os.environ for name in VARIABLES) else _libgomp(proc)
        cores = 0 if self._library is None else self._library.omp_get_num_procs()
        self._idle = max(2, cores - threads + 2)
        """Threads of an idle pool, of which the one that keeps it is one: with them there are more than cores."""
        self.may_sleep = self._library is not None and threads > 1 and self._idle <= MAX_IDLE
        """Whether ``sleep`` has any effect: not where one thread computes, nor without libgomp, nor where that takes
        too many threads, nor where the operator has set one of ``VARIABLES``."""
        self._ends: threading.Event | None = None
        """Ends the idle pool, while there is one."""

    def sleep(self, wanted: bool) -> None:
        """Have threads sleep at barriers, or spin again; also in a decode that is under way. Raises ``RuntimeError``
        where no thread can be had."""
        if not wanted and self._ends is not None:
            self._ends.set()
            self._ends = None
        elif wanted and self._ends is None and self.may_sleep:
            ends = threading.Event()
            threading.Thread(target=self._keep_idle_pool, name=IDLE_POOL, args=(ends,), daemon=True).start()
            self._ends = ends

    def _keep_idle_pool(self, ends: threading.Event) -> None:
        """Keep more threads than there are cores in libgomp's pools, which count together, until ``ends`` is set: the
        pool of a thread ends with it."""
        assert self._library is not None
        be_called(IDLE_POOL)
        # A function of C, so that Python need not know these threads. With NULL it does nothing.
        self._library.GOMP_parallel(ctypes.CDLL(None).free, None, self._idle, 0)
        ends.wait()


def _libgomp(proc: Path) -> ctypes.CDLL | None:
    """The libgomp that is loaded, which wheels may have brought under a name of their own; ``None``: none is (proc(5),
    maps)."""
    try:
        lines = (proc / "self" / "maps").read_text().splitlines()
    except OSError:
        return None
    paths = [line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line]
    path = next((path for path in paths if Path(path).name.startswith("libgomp")), None)
    return None if path is None else ctypes.CDLL(path)
