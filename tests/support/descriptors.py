"""Which files below a folder this process has open."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def opened_below(folder: Path) -> list[str]:
    """Not just how many descriptors there are: what an earlier test has left may be closed meanwhile."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if Path(path).is_relative_to(folder)]
