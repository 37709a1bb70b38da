"""Starts what is measured, and what measures it, each in a process of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.conversations import UNIX_SOCKET
from bench.trace import Trace
from bench.workload import WARM_UP_TOKENS
from umaserve.client import Client

_POLL_S = 0.05
_STOP_S = 20.0
_NO_TARGET_MS = "60000"


class Served(NamedTuple):
    """A server that is ready: where it answers HTTP, and its process."""

    http: str
    pid: int
    socket: str = ""
    """The daemon's own; llama-server has none."""


def trace_of(module: str, *arguments: object, **variables: str) -> Trace:
    """Run ``module``, which prints the trace of its run, with these variables added to the environment."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=_environment(**variables))
    return Trace.load(done.stdout)


def trace_over(dialect: str, module: str, clients: int, tokens: int) -> Trace:
    """Run ``module`` as a daemon, and the load generator against it. Nobody it is compared with has a target for the
    time between tokens: with one, streams start one after another and are compared in another phase of theirs."""
    with daemon(module, UMA_MAX_TOKENS=str(max(tokens, WARM_UP_TOKENS)), UMA_SLO_TBT_MS=_NO_TARGET_MS) as at:
        return trace_of("bench.load", dialect, at.socket if dialect == UNIX_SOCKET else at.http, clients, tokens)


@contextlib.contextmanager
def daemon(module: str, **settings: str) -> Iterator[Served]:
    """Run ``module`` as a daemon on addresses of its own; gives them once it is ready."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path, http = os.path.join(folder, "uma.sock"), free_address()
        own = {"UMA_SOCK": path, "UMA_PROTOCOL": "json", "UMA_HTTP": http}
        with running(
            [sys.executable, "-m", module],
            lambda: Client(path).metrics()["state"] == "ready",
            **own,
            **settings,
        ) as pid:
            yield Served(http, pid, path)


@contextlib.contextmanager
def running(command: Sequence[str], is_ready: Callable[[], bool], **variables: str) -> Iterator[int]:
    """Run a server, from when ``is_ready``, which may raise ``OSError``; gives its process id.

    What it prints goes to standard error.
    """
    process = subprocess.Popen(command, env=_environment(**variables), stdout=sys.stderr)
    try:
        _await(is_ready, process)
        yield process.pid
    finally:
        _stop(process)


def free_address() -> str:
    """An address of this machine on whose port nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        return f"{host}:{port}"


def _environment(**variables: str) -> dict[str, str]:
    # Errors only: a warning of the model's loader would be repeated by every run.
    return {**os.environ, "UMA_LOG_LEVEL": "error", **variables}


def _await(is_ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with contextlib.suppress(OSError):
            if is_ready():
                return
        time.sleep(_POLL_S)
    raise RuntimeError(f"{process.args!r} ended with status {process.returncode} before it was ready")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def with_children(pid: int) -> list[int]:
    """A program and those that its first thread has started, such as the daemon's engine (proc(5), task/children)."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
