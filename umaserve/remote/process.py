"""The engine's process: its start, and its end in words."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable

from umaserve.errors import ModelError
from umaserve.remote.channel import Channel
from umaserve.remote.client import EngineLost, RemoteEngine
from umaserve.settings.daemon import Config
from umaserve.system import program

PROGRAM = "umaserve.engine"
THREADS = 5
"""Those of the daemon that call the engine: the loop's, and one each for computing, preparing, media and the disk."""
END_S = 5.0


class EngineProcess:
    """Made on the loop's thread: the kernel kills the process when the thread that started it ends. The process ends
    when one of its sockets is closed."""

    def __init__(self) -> None:
        pairs = [socket.socketpair() for _ in range(1 + THREADS)]
        theirs = [their_end.fileno() for _, their_end in pairs]
        self._process = program.start(PROGRAM, *map(str, theirs), pass_fds=theirs)
        for _, their_end in pairs:
            their_end.close()
        (self.life, *ours) = (our_end for our_end, _ in pairs)
        """Readable once the process has ended."""
        self._channels = [Channel(our_end) for our_end in ours]

    @property
    def pid(self) -> int:
        return self._process.pid

    def load(
        self, config: Config, progress: Callable[[float], bool], *, chat_template: str | None = None
    ) -> RemoteEngine:
        """As ``daemon.model_host.Load``."""
        try:
            return RemoteEngine(self._channels, config, chat_template, progress)
        except EngineLost:
            raise ModelError(f"the engine's process {self.end()} while it loaded the model") from None

    def end(self) -> str:
        """How it has ended, after "the process"; one that still runs is killed."""
        try:
            return program.end(self._process.wait(END_S))
        except subprocess.TimeoutExpired:
            self._process.kill()
            return "did not end, and was killed"

    def close(self) -> None:
        self.life.close()
        self.end()
