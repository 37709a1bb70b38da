"""How many cores this process may really use: a box's core count says little inside a container."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def usable_cores(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Cores this process may be scheduled on, or its CPU quota in whole cores if that is less; at least 1.

    The quota is the smallest of the control groups (v2, v1 or both) from the process's own up to the root.
    """
    allowed = len(os.sched_getaffinity(0))
    # Rounded down: with one thread more than the quota pays for, all are stopped for a part of every period.
    return max(1, min([allowed, *(quota // period for quota, period in _quotas(proc, cgroups))]))


def _quotas(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """The quota and its period, in the same unit, of each of the process's control groups that has one."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            root, files = cgroups, ["cpu.max"]
        elif "cpu" in controllers.split(","):
            root, files = cgroups / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        own = root / group.lstrip("/")
        # Inside a container the group may be named as the host sees it and be missing here; the root is not.
        for directory in (own, *own.parents):
            match " ".join(_text(directory / name) for name in files).split():
                case [quota, period] if quota.isdigit():  # no limit reads "max" in v2 and "-1" in v1
                    yield int(quota), int(period)
            if directory == root:
                break


def _text(path: Path) -> str:
    """What the file says; nothing where it is missing or shut, since no limit can be read from it then."""
    try:
        return path.read_text()
    except OSError:
        return ""


class IdleCores:
    """How many of the box's cores did nothing, over the last ``WINDOW_S`` or more, by the kernel's count (proc(5))."""

    WINDOW_S = 0.25

    def __init__(self, clock: Callable[[], float], proc: Path = PROC) -> None:
        self._clock = clock
        self._proc = proc
        self._read_at, self._idle_s = clock(), self._total_idle_s()
        self._cores: float | None = None

    def __call__(self) -> float | None:
        """``None`` where the kernel does not say, or has not for long enough."""
        now = self._clock()
        if now - self._read_at >= self.WINDOW_S:
            idle_s, before_s = self._total_idle_s(), self._idle_s
            if idle_s is None or before_s is None:
                self._cores = None
            else:
                self._cores = (idle_s - before_s) / (now - self._read_at)
            self._read_at, self._idle_s = now, idle_s
        return self._cores

    def _total_idle_s(self) -> float | None:
        try:
            fields = (self._proc / "stat").read_text().partition("\n")[0].split()
        except OSError:
            return None
        # "cpu", user, nice, system, idle, iowait: who waits for a disk is idle too.
        return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
