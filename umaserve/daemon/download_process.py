"""The process that downloads a model: its start, what it says, and its end."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable, Sequence

from umaserve.net.loop import READ, Loop
from umaserve.net.timers import Timer
from umaserve.system import child, program

PROGRAM = "umaserve.commands.download"
MAX_LINE_BYTES = 1 << 20
MAX_SILENT_S = 1800.0
"""Longest time in which it says nothing, as while it checks a large file."""
END_S = 2.0
"""How long it has to tidy up."""
REAP_S = 0.02
_VARIABLES = {
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "XDG_CACHE_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
}
_PLAIN = {"HF_HUB_DISABLE_XET": "1"}
"""Has files downloaded by plain HTTPS, from hosts that are checked."""


def _inherits(name: str) -> bool:
    """Whether the program has a variable of the daemon's: none that may have a secret of another one."""
    return name.upper() in _VARIABLES or (name.startswith("HF_") and name not in _PLAIN)


class DownloadProcess:
    """Process that downloads one model. Made on the loop's thread, as an engine's."""

    def __init__(
        self, loop: Loop, arguments: Sequence[str], said: Callable[[bytes], None], ended: Callable[[str], None]
    ) -> None:
        """``said`` gets each line that it says; ``ended`` is called once, with how it has ended. Raises OSError where
        no process can be started."""
        self._loop = loop
        self._said = said
        self._ended = ended
        self._buffer = b""
        self._stopping = False
        self._look_at: Timer | None = None
        """Looks whether the process has ended."""
        self._errors = child.nameless_file("umaserve-download")
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        try:
            with theirs:
                self._process = program.start(
                    PROGRAM,
                    str(theirs.fileno()),
                    *arguments,
                    stderr=self._errors,
                    pass_fds=[theirs.fileno()],
                    variables=_PLAIN,
                    inherits=_inherits,
                )
        except OSError:
            self._free()
            raise
        self._kill_at = loop.call_later(MAX_SILENT_S, self._process.kill)
        loop.set_interest(self._socket, READ, self._on_ready)

    def stop(self) -> None:
        """Have it tidy up and end; where it doesn't, it is killed."""
        self._stopping = True
        self._process.send_signal(signal.SIGINT)
        self._kill_at.cancel()
        self._kill_at = self._loop.call_later(END_S, self._process.kill)

    def close(self) -> None:
        """End it now: nobody hears how."""
        self._process.send_signal(signal.SIGINT)
        self._end()

    def _on_ready(self, _events: int) -> None:
        data = self._socket.recv(1 << 16)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._said(line)
        if not data:
            self._loop.set_interest(self._socket, 0, self._on_ready)
            self._kill_at.cancel()
            self._kill_at = self._loop.call_later(END_S, self._process.kill)
            self._reap()
        elif len(self._buffer) > MAX_LINE_BYTES:
            self._buffer = b""
            self._process.kill()
        elif not self._stopping:
            self._kill_at.postpone(self._loop.now() + MAX_SILENT_S)

    def _reap(self) -> None:
        """Look whether the process has ended, which has closed its end; not waited for, since streams go on."""
        if self._process.poll() is None:
            self._look_at = self._loop.call_later(REAP_S, self._reap)
        else:
            self._ended(self._end())

    def _end(self) -> str:
        """How it has ended, in words; one that still runs after a while is killed."""
        self._loop.set_interest(self._socket, 0, self._on_ready)
        self._kill_at.cancel()
        if self._look_at is not None:
            self._look_at.cancel()
        try:
            status = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        words = f"the download's process {program.end(status)}: {program.last_line(self._errors)}"
        self._free()
        return words

    def _free(self) -> None:
        self._socket.close()
        self._errors.close()
