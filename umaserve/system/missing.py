"""Facilities that this system lacks and others have: said once, at the start."""

from __future__ import annotations

import logging
import os
import select
from pathlib import Path

log = logging.getLogger(__name__)


def missing(proc: Path = Path("/proc")) -> list[str]:
    """Facilities that are done without here, and what that means; empty on Linux."""
    lacks = {
        "affinity (as many threads as cores unless --threads says otherwise)": hasattr(os, "sched_getaffinity"),
        "/proc (what other programs take of the cores is not known)": _readable(proc / "stat"),
        "files in memory (clients' media are in temporary files while they are decoded)": hasattr(os, "memfd_create"),
        "epoll (another selector watches the sockets)": hasattr(select, "epoll"),
    }
    return [name for name, there in lacks.items() if not there]


def _readable(path: Path) -> bool:
    try:
        path.open().close()
    except OSError:
        return False
    return True


def log_missing() -> None:
    lacks = missing()
    if lacks:
        log.info("not available on this system, so the daemon runs without: %s", "; ".join(lacks))
