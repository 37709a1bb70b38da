"""File descriptors: the limit of open ones, and the three standard streams."""

from __future__ import annotations

import logging
import os
import resource
import sys

from umaserve.core.errors import ConfigError
from umaserve.system import macos

log = logging.getLogger(__name__)

OWN_DESCRIPTORS = 64
"""Descriptors needed besides connections: log, loop, listeners, pipes of threads and decoders, files being read."""


def raise_descriptor_limit(connections: int, setting: str) -> None:
    """Raise the soft limit to the hard limit: the usual soft limit is meant for programs that use select(2).

    Logs a warning where that is too few for ``connections``, the value of the setting named ``setting``. Raises
    ``ConfigError`` where it is too few for the program itself.
    """
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS calls its own limit none, and refuses more than that.
    own = macos.number("kern.maxfilesperproc")
    wanted = most if own is None or 0 <= most < own else own
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
        limit = wanted
    except (OSError, ValueError) as error:
        log.debug("the limit of open files can't be raised: %s", error)
    if 0 <= limit < OWN_DESCRIPTORS:
        raise ConfigError(
            f"this process may have {limit} files and sockets open, and needs {OWN_DESCRIPTORS} besides its "
            "connections: raise the limit (ulimit -Hn, or LimitNOFILE= in a unit)"
        )
    needed = connections + OWN_DESCRIPTORS
    if limit != resource.RLIM_INFINITY and limit < needed:
        log.warning(
            "this process may have %d files and sockets open, and %s = %d needs %d: raise the limit (ulimit -Hn, or "
            "LimitNOFILE= in a unit), or lower %s; until then further clients wait",
            limit,
            setting,
            connections,
            needed,
            setting,
        )


def most_descriptors() -> int | None:
    """The hard limit of a process's open descriptors; ``None``: there is none."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if most == resource.RLIM_INFINITY else most


def open_standard_streams() -> None:
    """Open the null device for each of standard input, output and error that is closed, as by ``2>&-``.

    Otherwise the next file or socket would get its number, and with it all that C libraries write there.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
