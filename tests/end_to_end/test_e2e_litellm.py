"""Two daemons behind LiteLLM's proxy, which runs as ``conf/litellm.yaml`` has it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from balancers import CONF, free_ports, replaced
from daemon import ANSWER_S, CHAT_FAR_FROM_A_TIE, READY_S, Daemon

LITELLM = Path(os.environ.get("UMA_CLIENTS", sys.prefix)) / "pypi" / "bin" / "litellm"
KEY = {"Authorization": "Bearer sk-" + 4 * "0123456789abcdef"}

pytestmark = pytest.mark.skipif(
    not LITELLM.exists(), reason=f"there is no {LITELLM}: scripts/test installs it where it has a network"
)


class Proxied(NamedTuple):
    url: str
    daemons: list[Daemon]

    def ask(self, **fields: Any) -> httpx.Response:
        body = {"model": "chat", "messages": CHAT_FAR_FROM_A_TIE, "temperature": 0, "max_tokens": 8, **fields}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=KEY, timeout=ANSWER_S)

    def health(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.url}/health", headers=KEY, timeout=ANSWER_S).json()
        return found


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Proxied]:
    daemons = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        daemons.append(Daemon(tmp_path / name, "--http", "127.0.0.1:0", env={"UMA_THREADS": "1"}))
    places = {"127.0.0.1:8080": daemons[0].http, "127.0.0.1:8081": daemons[1].http}
    config = tmp_path / "litellm.yaml"
    config.write_text(replaced((CONF / "litellm.yaml").read_text(), places))
    (port,) = free_ports(1)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    environment["LITELLM_MASTER_KEY"] = KEY["Authorization"].removeprefix("Bearer ")
    command = [LITELLM, "--config", config, "--host", "127.0.0.1", "--port", str(port)]
    log = tmp_path / "log"
    with log.open("wb") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process:
        url, until = f"http://127.0.0.1:{port}", time.monotonic() + READY_S
        while True:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/health/liveliness", timeout=ANSWER_S).status_code == 200:
                    break
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        yield Proxied(url, daemons)
        process.terminate()
    for daemon in daemons:
        assert daemon.stop() == 0, daemon.logs
        assert "Traceback" not in daemon.logs, daemon.logs


def test_one_daemon_takes_over_from_another(proxied: Proxied) -> None:
    answer = proxied.ask().json()
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] == 8
    streamed = proxied.ask(stream=True, stream_options={"include_usage": True})
    assert '"completion_tokens":8' in streamed.text
    assert streamed.text.rstrip().endswith("data: [DONE]")
    assert proxied.health()["healthy_count"] == 2
    proxied.daemons[0].stop()
    assert [proxied.ask().status_code for _ in range(4)] == [200] * 4
    assert proxied.health()["unhealthy_count"] == 1
