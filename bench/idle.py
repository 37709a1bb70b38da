"""What an idle connection costs the daemon in memory."""

from __future__ import annotations

import contextlib
import resource
import socket
import time

from bench.processes import daemon
from bench.report import progress, table
from umaserve.client import Client

_CONNECTIONS = 1000
_SPARE_DESCRIPTORS = 100
_POLL_S = 0.02

_NOTES = """\
Resident memory as the daemon's metrics show it, with a stand-in for the engine, before and after the connections were
opened. The kernel's memory for sockets is not included.
"""


def report() -> str:
    """Open the connections and tell what they cost."""
    progress(f"idle, {_CONNECTIONS} connections")
    _raise_descriptor_limit(_CONNECTIONS + _SPARE_DESCRIPTORS)
    with daemon("bench.standin", UMA_MAX_SESSIONS=str(2 * _CONNECTIONS)) as at, contextlib.ExitStack() as opened:
        before = _rss(at.socket, 0)
        for _ in range(_CONNECTIONS):
            opened.enter_context(socket.socket(socket.AF_UNIX)).connect(at.socket)
        after = _rss(at.socket, _CONNECTIONS)
    header = ["idle connections", "resident before, MiB", "after, MiB", "KiB for each"]
    each = (after - before) / _CONNECTIONS / 1024
    row = [str(_CONNECTIONS), f"{before / 2**20:.1f}", f"{after / 2**20:.1f}", f"{each:.1f}"]
    return f"## Idle connections\n\n{table(header, [row])}\n{_NOTES}"


def _rss(path: str, connections: int) -> int:
    """Resident bytes once the daemon has accepted this many besides the one that asks."""
    while True:
        found = Client(path).metrics()
        if found["connections"] > connections:
            return int(found["rss_bytes"])
        time.sleep(_POLL_S)


def _raise_descriptor_limit(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, hard)), hard))
