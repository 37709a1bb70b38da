"""``umaserve`` in a subprocess: one command to its end, or a relay or worker that goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

READY_S = 120


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("UMA_")}
    variables |= {"UMA_WEIGHTS": "as-is", "UMA_HTTP": ""}
    command = [sys.executable, "-m", "umaserve", *arguments]
    with tempfile.TemporaryDirectory() as state:
        variables["XDG_STATE_HOME"] = state
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables, **options)


class Program:
    """``umaserve relay`` or ``umaserve worker`` in a subprocess."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._log_path = directory / f"{arguments[0]}.log"
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("UMA_", "WORKER_"))}
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "umaserve", *arguments], env=variables, stdin=subprocess.DEVNULL, stderr=log
            )

    @property
    def logs(self) -> str:
        return self._log_path.read_text()

    def wait_for_line(self, pattern: str) -> str:
        deadline = time.monotonic() + READY_S
        found: list[str]
        while not (found := re.findall(pattern, self.logs)):
            assert self.process.poll() is None, self.logs
            assert time.monotonic() < deadline, f"{pattern} never came:\n{self.logs}"
            time.sleep(0.01)
        return found[-1]

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)
