"""How many files and sockets this process may have open."""

from __future__ import annotations

import resource


def raise_descriptor_limit() -> None:
    """Take all the descriptors that the system allows: the usual soft limit is for programs that use select(2)."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
