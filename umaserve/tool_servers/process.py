"""The daemon's side of the process that talks with MCP servers: its start, the lines to and from it, and its end."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Callable

from umaserve.net.channel import Channel
from umaserve.net.loop import Loop
from umaserve.system import child, program

PROGRAM = "umaserve.tool_servers.program"
HIGH_WATER = 1 << 20
STALL_S = 30.0
MAX_LINE_BYTES = 16 << 20
REAP_S = 0.02
_VARIABLES = {"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "LOGNAME", "SHELL", "SSL_CERT_FILE", "SSL_CERT_DIR"}


class ToolProcess:
    """Process that talks with MCP servers, as a handler of its channel. Made on the loop's thread, as an engine's."""

    def __init__(self, loop: Loop, said: Callable[[bytes | bytearray], None], ended: Callable[[str], None]) -> None:
        """``said`` gets each line that it says; ``ended`` is called once, with how it has ended, unless it is closed.
        Raises OSError where no process can be started."""
        self._loop = loop
        self._said = said
        self._ended: Callable[[str], None] | None = ended
        self._buffer = bytearray()
        self._errors = child.nameless_file("umaserve-tools")
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = program.start(
                    PROGRAM,
                    str(theirs.fileno()),
                    stdout=self._errors,
                    stderr=self._errors,
                    pass_fds=[theirs.fileno()],
                    inherits=lambda name: name in _VARIABLES,
                )
            except OSError:
                ours.close()
                self._errors.close()
                raise
        self._channel = Channel(loop, ours, high_water=HIGH_WATER, stall_timeout=STALL_S)
        self._channel.handler = self

    def send(self, line: bytes) -> None:
        """Send a line, without its end."""
        self._channel.write(line + b"\n")

    def close(self) -> None:
        """End it now: nobody hears how."""
        self._ended = None
        self._channel.abort()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)

    # -- the channel's handler -----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take what it says."""
        self._buffer += data
        if b"\n" in data:
            *lines, self._buffer = self._buffer.split(b"\n")
            for line in lines:
                self._said(line)
        if len(self._buffer) > MAX_LINE_BYTES:
            self._channel.abort()

    def input_ended(self) -> None:
        """Close: the process has ended, or is about to."""
        self._channel.abort()

    def wants_data(self) -> bool:
        return True

    def drained(self) -> None:
        """Do nothing: calls are few and short."""

    def connection_lost(self) -> None:
        """Kill it, and tell how it has ended."""
        if self._ended is not None:
            self._process.kill()
            self._reap()
        else:
            self._errors.close()

    def _reap(self) -> None:
        """Look whether the process has ended; not waited for, since streams go on."""
        if self._process.poll() is None:
            self._loop.call_later(REAP_S, self._reap)
            return
        how = f"the process of the tool servers {program.end(self._process.wait())}: {program.last_line(self._errors)}"
        self._errors.close()
        if self._ended is not None:
            self._ended(how)
