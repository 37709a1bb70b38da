"""The engine's process: its start, and its end in words."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
from collections.abc import Callable
from typing import NamedTuple

from umaserve.core.errors import ModelError
from umaserve.remote.channel import Channel
from umaserve.remote.client import RemoteEngine
from umaserve.remote.run_ahead import RunAhead
from umaserve.remote.voice import RemoteVoice
from umaserve.sessions.engine_api import Allowance, EngineLost
from umaserve.settings.daemon import Config
from umaserve.system import program
from umaserve.system.memory import killed_for_memory

PROGRAM = "umaserve.engine"
THREADS = 6
"""Number of the daemon's threads that call the engine: the loop's, and one each for loading, computing, preparing,
media, disk."""
END_S = 5.0
MAX_LAST_WORDS = 1 << 16
MAX_MESSAGE = 300
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Variables for the C library, which reads them when a program begins: it asks for pages of 2 MiB for large memory.
Where the kernel has them for those that ask, dividing the KV cells takes a fourth of the time, in which no stream gets
a token."""
_PYTHON = re.compile(r"^(?:Fatal Python error|Timeout \()", re.MULTILINE)
"""Beginning of Python's part of the last words: it crashed, or it was too long without progress."""


class End(NamedTuple):
    """How an engine ended."""

    cause: str
    """Cause of the end: a signal's name; ``memory`` where the kernel killed it for that, ``hang``, or ``status N``."""
    words: str
    """Cause in words, after "the engine's process"."""
    last_words: str
    """Message of llama.cpp, and where it was when it crashed: Python's calls, as far as they are known."""
    loading: str = ""
    """File that the engine was loading, after its kind."""

    @property
    def blames(self) -> bool:
        """Whether what the engine computed may be why."""
        return self.cause not in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")


class EngineProcess:
    """Process of an engine. Made on the loop's thread: the kernel kills the process when the thread that started it
    ends. The process ends when one of its sockets is closed."""

    def __init__(self, chat_template: str | None = None, voice: RemoteVoice | None = None) -> None:
        """``chat_template``: the text of the operator's, instead of the model's own. ``voice``: speaks by this process
        from its loading on. Raises ``EngineLost`` where no process can be started."""
        self._chat_template = chat_template
        self._voice = voice
        with contextlib.ExitStack() as failed, contextlib.ExitStack() as started:
            try:
                pairs = []
                for _ in range(2 + THREADS):
                    our_end, their_end = socket.socketpair()
                    pairs.append((failed.enter_context(our_end), started.enter_context(their_end)))
                theirs = [their_end.fileno() for _, their_end in pairs]
                ahead_theirs = failed.enter_context(pairs[1][1].dup())
                self._process = program.start(PROGRAM, *map(str, theirs), pass_fds=theirs, variables=_HUGE_PAGES)
            except OSError as error:
                # Mostly no descriptor is left, or no process.
                raise EngineLost(f"the engine's process can't be started: {error.strerror}") from None
            failed.pop_all()
        (self.life, ahead, *ours) = (our_end for our_end, _ in pairs)
        """Socket that is readable once the process has ended, or says its last words."""
        self.run_ahead = RunAhead(ahead, ahead_theirs)
        self._channels = [Channel(our_end) for our_end in ours]
        self._killed_for_memory = killed_for_memory()
        self._hung = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def load(self, config: Config, allowance: Allowance, progress: Callable[[float], bool]) -> RemoteEngine:
        """Load the model, as ``models.engine_supervisor.EngineHandle.load``."""
        speaker = None if self._voice is None else self._voice.own
        try:
            engine = RemoteEngine(
                self._channels, config, self._chat_template, allowance, progress, speaker, self.run_ahead
            )
        except EngineLost:
            raise _not_loaded(self.end(), config) from None
        # What it was loading.
        self._last_words()
        if self._voice is not None:
            self._voice.engine = engine
        return engine

    def kill(self) -> None:
        """Kill the process, since it does not return from a call."""
        self._hung = True
        self._process.kill()

    def end(self) -> End:
        """Tell how the process has ended; one that still runs is killed."""
        try:
            status = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            status = self._process.wait()
        return self._end(status)

    def _end(self, status: int) -> End:
        words = program.end(status)
        *begun, last_words = self._last_words().split("\0")
        loading = begun[-1] if begun else ""
        last_words = last_words.strip()
        if self._hung:
            return End("hang", "did not return from a call, and was killed", last_words)
        if loading and last_words.startswith("Timeout ("):
            return End("hang", "hung, and was killed", last_words, loading)
        if status == -signal.SIGKILL and killed_for_memory() > self._killed_for_memory:
            return End("memory", "was killed for lack of memory", last_words)
        if status == -signal.SIGKILL:
            return End("SIGKILL", "was killed by another program", last_words)
        cause = signal.Signals(-status).name if status < 0 else f"status {status}"
        # An engine that ends as it should, since its daemon no longer trusts it, says nothing about its file.
        return End(cause, words, last_words, loading if status else "")

    def _last_words(self) -> str:
        try:
            said = self.life.recv(MAX_LAST_WORDS, socket.MSG_DONTWAIT)
        except OSError:
            return ""
        return said.decode(errors="replace")

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        self.end()
        self.life.close()
        self.run_ahead.close()
        for channel in self._channels:
            channel.free()


def _not_loaded(end: End, config: Config) -> ModelError | EngineLost:
    """Error that says why the model could not be loaded, in one line."""
    if not end.blames:
        return EngineLost(f"the engine's process {end.words} while it loaded the model")
    if not end.loading:
        return ModelError(f"the engine's process {end.words} while it loaded the model")
    pooled = config.pooling != "model" and end.loading == f"model {config.model}"
    how = f" with --pooling {config.pooling}" if pooled else ""
    message = _PYTHON.split(end.last_words)[0].strip()[:MAX_MESSAGE]
    line = (
        f"{end.loading}: llama.cpp can't take it{how}, and has ended the engine's process: it is damaged, of an "
        f"unusual form or made for another version; download or convert it again "
        f"(it {end.words}{message and f': {message}'})"
    )
    return ModelError("".join(one if one.isprintable() else " " for one in line))
