"""First calls of a child process, and a file for what it reads and writes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import tempfile
import threading
import time
from typing import BinaryIO

from umaserve.system import macos

PARENT_EVERY_S = 0.5
"""How often a child looks for its parent, where the kernel doesn't end it."""
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have this process killed when its parent ends, however that does (prctl(2))."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except AttributeError:
        threading.Thread(target=_watch, args=(os.getppid(),), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    # A child whose parent has ended is given another one.
    while os.getppid() == parent:
        time.sleep(PARENT_EVERY_S)
    os.kill(os.getpid(), signal.SIGKILL)


def prefer_oom_kill() -> None:
    """Have the kernel kill this process and not its parent where memory is short. Sandboxes may lack the file."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def memory_can_be_limited() -> bool:
    """Whether the kernel takes a limit of this process's address space. macOS's refuses one below what is mapped, and
    maps hundreds of gigabytes."""
    return not macos.HERE


def nameless_file(name: str) -> BinaryIO:
    """An empty file that only those see who have its descriptor: in memory, or in the folder for temporary files where
    the kernel has none there. ``name`` is for those who look for what takes memory."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create(name), "w+b")
    return tempfile.TemporaryFile(prefix=name)
