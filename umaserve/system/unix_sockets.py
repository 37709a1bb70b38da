"""The file of a Unix socket, and where it is if nobody says."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from umaserve.system import macos

SYSTEM_PATH = "/run/uma.sock"
"""The socket of the daemon that all users of the box share."""
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


def own_path(environ: Mapping[str, str]) -> str:
    """The path for a daemon of this user: in the folder of the user's session (XDG Base Directory Specification), or
    ``SYSTEM_PATH`` for root and where there is no such folder."""
    folder = environ.get("XDG_RUNTIME_DIR", "")
    # The specification has relative paths ignored.
    if os.geteuid() == 0 or not os.path.isabs(folder):
        return SYSTEM_PATH
    return os.path.join(folder, "uma.sock")


def path_to_call(environ: Mapping[str, str]) -> str:
    """The path where a client of this user looks for a daemon: the user's own, else the system's if that is there."""
    own = own_path(environ)
    return SYSTEM_PATH if os.path.exists(SYSTEM_PATH) and not os.path.exists(own) else own
