"""The file of a Unix socket."""

from __future__ import annotations

import os
import socket

from umaserve.system import macos

MAX_PATH_BYTES = 103 if macos.HERE else 107
"""The longest path of a socket (unix(7), sun_path)."""


def bind(sock: socket.socket, path: str, mode: int) -> None:
    """Bind to ``path``, whose file at no moment gives others wider permissions than ``mode``."""
    try:
        # Linux creates the file with the descriptor's mode minus the umask. chmod then adds what the umask removed.
        os.fchmod(sock.fileno(), mode)
    except OSError:
        # Elsewhere a socket has no mode yet, and its file would be everyone's. Threads that make files meanwhile make
        # them their user's only.
        before = os.umask(0o077)
        try:
            sock.bind(path)
        finally:
            os.umask(before)
    else:
        sock.bind(path)
    os.chmod(path, mode)
