"""How many cores this process may really use: inside a container, the machine's core count says little."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from umaserve.system import macos

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")

_MODEL_KEYS = ("model name", "CPU implementer", "CPU variant", "CPU part")
"""The first is x86's, the others ARM's."""


def usable_cores(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Cores this process may be scheduled on, or its CPU quota in whole cores if that is less; at least 1.

    The quota is the smallest among the control groups (v2, v1 or both) from the process's own up to the root.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _fast_cores()
    # Rounded down: with one thread more than the quota allows, all are throttled for a part of every period.
    return max(1, min([allowed, *(quota // period for quota, period in _quotas(proc, cgroups))]))


def _fast_cores() -> int:
    """Number of cores where there is no affinity: those that macOS has for what is urgent, or all. A tick waits for the
    slowest."""
    return macos.number("hw.perflevel0.physicalcpu") or os.cpu_count() or 1


def _quotas(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """(quota, period), in the same unit, of each of the process's control groups that has a quota."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            root, files = cgroups, ["cpu.max"]
        elif "cpu" in controllers.split(","):
            root, files = cgroups / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        own = root / group.lstrip("/")
        # Inside a container, the path may be the host's and not exist here; the root always exists.
        for directory in (own, *own.parents):
            match " ".join(_text(directory / name) for name in files).split():
                case [quota, period] if quota.isdigit():  # no limit reads "max" in v2 and "-1" in v1
                    yield int(quota), int(period)
            if directory == root:
                break


def processor(proc: Path = PROC) -> str:
    """Model of the processor, as the kernel says (proc(5), cpuinfo), in one line; empty where it can't be read."""
    found: dict[str, str] = {}
    for line in _text(proc / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in _MODEL_KEYS:
            found.setdefault(key.strip(), value.strip())
    return ", ".join(found.values()) or macos.text("machdep.cpu.brand_string")


def instructions(proc: Path = PROC) -> frozenset[str]:
    """The names by which the kernel calls the processor's sets of instructions (proc(5), cpuinfo); none where it can't
    be read."""
    for line in _text(proc / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _text(path: Path) -> str:
    """The file's text; empty where it can't be read, which means no limit."""
    try:
        return path.read_text()
    except OSError:
        return ""


class CoreUse(NamedTuple):
    """The machine's cores that were idle, and those used by other programs, averaged over time: 0.5 is one core for
    half the time."""

    idle: float
    others: float


class CoreCounter:
    """Counts how the machine's cores were used over the last ``WINDOW_S`` or more, by the kernel's counters (proc(5)).

    ``children`` names the processes that compute for this one, and so are no other programs. All others are, also those
    that this one started: they take cores away from its computing.
    """

    WINDOW_S = 0.25

    def __init__(
        self, clock: Callable[[], float], proc: Path = PROC, children: Callable[[], Iterable[int]] = tuple
    ) -> None:
        self._clock = clock
        self._proc = proc
        self._children = children
        self._read_at, self._counted = clock(), self._count()
        self._use: CoreUse | None = None

    def __call__(self) -> CoreUse | None:
        """Use of the cores; ``None`` where the kernel's counters can't be read, and until the first ``WINDOW_S`` have
        passed."""
        now = self._clock()
        window_s = now - self._read_at
        if window_s >= self.WINDOW_S:
            counted, before = self._count(), self._counted
            if counted is None or before is None:
                self._use = None
            else:
                own_s = sum(own_s - before.own_s.get(pid, 0.0) for pid, own_s in counted.own_s.items())
                others_s = max(0.0, counted.busy_s - before.busy_s - own_s)
                self._use = CoreUse((counted.idle_s - before.idle_s) / window_s, others_s / window_s)
            self._read_at, self._counted = now, counted
        return self._use

    def _count(self) -> _Counted | None:
        try:
            fields = (self._proc / "stat").read_text().partition("\n")[0].split()
        except OSError:
            return None
        # "cpu", user, nice, system, idle, iowait, irq, softirq, steal; iowait counts as idle. The guest times that
        # follow are already included in user.
        ticks = [int(field) for field in fields[1:9]]
        idle = ticks[3] + ticks[4]
        hertz = os.sysconf("SC_CLK_TCK")
        own_s = {os.getpid(): time.process_time()}
        for pid in self._children():
            # What a child did in the window in which it ended is counted as others'.
            with contextlib.suppress(OSError):
                own_s[pid] = child_ticks((self._proc / str(pid) / "stat").read_bytes()) / hertz
        return _Counted(idle / hertz, (sum(ticks) - idle) / hertz, own_s)


class _Counted(NamedTuple):
    """Core seconds: idle, busy, and busy with each process of ours, by its id."""

    idle_s: float
    busy_s: float
    own_s: Mapping[int, float]


def child_ticks(stat: bytes) -> int:
    """The clock ticks of all threads of a process, in user mode and in the kernel, from the text of its stat. Its
    second field is the program's name, which may contain anything."""
    fields = stat.rpartition(b")")[2].split()
    return int(fields[11]) + int(fields[12])
