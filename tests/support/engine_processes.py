"""The processes that compute for a daemon."""

from __future__ import annotations

import contextlib
from pathlib import Path

from daemon import Daemon


def engines(daemon: Daemon) -> list[int]:
    """Their ids, the oldest first."""
    children = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split()
    found = []
    for pid in children:
        # One may end meanwhile.
        with contextlib.suppress(OSError):
            if b"umaserve.engine" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


def engine_of(daemon: Daemon, file: str = "") -> int:
    """The id of the process that has the model's file mapped; of the only one."""
    (pid,) = [pid for pid in engines(daemon) if file in Path(f"/proc/{pid}/maps").read_text()]
    return pid
