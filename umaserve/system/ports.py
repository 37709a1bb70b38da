"""Listeners at an address of this box."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path
from typing import NamedTuple

from umaserve.system.peer_credentials import process_of

PROC = Path("/proc")

_LISTENS = "0A"
"""TCP_LISTEN in the kernel's tables (Documentation/networking/proc_net_tcp)."""


class Holder(NamedTuple):
    """A process, and its command line."""

    pid: int
    command: str


def is_free(host: str, port: int) -> bool:
    """Whether this process may listen there now. Raises OSError where it may not, or where there is no such address."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def holder(port: int, proc: Path = PROC) -> Holder | None:
    """The process that listens on a TCP port, as far as this user may see it (proc(5))."""
    wanted = {f"socket:[{inode}]" for name in ("tcp", "tcp6") for inode in _inodes(proc / "net" / name, port)}
    for process in proc.glob("[0-9]*"):
        # Others end meanwhile, or belong to another user.
        with contextlib.suppress(OSError):
            if any(os.readlink(descriptor) in wanted for descriptor in (process / "fd").iterdir()):
                command = (process / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
                return Holder(int(process.name), command.decode(errors="replace"))
    return None


def answers(path: str) -> bool:
    """Whether somebody listens on the Unix socket at ``path``. Raises OSError where this user may not connect, and
    where there is none."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
    return True


def listener(path: str) -> int:
    """The id of the process that listens on the Unix socket at ``path``: a service manager's, where that does. Raises
    OSError as ``answers``, and where the kernel doesn't tell."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(path)
        return process_of(probe)


def _inodes(table: Path, port: int) -> list[str]:
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []
    return [row[9] for row in rows if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port]
