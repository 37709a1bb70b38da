"""The API keys: what the file holds and who is let in, that it is followed, and the command that edits it."""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import logging
import os
import re
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.access import keys
from umaserve.access.keys import Key, KeyFile
from umaserve.cli import main
from umaserve.core.errors import ConfigError
from umaserve.core.requests import Priority

ENTRY = {
    "name": "alice",
    "sha256": hashlib.sha256(b"secret").hexdigest(),
    "class": "background",
    "requests_per_minute": None,
    "tokens_per_minute": 2.5,
    "created": "2026-01-31",
}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def new(path: Path) -> KeyFile:
    return KeyFile(str(path), missing_ok=True)


def write(path: Path, *changes: dict[str, Any]) -> KeyFile:
    """A file of entries that differ from ENTRY by these changes; ... takes a field away."""
    entries = [{key: value for key, value in (ENTRY | change).items() if value != ...} for change in changes]
    path.write_text(json.dumps({"keys": entries}))
    path.chmod(0o600)
    return KeyFile(str(path))


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
                "name": "alice",
                "sha256": hashlib.sha256(presented.encode()).hexdigest(),
                "class": "interactive",
                "requests_per_minute": None,
                "tokens_per_minute": None,
                "created": json.loads(path.read_text())["keys"][0]["created"],
            }
        ]
    }


def test_an_entry_comes_back_as_it_was_given(path: Path) -> None:
    file = new(path)
    presented = file.add("a.B_c-9", group="background", requests_per_minute=60, tokens_per_minute=0)
    (key,) = KeyFile(str(path)).list()
    assert key == Key("a.B_c-9", key.sha256, "background", 60.0, 0.0, key.created) == file.list()[0]
    assert re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", key.created)
    assert KeyFile(str(path)).match(presented, 0.0) == key


def test_a_file_written_by_hand_is_taken(path: Path) -> None:
    key = write(path, {}).match("secret", 0.0)
    assert key == Key("alice", str(ENTRY["sha256"]), "background", None, 2.5, "2026-01-31")


def test_names_are_unique_until_revoked(path: Path) -> None:
    file = new(path)
    first = file.add("alice")
    with pytest.raises(ConfigError, match="there is a key named alice: choose another name, or revoke it first"):
        file.add("alice")
    assert file.revoke("alice") is True
    assert file.revoke("alice") is False
    second = file.add("alice")
    assert [bool(file.match(presented, 0.0)) for presented in (first, second)] == [False, True]


@pytest.mark.parametrize("name", ["", "a b", "é", "a\n", "a/b", "x" * 65])
def test_a_bad_name_is_refused_and_nothing_is_written(name: str, path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^name: expected 1 to 64 of the characters A-Z, a-z"):
        new(path).add(name)
    assert not path.exists()


@pytest.mark.parametrize("limit", [-1, 1e9 + 1, float("inf"), float("nan")])
def test_a_limit_out_of_range_is_refused(limit: float, path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^tokens_per_minute: expected null or a number of tokens/minute from 0 to 1"
    ):
        new(path).add("alice", tokens_per_minute=limit)


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
    assert "the file is now this user's" in caplog.text


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
    assert file.match(presented, 0.0)


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
        (errno.ENOSPC, "No space left on device: make room on its disk"),
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
    with pytest.raises(ConfigError, match="revoke keys first"):
        new(path).add("bob")
    assert [key.name for key in KeyFile(str(path)).list()] == ["alice"]


def test_of_many_who_edit_at_once_no_change_is_lost(path: Path) -> None:
    files = [new(path) for _ in range(8)]
    names = [f"key{i}" for i in range(48)]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda i: files[i % 8].add(names[i]), range(48)))
    file = KeyFile(str(path))
    assert [key.name if (key := file.match(each, 0.0)) else None for each in made] == names


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
        ([{"created": "today"}], "keys[0].created: expected a day such as 2026-01-31, got a string"),
        ([{"tokens_per_minute": ...}], "keys[0].tokens_per_minute: missing, expected null or a number"),
        ([{"admin": True}], "keys[0]: expected the fields name, sha256, class, requests_per_minute, tokens_per_minute"),
        ([{}, {"sha256": "a" * 64}], "keys: two have the same name"),
        ([{}, {"name": "bob"}], "keys: two have the same sha256"),
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
    monkeypatch.setattr(keys, "MAX_FILE_BYTES", path.stat().st_size)
    assert KeyFile(str(path)).list()
    path.write_text(path.read_text() + " ")
    assert "larger than" in refusal(path)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o660, 0), (0o604, 1), (0o602, 1)])
def test_a_file_open_to_others_is_used_with_a_warning(
    mode: int, warned: int, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(path, {})
    path.chmod(mode)
    assert KeyFile(str(path)).match("secret", 0.0)
    assert caplog.text.count("everyone on the box may read or change the file: chmod o-rw it") == warned


# Who is let in


def test_only_the_whole_key_matches(path: Path) -> None:
    file = new(path)
    presented = file.add("alice")
    other = file.add("bob")
    assert [key.name for each in (presented, other) if (key := file.match(each, 0.0))] == ["alice", "bob"]
    wrong = ["", "uma_", presented[:-1], presented + "a", f" {presented}", presented.upper(), file.list()[0].sha256]
    assert [file.match(each, 0.0) for each in wrong] == [None] * len(wrong)


@given(presented=st.text(st.characters()))
def test_any_text_at_all_may_be_presented(presented: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = write(tmp_path_factory.getbasetemp() / "one.json", {})
    assert (file.match(presented, 0.0) is not None) == (presented == "secret")


def test_a_key_of_more_characters_than_the_cap_is_not_even_hashed(path: Path) -> None:
    longest, too_long = "x" * keys.MAX_PRESENTED, "x" * (keys.MAX_PRESENTED + 1)
    names = {"fits": longest, "over": too_long}
    file = write(
        path,
        *({"name": name, "sha256": hashlib.sha256(text.encode()).hexdigest()} for name, text in names.items()),
    )
    assert file.match(longest, 0.0)
    assert file.match(too_long, 0.0) is None


@pytest.mark.parametrize("which", [0, 1, 2, None])
def test_every_entry_is_compared_wherever_the_match_is(
    which: int | None, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = new(path)
    made = [file.add(f"key{i}") for i in range(3)]
    compared: list[str] = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or compare(a, b))
    file.match("nobody's" if which is None else made[which], 0.0)
    assert compared == [key.sha256 for key in file.list()]


# Following the file


def test_a_change_holds_without_a_restart_and_is_looked_for_once_a_second(path: Path) -> None:
    presented = new(path).add("alice")
    daemon = KeyFile(str(path))
    assert daemon.match(presented, 100.0)
    operator = KeyFile(str(path))
    operator.revoke("alice")
    added = operator.add("bob")
    assert daemon.match(presented, 100.9)
    assert daemon.match(added, 100.9) is None
    assert daemon.match(presented, 101.0) is None
    assert daemon.match(added, 101.0)


def test_whether_a_name_still_has_its_key_is_looked_up_as_a_match_is(path: Path) -> None:
    operator = new(path)
    operator.add("alice")
    daemon = KeyFile(str(path))
    assert daemon.holds("alice", 100.0)
    assert [daemon.holds(name, 100.0) for name in ("bob", "ALICE", "")] == [False] * 3
    operator.revoke("alice")
    operator.add("bob")
    assert [daemon.holds(name, 100.9) for name in ("alice", "bob")] == [True, False]
    assert [daemon.holds(name, 101.0) for name in ("alice", "bob")] == [False, True]


def test_a_file_is_read_again_when_that_is_asked_for(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = write(path, {"name": "alice"})
    keys.match("", 100.0)
    write(path, {"name": "bob"})
    keys.reread()
    assert [key.name for key in keys.list()] == ["bob"]
    path.write_text("broken")
    for _ in range(2):
        keys.reread()
    assert [key.name for key in keys.list()] == ["bob"]
    assert len(errors(caplog)) == 2, "whoever asks is told each time"
    write(path, {"name": "carol"})
    keys.reread()
    assert [key.name for key in keys.list()] == ["carol"]


@pytest.mark.parametrize("what", ["time", "size", "inode"])
def test_any_change_of_time_size_or_inode_is_seen(what: str, path: Path) -> None:
    daemon = write(path, {})
    before = path.stat()
    assert daemon.match("secret", 0.0)
    changed = path.read_text().replace(str(ENTRY["sha256"]), "0" * 64) + (" " if what == "size" else "")
    written = path.with_suffix(".new") if what == "inode" else path
    written.write_text(changed)
    os.utime(written, ns=(0, before.st_mtime_ns + (1 if what == "time" else 0)))
    written.replace(path)
    assert daemon.match("secret", 1.0) is None


def test_a_file_that_goes_bad_keeps_the_keys_and_is_logged_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    daemon = write(path, {})
    good = path.read_text()
    path.write_text("{")
    assert [daemon.match("secret", float(now)) is not None for now in range(5)] == [True] * 5
    assert len(errors(caplog)) == 1
    assert "not valid JSON" in errors(caplog)[0]

    path.unlink()
    assert daemon.match("secret", 5.0)
    assert daemon.match("secret", 6.0)
    assert "No such file or directory" in errors(caplog)[1]

    path.write_text(good.replace("alice", "carol"))
    key = daemon.match("secret", 7.0)
    assert key is not None
    assert key.name == "carol"
    path.unlink()
    assert daemon.match("secret", 8.0)
    assert len(errors(caplog)) == 3, "a fault that comes again is said again"


# The command


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UMA_API_KEYS", raising=False)


def test_add_prints_the_key_alone_and_list_shows_a_table(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--api-keys", str(path)]
    assert main(["keys", "add", "bob", *where]) == 0
    out, err = capsys.readouterr()
    assert KeyFile(str(path)).match(out.removesuffix("\n"), 0.0)
    assert "can't be shown again" in err
    limits = ["--requests-per-minute", "0", "--tokens-per-minute", "20000"]
    assert main(["keys", "add", "nightly", "--class", "background", *limits, *where]) == 0
    capsys.readouterr()
    assert main(["keys", "list", *where]) == 0
    day = KeyFile(str(path)).list()[0].created
    assert capsys.readouterr().out.splitlines() == [
        "NAME     CLASS        REQUESTS/MINUTE  TOKENS/MINUTE  CREATED",
        f"bob      interactive  as the daemon    as the daemon  {day}",
        f"nightly  background   no limit         20000          {day}",
    ]


def test_an_operators_key_may_see_what_others_run_until_it_is_revoked(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "add", "boss", "--class", "operator", "--api-keys", str(path)]) == 0
    boss = KeyFile(str(path)).match(capsys.readouterr().out.strip(), 0.0)
    assert boss is not None
    assert (boss.operator, boss.priority) == (True, Priority.INTERACTIVE)
    file = KeyFile(str(path))
    file.add("bob")
    assert [file.operates(name, 0.0) for name in ("boss", "bob", "nobody")] == [True, False, False]
    file.revoke("boss")
    assert not file.operates("boss", 0.0)


def test_revoke_ends_a_key(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new(path).add("alice")
    assert main(["keys", "revoke", "alice", "--api-keys", str(path)]) == 0
    assert KeyFile(str(path)).list() == ()
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
        ([], "the following arguments are required: {add,list,revoke}"),
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
