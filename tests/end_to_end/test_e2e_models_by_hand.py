"""An operator's models: loaded and unloaded over HTTP and in the terminal, and the metrics of each."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from daemon import ANSWER_S, Daemon
from http_wire import Http
from openapi_document import GETS, POSTS, check_response
from prometheus_client.parser import text_string_to_metric_families
from tiny_models import tiny_model

from umaserve.access.keys import KeyFile
from umaserve.settings.model_files import default_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    shutil.copy(default_model(), folder / "chat.gguf")
    tiny_model(folder / "tiny.gguf", "mamba")
    (folder / "broken.gguf").write_bytes(b"GGUF" + bytes(3 << 20))
    return folder


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("daemon")
    flags = ("--http", "127.0.0.1:0", "--http-socket", str(directory / "http.sock"), "--n-ctx", "1024")
    daemon = Daemon(directory, *flags, "--models-dir", str(folder), "--model", "chat", env={"UMA_THREADS": "1"})
    yield daemon
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


@pytest.fixture
def http(daemon: Daemon) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{daemon.http}", timeout=ANSWER_S) as http:
        yield http


def states(http: httpx.Client) -> dict[str, str]:
    answer = http.get("/models")
    check_response(answer, GETS["/v1/models"])
    return {one["id"]: one["status"]["value"] for one in answer.json()["data"]}


def move(http: httpx.Client, how: str, name: str) -> httpx.Response:
    answer = http.post(f"/models/{how}", json={"model": name})
    check_response(answer, POSTS[f"/models/{how}"])
    return answer


def in_terminal(daemon: Daemon, *arguments: str) -> tuple[int, str, str]:
    url = f"unix:{Path(daemon.path).parent / 'http.sock'}"
    command = [sys.executable, "-m", "umaserve", "models", *arguments, "--url", url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S)
    return ended.returncode, ended.stdout, ended.stderr


def test_a_model_is_loaded_and_unloaded_over_http(daemon: Daemon, http: httpx.Client) -> None:
    assert states(http) == {"chat": "loaded", "broken": "unloaded", "tiny": "unloaded"}
    assert move(http, "load", "tiny").json() == {"success": True}
    assert states(http)["tiny"] in ("loading", "loaded")
    daemon.wait_for(lambda _metrics: states(http)["tiny"] == "loaded")
    again = move(http, "load", "tiny.gguf")
    assert (again.status_code, again.json()["error"]["message"]) == (400, "model: tiny is loaded already")
    assert move(http, "unload", "tiny").json() == {"success": True}
    daemon.wait_for(lambda metrics: metrics["models"]["tiny"]["state"] == "unloaded")
    refused = move(http, "unload", "tiny")
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "model: tiny is not loaded")
    unknown = move(http, "load", "tinny")
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")


def test_loads_and_unloads_are_events(http: httpx.Client) -> None:
    def until(value: str) -> list[dict[str, Any]]:
        """Events of the tiny model, until one tells of this state."""
        told: list[dict[str, Any]] = []
        while not told or told[-1]["data"]["status"] != value:
            line = next(lines)
            if line.startswith("data: ") and (event := json.loads(line[6:]))["model"] == "tiny":
                told.append(event)
        return told

    with http.stream("GET", "/models/sse") as events:
        lines = events.iter_lines()
        move(http, "load", "tiny")
        assert {event["event"] for event in until("loaded")} <= {"model_status", "status_change"}
        move(http, "unload", "tiny")
        assert until("unloaded")[-1]["data"]["exit_code"] == 0


def test_an_answer_ends_before_its_model_is_unloaded_and_the_next_has_it_loaded_again(
    daemon: Daemon, http: httpx.Client
) -> None:
    with daemon.connect() as wire:
        wire.send({"id": "long", "prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True})
        assert wire.receive()["event"] == "token"
        assert move(http, "unload", "chat").status_code == 200
        assert move(http, "unload", "chat").status_code == 409
        # It waits until the model is loaded again.
        late = daemon.ask(max_tokens=3)
        assert wire.receive_all()[-1]["usage"]["completion_tokens"] == 200
    assert late[-1]["usage"]["completion_tokens"] == 3
    assert "unloaded model=chat" in daemon.logs


def test_models_in_the_terminal(daemon: Daemon, http: httpx.Client) -> None:
    assert in_terminal(daemon, "load", "tiny") == (0, "", "")
    status, table, _error = in_terminal(daemon, "list")
    title, *rows = table.splitlines()
    assert (status, title.split()[:2]) == (0, ["NAME", "STATE"])
    assert [row.replace("* ", "").split()[:2] for row in rows] == [
        ["chat", "loaded"],
        ["broken", "unloaded"],
        ["tiny", "loaded"],
    ]
    assert in_terminal(daemon, "unload", "tiny") == (0, "", "")
    daemon.wait_for(lambda _metrics: states(http)["tiny"] == "unloaded")
    assert in_terminal(daemon, "load", "broken") == (
        1,
        "",
        "umaserve: broken could not be loaded: see the server's log\n",
    )
    assert "broken could not be loaded: " in daemon.logs
    nearest = "umaserve: no model is named tin, did you mean tiny?: see umaserve models list\n"
    assert in_terminal(daemon, "load", "tin") == (1, "", nearest)


def test_metrics_of_each_model(daemon: Daemon, http: httpx.Client) -> None:
    before = daemon.metrics()["models"]
    assert list(before) == ["chat", "broken", "tiny"]
    daemon.ask(max_tokens=7, ignore_eos=True)
    after = daemon.metrics()
    assert after["models"]["chat"]["tokens_generated_total"] == before["chat"]["tokens_generated_total"] + 7
    assert after["models"]["tiny"]["tokens_generated_total"] == before["tiny"]["tokens_generated_total"]
    assert after["models"]["chat"]["memory_bytes"] > 64 << 20
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(http.get("/metrics").text)
        for sample in family.samples
    }
    assert samples["umaserve_model_state", "chat", "loaded"] == 1
    assert samples["umaserve_model_state", "loaded", "tiny"] == 0
    made = samples["umaserve_model_tokens_generated_total", "chat"]
    assert made == after["models"]["chat"]["tokens_generated_total"]
    ends = "umaserve_requests_total"
    assert samples[ends, "chat", "openai", "queue_full"] == samples[ends, "chat", "json", "timed_out"] == 0


def test_models_are_moved_with_operators_keys_only_where_there_are_keys(
    own_daemon, tmp_path: Path, folder: Path
) -> None:
    file = str(tmp_path / "keys.json")
    keys = KeyFile(file, missing_ok=True)
    key, operators = keys.add("ann"), keys.add("bea", group="operator")
    keyed = own_daemon("--http", "127.0.0.1:0", "--api-keys", file, "--models-dir", str(folder), "--model", "tiny")
    body, bearer = {"model": "tiny"}, {"Authorization": f"Bearer {key}"}
    with Http(keyed.http) as wire:
        for how in ("load", "unload"):
            assert wire.ask("POST", f"/models/{how}", body).status == 401
            assert wire.ask("POST", f"/models/{how}", body, headers=bearer).status == 403
        assert json.loads(wire.ask("GET", "/models", headers=bearer).body)["data"][0]["status"]["value"] == "loaded"
        bearer = {"Authorization": f"Bearer {operators}"}
        assert wire.ask("POST", "/models/unload", body, headers=bearer).status == 200
