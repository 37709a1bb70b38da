"""How many cores this process may really use: a box's core count says little inside a container."""

from __future__ import annotations

import os
from collections.abc import Iterator
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
