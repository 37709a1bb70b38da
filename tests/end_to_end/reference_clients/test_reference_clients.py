"""Clients made from the contract websocket-generate alone, on the real daemon."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import Daemon

HERE = Path(__file__).parent
END_S = 60


def node() -> list[str]:
    """The command that runs a script with the browser's WebSocket; empty where there is none."""
    program = shutil.which("node")
    if program is None:
        return []
    for flags in ([], ["--experimental-websocket"]):
        command = [program, *flags]
        found = subprocess.run([*command, "-p", "typeof WebSocket"], capture_output=True, text=True, check=False)
        if found.stdout.strip() == "function":
            return command
    return []


NODE = node()
in_node = pytest.mark.skipif(not NODE, reason="there is no node with a WebSocket")


def lines(daemon: Daemon, *command: str) -> Iterator[dict]:
    """What the client prints, while it runs; it must end well."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        for line in process.stdout:
            yield json.loads(line)
        complaints = process.stderr.read()
    assert process.wait(END_S) == 0, complaints


def browser(daemon: Daemon, *more: str) -> Iterator[dict]:
    return lines(daemon, *NODE, str(HERE / "node.js"), f"ws://{daemon.http}/generate", *more)


def flow(daemon: Daemon, name: str) -> Iterator[dict]:
    return lines(daemon, sys.executable, str(HERE / "flows.py"), f"ws://{daemon.http}/generate", name)


class Crowd:
    """Three who fill a daemon of one place and two in the queue."""

    def __init__(self, daemon: Daemon):
        self.wires = [daemon.connect() for _ in range(3)]
        for wire in self.wires:
            wire.send({"id": "crowd", "prompt": "Once", "max_tokens": 512, "ignore_eos": True})
            if wire is self.wires[0]:
                wire.receive_until("token")
        daemon.wait_for(lambda values: values["waiting_sessions"] == 2)

    def leave(self) -> None:
        for wire in self.wires:
            wire.close()


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    flags = ("--http", "127.0.0.1:0", "--parallel", "1", "--max-queue", "2")
    daemon = Daemon(tmp_path_factory.mktemp("narrow"), *flags, env={"UMA_THREADS": "1"})
    yield daemon
    assert daemon.stop() == 0, daemon.logs


@in_node
def test_the_browsers_client_shows_a_generation(daemon: Daemon):
    shown = list(browser(daemon))
    assert re.match("Generation started with ID: gen_", shown[0]["text"])
    # This model may end its answer to the client's prompt at once.
    output = [change["text"] for change in shown if change["id"] == "output"]
    assert all(after.startswith(before) for before, after in itertools.pairwise(output))
    assert shown[-2]["text"] == f"Generation complete: {output[-1]}"
    assert re.fullmatch(r"Tokens: \d+, Reason: (length|stop)", shown[-1]["text"])


@in_node
@pytest.mark.parametrize(("call", "shows"), [("stopGeneration", None), ("increaseRandomness", "modify: 100% - ")])
def test_the_browsers_client_steers(daemon: Daemon, call: str, shows: str | None):
    shown = list(browser(daemon, "Once upon a time", call))
    status = [change["text"] for change in shown if change["id"] == "status"]
    if shows is None:
        assert shown[-1]["text"].endswith("Reason: stop")
        assert sum(change["id"] == "output" for change in shown) < 100
    else:
        assert [text.startswith(shows) for text in status] == [True]
    assert not [change for change in shown if change["id"] == "error"]


@in_node
def test_the_browsers_client_recovers(narrow: Daemon):
    crowd = Crowd(narrow)
    shown = []
    for change in browser(narrow):
        shown.append(change)
        if change["id"] == "error":
            assert "requests are waiting" in change["text"]
            crowd.leave()
    assert "error" in [change["id"] for change in shown]
    assert shown[-1]["id"] == "stats"


def test_the_basic_flow(daemon: Daemon):
    init, *tokens, completion = flow(daemon, "basic")
    assert (init["type"], completion["type"]) == ("init", "completion")
    assert {token["type"] for token in tokens} == {"token"}
    assert "".join(token["token"] for token in tokens) == completion["generated_text"]


def test_the_flow_of_an_error_and_its_recovery(narrow: Daemon):
    crowd = Crowd(narrow)
    messages = []
    for message in flow(narrow, "recovery"):
        messages.append(message)
        if message["type"] == "error":
            crowd.leave()
    assert (messages[0]["error"], messages[0]["recoverable"]) == ("rate_limited", True)
    assert messages[-1]["type"] == "completion"
    assert messages[-1]["usage"]["completion_tokens"] <= 100


def test_the_flow_of_control_in_mid_stream(daemon: Daemon):
    messages = list(flow(daemon, "midstream"))
    statuses = [message for message in messages if message["type"] == "status"]
    assert [status["operation"] for status in statuses] == ["modify"]
    assert messages[-1]["type"] == "completion"
    assert messages[-1]["finish_reason"] == "stop"
    assert messages[-1]["usage"]["completion_tokens"] < 200
