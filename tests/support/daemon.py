"""The real daemon in a subprocess, and a client of the contract's own words: a socket, struct and JSON."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from frames import uds_frame

READY_S = 120
ANSWER_S = 120

Event = dict[str, Any]
"""An object of the protocol, in either direction."""

FAR_FROM_A_TIE = "1, 2, 3, 4, 5,"
"""The greedy answer is the same whatever its neighbours, and wherever its cells lie: llama.cpp rounds otherwise by the
size of a batch, which guesses are a part of, and by the order of the cells, and free text has many near ties."""
CHAT_FAR_FROM_A_TIE = [
    {"role": "user", "content": "Count: 1, 2, 3"},
    {"role": "assistant", "content": "4, 5, 6, 7"},
    {"role": "user", "content": "Repeat: 1, 2, 3, 4, 5, 6, 7, 8, 9"},
]
"""Likewise, for 12 tokens."""


class Daemon:
    """``python -m umaserve`` on a socket in ``directory``; ``logs`` is what it wrote to standard error."""

    def __init__(
        self,
        directory: Path,
        *flags: str,
        env: dict[str, str] | None = None,
        without: tuple[str, ...] = (),
        wait: bool = True,
        program: tuple[str, ...] = ("-m", "umaserve"),
        python: str = sys.executable,
        **popen: Any,
    ) -> None:
        self.path = str(directory / "uma.sock")
        self._log_path = directory / "log"
        variables = {name: value for name, value in os.environ.items() if not name.startswith("UMA_")}
        # Many run at once, and one address is usual.
        variables |= {"UMA_WEIGHTS": "as-is", "UMA_HTTP": ""}
        # What it learns is for the daemons in this directory alone.
        variables["XDG_STATE_HOME"] = str(directory / "state")
        variables |= env or {}
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [python, *program, "--socket", self.path, *flags],
                env={name: value for name, value in variables.items() if name not in without},
                stdin=subprocess.DEVNULL,
                stderr=log,
                **popen,
            )
        if wait:
            self.wait_until_ready()

    @property
    def logs(self) -> str:
        return self._log_path.read_text()

    @property
    def http(self) -> str:
        """HOST:PORT of a daemon that was started with ``--http HOST:0``."""
        addresses: list[str] = re.findall(r"listening at=(\S+) protocol=http", self.logs)
        return addresses[-1]

    def wait_for_socket(self) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.logs
            try:
                self.connect().close()
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.005)
            else:
                return
        raise AssertionError(f"no socket:\n{self.logs}")

    def wait_until_ready(self) -> None:
        self.wait_for_socket()
        self.wait_for(lambda values: values["state"] == "ready")

    def wait_for(self, condition: Callable[[Event], bool], seconds: float = READY_S) -> Event:
        """Metrics for which ``condition`` holds; fails if that never comes."""
        deadline = time.monotonic() + seconds
        while True:
            values = self.metrics()
            if condition(values):
                return values
            assert time.monotonic() < deadline, f"never so: {values}\n{self.logs}"
            time.sleep(0.01)

    def wait_until_quiet(self) -> Event:
        """Metrics when nothing runs and no KV is in use but what is kept for later prompts."""
        return self.wait_for(lambda v: v["active_sessions"] == v["waiting_sessions"] == v["kv_cells_used"] == 0)

    def connect(self) -> Wire:
        return Wire(self.path)

    def metrics(self) -> Event:
        with self.connect() as wire:
            wire.send({"type": "metrics"})
            metrics = wire.receive()
        assert metrics is not None, self.logs
        return metrics

    def ask(self, prompt: str = "Once upon a time", **fields: Any) -> list[Event]:
        """All events of one request."""
        with self.connect() as wire:
            wire.send({"id": "t", "prompt": prompt, **fields})
            return wire.receive_all()

    def text(self, prompt: str = "Once upon a time", **fields: Any) -> str:
        return "".join(event["text"] for event in self.ask(prompt, **fields)[:-1])

    def stop(self, number: int = signal.SIGTERM, timeout: float = 60) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout)


def stands_still(name: str) -> Callable[[Event], bool]:
    """A condition for ``wait_for``: the value has been the same, save for what asking costs, 20 times in a row."""
    seen: list[int] = []

    def condition(values: Event) -> bool:
        seen.append(values[name])
        return len(seen) > 20 and bool(seen[-1] - seen[-20] < 20 * 100)

    return condition


def serving(directories: pytest.TempPathFactory, *flags: str) -> Iterator[Daemon]:
    """A fixture's daemon, with HTTP at a port of its own."""
    daemon = Daemon(directories.mktemp("daemon"), "--http", "127.0.0.1:0", *flags, env={"UMA_THREADS": "1"})
    yield daemon
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


class Wire:
    """One connection, frame by frame (contract: uds-framed-json, Transport & Framing)."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER_S)
        try:
            self.sock.connect(path)
        except BaseException:
            self.sock.close()
            raise

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def send(self, value: Event) -> None:
        self.sock.sendall(uds_frame(value))

    def receive(self) -> Event | None:
        """The next event; ``None`` at the end of the stream."""
        header = self._exactly(4)
        if header is None:
            return None
        payload = self._exactly(struct.unpack("<I", header)[0])
        assert payload is not None, "the stream ended behind a length"
        event: Event = json.loads(payload)
        return event

    def receive_until(self, *events: str) -> Event:
        """The next event of one of these kinds; what comes before it is dropped."""
        while (event := self.receive()) is not None:
            if event["event"] in events:
                return event
        raise AssertionError(f"the stream ended before any of {events}")

    def receive_all(self) -> list[Event]:
        events = []
        while (event := self.receive()) is not None:
            events.append(event)
        return events

    def _exactly(self, n: int) -> bytes | None:
        data = b""
        while len(data) < n:
            part = self.sock.recv(n - len(data))
            if not part:
                assert not data, f"the stream ended within a frame: {data!r}"
                return None
            data += part
        return data
