"""Stands in for systemd: holds listening sockets, and starts the daemon over and over with them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from daemon import Daemon

# The sockets have to be descriptors 3 and up of the process that LISTEN_PID names.
START = """
import fcntl, os, sys
count = int(os.environ["LISTEN_FDS"])
for number, fd in enumerate([fcntl.fcntl(int(fd), fcntl.F_DUPFD, 100) for fd in sys.argv[1:1 + count]]):
    os.dup2(fd, 3 + number)
    os.close(fd)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "umaserve", *sys.argv[1 + count:]])
"""


class ServiceManager:
    """One service, at ``path`` and ``port``."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.path = str(directory / "held.sock")
        self._file = socket.socket(socket.AF_UNIX)
        self._file.bind(self.path)
        self._file.listen(4096)
        self._tcp = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.port: int = self._tcp.getsockname()[1]
        self._flags = flags
        self._log_path = directory / "log"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("UMA_")}
        variables |= {"UMA_WEIGHTS": "as-is", "UMA_THREADS": "1", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "uds:http"}
        passed = [self._file.fileno(), self._tcp.fileno()]
        with self._log_path.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", START, *map(str, passed), *self._flags],
                env=variables,
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )

    @property
    def daemon(self) -> Daemon:
        """The one that runs now."""
        daemon = Daemon.__new__(Daemon)
        daemon.path, daemon.process, daemon._log_path = self.path, self.process, self._log_path
        return daemon

    def restart(self) -> None:
        """As ``systemctl restart``: the next one starts when the last has ended."""
        self.stop()
        self.process = self._start()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        assert status == 0, self._log_path.read_text()

    def close(self) -> None:
        self.stop()
        self._file.close()
        self._tcp.close()
