"""Runs a module of this package as a program of its own: what crashes, hangs or takes too much memory there leaves this
process alone."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import BinaryIO

from umaserve.system import child

PROC = Path("/proc")

_FILE = "umaserve-program"
_POLL_S = 0.1
_KILLED_S = 5.0
_MAX_ERROR = 300
_KILLED_BY = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that come from others; the rest are the program's own crashes."""


class ProgramError(Exception):
    """The program failed; the message says how, in one line."""


class ProgramStopped(ProgramError):
    """The program was killed or took too long, through no fault of its own: another time it may succeed."""


class Cancelled(Exception):
    """Nobody wants the result any more."""


def run(module: str, *arguments: str, wanted: Callable[[], bool], max_s: float) -> bytes:
    """Run ``module`` to its end and return its standard output. Blocks, and kills the program as soon as it is not
    ``wanted``, which is called several times a second.

    Raises ``ProgramError`` for a failure, ``ProgramStopped`` where it was killed and after ``max_s`` seconds,
    ``Cancelled``, and ``OSError`` where no program can be started.
    """
    # Files rather than pipes, which would have to be read while the program runs.
    with child.nameless_file(_FILE) as output, child.nameless_file(_FILE) as errors:
        process = start(module, *arguments, stdout=output, stderr=errors)
        try:
            status = _wait(process, module, wanted, max_s)
        finally:
            if process.poll() is None:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_KILLED_S)
        if status:
            kind = ProgramStopped if -status in _KILLED_BY else ProgramError
            raise kind(f"{module} {end(status)}: {last_line(errors)}")
        return _content(output)


def start(
    module: str,
    *arguments: str,
    stdout: BinaryIO | None = None,
    stderr: BinaryIO | None = None,
    pass_fds: Collection[int] = (),
    variables: Mapping[str, str] | None = None,
    inherits: Callable[[str], bool] = lambda _name: True,
) -> subprocess.Popen[bytes]:
    """Start ``module``. Its output goes where this process's goes, if nowhere else; ``pass_fds`` are the descriptors
    that it has too, ``variables`` those of the environment that it has unless this process has them otherwise.
    ``inherits``: which of this process's variables it has."""
    return subprocess.Popen(
        # -P: import from this process's sys.path, not from the working directory.
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env={
            **(variables or {}),
            **{name: value for name, value in os.environ.items() if inherits(name)},
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        # Ctrl-C must reach only this process, which decides what ends when.
        start_new_session=True,
        pass_fds=pass_fds,
    )


def running(module: str, parent: int, proc: Path = PROC) -> list[int]:
    """The ids of the processes that run ``module`` and that ``parent`` has started by ``start`` (proc(5), children).
    Raises ``OSError`` where they can't be read."""
    children = [int(pid) for pid in (proc / f"{parent}/task/{parent}/children").read_text().split()]
    return [pid for pid in children if module.encode() in (proc / f"{pid}/cmdline").read_bytes().split(b"\0")]


def begin(*, nice: int = 0) -> None:
    """Prepare the program itself, as its first call: it is killed when its parent ends, and first where memory is
    short, and leaves no core dump. ``nice`` is as in nice(1)."""
    child.end_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Sandboxes may lack the call.
    with contextlib.suppress(OSError):
        os.nice(nice)
    child.prefer_oom_kill()


def confine(max_bytes: int) -> None:
    """Confine a program that ends with its input, as its first call: it has at most so much address space, where the
    kernel takes such a limit, is killed first where memory is short, and leaves no core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if child.memory_can_be_limited():
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    child.prefer_oom_kill()


def _wait(process: subprocess.Popen[bytes], module: str, wanted: Callable[[], bool], max_s: float) -> int:
    until = time.monotonic() + max_s
    while True:
        try:
            return process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            if not wanted():
                raise Cancelled from None
            if time.monotonic() > until:
                raise ProgramStopped(f"{module} takes longer than {max_s:.0f} s") from None


def _content(file: BinaryIO) -> bytes:
    file.seek(0, io.SEEK_SET)
    return file.read()


def end(status: int) -> str:
    """How a program with this exit status has ended, in words."""
    if status == -signal.SIGKILL:
        return "was killed, probably since memory was short"
    return f"ended by {signal.strsignal(-status)}" if status < 0 else f"failed with status {status}"


def last_line(errors: BinaryIO) -> str:
    """The last line of what a program has written to ``errors``, which says most."""
    lines = _content(errors).decode(errors="replace").split("\n")
    return next((line.strip()[:_MAX_ERROR] for line in reversed(lines) if line.strip()), "no message")
