"""Models that operators have a daemon download from a hub on loopback, and delete, over HTTP."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub.constants
import pytest
from daemon import ANSWER_S, Daemon
from openapi_document import DOCUMENT, GETS, POSTS, check_answer, check_response
from standin_hub import StandinHub, standin_hub
from tiny_models import tiny_model

from umaserve.access.keys import KeyFile
from umaserve.system import program

TINY, LARGE = "org/Tiny-GGUF:Q8_0", "org/Tiny-GGUF:F16"
FILE, LARGE_FILE = "Tiny-Q8_0.gguf", "Tiny-F16.gguf"
FLAGS = ("--http", "127.0.0.1:0", "--n-ctx", "1024")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return Path(tiny_model(tmp_path_factory.mktemp("model") / FILE, "mamba")).read_bytes()


@pytest.fixture
def hub(model: bytes) -> Iterator[StandinHub]:
    with standin_hub() as hub:
        # More than the library reads at a time.
        large = model + bytes(3 * huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE)
        hub.repositories["org/Tiny-GGUF"] = {FILE: model, LARGE_FILE: large}
        yield hub


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def daemon(own_daemon: Callable[..., Daemon], hub: StandinHub, models: Path) -> Daemon:
    return serving(own_daemon, hub, models)


def serving(
    own_daemon: Callable[..., Daemon], hub: StandinHub, models: Path, *flags: str, size: str = "1GiB"
) -> Daemon:
    env = {"HF_ENDPOINT": hub.url, "HF_HUB_ETAG_TIMEOUT": "5", "A_SECRET": "sesame"}
    return own_daemon(*FLAGS, "--models-dir", str(models), "--model-downloads", size, *flags, env=env)


class Operator:
    """Asks a daemon, and reads its events."""

    def __init__(self, daemon: Daemon, key: str = "") -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=f"http://{daemon.http}", timeout=ANSWER_S, headers=headers)

    def __enter__(self) -> Operator:
        self.http.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.__exit__()

    def download(self, name: str = TINY) -> httpx.Response:
        answer = self.http.post("/models", json={"model": name})
        check_response(answer, POSTS["/models"])
        return answer

    def cancel(self, name: str = TINY) -> httpx.Response:
        return self.http.post("/models/unload", json={"model": name})

    def delete(self, name: str = TINY) -> httpx.Response:
        answer = self.http.delete("/models", params={"model": name})
        check_response(answer, DOCUMENT["paths"]["/models"]["delete"])
        return answer

    def rows(self) -> dict[str, dict[str, Any]]:
        answer = self.http.get("/models")
        check_response(answer, GETS["/models"])
        return {one["id"]: one for one in answer.json()["data"]}

    def events(self, do: Callable[[], object], until: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Events from when ``do`` is called, to one for which ``until`` holds."""
        told: list[dict[str, Any]] = []
        with self.http.stream("GET", "/models/sse") as stream:
            lines = stream.iter_lines()
            do()
            while not told or not until(told[-1]):
                line = next(lines)
                if line.startswith("data: "):
                    told.append(json.loads(line[6:]))
                    check_answer(told[-1], DOCUMENT["components"]["schemas"]["ModelEvent"])
        return told

    def failure(self, name: str = TINY, do: Callable[[], object] | None = None) -> str:
        """Why a download fails, by its event."""
        *_, last = self.events(do or (lambda: self.download(name)), lambda one: one["event"] == "download_failed")
        assert last["model"] == name
        return str(last["data"]["error"]["message"])


@pytest.fixture
def operator(daemon: Daemon) -> Iterator[Operator]:
    with Operator(daemon) as operator:
        yield operator


def pids(daemon: Daemon) -> list[int]:
    return program.running("umaserve.commands.download", daemon.process.pid)


def is_progress(event: dict[str, Any]) -> bool:
    files = event.get("data", {}).get("progress", {})
    return event["event"] == "download_progress" and any(one["done"] for one in files.values())


def message(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["message"]


def test_a_model_is_downloaded_served_and_deleted(
    daemon: Daemon, operator: Operator, models: Path, model: bytes
) -> None:
    told = operator.events(operator.download, lambda one: one["event"] == "models_reload")
    assert [one["event"] for one in told if one["event"] != "download_progress"] == [
        "model_status",
        "download_finished",
        "models_reload",
    ]
    assert told[0] == {"model": TINY, "event": "model_status", "data": {"status": "downloading"}}
    assert told[-2]["data"] == {"id": "Tiny-Q8_0"}
    assert (models / "Tiny-Q8_0" / FILE).read_bytes() == model
    row = operator.rows()["Tiny-Q8_0"]
    assert (row["status"], row["aliases"]) == ({"value": "unloaded"}, ["Tiny-Q8_0", TINY])
    answer = operator.http.post("/v1/completions", json={"model": TINY, "prompt": "a", "max_tokens": 1})
    assert answer.json()["model"] == "Tiny-Q8_0", "by the name that it was asked for, too"
    assert message(operator.download()) == (
        400,
        f"model: {TINY} is there already, as Tiny-Q8_0: DELETE /models deletes it",
    )
    status, problem = message(operator.delete())
    assert (status, problem.split(":")[1]) == (409, " Tiny-Q8_0 is in use")
    operator.events(operator.cancel, lambda one: one.get("data", {}).get("status") == "unloaded")
    removed = operator.events(operator.delete, lambda one: one["event"] == "model_remove")
    assert removed == [{"model": "Tiny-Q8_0", "event": "model_remove"}]
    assert list(operator.rows()) == [one for one in operator.rows() if "Tiny" not in one]
    assert not [*models.rglob("*Tiny*")]
    assert operator.delete().status_code == 404
    assert "download finished" in daemon.logs


def test_a_download_is_listed_with_its_progress_and_cancelled(
    daemon: Daemon, operator: Operator, hub: StandinHub, models: Path
) -> None:
    hub.held[LARGE_FILE] = threading.Event()
    *_, progress = operator.events(lambda: operator.download(LARGE), is_progress)
    ((address, count),) = progress["data"]["progress"].items()
    assert address.startswith(f"{hub.url}/org/Tiny-GGUF/resolve/")
    assert 0 < count["done"] < count["total"] == len(hub.repositories["org/Tiny-GGUF"][LARGE_FILE])
    row = operator.rows()[LARGE]
    assert (row["status"], row["size"]) == ({"value": "downloading", "progress": {address: count}}, count["total"])
    assert LARGE not in {one["id"] for one in operator.http.get("/v1/models").json()["data"]}
    assert operator.download(LARGE).status_code == 409
    assert operator.download(TINY).status_code == 200, "it waits"
    assert operator.rows()[TINY]["status"] == {"value": "downloading", "progress": {}}
    assert operator.failure(LARGE, lambda: operator.cancel(LARGE)) == "it was cancelled"
    failed = {"value": "unloaded", "failed": True, "exit_code": 1, "error": "it was cancelled"}
    assert operator.rows()[LARGE]["status"] == failed
    daemon.wait_for(lambda _metrics: "Tiny-Q8_0" in operator.rows())
    assert not [*models.rglob("*.incomplete")]
    operator.events(lambda: operator.download(LARGE), is_progress)
    told = operator.events(lambda: operator.delete(LARGE), lambda one: one["event"] == "model_remove")
    assert [one["event"] for one in told if one["event"] != "download_progress"] == ["download_failed", "model_remove"]
    assert LARGE not in operator.rows()
    daemon.wait_for(lambda _metrics: not pids(daemon))
    assert not [*models.rglob("*F16*")]


def test_failures_are_told_in_events_in_the_list_and_in_the_log(
    daemon: Daemon, operator: Operator, hub: StandinHub, models: Path
) -> None:
    assert (
        operator.failure("org/none:Q8_0")
        == "org/none: no such repository, or it is private: check the name, or set HF_TOKEN"
    )
    assert 'problem="org/none: no such repository' in daemon.logs
    assert operator.rows()["org/none:Q8_0"]["status"]["error"].startswith("org/none: no such repository")
    assert "no model has Q3_K" in operator.failure("org/Tiny-GGUF:Q3_K")
    hub.damaged.add(FILE)
    assert operator.failure().endswith("damaged during the download: try again")
    hub.damaged.clear()
    hub.moved[FILE] = hub.url.replace("127.0.0.1", "localhost") + f"/org/Tiny-GGUF/resolve/main/{FILE}"
    assert operator.failure() == "the hub redirects to another host, localhost: nothing was sent there"
    hub.moved.clear()
    hub.told[FILE] = {"size": 1 << 39}
    assert "--model-downloads allows 1.0 GiB together: delete a model first" in operator.failure()
    hub.told.clear()
    assert not [*models.rglob("*.gguf")]
    (models / "Tiny-Q8_0").mkdir()
    (models / "Tiny-Q8_0" / FILE).write_bytes(b"GGUF")
    assert "the folder of models has another Tiny-Q8_0.gguf" in operator.failure()
    assert (models / "Tiny-Q8_0" / FILE).read_bytes() == b"GGUF"


def test_a_full_disk_is_told_before_anything_comes(
    own_daemon: Callable[..., Daemon], hub: StandinHub, models: Path
) -> None:
    hub.told[FILE] = {"size": 1 << 39}
    with Operator(serving(own_daemon, hub, models, size="1024GiB")) as operator:
        assert "free: delete something there" in operator.failure()


@pytest.mark.parametrize("name", ["tiny", "https://elsewhere.example/a/b", "../a/b", "a/b:c/d", "a/b\n", "", None, 5])
def test_other_names_are_refused_at_once(operator: Operator, name: object) -> None:
    answer = operator.http.post("/models", json={"model": name})
    assert message(answer)[0] == 400
    assert message(answer)[1].startswith("model: expected ")
    assert len(operator.rows()) == 1


def test_models_elsewhere_and_the_default_one_stay(
    own_daemon: Callable[..., Daemon], hub: StandinHub, models: Path, tmp_path: Path, model: bytes
) -> None:
    (tmp_path / "else.gguf").write_bytes(model)
    (models / "link.gguf").symlink_to(tmp_path / "else.gguf")
    (tmp_path / "umaserve.toml").write_text(f'[models.table]\npath = "{tmp_path}/else.gguf"\n')
    with Operator(serving(own_daemon, hub, models, "--config", str(tmp_path / "umaserve.toml"))) as operator:
        for name in operator.rows():
            assert operator.delete(name).status_code == 400
        assert operator.delete("../else").status_code == 404
        assert operator.http.delete("/models").status_code == 400
        assert operator.http.request("DELETE", "/models", json={"model": "table"}).status_code == 400
    assert (tmp_path / "else.gguf").read_bytes() == model


def test_only_operators_keys_may(
    own_daemon: Callable[..., Daemon], hub: StandinHub, models: Path, tmp_path: Path
) -> None:
    file = str(tmp_path / "keys.json")
    keys = KeyFile(file, missing_ok=True)
    plain, key = keys.add("ann"), keys.add("bea", group="operator")
    daemon = serving(own_daemon, hub, models, "--api-keys", file)
    hub.held[LARGE_FILE] = threading.Event()
    with Operator(daemon, key) as operator, Operator(daemon, plain) as other, Operator(daemon) as nobody:
        for one, status in ((nobody, 401), (other, 403)):
            assert one.download().status_code == one.delete().status_code == status
            assert one.http.get("/models/sse").status_code == status
        operator.events(lambda: operator.download(LARGE), is_progress)
        assert LARGE in operator.rows()
        assert LARGE not in other.rows(), "downloads are told to operators only"
        assert other.cancel(LARGE).status_code == 403


def test_without_the_setting_nobody_may(own_daemon: Callable[..., Daemon], models: Path) -> None:
    with Operator(own_daemon(*FLAGS, "--models-dir", str(models))) as operator:
        for answer in (operator.download(), operator.delete("default")):
            status, problem = message(answer)
            assert status == 501
            assert "unless its operator sets model_downloads" in problem
            assert "umaserve pull hf.co/ORG/REPOSITORY" in problem


@pytest.mark.parametrize("number", [9, 15])
def test_no_process_outlives_its_daemon(daemon: Daemon, operator: Operator, hub: StandinHub, number: int) -> None:
    hub.held[LARGE_FILE] = threading.Event()
    operator.events(lambda: operator.download(LARGE), is_progress)
    (pid,) = pids(daemon)
    variables = Path(f"/proc/{pid}/environ").read_text()
    assert f"HF_ENDPOINT={hub.url}" in variables
    assert "sesame" not in variables
    assert "UMA_" not in variables
    assert daemon.stop(number) == (-9 if number == 9 else 0)
    while Path(f"/proc/{pid}").exists():
        continue


def test_a_process_that_is_killed_is_told_and_the_next_download_begins_anew(
    daemon: Daemon, operator: Operator, hub: StandinHub, models: Path
) -> None:
    hub.held[LARGE_FILE] = threading.Event()
    operator.events(lambda: operator.download(LARGE), is_progress)
    (pid,) = pids(daemon)
    assert operator.failure(LARGE, lambda: os.kill(pid, 9)).startswith("the download's process was killed")
    assert [*models.rglob("*.incomplete")], "nobody could tidy up"
    hub.held.pop(LARGE_FILE).set()
    operator.events(lambda: operator.download(LARGE), lambda one: one["event"] == "download_finished")
    assert (models / "Tiny-F16" / LARGE_FILE).read_bytes() == hub.repositories["org/Tiny-GGUF"][LARGE_FILE]
    assert not [*models.rglob("*.incomplete")]
