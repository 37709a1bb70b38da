"""How much memory this process can still get, and whether memory is short: inside a container, the machine's free
memory says little."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from umaserve.system import macos

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")

UNKNOWN_BYTES = sys.maxsize
"""Bytes where nothing tells how much is available: everything fits."""
STALLED_PERCENT = 10.0
"""Memory is short from this share of the last 10 s in which a task waited for memory. A tick waits for its slowest
thread, so this time delays all streams. It is below 1% normally, and a single slow page doesn't reach the limit."""
AVAILABLE_SHARE = 0.1
"""Share of memory: with more than this available, the waiting task is another program at a limit of its own, which
freeing our memory wouldn't help."""
PRESSED_LEVEL = 2
"""Level of macOS from which memory is short: 1 is normal, 2 a warning, 4 critical."""
USED_SHARE = 0.95
"""Share of a control group's limit. At the limit, the kernel evicts pages of the mapped model; when none are left, it
kills the process."""


def available_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Bytes available without swapping: the kernel's estimate (proc(5), MemAvailable), or what our control group (v2 or
    v1) and those above it have left, if that is less. On macOS, the share that its kernel calls free.
    ``UNKNOWN_BYTES`` where a sandbox hides all that."""
    left = [max(0, limit - used) for limit, used in _limits(proc, cgroups)]
    of_the_box = counter(_text(proc / "meminfo"), "MemAvailable")
    if of_the_box is not None:
        left.append(of_the_box * 1024)
    percent, there = macos.number("kern.memorystatus_level"), macos.number("hw.memsize")
    if percent is not None and there is not None:
        left.append(there * percent // 100)
    return min(left, default=UNKNOWN_BYTES)


def resident_bytes(children: Iterable[int] = (), proc: Path = PROC) -> int:
    """Resident set size of this process and of these ``children`` in bytes (proc(5), statm). This process's is the
    largest so far where no descriptor is left to read it. Pages that several of them map, such as those of libraries,
    count more than once; a child that has ended has none."""
    try:
        resident = _resident(proc / "self")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        resident = macos.resident_bytes(os.getpid()) or (most if macos.HERE else most * 1024)
    for pid in children:
        try:
            resident += _resident(proc / str(pid))
        except OSError:
            resident += macos.resident_bytes(pid) or 0
    return resident


def _resident(process: Path) -> int:
    return int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def mapped_bytes(pids: Iterable[int], proc: Path = PROC) -> int:
    """Bytes of files that these processes have mapped and the memory holds (proc(5), status). ``available_bytes``
    counts them as available, since the kernel could drop them. Pages that several map count more than once; a process
    that has ended has none."""
    texts = (_text(proc / str(pid) / "status") for pid in pids)
    return sum((counter(text, "RssFile") or 0) * 1024 for text in texts)


def killed_for_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Number of programs that the kernel has killed for their memory so far: on the box, or where a sandbox hides that,
    in our control group. 0 where it hides both."""
    texts = [_text(proc / "vmstat")]
    texts += [_text(group / "memory.events") for group in _groups(proc, cgroups)[:1]]
    texts += [_text(group / "memory.oom_control") for group in _groups_v1(proc, cgroups)[:1]]
    return max(counter(text, "oom_kill") or 0 for text in texts)


class MemoryPressure:
    """Whether the machine or our control group is short of memory; where files are missing, it isn't.

    The files are read at most once per ``READ_S`` seconds of ``clock``.
    """

    READ_S = 1.0

    def __init__(self, clock: Callable[[], float], proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._clock = clock
        self._proc = proc
        self._cgroups = cgroups
        self._read_at: float | None = None
        self.reason = ""
        """Why memory was short at the last call of ``short``, in one line for the log; empty where it wasn't."""

    def short(self) -> bool:
        now = self._clock()
        if self._read_at is None or now - self._read_at >= self.READ_S:
            self._read_at = now
            self.reason = self._of_the_limits() or self._of_the_group() or self._of_the_box() or _of_macos()
        return bool(self.reason)

    def _of_the_limits(self) -> str:
        for limit, used in _limits(self._proc, self._cgroups):
            if used >= limit * USED_SHARE:
                return f"the control group uses {used >> 20} of {limit >> 20} MiB"
        return ""

    def _of_the_group(self) -> str:
        # Not of the groups above it, which count the stalls of other programs too.
        for own in _groups(self._proc, self._cgroups)[:1]:
            percent = stalled_percent(_text(own / "memory.pressure"))
            if percent is not None and percent >= STALLED_PERCENT:
                return f"the control group waited for memory in {percent:g}% of the last 10 s"
        return ""

    def _of_the_box(self) -> str:
        meminfo = _text(self._proc / "meminfo")
        total, available = counter(meminfo, "MemTotal"), counter(meminfo, "MemAvailable")
        percent = stalled_percent(_text(self._proc / "pressure/memory"))
        if percent is None or total is None or available is None:
            return ""
        if percent < STALLED_PERCENT or available > total * AVAILABLE_SHARE:
            return ""
        return f"the machine waited for memory in {percent:g}% of the last 10 s, and has {available >> 10} MiB left"


def _of_macos() -> str:
    level = macos.number("kern.memorystatus_vm_pressure_level")
    return f"the kernel's memory pressure is at level {level}" if level is not None and level >= PRESSED_LEVEL else ""


def stalled_percent(pressure: str) -> float | None:
    """The percentage of the last 10 s in which at least one task waited for memory, from the text of a file as in
    Linux's Documentation/accounting/psi.rst."""
    found = re.search(r"^some avg10=([0-9]{1,3}\.[0-9]{2}) ", pressure, re.MULTILINE)
    return None if found is None else float(found[1])


def counter(text: str, name: str) -> int | None:
    """The number on the line of ``name``, in the unit of the file: KiB in meminfo, bytes in memory.stat."""
    found = re.search(rf"^{re.escape(name)}:?[ \t]+([0-9]{{1,20}})\b", text, re.MULTILINE)
    return None if found is None else int(found[1])


def own_group(memberships: str) -> str | None:
    """The path of the v2 control group in the text of /proc/[pid]/cgroup (cgroups(7)); ``None`` where there is none."""
    found = re.search(r"^0::/(.*)$", memberships, re.MULTILINE)
    return None if found is None else found[1]


def own_group_v1(memberships: str) -> str | None:
    """The path of the control group of v1's memory controller, as ``own_group``."""
    found = re.search(r"^[0-9]+:(?:[^:\n]*,)?memory(?:,[^:\n]*)?:/(.*)$", memberships, re.MULTILINE)
    return None if found is None else found[1]


def _groups(proc: Path, cgroups: Path) -> list[Path]:
    """Our control group (v2) and those above it, up to the visible root."""
    return _up_to(cgroups, own_group(_text(proc / "self/cgroup")))


def _groups_v1(proc: Path, cgroups: Path) -> list[Path]:
    return _up_to(cgroups / "memory", own_group_v1(_text(proc / "self/cgroup")))


def _up_to(root: Path, path: str | None) -> list[Path]:
    if path is None:
        return []
    # Inside a container, the path may be the host's and not exist here; the root always exists.
    own = root / path.lstrip("/")
    return [group for group in (own, *own.parents) if group.is_relative_to(root)]


def _limits(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """(limit, used), in bytes, of each of our control groups that has a limit."""
    for group in _groups(proc, cgroups):
        yield from _limit(group, "memory.max", "memory.current", "inactive_file")
    for group in _groups_v1(proc, cgroups):
        yield from _limit(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _limit(group: Path, limit_file: str, used_file: str, droppable: str) -> Iterator[tuple[int, int]]:
    limit, used = _bytes(group / limit_file), _bytes(group / used_file)
    if limit is not None and used is not None:
        # Page cache that the kernel drops when memory is needed.
        dropped = counter(_text(group / "memory.stat"), droppable) or 0
        yield limit, used - dropped


def _bytes(path: Path) -> int | None:
    """Bytes in a file; ``None`` for "max", and where there is no such file."""
    found = re.fullmatch(r"([0-9]{1,20})\n?", _text(path))
    return None if found is None else int(found[1])


def _text(path: Path) -> str:
    """The file's text; empty where it can't be read, as in a sandbox."""
    try:
        return path.read_text(errors="surrogateescape")  # the name of a group may be any bytes
    except OSError:
        return ""
