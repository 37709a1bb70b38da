"""Real relays, and daemons that work for them."""

from __future__ import annotations

import re
import time
from pathlib import Path

import httpx
import openai
from daemon import READY_S, Daemon
from program import Program

SECRET = "a secret of the tests"
SECRET_FLAGS = ("--worker-secret", SECRET.replace(" ", "-"))


class Relay(Program):
    """A relay on a port of its own, whose queue is patient."""

    def __init__(self, directory: Path, *flags: str) -> None:
        super().__init__(directory, "relay", "--listen", "127.0.0.1:0", *SECRET_FLAGS, *flags)
        self.address = self.wait_for_line(r"listening at=(\S+)")
        self.url = f"http://{self.address}"

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def wait_for_workers(self, count: int) -> None:
        deadline = time.monotonic() + READY_S
        while httpx.get(f"{self.url}/health").json()["workers"] != count:
            assert time.monotonic() < deadline, self.logs
            time.sleep(0.02)

    def total(self, name: str) -> float:
        (value,) = re.findall(rf"(?m)^umaserve_relay_{name}_total (\S+)", httpx.get(f"{self.url}/metrics").text)
        return float(value)


def box(directory: Path, *relays: Relay, flags: tuple[str, ...] = ()) -> Daemon:
    """A daemon that works for ``relays``."""
    directory.mkdir()
    urls = ",".join(relay.url for relay in relays)
    return Daemon(directory, "--relay", urls, *SECRET_FLAGS, *flags, env={"UMA_THREADS": "1"})
