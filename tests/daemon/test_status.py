"""What the box tells those who look at it, who may look, and what it costs where nobody does."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from http_world import CONFIG, HttpWorld, post
from openapi_document import DOCUMENT, check_answer

from umaserve.access.gate import Gate, Names
from umaserve.access.keys import KeyFile
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Metrics, Token
from umaserve.core.exposition import HELP
from umaserve.core.metrics import ServingMetrics
from umaserve.core.requests import Generate, Priority
from umaserve.daemon.http.site import DaemonSite
from umaserve.daemon.http.status import MAX_BATCHES, MAX_LISTED
from umaserve.daemon.http.status_stream import PERIOD_S
from umaserve.dialects.batches.kept import AllFiles
from umaserve.dialects.batches.states import Status
from umaserve.dialects.batches.stored_batch import Problem, StoredBatch
from umaserve.scheduler.observer import observe_delivery
from umaserve.sessions.caller import Caller
from umaserve.sessions.session import Hold, Session
from umaserve.sessions.targets import Targets
from umaserve.sessions.waiting import Why
from umaserve.settings.daemon import SETTINGS

if TYPE_CHECKING:
    from umaserve.daemon.store.kept_files import KeptFiles

ALICE = Caller("openai", "ip:192.0.2.1", "alice")
PROMPT = "a secret between them"


class BoxWorld(HttpWorld):
    """Its model takes no requests by itself; metrics are what the test puts into ``values``."""

    def __init__(self, keys: KeyFile | None = None) -> None:
        super().__init__()
        self.values: dict[str, Any] = {**dict.fromkeys(HELP, 0), "threads_reason": "all"}
        self.why = Why.SLOTS
        self.services.models.of = lambda _session: SimpleNamespace(
            spec=SimpleNamespace(config=CONFIG), why_waiting=lambda _session: self.why
        )
        self.made = 0
        self.services = replace(self.services, metrics=self.metrics)
        self.site = DaemonSite(self.services, Gate(Names("", (), (), ()), keys))
        self.client.close()
        self.turn()
        self.client, self.connection = self.join()

    def metrics(self) -> Metrics:
        self.made += 1
        return Metrics(self.values)

    def arrive(self, caller: Caller = ALICE, **wanted: Any) -> tuple[Session, list[Any]]:
        """A session, and what its client gets."""
        outputs: list[Any] = []
        request = Generate(f"secret-{self.sessions.totals.sessions}", PROMPT, **wanted)
        session = self.sessions.start(request, outputs.append, caller, self.clock())
        return session, outputs

    def stream(self, session: Session, tokens: int) -> None:
        """It has its slot, and generated so many tokens in all."""
        if session.slot is None:
            session.slot = 0
            self.sessions.prompt_done(session)
            session.first_made_at = self.clock()
        session.generated[:] = range(tokens)
        session.last_made_at = self.clock()

    def look(self, *headers: str, client: socket.socket | None = None) -> None:
        lines = ["GET /api/box HTTP/1.1", "Host: localhost", *headers, "", ""]
        (client or self.client).sendall("\r\n".join(lines).encode())
        self.turn()

    def events(self, client: socket.socket | None = None) -> list[dict[str, Any]]:
        """Those that have come since the last call, as the document has them."""
        if client is not None:
            mine, self.client = self.client, client
            found = self.events()
            self.client = mine
            return found
        lines = [line for line in self.received().split(b"\n") if line.startswith(b"data: ")]
        found = [json.loads(line.removeprefix(b"data: ")) for line in lines]
        for event in found:
            check_answer(event, DOCUMENT["components"]["schemas"]["Box"])
        return found


@pytest.fixture
def world() -> Iterator[BoxWorld]:
    world = BoxWorld()
    yield world
    world.close()


def test_who_looks_gets_a_snapshot_at_once_and_then_every_second(world: BoxWorld) -> None:
    world.look()
    (first,) = world.events()
    assert (first["requests"], first["not_listed"], len(first["models"])) == ([], 0, 1)
    world.turn(PERIOD_S / 2)
    assert world.events() == []
    for _ in range(3):
        world.turn(PERIOD_S)
        assert len(world.events()) == 1


def test_nothing_is_made_while_nobody_looks(world: BoxWorld) -> None:
    world.turn(3 * PERIOD_S)
    assert world.made == 0
    world.look()
    world.turn(PERIOD_S)
    assert world.made == 2
    world.client.close()
    for _ in range(5):
        world.turn(PERIOD_S)
    assert world.made == 2
    world.client, world.connection = world.join()
    world.look()
    assert (world.made, world.events()[0]["figures"]["tokens_per_s"]) == (3, None)


def test_all_get_the_same_event_and_newcomers_the_latest_one(world: BoxWorld) -> None:
    world.look()
    world.arrive()
    other, _connection = world.join()
    world.turn(PERIOD_S / 4)
    world.look(client=other)
    assert world.events(other) == world.events()
    world.turn(PERIOD_S)
    assert world.events(other) == (mine := world.events())
    assert [len(event["requests"]) for event in mine] == [1]
    other.close()
    world.turn(PERIOD_S)
    assert len(world.events()) == 1


def test_who_reads_slowly_misses_events_and_gets_whole_ones_again(world: BoxWorld) -> None:
    world.look()
    for _ in range(MAX_LISTED):
        world.arrive()
    for _ in range(100):
        world.turn(PERIOD_S)
    assert world.connection.channel.queued < 2 * 65536, "one event at most is queued here, whatever the kernel holds"
    while world.connection.channel.queued:
        world.events()
        world.turn()
    world.turn(PERIOD_S)
    assert len(world.events()[-1]["requests"]) == MAX_LISTED


def test_a_request_is_told_from_its_queue_to_its_end(world: BoxWorld) -> None:
    session, _ = world.arrive(priority=Priority.BACKGROUND, target_tbt_s=0.05)
    world.look()
    world.turn(PERIOD_S)
    waiting = world.events()[-1]["requests"][0]
    assert waiting == {
        "session": session.id,
        "key": "alice",
        "peer": "ip:192.0.2.1",
        "dialect": "openai",
        "model": "stand-in",
        "class": "background",
        "state": "waiting",
        "why": "slots",
        "age_s": 1.0,
        "prompt_tokens": 0,
        "prompt_tokens_done": 0,
        "tokens": 0,
        "tokens_per_s": 0.0,
        "gap_ms": None,
        "target_gap_ms": 50.0,
        "kv_cells": 0,
    }
    session.slot, session.computed = 0, 7
    world.turn(PERIOD_S)
    assert [(one["state"], one["why"], one["kv_cells"]) for one in world.events()[-1]["requests"]] == [
        ("prompt", None, 7)
    ]
    session.slot = None
    world.stream(session, 1)
    world.turn(PERIOD_S)
    world.stream(session, 31)
    world.turn(2 * PERIOD_S)
    one = world.events()[-1]["requests"][0]
    assert (one["state"], one["tokens"], one["tokens_per_s"]) == ("writing", 31, 15.0)
    world.sessions.hold(session, Hold.PAUSE)
    world.turn(PERIOD_S)
    one = world.events()[-1]["requests"][0]
    assert (one["state"], one["why"], one["tokens_per_s"]) == ("held", "pause", 0.0)
    world.sessions.abandon(session)
    world.turn(PERIOD_S)
    assert world.events()[-1]["requests"] == []


def test_a_stream_that_ran_before_somebody_looked_has_its_average(world: BoxWorld) -> None:
    session, _ = world.arrive()
    world.stream(session, 1)
    world.turn(2.0)
    world.stream(session, 41)
    world.look()
    assert world.events()[0]["requests"][0]["tokens_per_s"] == 20.0


def test_the_last_gap_is_that_between_the_two_latest_tokens(world: BoxWorld) -> None:
    session, _ = world.arrive()
    for at in (1.0, 1.1, 1.125):
        observe_delivery(ServingMetrics(), session, Token("x", 1), at, Targets(1.0, 0.08))
    world.look()
    one = world.events()[0]["requests"][0]
    assert (one["gap_ms"], one["target_gap_ms"]) == (25.0, CONFIG.slo_tbt_ms)


def test_those_with_a_slot_come_first_and_too_many_are_counted(world: BoxWorld) -> None:
    sessions = [world.arrive()[0] for _ in range(MAX_LISTED + 3)]
    world.stream(sessions[-1], 1)
    world.look()
    (event,) = world.events()
    assert [one["session"] for one in event["requests"]] == [
        sessions[-1].id,
        *(session.id for session in sessions[: MAX_LISTED - 1]),
    ]
    assert event["not_listed"] == 3


def test_no_text_and_no_id_of_a_request_is_told(world: BoxWorld) -> None:
    world.arrive()
    world.look()
    told = world.received()
    assert b"alice" in told
    assert b"secret" not in told


def test_the_figures_for_charts(world: BoxWorld) -> None:
    world.values |= {"tokens_generated_total": 100, "tbt_ms_p95": 42.5, "threads": 2, "kv_cells_used": 9}
    world.look()
    figures = world.events()[0]["figures"]
    assert (figures["tokens_per_s"], figures["gap_ms_p95"], figures["threads"]) == (None, None, 2)
    world.values["tokens_generated_total"] += 30
    world.turn(PERIOD_S)
    figures = world.events()[0]["figures"]
    assert (figures["tokens_per_s"], figures["gap_ms_p95"], figures["kv_cells_used"]) == (30.0, 42.5, 9)
    world.turn(PERIOD_S)
    figures = world.events()[0]["figures"]
    assert (figures["tokens_per_s"], figures["gap_ms_p95"]) == (0.0, None)


def test_an_operator_ends_a_request_and_its_client_gets_an_error(world: BoxWorld) -> None:
    session, outputs = world.arrive()
    world.send(post("/api/box/end", {"session": session.id}))
    assert world.statuses() == [200]
    world.deliver()
    assert isinstance(outputs[-1], RequestError)
    assert (outputs[-1].fault, outputs[-1].request_id) == (Fault.ENDED, session.request.id)
    assert list(world.sessions.running()) == []
    world.send(post("/api/box/end", {"session": session.id}))
    assert b"it may have ended" in (told := world.received())
    assert told.startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize("value", [None, 0, -1, 1.5, "1", True, []])
def test_a_session_is_a_number(world: BoxWorld, value: object) -> None:
    world.send(post("/api/box/end", {"session": value}))
    told = world.received()
    assert told.startswith(b"HTTP/1.1 400 ")
    assert b"session: expected " in told


def test_an_operator_sees_and_cancels_the_batches_of_all(world: BoxWorld) -> None:
    files = AllFiles(world.clock, 1 << 24, math.inf)
    world.services.store.files = cast("KeptFiles", SimpleNamespace(kept=files))
    ended = keep_batch(files, "ip:192.0.2.1", "b", status=Status.FAILED, problems=[Problem("invalid_line", "secret")])
    running = keep_batch(files, "key:alice", "a", status=Status.IN_PROGRESS, total=9, completed=2, failed=1)
    cancelled: list[str] = []
    running.cancel = lambda: cancelled.append(running.id)
    for number in range(MAX_BATCHES):
        keep_batch(files, "key:bob", f"{number:02}", status=Status.COMPLETED, created_at=number)
    world.look()
    (event,) = world.events()
    first, second, *others = event["batches"]
    assert (first["batch"], first["key"], first["status"]) == (running.id, "alice", "in_progress")
    assert first["problem"] is None
    assert (first["total"], first["completed"], first["failed"]) == (9, 2, 1)
    assert (second["batch"], second["key"], second["peer"]) == (ended.id, None, "ip:192.0.2.1")
    assert second["problem"] == "invalid_line"
    assert [one["created_at"] for one in others] == [*range(MAX_BATCHES - 1, 1, -1)]
    world.client, world.connection = world.join()
    world.send(post("/api/box/end", {"batch": running.id}))
    assert (world.statuses(), cancelled) == ([200], [running.id])
    for batch_id in (ended.id, "batch_none"):
        world.send(post("/api/box/end", {"batch": batch_id}))
        assert b"it may have ended" in (told := world.received())
        assert told.startswith(b"HTTP/1.1 404 ")


def keep_batch(files: AllFiles, tenant: str, name: str, **fields: Any) -> StoredBatch:
    """A batch of a tenant's; its text is no operator's."""
    named = {"input_id": "secret", "output_id": "secret", "error_id": "secret", "metadata": {"secret": "secret"}}
    batch = StoredBatch(id=f"batch_{name}", endpoint="/v1/embeddings", **{"created_at": 99, **named, **fields})
    files.batches.keep(tenant, batch)
    return batch


@pytest.mark.parametrize("value", [0, True, [], "", "b" * 65])
def test_a_batch_is_named_by_its_id(world: BoxWorld, value: object) -> None:
    world.send(post("/api/box/end", {"batch": value}))
    told = world.received()
    assert told.startswith(b"HTTP/1.1 400 ")
    assert b"batch: expected " in told


def test_the_settings_are_told_without_secrets(world: BoxWorld) -> None:
    world.services = replace(world.services, config=replace(CONFIG, worker_secret="sesame" * 8))
    world.site = DaemonSite(world.services, Gate(Names("", (), (), ()), None))
    world.client, world.connection = world.join()
    world.send(b"GET /api/settings HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    body = world.received().partition(b"\r\n\r\n")[2].removesuffix(b"<closed>")
    settings = {one["name"]: one for one in json.loads(body)["settings"]}
    assert list(settings) == list(SETTINGS.by_key)
    assert (settings["max_queue"]["value"], settings["worker_secret"]["value"]) == ("4", '"…"')
    assert b"sesame" not in body


def test_who_asks_for_the_head_gets_no_events(world: BoxWorld) -> None:
    world.send(b"HEAD /api/box HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head = world.received()
    assert head.startswith(b"HTTP/1.1 200 ")
    assert head.endswith(b"\r\n\r\n")
    world.turn(PERIOD_S)
    assert world.received() == b""


GETS = ("/api/box", "/api/settings", "/slots")


@pytest.mark.parametrize(
    ("peer", "status"),
    [("ip:127.0.0.1", 200), ("ip:::1", 200), ("uid:1000", 200), ("ip:192.0.2.1", 403), ("ip:2001:db8::/64", 403)],
)
def test_without_keys_the_box_is_for_those_on_it(world: BoxWorld, peer: str, status: int) -> None:
    for path in GETS:
        world.client, world.connection = world.join(peer)
        world.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert world.statuses() == [status]
    world.client, world.connection = world.join(peer)
    world.send(post("/api/box/end", {"session": 99}))
    assert world.statuses() == [404 if status == 200 else 403]


def test_with_keys_the_box_is_for_operators_as_long_as_they_are(tmp_path: Path) -> None:
    file = KeyFile(str(tmp_path / "keys.json"), missing_ok=True)
    bob, boss = (f"Authorization: Bearer {file.add(name, group=name)}" for name in ("background", "operator"))
    world: BoxWorld = BoxWorld(KeyFile(str(tmp_path / "keys.json"), lambda: world.clock()))
    for headers, status in (((), 401), ((bob,), 403), ((boss,), 200)):
        world.client, world.connection = world.join("ip:192.0.2.1")
        world.look(*headers)
        assert world.statuses() == [status]
        if status == 403:
            world.send(post("/api/box/end", {"session": 1}, *headers))
            assert world.statuses() == [403]
    world.turn(PERIOD_S)
    assert len(world.events()) == 1
    file.revoke("operator")
    world.turn(2 * PERIOD_S)
    assert b"data:" not in (told := world.received())
    assert told.endswith(b"0\r\n\r\n")
    world.close()
