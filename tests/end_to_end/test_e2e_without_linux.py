"""The real daemon and model without what Linux has and macOS lacks: by a stand-in in each of its processes."""

from __future__ import annotations

import json
import os
import signal
import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import FAR_FROM_A_TIE, Daemon

FOLDER = Path(__file__).parents[1] / "support/without_linux"
LACKS = ("affinity", "/proc", "files in memory", "epoll")


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    paths = os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")])
    env = {"PYTHONPATH": paths, "UMA_THREADS": "1"}
    daemon = Daemon(tmp_path_factory.mktemp("elsewhere"), "--http", "127.0.0.1:0", "--no-speculation", env=env)
    yield daemon
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


def engine_of(daemon: Daemon) -> int:
    (pid,) = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split()
    return int(pid)


def completion(daemon: Daemon, stream: bool) -> bytes:
    body = {"prompt": FAR_FROM_A_TIE, "max_tokens": 12, "temperature": 0, "stream": stream}
    request = urllib.request.Request(f"http://{daemon.http}/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def test_what_is_missing_is_said_once(elsewhere: Daemon) -> None:
    (line,) = [line for line in elsewhere.logs.splitlines() if "not available on this system" in line]
    assert all(lack in line for lack in LACKS)


def test_both_sockets_answer_as_on_linux(elsewhere: Daemon, daemon: Daemon) -> None:
    text = elsewhere.text(FAR_FROM_A_TIE, max_tokens=12)
    assert text == daemon.text(FAR_FROM_A_TIE, max_tokens=12)
    assert json.loads(completion(elsewhere, stream=False))["choices"][0]["text"] == text
    events = [line[6:] for line in completion(elsewhere, stream=True).splitlines() if line.startswith(b"data: {")]
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == text


def test_the_peer_is_known_and_the_socket_is_not_everyones(elsewhere: Daemon) -> None:
    elsewhere.ask(max_tokens=1)
    assert f"uid:{os.getuid()}" in elsewhere.logs
    assert stat.S_IMODE(os.stat(elsewhere.path).st_mode) == 0o660


def test_a_stream_outlives_its_engine(elsewhere: Daemon) -> None:
    with elsewhere.connect() as wire:
        wire.send({"id": "t", "prompt": FAR_FROM_A_TIE, "max_tokens": 200})
        events = [wire.receive() for _ in range(3)]
        os.kill(engine_of(elsewhere), signal.SIGKILL)
        events += wire.receive_all()
    assert events[-1]["reason"] == "length"
    assert events[-1]["usage"]["completion_tokens"] == 200
    assert elsewhere.metrics()["engine_crashes_total"] == 1
