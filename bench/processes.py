"""Starts what is measured, and what measures it, each in a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from bench.trace import Trace
from umaserve.client import Client

_POLL_S = 0.05
_STOP_S = 20.0


def trace_of(module: str, *arguments: object) -> Trace:
    """Run ``module``, which prints the trace of its run."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=_environment())
    return Trace.load(done.stdout)


@contextlib.contextmanager
def daemon(module: str, **settings: str) -> Iterator[str]:
    """Run ``module`` as a daemon on a socket of its own; gives the socket's path once the daemon is ready."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = os.path.join(folder, "uma.sock")
        environment = _environment(UMA_SOCK=path, UMA_PROTOCOL="json", **settings)
        process = subprocess.Popen([sys.executable, "-m", module], env=environment)
        try:
            _await_ready(path, process)
            yield path
        finally:
            _stop(process)


def _environment(**settings: str) -> dict[str, str]:
    # Errors only: a warning of the model's loader would be repeated by every run.
    return {**os.environ, "UMA_LOG_LEVEL": "error", **settings}


def _await_ready(path: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with contextlib.suppress(OSError):
            if Client(path).metrics()["state"] == "ready":
                return
        time.sleep(_POLL_S)
    raise RuntimeError(f"the daemon ended with status {process.returncode} before it was ready")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
