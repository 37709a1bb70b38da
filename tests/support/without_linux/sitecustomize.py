"""A stand-in for a system that is not Linux: Python imports it at its start from the first folder of PYTHONPATH.

What Linux has and macOS lacks is gone for Python's code, in the daemon and in all processes that it starts: calls and
constants, the files of /proc and /sys, the functions of the C library. The peer's user is told as by macOS.
"""

import errno
import mmap
import os
import select
import sys
from types import ModuleType
from typing import Any

_LINUX_FILES = ("/proc/", "/sys/")
_LINUX_FUNCTIONS = ("prctl", "adjtimex", "malloc_trim")
_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES = 0, 1, 76


def _absent(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir"):
        path = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes) else ""
        if path.startswith(_LINUX_FILES):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if event == "ctypes.dlsym" and arguments[1] in _LINUX_FUNCTIONS:
        raise AttributeError(f"undefined symbol: {arguments[1]}")


def _without(module: ModuleType, *names: str) -> None:
    for name in names:
        if hasattr(module, name):
            delattr(module, name)


sys.addaudithook(_absent)
# Before ``selectors`` is imported, which then takes another one.
_without(select, "epoll")
import socket  # noqa: E402

_without(os, "sched_getaffinity", "sched_setaffinity", "memfd_create", "eventfd", "pidfd_open", "pipe2", "splice")
_without(os, "posix_fadvise", "posix_fallocate", "O_TMPFILE", "O_PATH")
_without(errno, "ENONET")
_without(mmap, "MADV_HUGEPAGE")

_Socket, _linux_peer, _linux_fchmod = socket.socket, socket.SO_PEERCRED, os.fchmod
_without(socket, "SO_PEERCRED", "SOCK_NONBLOCK", "SOCK_CLOEXEC", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT", "MSG_CMSG_CLOEXEC")


def _getsockopt(sock: socket.socket, level: int, option: int, *size: int) -> int | bytes:
    real = super(_Socket, sock).getsockopt
    if (level, option) != (_SOL_LOCAL, _LOCAL_PEERCRED):
        return real(level, option, *size)
    assert size == (_XUCRED_BYTES,)
    user = real(socket.SOL_SOCKET, _linux_peer, 12)[4:8]
    return (bytes(4) + user).ljust(_XUCRED_BYTES, b"\0")


def _fchmod(descriptor: int, mode: int) -> None:
    import stat

    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    _linux_fchmod(descriptor, mode)


_replaced: list[tuple[object, str, object]] = [(socket.socket, "getsockopt", _getsockopt), (os, "fchmod", _fchmod)]
for _owner, _name, _other in _replaced:
    setattr(_owner, _name, _other)
