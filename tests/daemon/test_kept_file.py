"""The file in which responses and conversations outlive the daemon: what is in it, and what a bad one costs."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clock import Clock

from umaserve.core.errors import ConfigError, RequestError
from umaserve.daemon.store.kept_file import NAME, KeptFile
from umaserve.dialects.responses.kept import AllKept, StoredConversation, StoredResponse
from umaserve.dialects.responses.kept_rows import rows_of

WAIT_S = 10.0
NOW = 1_750_000_000.0
DAY_S = 86_400.0


class Box:
    """A folder that daemons keep things in, one after another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Clock(NOW)
        self._woken = threading.Semaphore(0)
        self._open: KeptFile | None = None

    def start(self, max_bytes: int = 8 << 20, max_age_s: float = DAY_S) -> AllKept:
        """Begin the next daemon, once the one before it has ended."""
        self.end()
        # A daemon's clock begins anew.
        kept = AllKept(Clock(self.clock() - NOW), max_bytes, max_age_s)
        self._open = KeptFile(str(self.path), rows_of(kept), self._woken.release, self.clock)
        return kept

    @property
    def file(self) -> KeptFile:
        assert self._open is not None
        return self._open

    def settle(self) -> None:
        """Have the job end that is running, and those that it leaves."""
        assert self._woken.acquire(timeout=WAIT_S)
        for thread in self.file.threads:
            thread.collect()

    def end(self) -> None:
        if self._open is not None:
            assert self._open.stop(WAIT_S)
            self._open = None

    def sql(self, statement: str, *values: Any) -> list[Any]:
        self.end()
        with sqlite3.connect(self.path / NAME) as database:
            found = database.execute(statement, values).fetchall()
        database.close()
        return found


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path / "store")
    yield box
    box.end()


def response(response_id: str = "resp_1", text: str = "a", status: str = "completed") -> StoredResponse:
    told = json.dumps({"id": response_id, "status": status}).encode()
    return StoredResponse(id=response_id, input=(json.dumps({"text": text}).encode(),), response=told)


def conversation(conversation_id: str = "conv_1", *texts: str) -> StoredConversation:
    made = StoredConversation(id=conversation_id, created_at=7, metadata={})
    made.add(json.dumps({"text": text}).encode() for text in texts)
    return made


def ids(kept: AllKept, tenant: str = "ann") -> set[str]:
    known = {"responses": [f"resp_{i}" for i in range(5)], "conversations": [f"conv_{i}" for i in range(5)]}
    return {one for kind, some in known.items() for one in some if getattr(kept, kind).find(tenant, one) is not None}


def test_what_is_kept_is_there_after_a_restart(box: Box):
    kept = box.start()
    kept.of("ann").responses.keep(response())
    kept.of("ann").conversations.keep(conversation("conv_1", "x", "y"))
    kept.of("bob").conversations.keep(conversation("conv_2"))
    again = box.start()
    assert (ids(again, "ann"), ids(again, "bob"), ids(again, "eve")) == ({"resp_1", "conv_1"}, {"conv_2"}, set())
    found = again.of("ann").conversations.get("conv_1", "")
    assert [json.loads(item)["text"] for item in found.items.values()] == ["x", "y"]
    [item] = again.of("ann").responses.get("resp_1", "").input
    assert json.loads(item) == {"text": "a"}


def test_changes_are_there_after_a_restart(box: Box):
    kept = box.start()
    one = conversation("conv_1", "x")
    kept.of("ann").conversations.keep(one)
    kept.of("ann").responses.keep(response())
    box.settle()
    one.add([b'{"text":"z"}'])
    kept.of("ann").conversations.keep(one)
    kept.of("ann").responses.drop("resp_1")
    again = box.start()
    assert ids(again) == {"conv_1"}
    assert len(again.of("ann").conversations.get("conv_1", "").items) == 2


def test_only_its_user_can_read_it(box: Box):
    box.start()
    assert stat.S_IMODE(box.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((box.path / NAME).stat().st_mode) == 0o600
    box.end()
    (box.path / NAME).chmod(0o644)
    box.start()
    assert stat.S_IMODE((box.path / NAME).stat().st_mode) == 0o600


def test_deleted_words_are_gone_from_the_file(box: Box):
    kept = box.start()
    kept.of("ann").conversations.keep(conversation("conv_1", "a word of hers" * 500))
    box.end()
    assert b"a word of hers" in (box.path / NAME).read_bytes()
    box.start().of("ann").conversations.drop("conv_1")
    box.end()
    assert b"a word of hers" not in (box.path / NAME).read_bytes()


def test_age_ends_what_is_in_the_file(box: Box):
    kept = box.start()
    kept.of("ann").responses.keep(response("resp_1"))
    box.end()
    box.clock.now += DAY_S / 2
    kept = box.start()
    kept.of("ann").responses.keep(response("resp_2"))
    box.end()
    box.clock.now += DAY_S * 0.6
    assert ids(box.start()) == {"resp_2"}
    assert box.sql("SELECT id FROM kept") == [("resp_2",)]


def test_a_smaller_bound_keeps_the_newest(box: Box):
    kept = box.start(max_bytes=64 << 20)
    for number in range(4):
        box.clock.now += 1
        kept.of("ann").responses.keep(response(f"resp_{number}", "x" * 600_000))
        box.settle()
    # Three of 600 kB fit a quarter of half of it.
    assert ids(box.start(max_bytes=16 << 20)) == {"resp_1", "resp_2", "resp_3"}
    assert {one for (one,) in box.sql("SELECT id FROM kept")} == {"resp_1", "resp_2", "resp_3"}


def test_a_response_that_went_on_has_failed_after_a_restart(box: Box):
    box.start().of("ann").responses.keep(response(status="in_progress"))
    assert json.loads(box.start().of("ann").responses.get("resp_1", "").response)["status"] == "failed"


BAD_ROWS: list[tuple[Any, ...]] = [
    ("response", "ann", "resp_2", NOW, b"{"),
    ("response", "ann", "resp_2", NOW, b'{"response":{"id":"resp_3"}}'),
    ("response", "ann", "resp_2", NOW, "text"),
    ("response", "ann", "resp_2", "soon", b"{}"),
    ("response", 5.5, b"\x00", NOW, b"{}"),
    ("response", None, None, None, None),
    ("sound", "ann", "resp_2", NOW, b"{}"),
    ("conversation", "ann", "conv_2", NOW, b'{"created_at":1,"metadata":{},"items":[[]]}'),
    ("conversation", "ann", "conv_2", NOW, b"[" * 100_000),
]


@pytest.mark.parametrize("row", BAD_ROWS)
def test_a_bad_row_costs_no_more_than_itself(box: Box, row: tuple[Any, ...], caplog: pytest.LogCaptureFixture):
    box.start().of("ann").responses.keep(response())
    box.sql("INSERT INTO kept VALUES (?, ?, ?, ?, ?)", *row)
    with caplog.at_level(logging.WARNING):
        assert ids(box.start()) == {"resp_1"}
    assert "a row was skipped" in caplog.text
    assert box.sql("SELECT id FROM kept") == [("resp_1",)]


def test_another_daemon_has_none_of_it(box: Box, tmp_path: Path):
    box.start()
    with pytest.raises(ConfigError, match=r"^store .*kept.sqlite: another daemon has it: choose a folder"):
        KeptFile(str(box.path), rows_of(AllKept(Clock())), lambda: None)


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_file_that_is_none_is_left_alone(box: Box, content: bytes):
    box.path.mkdir()
    (box.path / NAME).write_bytes(content)
    with pytest.raises(ConfigError, match=r"^store .*kept.sqlite: .*: choose a folder"):
        box.start()
    assert (box.path / NAME).read_bytes() == content


@pytest.mark.parametrize("statement", ["PRAGMA user_version = 2", "PRAGMA application_id = 5"])
def test_a_file_of_another_program_or_version_is_left_alone(box: Box, statement: str):
    box.start().of("ann").responses.keep(response())
    box.sql(statement)
    with pytest.raises(ConfigError, match="it was not written by this version of umaserve"):
        box.start()
    assert box.sql("SELECT id FROM kept") == [("resp_1",)]


def test_a_link_in_its_place_is_not_followed(box: Box, tmp_path: Path):
    box.path.mkdir()
    (tmp_path / "other").write_bytes(b"")
    (box.path / NAME).symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"^store "):
        box.start()


def test_what_can_not_be_written_is_logged_once_and_written_later(box: Box, caplog: pytest.LogCaptureFixture):
    kept = box.start()
    database = box.file._database
    database._connection.execute("PRAGMA query_only = ON")
    for number in range(2):
        kept.of("ann").responses.keep(response(f"resp_{number}"))
        box.settle()
    assert caplog.text.count("can't be written") == 1
    assert ids(kept) == {"resp_0", "resp_1"}
    database._connection.execute("PRAGMA query_only = OFF")
    box.file.tidy()
    assert ids(box.start()) == {"resp_0", "resp_1"}


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    kept = AllKept(Clock())
    file = KeptFile("", rows_of(kept), lambda: None)
    kept.of("ann").responses.keep(response())
    file.tidy()
    assert (file.threads, file.stop(0), os.listdir(tmp_path)) == ([], True, [])
    with pytest.raises(RequestError):
        kept.of("bob").responses.get("resp_1", "response_id")
