"""How much memory this process can still get: a box's free memory says little inside a container."""

from __future__ import annotations

import sys
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def available_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Bytes that can be had without swapping: the kernel's estimate (proc(5), MemAvailable), or what the control group
    (v2) and those above it leave, if that is less. Where a sandbox hides both, as much as there can be."""
    return min([*_of_the_box(proc), *_of_the_groups(proc, cgroups)], default=sys.maxsize)


def _of_the_box(proc: Path) -> list[int]:
    lines = _lines(proc / "meminfo")
    return [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]


def _of_the_groups(proc: Path, cgroups: Path) -> list[int]:
    left: list[int] = []
    for line in _lines(proc / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers:
            continue  # v1, whose limits are elsewhere
        group = cgroups / path.lstrip("/")
        while True:
            limit = _number(group / "memory.max")
            current = _number(group / "memory.current")
            if limit is not None and current is not None:
                left.append(max(0, limit - current + _cache(group / "memory.stat")))
            if group == cgroups or group == group.parent:
                break
            group = group.parent
    return left


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _cache(stat: Path) -> int:
    """Page cache that the kernel drops when memory is wanted."""
    return sum(int(line.split()[1]) for line in _lines(stat) if line.startswith("inactive_file "))


def _lines(path: Path) -> list[str]:
    """None where there is no such file: the box, or a sandbox, doesn't tell."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
