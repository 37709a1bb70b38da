"""Available memory and the want of it, the box's or the control groups', read from made-up files."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.system.memory import (
    MemoryPressure,
    available_bytes,
    counter,
    killed_for_memory,
    mapped_bytes,
    own_group,
    stalled_percent,
)

MIB = 2**20
MEMINFO = "MemTotal:       16000000 kB\nMemFree:          100000 kB\nMemAvailable:    1024000 kB\nBuffers: 1 kB\n"
OF_THE_BOX = 1024000 * 1024


def stalls(percent: float) -> str:
    return (
        f"some avg10={percent:.2f} avg60=90.00 avg300=90.00 total=5\n"
        "full avg10=90.00 avg60=90.00 avg300=90.00 total=5\n"
    )


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

    def group_v1(self, path: str, limit: int, used: int, stat: str = "") -> None:
        group = self.cgroups / "memory" / path
        group.mkdir(parents=True, exist_ok=True)
        (group / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (group / "memory.usage_in_bytes").write_text(f"{used}\n")
        (group / "memory.stat").write_text(stat)

    def stall(self, percent: float, path: str | None = None) -> None:
        """The share of time in which tasks of the box, or of a group, waited for memory."""
        where = self.proc / "pressure/memory" if path is None else self.cgroups / path / "memory.pressure"
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(stalls(percent))

    def leave(self, kib: int) -> None:
        (self.proc / "meminfo").write_text(f"MemTotal:  10000 kB\nMemFree:  1 kB\nMemAvailable:  {kib} kB\n")

    @property
    def reason(self) -> str:
        pressure = MemoryPressure(lambda: 0.0, self.proc, self.cgroups)
        assert pressure.short() is bool(pressure.reason)
        return pressure.reason

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


@pytest.mark.parametrize("tight", ["", "a", "a/b"])
@pytest.mark.parametrize("joined", ["4:memory:/a/b", "12:cpu,memory,pids:/a/b", "4:memory:/hosts/name/of/it"])
def test_groups_of_version_1_have_their_limits_too(box: Box, tight: str, joined: str) -> None:
    box.join(f"1:name=systemd:/else\n{joined}\n0::/\n")
    for path in ("", "a", "a/b"):
        limit = (100 if path == tight else 2**33) * MIB
        box.group_v1(path, limit, 60 * MIB, f"inactive_file 7\ntotal_inactive_file {20 * MIB}\n")
    box.group("a/b", "10", "5")
    seen = "hosts" not in joined or not tight
    assert box.available == (60 * MIB if seen else OF_THE_BOX)
    assert box.reason == ""
    box.group_v1(tight, 100 * MIB, 96 * MIB)
    assert box.reason == ("the control group uses 96 of 100 MiB" if seen else "")


def test_both_versions_count_where_there_are_both(box: Box) -> None:
    box.group("a", "10", "5")
    box.group_v1("b", 9, 5)
    box.join("4:memory:/b\n0::/a\n")
    assert box.available == 4
    box.join("4:memory:/none\n0::/a\n")
    assert box.available == 5


def test_kills_in_a_group_of_either_version_are_counted(box: Box) -> None:
    box.join("4:memory:/b\n0::/a\n")
    assert killed_for_memory(box.proc, box.cgroups) == 0
    box.group("a", "10", "5")
    (box.cgroups / "a/memory.events").write_text("oom 5\noom_kill 2\n")
    assert killed_for_memory(box.proc, box.cgroups) == 2
    box.group_v1("b", 9, 5)
    (box.cgroups / "memory/b/memory.oom_control").write_text("oom_kill_disable 9\nunder_oom 9\noom_kill 3\n")
    assert killed_for_memory(box.proc, box.cgroups) == 3


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


def test_mapped_files_are_told_of_each_process_that_runs(box: Box) -> None:
    for pid, kib in ((7, 300), (8, 4)):
        (box.proc / str(pid)).mkdir()
        (box.proc / str(pid) / "status").write_text(f"VmRSS:\t 9000 kB\nRssAnon:\t 80 kB\nRssFile:\t {kib} kB\n")
    (box.proc / "9").mkdir()
    (box.proc / "9/status").write_text("Name:\tzombie\n")
    assert mapped_bytes([7, 8, 9, 10], box.proc) == 304 << 10


def test_a_file_that_this_process_maps_counts(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(64 * MIB))
    before = mapped_bytes([os.getpid()])
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert max(mapped[:: mmap.PAGESIZE]) == 0
        assert mapped_bytes([os.getpid()]) - before > 60 * MIB


def test_this_box_has_some() -> None:
    assert available_bytes() > 0
    pressure = MemoryPressure(lambda: 0.0)
    assert pressure.short() is bool(pressure.reason)


# Whether memory is short now.


def test_a_box_with_plenty_and_one_that_tells_nothing_are_not_short(box: Box, tmp_path: Path) -> None:
    box.stall(0)
    assert box.reason == ""
    nothing = MemoryPressure(lambda: 0.0, tmp_path / "none", tmp_path / "none")
    assert not nothing.short()


@pytest.mark.parametrize(
    ("percent", "left", "reason"),
    [
        (9.99, 0, ""),
        (10, 1000, "the machine waited for memory in 10% of the last 10 s, and has 0 MiB left"),
        (100, 999, "the machine waited for memory in 100% of the last 10 s, and has 0 MiB left"),
        (100, 1001, ""),
    ],
)
def test_stalls_of_the_box_count_while_little_is_left(box: Box, percent: float, left: int, reason: str) -> None:
    box.leave(left)
    box.stall(percent)
    assert box.reason == reason


@pytest.mark.parametrize("missing", ["meminfo", "pressure/memory"])
def test_a_box_that_tells_only_half_is_not_short(box: Box, missing: str) -> None:
    box.leave(1)
    box.stall(50)
    (box.proc / missing).unlink()
    assert box.reason == ""


@pytest.mark.parametrize(
    ("stalled", "percent", "reason"),
    [
        ("a/b", 12.34, "the control group waited for memory in 12.34% of the last 10 s"),
        ("a/b", 9.99, ""),
        ("a", 100, ""),
        ("", 100, ""),
        ("another", 100, ""),
    ],
)
def test_stalls_of_our_own_group_count_and_none_of_others(box: Box, stalled: str, percent: float, reason: str) -> None:
    box.join("0::/a/b\n")
    box.stall(percent, stalled)
    assert box.reason == reason


@pytest.mark.parametrize("path", ["", "a", "a/b"])
@pytest.mark.parametrize(
    ("used", "cache", "reason"),
    [
        (95 * MIB, 0, "the control group uses 95 of 100 MiB"),
        (101 * MIB, MIB, "the control group uses 100 of 100 MiB"),
        (95 * MIB, 1, ""),
        (100 * MIB, 50 * MIB, ""),
    ],
)
def test_a_group_near_its_limit_is_short(box: Box, path: str, used: int, cache: int, reason: str) -> None:
    box.join("0::/a/b\n")
    box.group(path, str(100 * MIB), str(used), f"inactive_file {cache}\n")
    assert box.reason == reason


def test_a_group_without_a_limit_is_not_short(box: Box) -> None:
    box.group("", "max", str(10**15))
    assert box.reason == ""


def test_it_looks_once_a_second_and_forgets_the_reason_when_it_is_over(box: Box) -> None:
    now = 5.0
    pressure = MemoryPressure(lambda: now, box.proc, box.cgroups)
    box.leave(1)
    assert not pressure.short()
    box.stall(50)
    now = 5.99
    assert not pressure.short()
    now = 6.0
    assert pressure.short()
    assert pressure.reason
    box.stall(0)
    assert pressure.short()
    now = 7.0
    assert not pressure.short()
    assert pressure.reason == ""


@pytest.mark.parametrize(
    ("pressure", "percent"),
    [
        (stalls(0), 0.0),
        (stalls(12.5), 12.5),
        (stalls(100), 100.0),
        ("full avg10=5.00 avg60=0.00 avg300=0.00 total=0\n", None),
        ("some avg60=5.00 \n", None),
        ("some avg10=nan avg60=0.00\n", None),
        ("some avg10=-5.00 avg60=0.00\n", None),
        ("awesome avg10=5.00 avg60=0.00\n", None),
        ("some avg10=5.00", None),
        ("", None),
    ],
)
def test_stalled_percent(pressure: str, percent: float | None) -> None:
    assert stalled_percent(pressure) == percent


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("file 1\ninactive_file 7\n", 7),
        ("inactive_file:      7 kB\n", 7),
        ("inactive_file 18446744073709551615", 2**64 - 1),
        ("inactive_file " + "9" * 5000, None),
        ("workingset_inactive_file 7\ninactive_files 7\ninactive_file", None),
        ("inactive_file \n7\n", None),
        ("inactive_file -7\n", None),
        ("inactive_file \u0667\n", None),
    ],
)
def test_counter(text: str, number: int | None) -> None:
    assert counter(text, "inactive_file") == number


@pytest.mark.parametrize(
    ("memberships", "group"),
    [
        ("0::/\n", ""),
        ("4:memory:/v1\n0::/a/b\n", "a/b"),
        ("0::/with:colon\x0band\udcffmore\n1:name=systemd:/\n", "with:colon\x0band\udcffmore"),
        ("10::/a\n", None),
        ("0::\n", None),
        ("", None),
    ],
)
def test_own_group(memberships: str, group: str | None) -> None:
    assert own_group(memberships) == group


def test_a_group_may_be_named_by_any_bytes(box: Box) -> None:
    box.group("\udcff\x1c", str(9 * MIB), str(5 * MIB))
    (box.proc / "self/cgroup").write_bytes(b"0::/\xff\x1c\n")
    assert box.available == 4 * MIB


LINES = st.sampled_from(["some avg10=", "MemTotal: ", "MemTotal ", "0::/", "\n", " ", "5", "0.00", "99.00 "])


@given(st.text() | st.lists(LINES | st.text(max_size=3), max_size=12).map("".join))
def test_any_text_has_a_number_or_none(text: str) -> None:
    percent, total, group = stalled_percent(text), counter(text, "MemTotal"), own_group(text)
    assert percent is None or 0 <= percent < 1000
    assert total is None or 0 <= total < 10**20
    assert group is None or ("\n" not in group and f"0::/{group}" in text)
