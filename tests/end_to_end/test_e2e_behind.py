"""Daemons behind HAProxy and nginx, which run as ``conf/`` has them."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from balancers import balancer, free_ports
from daemon import ANSWER_S, Daemon
from generate_wire import Conversation

PATH = f"{os.environ['PATH']}:/usr/sbin"
CLIENTS = 4


class Behind(NamedTuple):
    """A balancer, with its address as daemons have it, and the daemons behind it."""

    http: str
    ports: tuple[int, int]
    folder: Path
    daemons: list[Daemon]


def started(folder: Path, port: int) -> Daemon:
    flags = ("--http", f"127.0.0.1:{port}", "--drain-grace", "1", "--no-speculation")
    return Daemon(folder, *flags, env={"UMA_THREADS": "1"})


@pytest.fixture(scope="module", params=["haproxy", "nginx"])
def behind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    if shutil.which(request.param, path=PATH) is None:
        pytest.skip(f"there is no {request.param}: scripts/peers installs it")
    folder = tmp_path_factory.mktemp(request.param)
    port, *ports = free_ports(3)
    for number in range(2):
        (folder / str(number)).mkdir()
    both = (ports[0], ports[1])
    daemons = [started(folder / str(number), port) for number, port in enumerate(both)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", PATH)
        with balancer(request.param, folder, port, both):
            yield Behind(f"127.0.0.1:{port}", both, folder, daemons)
    for daemon in daemons:
        assert daemon.stop() == 0, daemon.logs
        assert "Traceback" not in daemon.logs, daemon.logs


def test_events_come_as_they_are_made(behind: Behind) -> None:
    options = {"temperature": 0, "num_predict": 256}
    body = {"model": "default", "prompt": "Once upon a time", "raw": True, "options": options}
    url = f"http://{behind.http}/api/generate"
    with httpx.stream("POST", url, json=body, timeout=ANSWER_S) as answer:
        lines = answer.iter_lines()
        first = json.loads(next(lines))
        running = sum(daemon.metrics()["active_sessions"] for daemon in behind.daemons)
        rest = [json.loads(line) for line in lines]
    assert first["response"]
    assert running == 1, "the first event came while the others were not made yet"
    assert rest[-1]["done"] is True


def test_a_websocket_stays_open_and_steerable(behind: Behind) -> None:
    with Conversation(behind) as client:
        client.config(max_tokens=100_000)
        client.until("init")
        client.tokens(2)
        client.control("pause")
        client.until("pause")
        client.control("stop")
        assert client.until("completion", "error")[-1]["type"] == "completion"


def test_a_rolling_restart_costs_no_request(behind: Behind) -> None:
    failures: list[str] = []
    answered = itertools.count()
    over = threading.Event()

    def ask(client: int) -> None:
        for turn in itertools.count():
            if over.is_set():
                return
            body = {"prompt": f"{client} {turn}:", "max_tokens": 4, "stream": bool(turn % 2)}
            try:
                answer = httpx.post(f"http://{behind.http}/v1/completions", json=body, timeout=ANSWER_S)
                whole = "[DONE]" in answer.text if body["stream"] else answer.json().get("choices")
                if answer.status_code != 200 or not whole:
                    failures.append(f"{answer.status_code} {answer.text}")
            except (httpx.HTTPError, ValueError) as error:
                failures.append(repr(error))
            next(answered)

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        for number, port in enumerate(behind.ports):
            assert behind.daemons[number].stop() == 0, behind.daemons[number].logs
            behind.daemons[number] = started(behind.folder / str(number), port)
            # The next one leaves when this one has got requests again.
            behind.daemons[number].wait_for(lambda values: values["tokens_generated_total"] > 0)
            time.sleep(0.1)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert next(answered) > 2 * CLIENTS
