"""The feedback log: whole lines, in a file that nobody else may read, that ends and is begun anew."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import orjson
import pytest
from descriptors import opened_below

from umaserve.core.errors import ConfigError
from umaserve.daemon.feedback import MAX_AGE, MAX_BYTES, FeedbackLog

NOW = datetime(2025, 6, 1, 12, 0, 0, 123456, tzinfo=UTC)
VALUES = {"request_id": "r1", "rating": 1.0, "text": "line one\nline two é"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "feedback.jsonl"


@pytest.fixture
def log(path: Path) -> Iterator[FeedbackLog]:
    log = FeedbackLog(str(path))
    yield log
    log.close()


def records(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [orjson.loads(line) for line in data.splitlines()]


def older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def test_a_record_is_a_line_with_the_time_in_utc_first(path: Path, log: FeedbackLog) -> None:
    log.append(VALUES, NOW)
    log.append({}, NOW.astimezone(timezone(timedelta(hours=2))))
    assert records(path) == [
        {"time": "2025-06-01T12:00:00.123+00:00", **VALUES},
        {"time": "2025-06-01T12:00:00.123+00:00"},
    ]
    assert path.read_bytes().startswith(b'{"time":')
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_next_daemon_goes_on_in_the_same_file(path: Path) -> None:
    for number in range(3):
        log = FeedbackLog(str(path))
        log.append({"number": number}, NOW)
        log.close()
    assert [record["number"] for record in records(path)] == [0, 1, 2]
    assert not older(path).exists()


def test_a_file_that_is_full_is_begun_anew_and_only_one_older_is_kept(path: Path, log: FeedbackLog) -> None:
    empty = len(b'{"time":"2025-06-01T12:00:00.123+00:00","number":0,"text":""}\n')
    half = "x" * (MAX_BYTES // 2 - empty)
    for number in range(2):
        log.append({"number": number, "text": half}, NOW)
    assert path.stat().st_size == MAX_BYTES
    log.append({"number": 2, "text": half}, NOW)
    assert [record["number"] for record in records(path)] == [2]
    assert [record["number"] for record in records(older(path))] == [0, 1]
    for number in (3, 4):
        log.append({"number": number, "text": half}, NOW)
    assert [record["number"] for record in records(path)] == [4]
    assert [record["number"] for record in records(older(path))] == [2, 3]
    assert sorted(os.listdir(path.parent)) == [path.name, older(path).name]


@pytest.mark.parametrize("restart", [False, True])
def test_a_file_whose_first_record_is_old_is_begun_anew(path: Path, restart: bool) -> None:
    log = FeedbackLog(str(path))
    log.append({"number": 0}, NOW)
    log.append({"number": 1}, NOW + MAX_AGE - timedelta(seconds=1))
    if restart:
        log.close()
        log = FeedbackLog(str(path))
    log.append({"number": 2}, NOW + MAX_AGE)
    log.append({"number": 3}, NOW + MAX_AGE)
    log.close()
    assert [record["number"] for record in records(path)] == [2, 3]
    assert [record["number"] for record in records(older(path))] == [0, 1]


def test_a_record_longer_than_the_file_may_be_is_refused_and_costs_nothing(path: Path, log: FeedbackLog) -> None:
    log.append({"number": 0}, NOW)
    with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        log.append({"text": "x" * MAX_BYTES}, NOW)
    assert [record["number"] for record in records(path)] == [0]
    assert not older(path).exists()


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced", "truncated"])
def test_the_file_may_be_taken_away_while_the_daemon_runs(path: Path, log: FeedbackLog, how: str) -> None:
    log.append({"number": 0}, NOW)
    if how == "moved":
        path.rename(path.with_name("rotated"))
    elif how == "deleted":
        path.unlink()
    elif how == "replaced":
        path.rename(path.with_name("rotated"))
        path.touch(0o600)
    else:
        os.truncate(path, 0)
    log.append({"number": 1}, NOW + MAX_AGE)
    assert [record["number"] for record in records(path)] == [1]
    assert not older(path).exists()
    if how in ("moved", "replaced"):
        assert [record["number"] for record in records(path.with_name("rotated"))] == [0]


def test_a_disk_that_takes_only_a_part_of_a_record_keeps_none_of_it(path: Path, log: FeedbackLog) -> None:
    log.append({"number": 0}, NOW)
    before = path.read_bytes()
    # A limit on the size of files is met as a full disk is: the write that crosses it is cut short.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            log.append({"number": 1}, NOW)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    log.append({"number": 2}, NOW)
    assert [record["number"] for record in records(path)] == [0, 2]


def test_a_link_put_in_the_place_of_the_file_is_not_followed_and_can_be_taken_away(
    path: Path, log: FeedbackLog
) -> None:
    target = path.with_name("target")
    target.touch()
    path.unlink()
    path.symlink_to(target)
    for _ in range(2):
        with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
            log.append(VALUES, NOW)
    assert target.read_bytes() == b""
    path.unlink()
    log.append({"number": 1}, NOW)
    assert [record["number"] for record in records(path)] == [1]


def test_a_rename_that_fails_loses_nothing(path: Path, log: FeedbackLog) -> None:
    log.append({"number": 0}, NOW)
    (older(path) / "busy").mkdir(parents=True)
    with pytest.raises(OSError, match=os.strerror(errno.EISDIR)):
        log.append({"number": 1}, NOW + MAX_AGE)
    assert [record["number"] for record in records(path)] == [0]
    (older(path) / "busy").rmdir()
    older(path).rmdir()
    log.append({"number": 1}, NOW + MAX_AGE)
    assert [record["number"] for record in records(path)] == [1]


def other_file(path: Path, data: bytes) -> None:
    path.write_bytes(data)


REFUSED = {
    "directory": (Path.mkdir, os.strerror(errno.EISDIR)),
    "link": (lambda path: path.symlink_to(path.with_name("target")), os.strerror(errno.ELOOP)),
    "pipe": (os.mkfifo, "not a regular file"),
    "text": (lambda path: other_file(path, b"notes\n"), "its first line is not a feedback record"),
    "no time": (lambda path: other_file(path, b'{"time":"soon"}\n'), "its first line is not a feedback record"),
    "no zone": (
        lambda path: other_file(path, b'{"time":"2025-06-01T12:00"}\n'),
        "its first line is not a feedback record",
    ),
    "no ASCII": (lambda path: other_file(path, b'{"time":"\xff"}\n'), "its first line is not a feedback record"),
    "no folder": (lambda path: path.parent.rmdir(), os.strerror(errno.ENOENT)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_feedback_log_is_refused_and_left_alone(tmp_path: Path, case: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "feedback"
    make, problem = REFUSED[case]
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(ConfigError) as caught:
        FeedbackLog(str(path))
    advice = "choose a regular file, not a link, that this user may write, with --feedback-log"
    assert str(caught.value) == f"feedback log {path}: {problem}: {advice}"
    assert opened_below(tmp_path) == []
    assert (path.read_bytes() if path.is_file() else None) == before
