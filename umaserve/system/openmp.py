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
IDLE_POOL = "idle pool"
"""Name of the idle threads, for the kernel too."""


class Barriers:
    """The barriers of this process's compute threads. They spin until ``sleep`` is called."""

    def __init__(self, threads: int, proc: Path = PROC) -> None:
        """``threads``: those that compute."""
        path = None if any(name in os.environ for name in VARIABLES) else _libgomp(proc)
        self._library = None if path is None or threads < 2 else ctypes.CDLL(path)
        self._threads = threads
        self._ends: threading.Event | None = None
        """Ends the idle pool, while there is one."""

    @property
    def may_sleep(self) -> bool:
        """Whether ``sleep`` has any effect: not where one thread computes, nor without libgomp, nor where the operator
        has set one of ``VARIABLES``."""
        return self._library is not None

    def sleep(self, wanted: bool) -> None:
        """Have threads sleep at barriers, or spin again; also in a decode that is under way."""
        if not wanted and self._ends is not None:
            self._ends.set()
            self._ends = None
        elif wanted and self._ends is None and self._library is not None:
            self._ends = threading.Event()
            arguments = self._library, self._ends
            threading.Thread(target=self._keep_idle_pool, name=IDLE_POOL, args=arguments, daemon=True).start()

    def _keep_idle_pool(self, library: ctypes.CDLL, ends: threading.Event) -> None:
        """Keep more threads than there are cores in libgomp's pools, which count together, until ``ends`` is set: the
        pool of a thread ends with it."""
        be_called(IDLE_POOL)
        # A function of C, so that Python need not know these threads. With NULL it does nothing.
        nothing = ctypes.CDLL(None).free
        idle = max(2, library.omp_get_num_procs() - self._threads + 2)
        library.GOMP_parallel(nothing, None, idle, 0)
        ends.wait()


def _libgomp(proc: Path) -> str | None:
    """The path of the libgomp that is loaded, which wheels may have brought under a name of their own; ``None``: none
    is (proc(5), maps)."""
    try:
        lines = (proc / "self" / "maps").read_text().splitlines()
    except OSError:
        return None
    paths = [line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line]
    return next((path for path in paths if Path(path).name.startswith("libgomp")), None)
