"""What those get who watch the models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from http_world import HttpWorld
from openapi_document import DOCUMENT, check_answer
from routes import MODEL_INFO, listed

from umaserve.access.gate import Gate, Names
from umaserve.access.keys import KeyFile
from umaserve.core.events import ListedModel, ModelDownload, ModelState
from umaserve.daemon.http.exchange import PING_S
from umaserve.daemon.http.model_stream import PERIOD_S
from umaserve.daemon.http.site import DaemonSite

WATCH = b"GET /models/sse HTTP/1.1\r\nHost: localhost\r\n\r\n"


class WatchedWorld(HttpWorld):
    """Its models are those of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.models: dict[str, ListedModel] = {}
        self.looks = 0
        self.downloads: list[ModelDownload] = []
        self.services.downloads.listed = lambda: list(self.downloads)  # type: ignore[method-assign]
        self.services.models.listed = self.listed  # type: ignore[method-assign]

    def listed(self, _caller: object = None) -> list[ListedModel]:
        self.looks += 1
        return list(self.models.values())

    def set(self, name: str, state: ModelState, **changes: Any) -> None:
        self.models[name] = listed(replace(MODEL_INFO, name=name), state=state, **changes)

    def events(self) -> list[dict[str, Any]]:
        """Those that have come since the last call, after another look."""
        self.turn(PERIOD_S)
        lines = [line for line in self.received().split(b"\n") if line.startswith(b"data: ")]
        found = [json.loads(line.removeprefix(b"data: ")) for line in lines]
        for event in found:
            check_answer(event, DOCUMENT["components"]["schemas"]["ModelEvent"])
        return found


@pytest.fixture
def world() -> Iterator[WatchedWorld]:
    world = WatchedWorld()
    yield world
    world.close()


def test_loads_and_unloads_are_told_as_llama_server_does(world: WatchedWorld) -> None:
    world.set("a", ModelState.UNLOADED)
    world.send(WATCH)
    assert world.events() == [], "how they are is in the list"
    stages: dict[str, Any] = {"stages": ["text_model"], "current": "text_model"}
    world.set("a", ModelState.LOADING, progress=0.0)
    first = {"status": "loading", "progress": stages | {"value": 0.0}}
    assert world.events() == [{"model": "a", "event": "model_status", "data": first}]
    world.set("a", ModelState.LOADING, progress=0.51234)
    (half,) = world.events()
    assert (half["event"], half["data"]["progress"]["value"]) == ("status_change", 0.512)
    world.set("a", ModelState.LOADED)
    assert world.events() == [{"model": "a", "event": "status_change", "data": {"status": "loaded"}}]
    assert world.events() == []
    world.set("a", ModelState.UNLOADING)
    (unloaded,) = world.events()
    assert unloaded["data"] == {"status": "unloaded", "exit_code": 0}
    world.set("a", ModelState.UNLOADED)
    assert world.events() == []
    world.set("a", ModelState.FAILED)
    assert world.events()[0]["data"] == {"status": "unloaded", "exit_code": 1}


def test_downloads_are_told_as_llama_server_does(world: WatchedWorld) -> None:
    files = {"https://hub.example/a.gguf": (0, 7)}
    world.downloads = [ModelDownload("org/old", problem="it was cancelled", ended=1)]
    world.send(WATCH)
    assert world.events() == [], "what has ended before"
    world.downloads.append(ModelDownload("org/a"))
    assert world.events() == [{"model": "org/a", "event": "model_status", "data": {"status": "downloading"}}]
    world.downloads[-1] = ModelDownload("org/a", "a", files)
    (told,) = world.events()
    progress = {"https://hub.example/a.gguf": {"done": 0, "total": 7}}
    assert told == {"model": "org/a", "event": "download_progress", "data": {"progress": progress}}
    assert world.events() == []
    world.downloads[-1] = ModelDownload("org/a", "a", files, problem="", ended=2)
    world.set("a", ModelState.UNLOADED)
    assert world.events() == [
        {"model": "org/a", "event": "download_finished", "data": {"id": "a"}},
        {"model": "*", "event": "models_reload"},
    ]
    world.downloads.append(ModelDownload("org/b", problem="no such repository", ended=3))
    error = {"message": "no such repository"}
    assert world.events() == [{"model": "org/b", "event": "download_failed", "data": {"error": error}}]
    world.downloads[-1] = replace(world.downloads[-1], deleted=True)
    assert world.events() == [{"model": "org/b", "event": "model_remove"}]
    world.downloads.pop(0)
    assert world.events() == []


def test_models_that_come_and_go_are_told(world: WatchedWorld) -> None:
    world.set("a", ModelState.LOADED)
    world.send(WATCH)
    world.set("b", ModelState.UNLOADED)
    assert world.events() == [{"model": "*", "event": "models_reload"}]
    del world.models["a"]
    assert world.events() == [{"model": "a", "event": "model_remove"}]


def test_who_reads_slowly_gets_the_newest_state_and_not_all_before_it(world: WatchedWorld) -> None:
    names = [f"model-{number}" for number in range(500)]
    for name in names:
        world.set(name, ModelState.UNLOADED)
    world.send(WATCH)
    for look in range(100):
        for name in names:
            world.set(name, (ModelState.LOADED, ModelState.UNLOADED)[look % 2])
        world.turn(PERIOD_S)
    assert world.connection.channel.queued < 2 * 65536, "the events of one look at most"
    for name in names:
        world.set(name, ModelState.FAILED)
    told: dict[str, Any] = {}
    while world.connection.channel.queued or any(
        data != {"status": "unloaded", "exit_code": 1} for data in told.values()
    ):
        told |= {event["model"]: event["data"] for event in world.events()}
    assert set(told) == set(names)
    assert world.events() == []


def test_nothing_is_looked_at_while_nobody_watches_and_a_silence_has_comments(world: WatchedWorld) -> None:
    world.turn(3 * PERIOD_S)
    assert world.looks == 0
    world.send(WATCH)
    world.received()
    world.turn(PING_S)
    assert world.received().endswith(b":\n\n\r\n")
    world.turn(PERIOD_S)
    assert world.received() == b"", "not with each look"
    world.client.close()
    world.turn(PERIOD_S)
    looks = world.looks
    world.turn(3 * PERIOD_S)
    assert world.looks == looks
    world.client, world.connection = world.join()


@pytest.mark.parametrize("peer", ["ip:192.0.2.1", "ip:2001:db8::/64"])
def test_others_than_operators_may_not_watch(world: WatchedWorld, peer: str) -> None:
    world.client.close()
    world.client, world.connection = world.join(peer)
    world.send(WATCH)
    assert world.statuses() == [403]


def test_a_key_that_is_taken_back_ends_its_stream(world: WatchedWorld, tmp_path: Path) -> None:
    keys = KeyFile(str(tmp_path / "keys.json"), missing_ok=True)
    plain, key = keys.add("bob"), keys.add("boss", group="operator")
    gate = Gate(Names("", (), (), ()), keys)
    world.site = DaemonSite(world.services, gate)
    for each, status in ((plain, 403), (key, 200)):
        world.client.close()
        world.client, world.connection = world.join()
        world.send(WATCH.replace(b"\r\n\r\n", f"\r\nAuthorization: Bearer {each}\r\n\r\n".encode()))
        assert world.statuses() == [status]
    keys.revoke("boss")
    gate.reread_keys()
    world.turn(PERIOD_S)
    assert b"0\r\n\r\n" in world.received(), "the end of the stream"


def test_who_asks_for_the_head_gets_no_events(world: WatchedWorld) -> None:
    world.send(WATCH.replace(b"GET", b"HEAD"))
    assert world.statuses() == [200]
    world.turn(PERIOD_S)
    assert world.looks == 0
