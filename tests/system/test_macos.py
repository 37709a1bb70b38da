"""The side of macOS, by stand-ins for the functions of its C library."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from umaserve.system import child, macos, madvise, missing
from umaserve.system.cores import processor, usable_cores
from umaserve.system.descriptors import raise_descriptor_limit
from umaserve.system.memory import MemoryPressure, available_bytes, resident_bytes
from umaserve.system.threads import set_own_niceness, set_thread_niceness

GIB = 1 << 30
INT, LONG = 4, 8


class Mac:
    """A macOS that has these values of sysctl, each of the size of its C type or a string, and these processes."""

    def __init__(self, values: dict[str, tuple[int, int] | str], resident: dict[int, int]) -> None:
        self._values, self._resident = values, resident
        self.classes: list[int] = []
        self._functions: dict[str, Callable] = {
            "sysctlbyname": self._sysctl,
            "proc_pidinfo": self._process,
            "pthread_set_qos_class_self_np": lambda kind, _priority: self.classes.append(kind),
        }

    def function(self, name: str) -> Callable | None:
        return self._functions.get(name)

    def _sysctl(self, name: bytes, value, size, new: None, _new_size: ctypes.c_size_t) -> int:
        assert new is None
        found = self._values.get(name.decode())
        if found is None:
            return -1
        data = f"{found}\0".encode() if isinstance(found, str) else found[0].to_bytes(found[1], sys.byteorder)
        value.raw = data.ljust(len(value), b"\xff")
        size._obj.value = len(data)
        return 0

    def _process(self, pid: int, kind: int, _argument: ctypes.c_uint64, info, size: int) -> int:
        assert (kind, size) == (4, 96)
        if pid not in self._resident:
            return 0
        info.raw = (7 * GIB).to_bytes(8, sys.byteorder) + self._resident[pid].to_bytes(8, sys.byteorder) + bytes(80)
        return size


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Mac:
    values: dict[str, tuple[int, int] | str] = {
        "hw.perflevel0.physicalcpu": (6, INT),
        "machdep.cpu.brand_string": "Apple M9",
        "hw.memsize": (16 * GIB, LONG),
        "kern.memorystatus_level": (25, INT),
        "kern.memorystatus_vm_pressure_level": (1, INT),
        "kern.maxfilesperproc": (61440, INT),
    }
    made = Mac(values, {os.getpid(): GIB, 4711: 2 * GIB})
    monkeypatch.setattr(macos, "_function", made.function)
    monkeypatch.setattr(macos, "HERE", True)
    monkeypatch.delattr(os, "sched_getaffinity")
    return made


def test_the_fast_cores_count(mac: Mac, tmp_path: Path) -> None:
    assert usable_cores(tmp_path, tmp_path) == 6
    assert processor(tmp_path) == "Apple M9"


def test_all_cores_count_where_they_are_equal(mac: Mac, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del mac._values["hw.perflevel0.physicalcpu"]
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert usable_cores(tmp_path, tmp_path) == 8


def test_the_memory_is_what_the_kernel_calls_free(mac: Mac, tmp_path: Path) -> None:
    assert available_bytes(tmp_path, tmp_path) == 4 * GIB
    assert resident_bytes([4711, 4712], tmp_path) == 3 * GIB


def test_the_largest_size_so_far_is_in_bytes(mac: Mac, tmp_path: Path) -> None:
    mac._resident.clear()
    assert resident_bytes((), tmp_path) == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize(("level", "short"), [(1, False), (2, True), (4, True)])
def test_memory_is_short_from_the_kernels_warning_on(mac: Mac, tmp_path: Path, level: int, short: bool) -> None:
    mac._values["kern.memorystatus_vm_pressure_level"] = (level, INT)
    pressure = MemoryPressure(lambda: 0.0, tmp_path, tmp_path)
    assert pressure.short() is short
    assert (str(level) in pressure.reason) is short


def test_nothing_is_told_elsewhere(tmp_path: Path) -> None:
    assert macos.number("hw.memsize") is None
    assert macos.text("machdep.cpu.brand_string") == ""
    assert macos.resident_bytes(os.getpid()) is None
    assert available_bytes(tmp_path, tmp_path) == sys.maxsize


def test_a_threads_id_is_never_taken_for_a_process(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    def renice(*_: int) -> None:
        raise AssertionError("another process could have this id")

    monkeypatch.setattr(os, "setpriority", renice)
    set_own_niceness(19)
    set_thread_niceness(4711, 19)
    assert mac.classes == [0x11]


@pytest.mark.parametrize(
    ("most", "wanted"), [(resource.RLIM_INFINITY, 61440), (4096, 4096), (1 << 20, 61440)], ids=["none", "less", "more"]
)
def test_no_more_files_are_asked_for_than_the_kernel_gives(
    mac: Mac, monkeypatch: pytest.MonkeyPatch, most: int, wanted: int
) -> None:
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (256, most))
    monkeypatch.setattr(resource, "setrlimit", lambda _which, limits: asked.append(limits))
    raise_descriptor_limit(1024, "max_sessions")
    assert asked == [(wanted, most)]


def test_pages_are_given_back_so_that_they_are_free_at_once(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    with mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:5] = b"bytes"
        madvise.prefer_huge(memory)
        assert memory[:5] == b"bytes"
        madvise.give_back(memory)
        memory[:5] = b"again"


def test_without_memory_files_a_file_has_no_name_on_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with child.nameless_file("umaserve-test") as file:
        file.write(b"content")
        assert os.listdir(tmp_path) == []
        file.seek(0)
        assert file.read() == b"content"


def test_linux_lacks_nothing() -> None:
    assert missing.missing() == []


def test_what_is_missing_is_named(mac: Mac, tmp_path: Path) -> None:
    assert [lack.split()[0] for lack in missing.missing(tmp_path)] == ["affinity", "/proc"]
