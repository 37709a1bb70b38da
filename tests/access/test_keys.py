"""The API keys of daemons and relays: what the file holds and who is let in, that it is followed, and its command."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from umaserve.access import key_entries, keys
from umaserve.access.key_entries import Key
from umaserve.access.keys import LOOK_EVERY_S, KeyFile
from umaserve.cli import main
from umaserve.core.errors import ConfigError, Fault, RequestError
from umaserve.core.requests import Priority

OLD = {
    "name": "alice",
    "sha256": hashlib.sha256(b"secret").hexdigest(),
    "class": "background",
    "requests_per_minute": None,
    "tokens_per_minute": 2.5,
    "created": "2026-01-31",
}
"""An entry of an older file."""
ENTRY = OLD | {"id": 1, "models": None, "created": "2026-01-31T12:00:00Z", "revoked": None}
TIME = "20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


def new(path: Path) -> KeyFile:
    return KeyFile(str(path), missing_ok=True)


def name_of(file: KeyFile, presented: str) -> str | None:
    key = file.match(presented)
    return None if key is None else key.name


def write(path: Path, *changes: dict[str, Any], clock: Callable[[], float] = lambda: 0.0) -> KeyFile:
    """A file of entries that differ from ENTRY by these changes; ... takes a field away."""
    entries = [{key: value for key, value in (ENTRY | change).items() if value != ...} for change in changes]
    path.write_text(json.dumps({"keys": entries}))
    path.chmod(0o600)
    return KeyFile(str(path), clock)


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        KeyFile(str(path))
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


# The file


def test_a_key_is_shown_once_and_kept_as_its_hash(path: Path) -> None:
    presented = new(path).add("alice")
    assert re.fullmatch("uma_[A-Za-z0-9_-]{43}", presented)
    assert presented[4:] not in path.read_text()
    assert json.loads(path.read_text()) == {
        "keys": [
            {
                "id": 1,
                "name": "alice",
                "sha256": hashlib.sha256(presented.encode()).hexdigest(),
                "class": "interactive",
                "requests_per_minute": None,
                "tokens_per_minute": None,
                "models": None,
                "created": json.loads(path.read_text())["keys"][0]["created"],
                "revoked": None,
            }
        ]
    }


def test_an_entry_comes_back_as_it_was_given(path: Path) -> None:
    file = new(path)
    terms = {"requests_per_minute": 60, "tokens_per_minute": 0, "models": ["a b", "ü" * 128]}
    presented = file.add("a.B_c-9", group="background", **terms, prefix="other_")
    assert presented.startswith("other_")
    (key,) = KeyFile(str(path)).list()
    expected = Key(1, "a.B_c-9", key.sha256, "background", 60.0, 0.0, ("a b", "ü" * 128), key.created, None)
    assert key == expected == file.list()[0]
    assert re.fullmatch(TIME, key.created)
    assert KeyFile(str(path)).match(presented) == key


def test_a_file_written_by_hand_is_taken(path: Path) -> None:
    changes = {"id": 7, "models": ["small"]}
    key = write(path, changes).match("secret")
    expected = Key(7, "alice", str(ENTRY["sha256"]), "background", None, 2.5, ("small",), "2026-01-31T12:00:00Z", None)
    assert key == expected


def test_an_older_file_is_taken_and_its_keys_get_ids_that_stay(path: Path) -> None:
    entries = [OLD | {"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in "abc"]
    entries[1] |= {"id": 9}
    path.write_text(json.dumps({"keys": entries}))
    path.chmod(0o600)
    file = KeyFile(str(path))
    before = file.list()
    assert [(key.id, key.name, key.models, key.revoked) for key in before] == [
        (10, "a", (), None),
        (9, "b", (), None),
        (11, "c", (), None),
    ]
    assert before[0] == Key(10, "a", entries[0]["sha256"], "background", None, 2.5, (), "2026-01-31", None)
    added = file.add("d")
    again = KeyFile(str(path))
    assert again.list()[:3] == before
    assert [name_of(again, presented) for presented in ("a", "b", "c", added)] == ["a", "b", "c", "d"]
    assert again.list()[3].id == 12


def test_names_are_unique_until_revoked(path: Path) -> None:
    file = new(path)
    first = file.add("alice")
    with pytest.raises(
        RequestError, match=r"^name: a key named alice exists already: choose another name, or"
    ) as caught:
        file.add("alice")
    assert caught.value.fault is Fault.BAD_REQUEST
    assert file.revoke("alice") is True
    assert file.revoke("alice") is False
    second = file.add("alice")
    assert [name_of(file, presented) for presented in (first, second)] == [None, "alice"]
    assert file.revoke("alice") is True
    assert [name_of(file, presented) for presented in (first, second)] == [None, None]


def test_a_revoked_key_stays_in_the_list_and_its_id_is_never_used_again(path: Path) -> None:
    file = new(path)
    alice, bob = file.add("alice"), file.add("bob")
    assert file.revoke_by_id("2")
    assert [name_of(file, presented) for presented in (alice, bob)] == ["alice", None]
    file = KeyFile(str(path))
    assert (file.list()[0].revoked, re.fullmatch(TIME, file.list()[1].revoked or "") is not None) == (None, True)
    file.add("carol")
    assert [(key.id, key.name) for key in file.list()] == [(1, "alice"), (2, "bob"), (3, "carol")]
    before = file.list()
    assert not file.revoke_by_id("2"), "once is enough"
    assert file.list() == before


@pytest.mark.parametrize("id_", ["2", "0", "-1", "01", "1.0", " 1", "+1", "alice", "", "\u0661", "1\udcff", "9" * 400])
def test_there_is_no_key_of_that_id(id_: str, path: Path) -> None:
    file = new(path)
    alice = file.add("alice")
    assert not file.revoke_by_id(id_)
    assert name_of(file, alice) == "alice"


@pytest.mark.parametrize("name", ["", "a b", "é", "a\n", "a\0", "a/b", "x" * 65, "\udcff"])
def test_a_bad_name_is_refused_and_nothing_is_written(name: str, path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        new(path).add(name)
    assert caught.value.fault is Fault.BAD_REQUEST
    expected = "1 to 64 of the characters A-Z, a-z, 0-9, ., _ and -"
    assert caught.value.message == f"name: expected {expected}, got another string"
    assert not path.exists()


@pytest.mark.parametrize("limit", [-1, 1e9 + 1, float("inf"), float("nan")])
def test_a_limit_out_of_range_is_refused(limit: float, path: Path) -> None:
    expected = r"^tokens_per_minute: expected null or a number of tokens/minute from 0 to 1"
    with pytest.raises(RequestError, match=expected):
        new(path).add("alice", tokens_per_minute=limit)
    assert not path.exists()


@pytest.mark.parametrize("models", [["", "a"], ["ü" * 129], ["m"] * 257, ["\udcff"]])
def test_models_out_of_range_are_refused(models: list[str], path: Path) -> None:
    with pytest.raises(RequestError, match=r"^models: expected null or an array of 1 to 256 names of 1 to 256 bytes"):
        new(path).add("alice", models=models)
    assert not path.exists()


def test_a_first_file_is_the_owners_alone(path: Path) -> None:
    old = os.umask(0)
    try:
        new(path).add("alice")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_change_keeps_the_mode_and_a_link_and_leaves_nothing_behind(path: Path, tmp_path: Path) -> None:
    new(path).add("alice")
    path.chmod(0o640)
    link = tmp_path / "etc"
    link.mkdir()
    (link / "keys.json").symlink_to(path)
    new(link / "keys.json").add("bob")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert (link / "keys.json").is_symlink()
    assert [key.name for key in KeyFile(str(path)).list()] == ["alice", "bob"]
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["etc", "keys.json", "keys.json"]


@as_root
def test_a_change_keeps_the_owner(path: Path) -> None:
    new(path).add("alice")
    os.chown(path, 12345, 23456)
    new(path).add("bob")
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 23456)


@as_root
def test_an_owner_that_cannot_be_kept_is_said(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: int) -> None:
        raise PermissionError

    new(path).add("alice")
    os.chown(path, 12345, 23456)
    monkeypatch.setattr(os, "fchown", refused)
    assert new(path).revoke("alice")
    assert "the file now belongs to this user" in caplog.text


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    file = new(path)
    presented = file.add("alice")
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="can't be written: No space left on device"):
        file.add("bob")
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    assert file.match(presented)


def test_keys_survive_a_process_that_is_killed(path: Path) -> None:
    code = """
import os, signal, sys
from umaserve.access.keys import KeyFile
print(KeyFile(sys.argv[1], missing_ok=True).add("alice"), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert name_of(KeyFile(str(path)), killed.stdout.strip()) == "alice"


def test_what_a_process_left_that_was_killed_is_gone_after_the_next_change(path: Path) -> None:
    code = """
import os, signal, sys
from umaserve.access.keys import KeyFile
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
KeyFile(sys.argv[1], missing_ok=True).add("alice")
"""
    for _ in range(2):
        killed = subprocess.run([sys.executable, "-c", code, str(path)], timeout=120)
        assert killed.returncode == -signal.SIGKILL
        assert len(list(path.parent.iterdir())) == 1
    new(path).add("alice")
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (errno.ENOSPC, "No space left on device: free space on its disk"),
        (errno.EROFS, "Read-only file system: its file system is read-only: name a file elsewhere"),
        (errno.EACCES, "Permission denied: its directory must exist and be writable"),
    ],
)
def test_a_failed_write_says_what_to_do_about_it(
    error: int, advice: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigError) as caught:
        new(path).add("alice")
    assert str(caught.value) == f"API keys {path}: can't be written: {advice}"
    assert list(path.parent.iterdir()) == []


def test_a_file_that_would_be_too_large_to_read_is_not_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new(path).add("alice")
    monkeypatch.setattr(keys, "MAX_FILE_BYTES", path.stat().st_size)
    with pytest.raises(ConfigError, match="delete the oldest entries of revoked keys"):
        new(path).add("bob")
    assert [key.name for key in KeyFile(str(path)).list()] == ["alice"]


def test_of_many_who_edit_at_once_no_change_is_lost(path: Path) -> None:
    files = [new(path) for _ in range(8)]
    names = [f"key{i}" for i in range(48)]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda i: files[i % 8].add(names[i]), range(48)))
    file = KeyFile(str(path))
    assert [name_of(file, each) for each in made] == names
    assert sorted(key.id for key in file.list()) == [*range(1, 49)]


def test_a_name_is_given_once_however_many_ask_for_it(path: Path) -> None:
    def make(_number: int) -> bool:
        try:
            new(path).add("alice")
        except RequestError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(make, range(8))) == 1


def test_of_many_who_make_the_file_at_once_none_empties_it(path: Path) -> None:
    def make(number: int) -> str:
        return KeyFile.made(str(path), lambda: 0.0).add(f"key{number}")

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make, range(8)))
    file = KeyFile(str(path))
    assert [name_of(file, each) for each in made] == [f"key{number}" for number in range(8)]


def test_a_missing_file_is_made_for_its_user_alone_and_the_log_says_so(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before = os.umask(0)
    try:
        file = KeyFile.made(str(path), lambda: 0.0)
    finally:
        os.umask(before)
    assert file.list() == ()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [record.getMessage() for record in caplog.records] == [
        f"API keys {path}: file created; it has no keys yet, and umaserve keys add makes one"
    ]
    file.add("alice")
    assert [key.name for key in KeyFile.made(str(path), lambda: 0.0).list()] == ["alice"]
    assert len(caplog.records) == 1


def test_no_file_is_made_where_an_older_relays_keys_lie_beside(tmp_path: Path) -> None:
    path, older = tmp_path / "keys.json", tmp_path / "keys.db"
    older.write_bytes(b"SQLite format 3\0")
    with pytest.raises(ConfigError, match=f"run umaserve keys convert {older} {path}$"):
        KeyFile.made(str(path), lambda: 0.0)
    assert not path.exists()
    KeyFile(str(path), missing_ok=True).add("alice")
    assert [key.name for key in KeyFile.made(str(path), lambda: 0.0).list()] == ["alice"], "it was converted"


def test_a_file_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "keys.json"
    advice = "can't be written: No such file or directory: its directory must exist and be writable"
    with pytest.raises(ConfigError) as caught:
        KeyFile.made(str(path), lambda: 0.0)
    assert str(caught.value) == f"API keys {path}: {advice}"


def test_a_file_that_vanishes_is_not_made_again_without_its_keys(path: Path) -> None:
    file = KeyFile.made(str(path), lambda: 0.0)
    alice = file.add("alice")
    path.unlink()
    with pytest.raises(ConfigError, match="can't be read: No such file or directory"):
        file.add("bob")
    assert not path.exists()
    assert name_of(file, alice) == "alice"


def test_who_keeps_the_file_locked_is_not_waited_for_without_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = new(path)
    alice = file.add("alice")
    monkeypatch.setattr(keys, "WAIT_FOR_WRITERS_S", 0.0)
    directory = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    try:
        with pytest.raises(ConfigError, match="another program is changing it: try again"):
            file.add("bob")
        assert name_of(KeyFile(str(path)), alice) == "alice", "to read it nobody waits"
    finally:
        os.close(directory)
    assert name_of(file, file.add("bob")) == "bob"


@pytest.mark.parametrize("name", [":memory:", "a?mode=memory", "%41", "#", "ä b"])
def test_a_file_may_have_any_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    alice = KeyFile(name, missing_ok=True).add("alice")
    assert name_of(KeyFile(str(tmp_path / name)), alice) == "alice"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([{"name": "a b"}], "keys[0].name: expected 1 to 64 of the characters A-Z, a-z, 0-9, ., _ and -, got a string"),
        ([{}, {"name": 7}], "keys[1].name: expected 1 to 64 of the characters"),
        ([{"sha256": "uma_pasted"}], "keys[0].sha256: expected 64 hex digits in lower case, got a string"),
        ([{"sha256": "A" * 64}], "keys[0].sha256: expected 64 hex digits in lower case"),
        ([{"class": "urgent"}], 'keys[0].class: expected one of "interactive", "background", "operator", got a string'),
        (
            [{"class": ["interactive"]}],
            'keys[0].class: expected one of "interactive", "background", "operator", got an array',
        ),
        ([{"requests_per_minute": True}], "keys[0].requests_per_minute: expected null or a number of requests/minute"),
        ([{"tokens_per_minute": -1}], "keys[0].tokens_per_minute: expected null or a number of tokens/minute"),
        ([{"created": "today"}], "keys[0].created: expected a time such as 2026-01-31T12:00:00Z, got a string"),
        ([{"revoked": True}], "keys[0].revoked: expected null or a time such as 2026-01-31T12:00:00Z, got a boolean"),
        ([{"id": 0}], "keys[0].id: expected a whole number from 1 to 1000000000000000, got a whole number"),
        ([{"id": None}], "keys[0].id: expected a whole number from 1 to 1000000000000000, got null"),
        ([{"models": []}], "keys[0].models: expected null or an array of 1 to 256 names of 1 to 256 bytes, got an arr"),
        ([{"models": "a"}], "keys[0].models: expected null or an array of 1 to 256 names of 1 to 256 bytes, got a str"),
        ([{"models": ["a", 5]}], "keys[0].models: expected null or an array of 1 to 256 names of 1 to 256 bytes"),
        ([{"tokens_per_minute": ...}], "keys[0].tokens_per_minute: missing, expected null or a number"),
        (
            [{"admin": True}],
            "keys[0]: expected the fields id, name, sha256, class, requests_per_minute, tokens_per_",
        ),
        ([{}, {"id": 2, "sha256": "a" * 64}], "keys: two have the same name"),
        ([{}, {"id": 2, "name": "bob"}], "keys: two have the same sha256"),
        ([{"revoked": "2026-01-31"}, {"id": 2, "name": "bob"}], "keys: two have the same sha256"),
        ([{}, {"name": "bob", "sha256": "a" * 64}], "keys: two have the same id"),
    ],
)
def test_an_entry_that_is_not_right_is_named_and_not_quoted(
    changes: list[dict[str, Any]], error: str, path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        write(path, *changes)
    message = str(caught.value)
    assert message.startswith(f"API keys {path}: {error}")
    assert message.endswith(": repair the file, or move it away and make keys with umaserve keys add")
    assert "pasted" not in message


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", "{}", '{"keys": {}}', '{"keys": [7]}', '{"keys": [], "a": 1}', "\0"]
)
def test_a_file_of_another_kind_is_refused(text: str, path: Path) -> None:
    path.write_text(text)
    assert re.search("not valid JSON|expected an object", refusal(path))


@given(data=st.binary())
def test_any_bytes_at_all_load_or_are_refused(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(data)
    path.chmod(0o600)
    assert refusal(path)


def test_a_file_that_cannot_be_read_says_what_to_do(path: Path) -> None:
    advice = "make it with umaserve keys add, or let this user read it"
    assert refusal(path) == f"API keys {path}: can't be read: No such file or directory: {advice}"
    assert refusal(path.parent) == f"API keys {path.parent}: can't be read: Is a directory: {advice}"


def test_a_file_above_the_limit_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, {})
    monkeypatch.setattr(key_entries, "MAX_FILE_BYTES", path.stat().st_size)
    assert KeyFile(str(path)).list()
    path.write_text(path.read_text() + " ")
    assert "larger than" in refusal(path)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o660, 0), (0o604, 1), (0o602, 1)])
def test_a_file_open_to_others_is_used_with_a_warning(
    mode: int, warned: int, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(path, {})
    path.chmod(mode)
    assert KeyFile(str(path)).match("secret")
    assert caplog.text.count("every user of this machine can read or change the file: run chmod o-rw on it") == warned


# Who is let in


def test_only_the_whole_key_matches(path: Path) -> None:
    file = new(path)
    presented = file.add("alice")
    other = file.add("bob")
    assert [name_of(file, each) for each in (presented, other)] == ["alice", "bob"]
    wrong = ["", "uma_", presented[4:], presented[:-1], presented + "a", f" {presented}", presented.upper()]
    wrong += [file.list()[0].sha256, presented + "\udcff", presented * 100_000]
    assert [file.match(each) for each in wrong] == [None] * len(wrong)


@given(presented=st.text(st.characters()))
def test_any_text_at_all_may_be_presented(presented: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = write(tmp_path_factory.getbasetemp() / "one.json", {})
    assert (file.match(presented) is not None) == (presented == "secret")


def test_a_key_of_more_characters_than_the_cap_is_not_even_hashed(path: Path) -> None:
    longest, too_long = "x" * keys.MAX_PRESENTED, "x" * (keys.MAX_PRESENTED + 1)
    names = {"fits": longest, "over": too_long}
    file = write(
        path,
        *(
            {"id": id_, "name": name, "sha256": hashlib.sha256(text.encode()).hexdigest()}
            for id_, (name, text) in enumerate(names.items(), 1)
        ),
    )
    assert file.match(longest)
    assert file.match(too_long) is None


def test_a_revoked_entry_lets_nobody_in_and_leaves_its_name_to_another(path: Path) -> None:
    revoked = {"revoked": "2026-02-01T00:00:00Z"}
    file = write(path, revoked, {"id": 2, "sha256": hashlib.sha256(b"newer").hexdigest()})
    assert [key and key.id for key in map(file.match, ("secret", "newer"))] == [None, 2]
    assert (key := file.named("alice")) is not None
    assert key.id == 2


# Following the file


def test_a_new_key_holds_at_once_and_a_revocation_within_a_second(path: Path, clock: Clock) -> None:
    presented = new(path).add("alice")
    daemon = KeyFile(str(path), clock)
    assert name_of(daemon, presented) == "alice"
    operator = KeyFile(str(path))
    operator.revoke("alice")
    clock.now += LOOK_EVERY_S / 2
    assert name_of(daemon, presented) == "alice", "not looked at again so soon"
    clock.now += LOOK_EVERY_S / 2
    assert daemon.match(presented) is None
    added = operator.add("bob")
    assert name_of(daemon, added) == "bob", "a new key is looked for"


def test_a_name_is_looked_up_as_a_key_is(path: Path, clock: Clock) -> None:
    operator = new(path)
    operator.add("alice", models=["small"])
    daemon = KeyFile(str(path), clock)
    assert (key := daemon.named("alice")) is not None
    assert key.models == ("small",)
    assert [daemon.named(name) for name in ("bob", "ALICE", "")] == [None] * 3
    operator.revoke("alice")
    clock.now += LOOK_EVERY_S / 2
    assert daemon.named("alice") is not None
    clock.now += LOOK_EVERY_S / 2
    assert daemon.named("alice") is None
    operator.add("bob")
    assert daemon.named("bob") is not None, "a new name is looked for"


def test_the_own_change_does_not_hide_anothers(path: Path, clock: Clock) -> None:
    ours, other = KeyFile.made(str(path), clock), KeyFile.made(str(path), clock)
    made = [other.add("alice"), ours.add("bob"), other.add("carol")]
    assert [name_of(ours, presented) for presented in made] == ["alice", "bob", "carol"]
    assert [key.name for key in ours.list()] == ["alice", "bob", "carol"]
    clock.now += LOOK_EVERY_S
    other.revoke("bob")
    assert [key.revoked is None for key in ours.list()] == [True, False, True], "a list is of the file as it is"


def test_the_file_is_read_only_when_it_has_changed(path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    file = KeyFile.made(str(path), clock)
    alice = file.add("alice")
    caplog.set_level(logging.INFO)
    for presented in [alice, "wrong"] * 5:
        file.match(presented)
        clock.now += LOOK_EVERY_S
    assert caplog.records == []
    KeyFile(str(path)).add("bob")
    for presented in [alice, "wrong"] * 5:
        file.match(presented)
        clock.now += LOOK_EVERY_S
    assert [record.getMessage() for record in caplog.records] == ["API keys reloaded"]


def test_a_file_is_read_again_when_that_is_asked_for(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = write(path, {"name": "alice"})
    keys.match("")
    write(path, {"name": "bob"})
    keys.reread()
    assert name_of(keys, "secret") == "bob"
    path.write_text("broken")
    for _ in range(2):
        keys.reread()
    assert name_of(keys, "secret") == "bob"
    assert len(errors(caplog)) == 2, "whoever asks is told each time"
    write(path, {"name": "carol"})
    keys.reread()
    assert name_of(keys, "secret") == "carol"


@pytest.mark.parametrize("what", ["time", "size", "inode"])
def test_any_change_of_time_size_or_inode_is_seen(what: str, path: Path, clock: Clock) -> None:
    daemon = write(path, {}, clock=clock)
    before = path.stat()
    assert daemon.match("secret")
    changed = path.read_text().replace(str(ENTRY["sha256"]), "0" * 64) + (" " if what == "size" else "")
    written = path.with_suffix(".new") if what == "inode" else path
    written.write_text(changed)
    os.utime(written, ns=(0, before.st_mtime_ns + (1 if what == "time" else 0)))
    written.replace(path)
    clock.now += LOOK_EVERY_S
    assert daemon.match("secret") is None


def test_a_file_that_goes_bad_keeps_the_keys_and_is_logged_once(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = write(path, {}, clock=clock)

    def whose() -> str | None:
        clock.now += LOOK_EVERY_S
        return name_of(daemon, "secret")

    good = path.read_text()
    path.write_text("{")
    assert [whose() for _ in range(5)] == ["alice"] * 5
    assert len(errors(caplog)) == 1
    assert "not valid JSON" in errors(caplog)[0]
    assert errors(caplog)[0].endswith("(what was loaded before stays in use)")
    with pytest.raises(ConfigError, match="not valid JSON"):
        daemon.add("bob")
    with pytest.raises(ConfigError, match="not valid JSON"):
        daemon.list()
    assert path.read_text() == "{"

    path.unlink()
    assert [whose(), whose()] == ["alice", "alice"]
    assert "No such file or directory" in errors(caplog)[1]

    path.write_text(good.replace("alice", "carol"))
    assert whose() == "carol"
    path.unlink()
    assert whose() == "carol"
    assert len(errors(caplog)) == 3, "a fault that comes again is said again"


def test_who_presents_what_is_no_key_does_not_have_a_bad_file_tried_again(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = write(path, {}, clock=clock)
    path.write_text("{")
    daemon.match("wrong")
    looks: list[object] = []
    look = os.stat
    monkeypatch.setattr(os, "stat", lambda *given, **named: looks.append(given) or look(*given, **named))
    assert [daemon.match("wrong"), daemon.named("nobody")] == [None, None]
    assert looks == []
    clock.now += LOOK_EVERY_S
    daemon.match("wrong")
    assert looks == [(str(path),)]


# The command


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UMA_API_KEYS", raising=False)


def test_add_prints_the_key_alone_and_list_shows_a_table(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--api-keys", str(path)]
    assert main(["keys", "add", "bob", *where]) == 0
    out, err = capsys.readouterr()
    assert KeyFile(str(path)).match(out.removesuffix("\n"))
    assert "can't be shown again" in err
    limits = ["--requests-per-minute", "0", "--tokens-per-minute", "20000"]
    assert main(["keys", "add", "nightly", "--class", "background", *limits, *where]) == 0
    assert main(["keys", "add", "gone", *where]) == main(["keys", "revoke", "gone", *where]) == 0
    assert main(["keys", "add", "guest", "--model", "a", "--model", "b c", *where]) == 0
    capsys.readouterr()
    assert main(["keys", "list", *where]) == 0
    day = KeyFile(str(path)).list()[0].created[:10]
    assert capsys.readouterr().out.splitlines() == [
        "NAME     CLASS        REQUESTS/MINUTE  TOKENS/MINUTE  CREATED     MODELS",
        f"bob      interactive  default          default        {day}  all",
        f"nightly  background   no limit         20000          {day}  all",
        f"guest    interactive  default          default        {day}  a, b c",
    ]


def test_an_operators_key_is_interactive_and_may_see_what_others_run(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "add", "boss", "--class", "operator", "--api-keys", str(path)]) == 0
    file = KeyFile(str(path))
    boss = file.match(capsys.readouterr().out.strip())
    assert boss is not None
    assert (boss.operator, boss.priority) == (True, Priority.INTERACTIVE)
    file.add("bob")
    assert [key.operator for key in file.list()] == [True, False]


def test_a_name_that_is_taken_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new(path).add("alice")
    assert main(["keys", "add", "alice", "--api-keys", str(path)]) == 2
    refused = "umaserve: name: a key named alice exists already: choose another name, or revoke that key first\n"
    assert capsys.readouterr() == ("", refused)


def test_revoke_ends_a_key(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new(path).add("alice")
    assert main(["keys", "revoke", "alice", "--api-keys", str(path)]) == 0
    assert KeyFile(str(path)).named("alice") is None
    assert main(["keys", "revoke", "alice", "--api-keys", str(path)]) == 1
    assert capsys.readouterr().err == f"umaserve: {path}: no key is named alice: see umaserve keys list\n"


def test_the_variable_names_the_file_where_the_flag_does_not(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMA_API_KEYS", str(path))
    assert main(["keys", "add", "alice"]) == 0
    other = path.with_name("other.json")
    assert main(["keys", "add", "bob", "--api-keys", str(other)]) == 0
    assert [key.name for each in (path, other) for key in KeyFile(str(each)).list()] == ["alice", "bob"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["convert", "k"], "the following arguments are required: NEW"),
        (["convert", "/nowhere/k", "new"], "/nowhere/k: unable to open database file: expected a relay's SQLite file"),
        ([], "the following arguments are required: {add,list,revoke,convert}"),
        (["add"], "the following arguments are required: NAME"),
        (["add", "alice"], "no file of keys: name one with --api-keys FILE or UMA_API_KEYS"),
        (["list"], "no file of keys: name one with --api-keys FILE or UMA_API_KEYS"),
        (["add", "alice", "--api-keys", ""], "no file of keys"),
        (["add", "a b", "--api-keys", "k"], "name: expected 1 to 64 of the characters"),
        (["add", "a", "--class", "x", "--api-keys", "k"], "argument --class: invalid choice: 'x'"),
        (
            ["add", "a", "--requests-per-minute", "-1", "--api-keys", "k"],
            "requests_per_minute: expected null or a number",
        ),
        (["add", "a", "--model", "", "--api-keys", "k"], "models: expected null or an array of 1 to 256 names"),
        (["add", "a", "--tokens", "1", "--api-keys", "k"], "unrecognized arguments: --tokens"),
        (["add", "a", "--api-keys", "/nowhere/k"], "can't be written: No such file or directory"),
        (["list", "--api-keys", "/nowhere/k"], "can't be read: No such file or directory: make it with"),
        (["revoke", "a", "--api-keys", "/nowhere/k"], "can't be read: No such file or directory: make it with"),
    ],
)
def test_a_wrong_command_is_one_line_and_status_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = main(["keys", *arguments])
    except SystemExit as exit:
        status = exit.code
    out, err = capsys.readouterr()
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert words in err
    assert list(tmp_path.iterdir()) == []
