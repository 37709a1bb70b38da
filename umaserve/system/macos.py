"""Facts that macOS tells by functions of its C library where Linux has files. Elsewhere there are no such functions,
and nothing is told."""

from __future__ import annotations

import ctypes
import struct
import sys
from typing import Any

HERE: bool = sys.platform == "darwin"

_LIBC = ctypes.CDLL(None)
_VALUE_BYTES = 256
_PROC_PIDTASKINFO = 4
_TASK_INFO = struct.Struct("=6Q12i")
"""C's struct proc_taskinfo: virtual and resident size in bytes first (sys/proc_info.h)."""
_QOS_UTILITY = 0x11


def number(name: str) -> int | None:
    """An integer of sysctl(3); ``None`` where there is none of this name."""
    value = _sysctl(name)
    return int.from_bytes(value, sys.byteorder) if len(value) in (4, 8) else None


def text(name: str) -> str:
    """A string of sysctl(3); empty where there is none of this name."""
    return _sysctl(name).rstrip(b"\0").decode(errors="replace")


def _sysctl(name: str) -> bytes:
    call = _function("sysctlbyname")
    value, size = ctypes.create_string_buffer(_VALUE_BYTES), ctypes.c_size_t(_VALUE_BYTES)
    if call is None or call(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return b""
    return value.raw[: size.value]


def resident_bytes(pid: int) -> int | None:
    """Resident set size of a process of this user; ``None`` where it has ended."""
    call = _function("proc_pidinfo")
    info = ctypes.create_string_buffer(_TASK_INFO.size)
    if call is None or call(pid, _PROC_PIDTASKINFO, ctypes.c_uint64(0), info, _TASK_INFO.size) != _TASK_INFO.size:
        return None
    return int(_TASK_INFO.unpack(info.raw)[1])


def lower_this_thread() -> None:
    """Have the kernel prefer other threads to the calling one."""
    call = _function("pthread_set_qos_class_self_np")
    if call is not None:
        call(_QOS_UTILITY, 0)


def _function(name: str) -> Any:
    return getattr(_LIBC, name, None) if HERE else None
