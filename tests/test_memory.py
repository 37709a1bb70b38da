"""Available memory: the box's, or what the tightest control group leaves, read from made-up files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from umaserve.memory import available_bytes

MIB = 2**20
MEMINFO = "MemTotal:       16000000 kB\nMemFree:          100000 kB\nMemAvailable:    1024000 kB\nBuffers: 1 kB\n"
OF_THE_BOX = 1024000 * 1024


class Box:
    """Its /proc and its control groups."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroups.mkdir()
        (self.proc / "meminfo").write_text(MEMINFO)
        self.join("0::/\n")

    def join(self, lines: str) -> None:
        (self.proc / "self/cgroup").write_text(lines)

    def group(self, path: str, limit: str, current: str, stat: str = "") -> None:
        group = self.cgroups / path
        group.mkdir(parents=True, exist_ok=True)
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{current}\n")
        (group / "memory.stat").write_text(stat)

    @property
    def available(self) -> int:
        return available_bytes(self.proc, self.cgroups)


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def test_without_groups_it_is_the_kernels_estimate(box: Box) -> None:
    assert box.available == OF_THE_BOX


@pytest.mark.parametrize(
    ("limit", "current", "stat", "expected"),
    [
        ("max", 5 * MIB, "", OF_THE_BOX),
        (100 * MIB, 30 * MIB, "", 70 * MIB),
        (100 * MIB, 30 * MIB, f"anon 1\ninactive_file {20 * MIB}\nactive_file 5\n", 90 * MIB),
        (100 * MIB, 100 * MIB, "", 0),
        (100 * MIB, 101 * MIB, "", 0),
        (10**12, 0, "", OF_THE_BOX),
    ],
)
def test_a_group_leaves_its_limit_less_what_is_used_and_cannot_be_dropped(
    box: Box, limit: int | str, current: int, stat: str, expected: int
) -> None:
    box.join("0::/system.slice/one.service\n")
    box.group("system.slice/one.service", str(limit), str(current), stat)
    assert box.available == expected


@pytest.mark.parametrize("tight", ["", "a", "a/b", "a/b/c"])
def test_the_tightest_of_the_groups_above_counts(box: Box, tight: str) -> None:
    box.join("0::/a/b/c\n")
    for path in ("", "a", "a/b", "a/b/c"):
        box.group(path, str((50 if path == tight else 500) * MIB), str(10 * MIB))
    box.group("another", "1", "1")
    assert box.available == 40 * MIB


@pytest.mark.parametrize("missing", ["memory.max", "memory.current"])
def test_a_group_without_the_memory_controller_limits_nothing(box: Box, missing: str) -> None:
    box.join("0::/a\n")
    box.group("a", "10", "5")
    (box.cgroups / "a" / missing).unlink()
    assert box.available == OF_THE_BOX


def test_the_cache_of_a_group_that_does_not_tell_it_is_not_counted_on(box: Box) -> None:
    box.join("0::/a\n")
    box.group("a", str(9 * MIB), str(5 * MIB))
    (box.cgroups / "a/memory.stat").unlink()
    assert box.available == 4 * MIB


@pytest.mark.parametrize("path", ["/gone", "/../outside", "/with:colon"])
def test_a_group_that_cannot_be_seen_limits_nothing(box: Box, path: str) -> None:
    box.join(f"0::{path}\n")
    assert box.available == OF_THE_BOX


def test_groups_of_version_1_are_passed_over(box: Box) -> None:
    box.group("a", "10", "5")
    box.join("4:memory:/a\n1:name=systemd:/a\n")
    assert box.available == OF_THE_BOX
    box.join("4:memory:/b\n0::/a\n")
    assert box.available == 5


def test_a_colon_may_be_part_of_a_groups_name(box: Box) -> None:
    box.group("a:b", "10", "5")
    box.join("0::/a:b\n")
    assert box.available == 5


def test_a_box_that_hides_its_memory_is_taken_for_a_large_one(box: Box) -> None:
    box.join("0::/a\n")
    box.group("a", str(9 * MIB), str(5 * MIB))
    (box.proc / "meminfo").write_text("MemTotal: 5 kB\n")
    assert box.available == 4 * MIB
    (box.proc / "meminfo").unlink()
    assert box.available == 4 * MIB
    (box.proc / "self/cgroup").unlink()
    assert box.available == sys.maxsize


def test_this_box_has_some() -> None:
    assert available_bytes() > 0
