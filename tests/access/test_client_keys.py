"""The API keys of the relay's clients: what the file holds, who is let in, and that changes by others are seen."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from umaserve.access.client_keys import LOOK_EVERY_S, ClientKeys
from umaserve.core.errors import ConfigError, Fault, RequestError

not_as_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clients.db"


@pytest.fixture
def opened(path: Path, clock: Clock) -> Iterator[Callable[[], ClientKeys]]:
    """Opens the file, once more with each call."""
    made: list[ClientKeys] = []

    def open_() -> ClientKeys:
        made.append(ClientKeys(str(path), clock))
        return made[-1]

    yield open_
    for keys in made:
        keys.close()


@pytest.fixture
def keys(opened: Callable[[], ClientKeys]) -> ClientKeys:
    return opened()


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        ClientKeys(str(path), Clock(1000.0))
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith(f"client keys {path}: ")
    return str(caught.value)


def in_the_file(path: Path, *statements: str) -> None:
    """What another process does to the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


# Making, telling and ending keys.


def test_a_key_is_shown_once_and_kept_as_its_hash(keys: ClientKeys, path: Path) -> None:
    presented = keys.create("alice")
    assert re.fullmatch("umar_[A-Za-z0-9_-]{43}", presented)
    keys.close()
    assert presented[5:].encode() not in path.read_bytes()
    assert hashlib.sha256(presented.encode()).digest() in path.read_bytes()


def test_whose_key_it_is(keys: ClientKeys) -> None:
    alice, bob = keys.create("alice"), keys.create("bob")
    assert alice != bob
    assert [keys.holds(presented) for presented in (alice, bob)] == ["alice", "bob"]


@pytest.mark.parametrize(
    "change",
    [
        lambda key: "",
        lambda key: key[:-1],
        lambda key: key + "x",
        lambda key: key.upper(),
        lambda key: " " + key,
        lambda key: key[5:],
        lambda key: hashlib.sha256(key.encode()).hexdigest(),
        lambda key: key + "\udcff",
        lambda key: key * 100_000,
    ],
)
def test_what_is_not_the_whole_key_is_nobodys(change: Callable[[str], str], keys: ClientKeys) -> None:
    assert keys.holds(change(keys.create("alice"))) is None


def test_keys_are_listed_without_themselves(keys: ClientKeys) -> None:
    assert keys.list() == []
    keys.create("alice")
    keys.create("bob")
    first, second = keys.list()
    assert (first.id, first.name, first.revoked) == ("1", "alice", None)
    assert (second.id, second.name, second.revoked) == ("2", "bob", None)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", first.created)


def test_a_revoked_key_holds_no_more_and_stays_in_the_list(keys: ClientKeys) -> None:
    alice, bob = keys.create("alice"), keys.create("bob")
    assert keys.revoke("1")
    assert [keys.holds(presented) for presented in (alice, bob)] == [None, "bob"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", keys.list()[0].revoked or "")
    assert keys.list()[1].revoked is None
    assert not keys.revoke("1"), "once is enough"


@pytest.mark.parametrize("id_", ["2", "0", "-1", "01", "1.0", " 1", "+1", "alice", "", "\u0661", "1\udcff", "9" * 400])
def test_there_is_no_key_of_that_id(id_: str, keys: ClientKeys) -> None:
    alice = keys.create("alice")
    assert not keys.revoke(id_)
    assert keys.holds(alice) == "alice"


def test_a_name_is_free_again_after_its_key_is_revoked_and_an_id_never(keys: ClientKeys) -> None:
    old = keys.create("alice")
    with pytest.raises(RequestError, match=r"^name: there is a key named alice: choose another") as caught:
        keys.create("alice")
    assert caught.value.fault is Fault.BAD_REQUEST
    keys.revoke("1")
    new = keys.create("alice")
    assert [keys.holds(old), keys.holds(new)] == [None, "alice"]
    assert [key.id for key in keys.list()] == ["1", "2"]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "\u00e4", "a\n", "a" * 65, "a\0", "\udcff"])
def test_a_name_that_does_not_fit_is_refused(name: str, keys: ClientKeys) -> None:
    with pytest.raises(RequestError, match=r"^name: expected 1 to 64 of the characters"):
        keys.create(name)
    assert keys.list() == []


@pytest.mark.parametrize("name", ["a", "Az09._-", "a" * 64])
def test_a_name_that_fits_is_taken(name: str, keys: ClientKeys) -> None:
    assert keys.holds(keys.create(name)) == name


@given(presented=st.text(max_size=300))
def test_no_text_that_was_not_given_out_is_a_key(presented: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with closing(ClientKeys(str(tmp_path_factory.getbasetemp() / "given.db"), Clock(1000.0))) as keys:
        if not keys.list():
            keys.create("alice")
        assert keys.holds(presented) is None


# The file.


def test_keys_survive_a_restart(opened: Callable[[], ClientKeys]) -> None:
    first = opened()
    alice, bob = first.create("alice"), first.create("bob")
    first.revoke("2")
    first.close()
    again = opened()
    assert [again.holds(presented) for presented in (alice, bob)] == ["alice", None]
    assert again.create("carol")
    assert [key.id for key in again.list()] == ["1", "2", "3"]


def test_keys_survive_a_process_that_is_killed(path: Path, opened: Callable[[], ClientKeys]) -> None:
    program = """
        import os, sys
        from umaserve.access.client_keys import ClientKeys
        print(ClientKeys(sys.argv[1], lambda: 0.0).create("alice"), flush=True)
        os.kill(os.getpid(), 9)
    """
    command = [sys.executable, "-c", "\n".join(line.strip() for line in program.splitlines()), str(path)]
    presented = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    assert opened().holds(presented) == "alice"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_file_and_what_lies_beside_it_are_the_owners_alone(umask: int, path: Path) -> None:
    before = os.umask(umask)
    try:
        with closing(ClientKeys(str(path), Clock(1000.0))) as keys:
            keys.create("alice")
            modes = {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == {0o600}


def test_a_file_that_everyone_may_read_is_used_with_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.touch()
    path.chmod(0o644)
    with closing(ClientKeys(str(path), Clock(1000.0))) as keys:
        assert keys.holds(keys.create("alice")) == "alice"
    assert [record.getMessage() for record in caplog.records] == [
        f"client keys {path}: everyone on the box may read or change the file: chmod o-rw it"
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_file_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (":memory:", "a?mode=memory", "%41", "file:x", "#", "\u00e4 b"):
        with closing(ClientKeys(name, Clock(1000.0))) as keys:
            alice = keys.create("alice")
        assert (tmp_path / name).stat().st_size > 0
        with closing(ClientKeys(name, Clock(1000.0))) as keys:
            assert keys.holds(alice) == "alice"


@pytest.mark.parametrize("content", [b"alice:secret\n" * 100, b"{}", os.urandom(4096)], ids=["text", "short", "noise"])
def test_a_file_that_is_no_database_is_refused_and_left_alone(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
    assert refusal(path).endswith("file is not a database: name another file, which is then made, or the right one")
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE keys (id)", "PRAGMA user_version = 1", "PRAGMA application_id = 7"]
)
def test_a_database_of_another_program_is_refused(statement: str, path: Path) -> None:
    in_the_file(path, statement)
    assert "a database of another program: name another file" in refusal(path)


def test_a_database_of_another_version_is_refused(keys: ClientKeys, path: Path) -> None:
    in_the_file(path, "PRAGMA user_version = 3")
    assert "its version is 3, this umaserve knows 2: use the umaserve that made it" in refusal(path)


def test_a_broken_database_is_refused(keys: ClientKeys, path: Path) -> None:
    keys.close()
    in_the_file(path, "DROP TABLE keys")
    assert "no such table: keys" in refusal(path)
    data = bytearray(path.read_bytes())
    data[100:4096] = b"\xff" * 3996
    path.write_bytes(data)
    assert "malformed" in refusal(path)


def test_a_file_that_can_not_be_made_or_opened_is_refused(tmp_path: Path) -> None:
    assert "No such file or directory: its directory must exist" in refusal(tmp_path / "missing" / "clients.db")
    assert "Is a directory: " in refusal(tmp_path)


@not_as_root
def test_a_file_that_can_not_be_written_is_refused(keys: ClientKeys, path: Path) -> None:
    keys.close()
    path.chmod(0o400)
    assert "Permission denied: its directory must exist, and this user" in refusal(path)


# Other processes.


def test_changes_by_others_are_seen_within_a_second(opened: Callable[[], ClientKeys], clock: Clock) -> None:
    ours, other = opened(), opened()
    alice = other.create("alice")
    assert ours.holds(alice) == "alice", "a new key is looked for"
    other.revoke("1")
    clock.now += LOOK_EVERY_S / 2
    assert ours.holds(alice) == "alice", "not looked at again so soon"
    clock.now += LOOK_EVERY_S / 2
    assert ours.holds(alice) is None


def test_the_own_change_does_not_hide_anothers(opened: Callable[[], ClientKeys], clock: Clock) -> None:
    ours, other = opened(), opened()
    alice = other.create("alice")
    bob = ours.create("bob")
    clock.now += LOOK_EVERY_S
    carol = other.create("carol")
    assert [ours.holds(presented) for presented in (alice, bob, carol)] == ["alice", "bob", "carol"]


def test_the_keys_are_read_only_when_they_have_changed(keys: ClientKeys, path: Path, clock: Clock) -> None:
    statements: list[str] = []
    alice = keys.create("alice")
    keys.holds(alice)
    keys._database.set_trace_callback(statements.append)
    for _ in range(10):
        keys.holds(alice)
        clock.now += LOOK_EVERY_S / 2
    assert set(statements) == {"PRAGMA data_version"}
    assert len(statements) <= 5
    statements.clear()
    in_the_file(path, "DELETE FROM keys")
    clock.now += LOOK_EVERY_S
    keys.holds(alice)
    assert len(statements) == 3, "two looks, since the key is gone, and one reading"


def test_looking_does_not_wait_for_another_that_writes(keys: ClientKeys, path: Path, clock: Clock) -> None:
    alice = keys.create("alice")
    keys._database.execute("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE keys SET revoked = 'now'")
        clock.now += LOOK_EVERY_S
        assert keys.holds(alice) == "alice"
        with pytest.raises(ConfigError, match="database is locked: another program holds it: try again"):
            keys.create("bob")
        other.execute("COMMIT")
    clock.now += LOOK_EVERY_S
    assert keys.holds(alice) is None
    assert keys.create("bob"), "and nothing is left of the try that failed"


def test_a_file_that_breaks_is_complained_of_once_and_the_keys_stay(
    keys: ClientKeys, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    alice = keys.create("alice")
    in_the_file(path, "ALTER TABLE keys RENAME TO others")
    for _ in range(3):
        clock.now += LOOK_EVERY_S
        assert keys.holds(alice) == "alice"
    statements: list[str] = []
    keys._database.set_trace_callback(statements.append)
    assert keys.holds("x") is None
    assert not statements, "who presents what is no key does not have it tried again"
    (complaint,) = errors(caplog)
    assert "no such table: keys" in complaint
    assert complaint.endswith("(until then the keys read before hold)")
    with pytest.raises(ConfigError, match="no such table"):
        keys.create("bob")
    in_the_file(path, "ALTER TABLE others RENAME TO keys", "UPDATE keys SET revoked = 'now'")
    clock.now += LOOK_EVERY_S
    assert keys.holds(alice) is None
    assert len(errors(caplog)) == 1


def test_many_who_open_a_new_file_at_once_lose_nothing(path: Path) -> None:
    def make(number: int) -> list[str]:
        with closing(ClientKeys(str(path), Clock(1000.0))) as keys:
            return [keys.create(f"{number}-{count}") for count in range(3)]

    with ThreadPoolExecutor(8) as pool:
        made = [key for keys in pool.map(make, range(8)) for key in keys]
    with closing(ClientKeys(str(path), Clock(1000.0))) as keys:
        assert all(keys.holds(key) for key in made)
        assert len(keys.list()) == 24


def test_a_name_is_given_once_however_many_ask_for_it(path: Path) -> None:
    def make(_number: int) -> bool:
        with closing(ClientKeys(str(path), Clock(1000.0))) as keys:
            try:
                keys.create("alice")
            except RequestError:
                return False
            return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(make, range(8))) == 1
