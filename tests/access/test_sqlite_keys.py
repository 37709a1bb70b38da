"""A file of keys that is made of an older relay's SQLite file: nothing is lost, and the old one stays."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from umaserve.access.key_entries import Key
from umaserve.access.keys import KeyFile
from umaserve.cli import main
from umaserve.core.errors import ConfigError

SCHEMA = (
    "PRAGMA journal_mode = WAL",
    """CREATE TABLE keys (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        sha256 BLOB NOT NULL UNIQUE,
        created TEXT NOT NULL,
        revoked TEXT
    )""",
    f"PRAGMA application_id = {int.from_bytes(b'umar')}",
    "PRAGMA user_version = 1",
)
TERMS = (
    "ALTER TABLE keys ADD COLUMN class TEXT NOT NULL DEFAULT 'interactive'",
    "ALTER TABLE keys ADD COLUMN requests_per_minute REAL NOT NULL DEFAULT 0",
    "ALTER TABLE keys ADD COLUMN tokens_per_minute REAL NOT NULL DEFAULT 0",
    "ALTER TABLE keys ADD COLUMN models TEXT NOT NULL DEFAULT '[]'",
    "PRAGMA user_version = 2",
)
DAY, LATER = "2026-01-31T12:00:00Z", "2026-02-01T12:00:00Z"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def digest(name: str) -> bytes:
    return hashlib.sha256(f"umar_{name}".encode()).digest()


def database(path: Path, *, version: int = 2) -> sqlite3.Connection:
    """An open database of that version, with a key of alice, a revoked one of hers, and one of bob."""
    database = sqlite3.connect(path, isolation_level=None)
    path.chmod(0o600)
    for statement in SCHEMA + (TERMS if version == 2 else ()):
        database.execute(statement)
    insert = "INSERT INTO keys (id, name, sha256, created, revoked) VALUES (?, ?, ?, ?, ?)"
    database.execute(insert, (1, "alice", digest("old"), DAY, LATER))
    database.execute(insert, (3, "alice", digest("alice"), DAY, None))
    database.execute(insert, (7, "bob", digest("bob"), DAY, None))
    return database


def key(id_: int, name: str, of: str, revoked: str | None = None, *terms: Any) -> Key:
    return Key(id_, name, digest(of).hex(), *(terms or ("interactive", 0.0, 0.0, ())), DAY, revoked)


PLAIN = (key(1, "alice", "old", LATER), key(3, "alice", "alice"), key(7, "bob", "bob"))


@pytest.mark.parametrize("version", [1, 2])
def test_all_keys_are_in_the_new_file(version: int, old: Path, new: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(database(old, version=version)) as opened:
        if version == 2:
            terms = ("background", 2.5, 30, '["a","b c"]')
            change = (
                "UPDATE keys SET class = ?, requests_per_minute = ?, tokens_per_minute = ?, models = ? WHERE id = 7"
            )
            opened.execute(change, terms)
    before = old.read_bytes()
    assert main(["keys", "convert", str(old), str(new)]) == 0
    assert capsys.readouterr() == (f"{new}: 3 keys, with those that are revoked\n", "")
    assert old.read_bytes() == before
    file = KeyFile(str(new))
    bob = key(7, "bob", "bob", None, "background", 2.5, 30.0, ("a", "b c"))
    assert file.list() == (PLAIN if version == 1 else (*PLAIN[:2], bob))
    found = [file.match(f"umar_{name}") for name in ("old", "alice", "bob")]
    assert [each and each.id for each in found] == [None, 3, 7]
    file.add("carol")
    assert file.list()[3].id == 8


def test_what_a_killed_relay_has_written_is_there_too(old: Path, new: Path) -> None:
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_sqlite_keys import database
kept = database(Path(sys.argv[1]))
os.kill(os.getpid(), 9)
"""
    killed = subprocess.run([sys.executable, "-c", code, str(old)], timeout=120)
    assert killed.returncode == -9
    assert old.with_name("keys.db-wal").stat().st_size > 0
    assert main(["keys", "convert", str(old), str(new)]) == 0
    assert KeyFile(str(new)).list() == PLAIN


def test_the_file_of_a_relay_that_runs_is_read(old: Path, new: Path) -> None:
    with closing(database(old)) as opened:
        opened.execute("BEGIN IMMEDIATE")
        opened.execute("DELETE FROM keys")
        assert main(["keys", "convert", str(old), str(new)]) == 0
    assert KeyFile(str(new)).list() == PLAIN


def test_the_new_file_is_its_owners_alone_as_the_old_one_was(old: Path, new: Path) -> None:
    database(old).close()
    old.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(old, 12345, 23456)
    assert main(["keys", "convert", str(old), str(new)]) == 0
    assert stat.S_IMODE(new.stat().st_mode) == 0o640
    assert (new.stat().st_uid, new.stat().st_gid) == (old.stat().st_uid, old.stat().st_gid)


def test_an_empty_file_of_keys_is_filled_and_one_with_keys_is_not(
    old: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = KeyFile.made(str(new), lambda: 0.0)
    database(old).close()
    assert main(["keys", "convert", str(old), str(new)]) == 0
    assert file.list() == PLAIN
    capsys.readouterr()
    assert main(["keys", "convert", str(old), str(new)]) == 2
    assert capsys.readouterr() == ("", f"umaserve: API keys {new}: the file has keys already: name a new file\n")
    assert file.list() == PLAIN


def test_another_file_is_not_overwritten(old: Path, new: Path) -> None:
    database(old).close()
    new.write_text("mine")
    new.chmod(0o600)
    assert main(["keys", "convert", str(old), str(new)]) == 2
    assert new.read_text() == "mine"


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("PRAGMA application_id = 7", "a database, but not the key file of an older umaserve: name that file"),
        ("PRAGMA user_version = 3", "a database, but not the key file of an older umaserve: name that file"),
        ("DROP TABLE keys", "no such table: keys: expected a relay's SQLite file that this user may read"),
        ("UPDATE keys SET class = 'urgent' WHERE id = 3", "keys[1].class: expected one of "),
        ("UPDATE keys SET name = 'bob' WHERE id = 3", "keys: two have the same name"),
    ],
)
def test_what_can_not_be_converted_whole_is_not_at_all(
    statement: str, problem: str, old: Path, new: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(database(old)) as opened:
        opened.execute(statement)
    assert main(["keys", "convert", str(old), str(new)]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert len(error.splitlines()) == 1
    assert not new.exists()


@pytest.mark.parametrize("content", [b"alice:secret\n" * 100, b'{"keys": []}', None], ids=["text", "keys", "missing"])
def test_what_is_no_database_is_refused(content: bytes | None, old: Path, new: Path) -> None:
    if content is not None:
        old.write_bytes(content)
    assert main(["keys", "convert", str(old), str(new)]) == 2
    assert not new.exists()
    assert old.exists() == (content is not None)


def test_daemon_and_relay_say_how_an_old_file_is_converted(old: Path) -> None:
    database(old).close()
    before = old.read_bytes()
    for read in (KeyFile, lambda path: KeyFile.made(path, lambda: 0.0)):
        with pytest.raises(ConfigError) as caught:
            read(str(old))
        advice = f"convert it with umaserve keys convert {old} NEW.json, and name that"
        assert str(caught.value) == f"API keys {old}: an older umaserve's database: {advice}"
    assert old.read_bytes() == before
