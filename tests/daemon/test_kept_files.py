"""Clients' files on disk: written before they are known, there after a restart, and deleted with their rows."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from clock import Clock

from umaserve.core.errors import ConfigError, RequestError
from umaserve.daemon.store.file_folder import NAME, PIECE_BYTES
from umaserve.daemon.store.kept_files import KeptFiles
from umaserve.daemon.store.store import Store
from umaserve.dialects.batches.stored_file import StoredFile
from umaserve.settings.daemon import Config
from umaserve.wire.multipart import Part, write_form

WAIT_S = 10.0
FIRST, SECOND = "file-" + "1" * 24, "file-" + "2" * 24


class Daemons:
    """One daemon's store after another, in one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path / "store"
        self._woken = threading.Semaphore(0)
        self._store: Store | None = None

    def start(self, store_bytes: int = 8 << 20) -> KeptFiles:
        self.end()
        config = Config(store=str(self.path), store_bytes=store_bytes)
        self._store = Store(config, Clock(), self._woken.release)
        assert self._store.files is not None
        return self._store.files

    def send(self, content: bytes, file_id: str = FIRST, tenant: str = "ann") -> StoredFile | RequestError:
        assert self._store is not None
        assert self._store.files is not None
        content_type, body = write_form(
            [Part("purpose", memoryview(b"batch")), Part("file", memoryview(content), "a.jsonl")]
        )
        results: list[StoredFile | RequestError] = []
        self._store.files.take(tenant, file_id, body, content_type, results.append)
        self.wait(lambda: bool(results))
        return results[0]

    def wait(self, condition) -> None:
        assert self._store is not None
        self._collect()
        while not condition():
            assert self._woken.acquire(timeout=WAIT_S)
            self._collect()

    def _collect(self) -> None:
        assert self._store is not None
        for thread in self._store.threads:
            thread.collect()

    def read(self, file_id: str, start: int = 0) -> object:
        assert self._store is not None
        assert self._store.files is not None
        results: list[object] = []
        self._store.files.folder.read(file_id, start, results.append)
        self.wait(lambda: bool(results))
        return results[0]

    @property
    def on_disk(self) -> set[str]:
        return {path.name for path in (self.path / NAME).iterdir()}

    def end(self) -> None:
        if self._store is not None:
            assert self._store.stop(WAIT_S)
            self._store = None


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    daemons = Daemons(tmp_path)
    yield daemons
    daemons.end()


def test_a_file_is_there_after_a_restart_for_the_daemons_user_alone(daemons: Daemons):
    daemons.start()
    sent = daemons.send(b"{}\n")
    assert isinstance(sent, StoredFile)
    path = daemons.path / NAME / FIRST
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    again = daemons.start().kept.of("ann").files.get(FIRST, "")
    assert (again.filename, again.length, again.purpose) == ("a.jsonl", 3, "batch")
    assert daemons.read(FIRST) == b"{}\n"
    assert daemons.start().kept.of("bob").files.all() == []


def test_a_file_is_read_piece_by_piece(daemons: Daemons):
    daemons.start()
    content = bytes(range(256)) * (2 * PIECE_BYTES // 256 + 1)
    assert isinstance(daemons.send(content), StoredFile)
    first = daemons.read(FIRST)
    assert first == content[:PIECE_BYTES]
    assert daemons.read(FIRST, 2 * PIECE_BYTES) == content[2 * PIECE_BYTES :]


def test_a_deleted_file_leaves_the_disk(daemons: Daemons):
    files = daemons.start()
    daemons.send(b"{}\n")
    daemons.send(b"{}\n", SECOND)
    files.kept.of("ann").files.drop(FIRST)
    assert isinstance(daemons.read(FIRST), FileNotFoundError)
    assert daemons.on_disk == {SECOND}
    daemons.start()
    assert [file.id for file in daemons.start().kept.of("ann").files.all()] == [SECOND]


def test_what_a_killed_daemon_has_left_is_deleted_by_the_next(daemons: Daemons):
    daemons.start()
    daemons.send(b"{}\n")
    daemons.end()
    (daemons.path / NAME / SECOND).write_bytes(b"half a fi")
    daemons.start()
    daemons.end()
    assert daemons.on_disk == {FIRST}


def test_a_form_that_is_wrong_or_too_large_leaves_nothing(daemons: Daemons):
    files = daemons.start()
    results: list[StoredFile | RequestError] = []
    files.take("ann", FIRST, b"no form", "multipart/form-data; boundary=b", results.append)
    daemons.wait(lambda: bool(results))
    assert isinstance(results[0], RequestError)
    share = files.kept.of("ann").files.max_bytes
    assert isinstance(daemons.send(b"x" * share), StoredFile)
    refused = daemons.send(b"x", SECOND)
    assert isinstance(refused, RequestError)
    assert refused.message.startswith("file: expected at most 0 bytes beside your other files, got 1")
    daemons.end()
    assert daemons.on_disk == {FIRST}


def test_a_disk_that_fails_is_the_servers_fault(daemons: Daemons, caplog: pytest.LogCaptureFixture):
    daemons.start()
    (daemons.path / NAME / FIRST).mkdir()
    refused = daemons.send(b"{}\n")
    assert isinstance(refused, RequestError)
    assert "see the server's log" in refused.message
    assert "a client's file can't be written" in caplog.text
    (daemons.path / NAME / FIRST).rmdir()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / NAME).write_text("")
    with pytest.raises(ConfigError, match=r"^store .*files: .* with --store"):
        Store(Config(store=str(tmp_path / "store")), Clock(), lambda: None)
