"""The log's lines: as text, as JSON, and with the priorities and fields that journald reads."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from umaserve.system import journal, logs

SPEAK = """
import logging
from umaserve.system import journal, logs
journal.SOCKET = {socket!r}
logs.configure("debug", {form!r})
log = logging.getLogger("umaserve.test")
log.debug("loading")
log.info("ready", extra={{"fields": {{"model": "a b"}}}})
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
"""


def spoken(form: str, *, to_journal: bool, socket: str = "/nowhere") -> list[str]:
    """The log's lines on a pipe, which is the journal or isn't; ``socket``: where the journal takes fields."""
    reading, writing = os.pipe()
    about = os.fstat(writing)
    variables = {name: value for name, value in os.environ.items() if name != "JOURNAL_STREAM"}
    variables["JOURNAL_STREAM"] = f"{about.st_dev}:{about.st_ino + (not to_journal)}"
    subprocess.run(
        [sys.executable, "-c", SPEAK.format(form=form, socket=socket)], stderr=writing, env=variables, check=True
    )
    os.close(writing)
    with open(reading) as lines:
        return lines.read().splitlines()


def test_journald_gets_each_line_with_its_priority_and_adds_the_time_itself() -> None:
    loading, ready, failed, *traceback = spoken("text", to_journal=True)
    assert (loading, ready, failed) == ("<7>loading", '<6>ready model="a b"', "<3>failed")
    assert traceback[0] == "<3>Traceback (most recent call last):"
    assert all(line.startswith("<3>") for line in traceback)


def test_journald_gets_json_with_priorities() -> None:
    lines = spoken("json", to_journal=True)
    assert [line[:3] for line in lines] == ["<7>", "<6>", "<3>"]
    assert json.loads(lines[1][3:])["model"] == "a b"


def test_journald_gets_fields(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
        journald.bind(str(tmp_path / "journal"))
        assert spoken("text", to_journal=True, socket=str(tmp_path / "journal")) == []
        _loading, ready, failed = (journald.recv(1 << 16) for _ in range(3))
    fields = dict(line.split(b"=", 1) for line in ready.splitlines())
    assert fields == {
        b"MESSAGE": b'ready model="a b"',
        b"PRIORITY": b"6",
        b"SYSLOG_IDENTIFIER": b"umaserve",
        b"UMASERVE_LOGGER": b"umaserve.test",
        b"UMASERVE_MODEL": b"a b",
    }
    name, rest = failed.split(b"\n", 1)
    length = int.from_bytes(rest[:8], "little")
    message, behind = rest[8 : 8 + length].decode(), rest[8 + length :]
    assert (name, message.splitlines()[-1]) == (b"MESSAGE", "ZeroDivisionError: division by zero")
    assert behind.startswith(b"\nPRIORITY=3\n")


def test_a_value_forges_no_field_and_what_is_too_large_for_journald_is_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
        journald.bind(str(tmp_path / "journal"))
        handler = journal.JournalHandler(str(tmp_path / "journal"), caplog.handler)
        for id_ in ("a\nPRIORITY=0", "\udcff", "x" * (1 << 24)):
            record = logging.LogRecord("umaserve.test", logging.INFO, "file", 1, "ended", (), None)
            record.fields = {"id": id_, "key": None}
            handler.handle(record)
        forged, odd = journald.recv(1 << 16), journald.recv(1 << 16)
        handler.close()
    assert forged.endswith(b"UMASERVE_ID\n" + (12).to_bytes(8, "little") + b"a\nPRIORITY=0\n")
    assert odd.endswith(b"UMASERVE_ID=\\udcff\n")
    assert [record.getMessage() for record in caplog.records] == ["ended"]


def test_a_line_that_cannot_be_made_harms_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handler = journal.JournalHandler(str(tmp_path / "journal"), logging.NullHandler())
    handler.handle(logging.LogRecord("of.a.library", logging.INFO, "file", 1, "%d tries", ("many",), None))
    handler.close()
    assert "TypeError" in capsys.readouterr().err


def test_what_all_lines_are_about_is_in_each(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text", file="a.gguf")
    logging.getLogger("umaserve.test").warning("slow")
    logging.getLogger("umaserve.test").info("ready", extra={"fields": {"load_s": 1}})
    slow, ready = capsys.readouterr().err.splitlines()
    assert slow.endswith("WARNING slow file=a.gguf")
    assert ready.endswith("INFO    ready load_s=1 file=a.gguf")


def test_another_file_gets_time_and_level() -> None:
    loading, ready, *_rest = spoken("text", to_journal=False)
    assert loading.endswith("DEBUG   loading")
    assert ready.endswith('INFO    ready model="a b"')


def test_a_stream_that_is_no_file_is_no_journal() -> None:
    assert not journal.is_journal(io.StringIO(), {"JOURNAL_STREAM": "1:2"})
    with open(os.devnull) as closed:
        pass
    assert not journal.is_journal(closed, {"JOURNAL_STREAM": "1:2"})
    with open(os.devnull) as file:
        about = os.fstat(file.fileno())
        assert not journal.is_journal(file, {})
        assert journal.is_journal(file, {"JOURNAL_STREAM": f"{about.st_dev}:{about.st_ino}"})


@pytest.mark.parametrize(
    ("level", "line"),
    [(5, "<7>said"), (logging.INFO, "<6>said"), (25, "<6>said"), (logging.WARNING, "<4>said"), (50, "<2>said")],
)
def test_every_level_has_a_priority_also_those_that_libraries_invent(level: int, line: str) -> None:
    record = logging.LogRecord("umaserve.test", level, "file", 1, "said", (), None)
    assert journal.LineFormatter(logs.TextFormatter(bare=True)).format(record) == line


@pytest.fixture
def _all_requests() -> Iterator[None]:
    yield
    logs.sample_requests(1.0)


@pytest.mark.usefixtures("_all_requests")
def test_a_share_of_the_lines_about_requests_is_logged_and_all_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "umaserve")
    other = logging.getLogger("umaserve.test")
    kept = []
    for share in (0.0, 0.25, 1.0):
        logs.sample_requests(share)
        for _ in range(400):
            logs.requests.info("request ended")
            other.info("ready")
        messages = [record.getMessage() for record in caplog.records]
        kept.append(messages.count("request ended"))
        assert messages.count("ready") == 400
        caplog.clear()
    assert kept[0] == 0
    # Fewer or more would come once in more than a billion runs.
    assert 40 < kept[1] < 170
    assert kept[2] == 400


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_text_steers_the_terminal_that_shows_the_log(form: str) -> None:
    hostile = "\x1b]0;t\x07\u009b2J\u202e\u2066\u200f\u2028"
    formatter = logs.TextFormatter() if form == "text" else logs.JsonFormatter()
    for arguments, fields in (((hostile,), {}), (("x",), {"id": hostile}), (("x",), {"id": f"é {hostile}"})):
        record = logging.LogRecord("umaserve", logging.WARNING, "", 1, "about %s", arguments, None)
        record.__dict__["fields"] = fields
        line = formatter.format(record)
        assert not any(character in line for character in hostile if character not in "]0;t2J")
        assert "\\u009b2J\\u202e\\u2066\\u200f\\u2028" in line
        if form == "json":
            told = json.loads(line)
            assert hostile in told["message"] + told.get("id", "")
