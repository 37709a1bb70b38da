"""Hardware of the box that only its files tell of: GPUs, and huge pages."""

from __future__ import annotations

import re
from pathlib import Path

_GPU = re.compile(r"nvidia\d+|kfd")
"""NVIDIA's, and AMD's compute driver."""


def gpus(dev: Path = Path("/dev")) -> list[str]:
    """The device files of GPUs that compute, where their drivers are loaded."""
    try:
        return sorted(str(path) for path in dev.iterdir() if _GPU.fullmatch(path.name))
    except OSError:
        return []


def huge_pages(sys: Path = Path("/sys")) -> str:
    """The kernel's mode of transparent huge pages: always, madvise or never (Documentation/admin-guide/mm/transhuge);
    empty where it can't be read."""
    try:
        text = (sys / "kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return ""
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else ""
