"""The cores a process may use, read from made-up /proc and /sys/fs/cgroup trees."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from umaserve.system.cores import CoreCounter, child_ticks, processor, usable_cores


class Box:
    """A root with the two trees, and as many cores as the test asks for."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.monkeypatch = root, monkeypatch

    def cores(self, allowed: int) -> int:
        self.monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)))
        return usable_cores(self.root / "proc", self.root / "cgroup")

    def in_groups(self, *lines: str) -> None:
        self.write("proc/self/cgroup", "\n".join(lines))

    def quota_v2(self, group: str, quota: str) -> None:
        self.write(f"cgroup/{group}/cpu.max", quota)

    def quota_v1(self, group: str, quota: int, period: int) -> None:
        self.write(f"cgroup/cpu/{group}/cpu.cfs_quota_us", str(quota))
        self.write(f"cgroup/cpu/{group}/cpu.cfs_period_us", str(period))

    def write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    return Box(tmp_path, monkeypatch)


def test_affinity_alone_decides_where_there_is_no_control_group(box: Box) -> None:
    assert box.cores(6) == 6


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 8),
        ("400000 100000", 4),
        ("399999 100000", 3),  # rounded down
        ("50000 100000", 1),  # never below one
        ("1600000 100000", 8),  # the affinity is the smaller
        ("100000 50000", 2),  # the period counts
    ],
)
def test_v2_quota(box: Box, quota: str, cores: int) -> None:
    box.in_groups("0::/daemon")
    box.quota_v2("daemon", quota)
    assert box.cores(8) == cores


@pytest.mark.parametrize(("tightest", "cores"), [("a", 2), ("a/b", 2), ("", 2)])
def test_v2_takes_the_smallest_quota_on_the_way_to_the_root(box: Box, tightest: str, cores: int) -> None:
    box.in_groups("0::/a/b")
    for group in ("", "a", "a/b"):
        box.quota_v2(group, "200000 100000" if group == tightest else "500000 100000")
    assert box.cores(8) == cores


def test_other_groups_and_what_lies_above_the_root_do_not_count(box: Box) -> None:
    box.in_groups("0::/a")
    box.quota_v2("other", "100000 100000")
    box.write("cpu.max", "100000 100000")
    assert box.cores(8) == 8


@pytest.mark.parametrize("group", ["/host/name/of/the/container", "/../outside"])
def test_a_group_that_is_not_visible_here_falls_back_to_the_root(box: Box, group: str) -> None:
    box.in_groups(f"0::{group}")
    box.quota_v2("", "300000 100000")
    assert box.cores(8) == 3


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
@pytest.mark.parametrize(("quota", "cores"), [(-1, 8), (250000, 2), (20000, 1), (900000, 8)])
def test_v1_quota(box: Box, controllers: str, quota: int, cores: int) -> None:
    box.in_groups("9:memory:/x", f"4:{controllers}:/daemon", "1:name=systemd:/y")
    box.quota_v1("daemon", quota, 100000)
    assert box.cores(8) == cores


def test_v1_takes_the_smallest_quota_on_the_way_to_the_root(box: Box) -> None:
    box.in_groups("4:cpu:/a/b")
    box.quota_v1("a/b", 400000, 100000)
    box.quota_v1("a", 300000, 100000)
    box.quota_v1("", -1, 100000)
    assert box.cores(8) == 3


def test_controllers_that_only_begin_like_cpu_do_not_count(box: Box) -> None:
    box.in_groups("3:cpuset:/a", "2:cpuacct:/a")
    box.quota_v1("a", 100000, 100000)
    assert box.cores(8) == 8


def test_v1_and_v2_side_by_side(box: Box) -> None:
    box.in_groups("4:cpu:/a", "0::/a")
    box.quota_v1("a", 300000, 100000)
    box.quota_v2("a", "500000 100000")
    assert box.cores(8) == 3


def test_a_group_named_with_a_colon(box: Box) -> None:
    box.in_groups("0::/unit:1")
    box.quota_v2("unit:1", "200000 100000")
    assert box.cores(8) == 2


def test_this_process_has_a_core() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


class Kernel:
    """It counts in hundredths of a second; a clock, and what this process took."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stat = root / "stat"
        self.now = self.own = 0.0
        self.count(0)
        monkeypatch.setattr(os, "sysconf", lambda name: 100)
        monkeypatch.setattr(time, "process_time", lambda: self.own)

    def count(self, idle: int, waiting: int = 0, user: int = 0, stolen: int = 0) -> None:
        self.stat.write_text(f"cpu  {user} 9 9 {idle} {waiting} 0 0 {stolen} 7 7\ncpu0 9 9 9 9 9 0 0 0 0 0\n")

    def child(self, pid: int, user: int, system: int) -> None:
        (self.stat.parent / str(pid)).mkdir(exist_ok=True)
        zeros = " 0" * 9
        (self.stat.parent / f"{pid}/stat").write_text(f"{pid} (a) 1 (b) S 1{zeros} {user} {system} 99 99{zeros}\n")


def test_cores_are_counted_over_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(tmp_path, monkeypatch)
    use = CoreCounter(lambda: kernel.now, tmp_path)
    assert use() is None, "nothing was counted yet"
    kernel.now, kernel.own, _ = 1.0, 0.25, kernel.count(100, 50, user=25, stolen=25)
    assert use() == (1.5, 0.25)
    kernel.now, _ = 1.1, kernel.count(300)
    assert use() == (1.5, 0.25), "the window is too short to say anything else"
    kernel.now, _ = 2.0, kernel.count(100, 50, user=75, stolen=25)
    assert use() == pytest.approx((0.0, 0.5))


def test_a_process_that_counts_finer_than_the_kernel_has_no_negative_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(tmp_path, monkeypatch)
    use = CoreCounter(lambda: kernel.now, tmp_path)
    kernel.now, kernel.own = 1.0, 0.009
    assert use() == (0.0, 0.0)


def test_children_that_compute_for_this_process_are_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(tmp_path, monkeypatch)
    children = [10, 11]
    kernel.child(10, 500, 100)
    use = CoreCounter(lambda: kernel.now, tmp_path, lambda: children)
    kernel.now, kernel.own, _ = 1.0, 0.25, kernel.count(0, user=200)
    kernel.child(10, 550, 125)
    assert use() == pytest.approx((0.0, 1.0)), "the second child has not begun"
    kernel.now, kernel.own, _ = 2.0, 0.5, kernel.count(0, user=400)
    kernel.child(11, 75, 25)
    kernel.child(10, 550, 150)
    assert use() == pytest.approx((0.0, 0.5))
    kernel.now, _ = 3.0, kernel.count(0, user=600)
    children.remove(10)
    kernel.child(11, 150, 50)
    assert use() == pytest.approx((0.0, 1.0)), "the first child has ended"


def test_a_child_as_the_kernel_shows_it() -> None:
    program = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        stat = Path(f"/proc/{child.pid}/stat").read_bytes()
    assert 0.25 < child_ticks(stat) / os.sysconf("SC_CLK_TCK") < 5


def test_cores_are_unknown_where_the_kernel_hides_them(tmp_path: Path) -> None:
    now = iter(range(10))
    assert CoreCounter(lambda: next(now), tmp_path)() is None


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (
            "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\ncpu MHz\t: 1\n\nprocessor\t: 1\nmodel name\t: B",
            "A CPU @ 2 GHz",
        ),
        ("BogoMIPS\t: 50\nCPU implementer\t: 0x41\nCPU variant\t: 0x3\nCPU part\t: 0xd0c", "0x41, 0x3, 0xd0c"),
        ("", ""),
    ],
)
def test_the_processor_by_name(tmp_path: Path, cpuinfo: str, name: str) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert processor(tmp_path) == name
    assert processor(tmp_path / "none") == ""
