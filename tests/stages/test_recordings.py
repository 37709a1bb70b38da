"""Recordings: whole or not there, bounded in disk and memory, and nothing touched that is somebody else's."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import stat
import threading
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pytest
from clock import Clock
from descriptors import opened_below

from umaserve.core.errors import ConfigError
from umaserve.stages import recordings as under_test
from umaserve.stages.recordings import OVERHEAD_BYTES, Recording, Recordings

WAIT_S = 10
NOW = 1_750_000_000.0
DAY_S = 86_400.0
PAYLOAD = b'{"messages":[{"role":"user","content":"hello"}], "streaming": true}'


class Box:
    """Recordings in a folder, with a clock of their own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Clock(NOW)
        self._woken = threading.Semaphore(0)
        self._opened: list[Recordings] = []

    def open(self, max_bytes: int = 1 << 20, max_age_s: float = 0.0) -> Recordings:
        opened = Recordings(str(self.path), max_bytes, max_age_s, self._woken.release, self.clock)
        self._opened.append(opened)
        self.settle(opened)
        return opened

    def settle(self, opened: Recordings) -> None:
        while not opened.idle:
            assert self._woken.acquire(timeout=WAIT_S)
            opened.collect()

    def record(self, opened: Recordings, payload: bytes = PAYLOAD) -> str:
        recording = begin(opened, payload)
        recording.end("Hi.", {})
        self.settle(opened)
        assert recording.id is not None
        return recording.id

    def names(self) -> list[str]:
        return sorted(os.listdir(self.path))

    def put(self, name: str, size: int = 100, age_s: float = 0.0) -> Path:
        """A folder as an earlier daemon would have left it."""
        folder = self.path / name
        folder.mkdir(parents=True)
        (folder / "request.json").write_bytes(b"x" * size)
        os.utime(folder, (NOW - age_s, NOW - age_s))
        return folder

    def close(self) -> None:
        for opened in self._opened:
            assert opened.stop(WAIT_S)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path / "recordings")
    yield box
    box.close()


def begin(opened: Recordings, payload: bytes = PAYLOAD) -> Recording:
    recording = opened.begin(payload)
    assert recording is not None
    return recording


def pcm(*samples: float) -> bytes:
    return np.array(samples, "<f4").tobytes()


def test_a_recording_is_a_folder_of_request_answer_and_sound(box: Box) -> None:
    opened = box.open()
    recording = begin(opened)
    recording.heard(pcm(0.0, 1.0))
    recording.heard(pcm(-1.0, 2.0, -2.0))
    box.settle(opened)
    assert box.names() == [f".{recording.id}.part"], "it has no name before it is whole"
    recording.end("Hé.", {"usage": {"input_tokens": 5}})
    box.settle(opened)
    assert box.names() == [recording.id]
    folder = box.path / box.names()[0]
    assert (folder / "request.json").read_bytes() == PAYLOAD
    assert orjson.loads((folder / "answer.json").read_bytes()) == {
        "id": recording.id,
        "time": "2025-06-15T15:06:40.000+00:00",
        "text": "Hé.",
        "usage": {"input_tokens": 5},
    }
    with wave.open(str(folder / "answer.wav")) as wav:
        assert wav.getparams()[:4] == (1, 2, 24_000, 5)
        samples = np.frombuffer(wav.readframes(9), "<i2")
    assert samples.tolist() == [0, 32767, -32767, 32767, -32768], "what is too loud is cut off"
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (box.path, folder, *folder.iterdir())}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if not path.is_dir()} == {0o600}


def test_an_answer_that_is_not_spoken_has_no_sound(box: Box) -> None:
    opened = box.open()
    assert sorted(os.listdir(box.path / box.record(opened))) == ["answer.json", "request.json"]


def test_a_recording_that_is_dropped_leaves_nothing(box: Box) -> None:
    opened = box.open()
    recording = begin(opened)
    recording.heard(pcm(0.5))
    recording.drop()
    recording.heard(pcm(0.5))
    recording.end("too late", {})
    box.settle(opened)
    assert box.names() == []
    name = box.record(opened)
    ended = begin(opened)
    ended.end("", {})
    ended.drop()
    box.settle(opened)
    assert box.names() == sorted([name, str(ended.id)]), "what has ended stays"


def test_without_a_folder_nothing_is_recorded() -> None:
    opened = Recordings("", 1, 1.0, lambda: None)
    assert opened.begin(PAYLOAD) is None
    opened.tidy()
    opened.collect()
    assert opened.idle
    assert opened.stop(WAIT_S)


# What is removed


def test_the_oldest_make_room_for_new_ones(box: Box) -> None:
    opened = box.open(max_bytes=3 * (OVERHEAD_BYTES + 1000))
    kept = [box.record(opened) for _ in range(5)]
    assert box.names() == sorted(kept[-3:])
    box.record(opened, b'"' + b"x" * (OVERHEAD_BYTES + 500) + b'"')
    assert len(box.names()) == 2
    assert kept[-1] in box.names()


def test_at_the_start_what_is_too_much_or_too_old_is_removed(box: Box) -> None:
    for day in range(1, 6):
        box.put(f"chat_{day:012x}", 1000, day * DAY_S - 1.0)
    opened = box.open(max_age_s=4 * DAY_S)
    assert box.names() == [f"chat_{day:012x}" for day in (1, 2, 3, 4)]
    assert opened.stop(WAIT_S)
    box.open(max_bytes=2 * (OVERHEAD_BYTES + 1000))
    assert box.names() == [f"chat_{day:012x}" for day in (1, 2)]


def test_as_time_goes_by_what_is_too_old_is_removed(box: Box) -> None:
    opened = box.open(max_age_s=DAY_S)
    box.record(opened)
    box.clock.now += DAY_S / 2
    second = box.record(opened)
    box.clock.now += DAY_S / 2 + 1
    opened.tidy()
    box.settle(opened)
    assert box.names() == [second]
    box.clock.now += DAY_S
    third = box.record(opened)
    assert box.names() == [third], "a new recording is an occasion, too"


def test_an_age_of_0_is_no_limit(box: Box) -> None:
    box.put("chat_00000000000a", age_s=9999 * DAY_S)
    box.open(max_age_s=0)
    assert box.names() == ["chat_00000000000a"]


def test_what_an_interrupted_daemon_left_is_removed(box: Box) -> None:
    box.put(".chat_00000000000a.part")
    box.put("chat_00000000000b")
    box.open()
    assert box.names() == ["chat_00000000000b"]


def test_what_is_somebody_elses_is_left_alone(box: Box, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "request.json").write_bytes(b"precious")
    for name in ("notes", "chat_1", "chat_00000000000A", ".chat_00000000000a", "chat_00000000000a.part"):
        box.put(name, age_s=9 * DAY_S)
    for name in ("chat_00000000000b", ".chat_00000000000b.part"):
        (box.put(name) / "notes.txt").write_bytes(b"mine")
    (box.put("chat_00000000000c") / "answer.json").symlink_to(outside / "request.json")
    (box.put("chat_00000000000d") / "answer.wav").mkdir()
    for name in ("chat_00000000000e", ".chat_00000000000e.part"):
        (box.path / name).symlink_to(outside)
    (box.path / "chat_00000000000f").write_bytes(b"a file")
    before = {path: path.lstat().st_mtime_ns for path in box.path.rglob("*")}
    opened = box.open(max_bytes=OVERHEAD_BYTES + 1000, max_age_s=DAY_S)
    names = [box.record(opened) for _ in range(2)]
    shutil.rmtree(box.path / names[1])
    assert {path: path.lstat().st_mtime_ns for path in box.path.rglob("*")} == before
    assert (outside / "request.json").read_bytes() == b"precious"


def test_a_recording_that_somebody_adds_to_becomes_theirs(box: Box) -> None:
    opened = box.open(max_bytes=OVERHEAD_BYTES + 1000)
    first = box.record(opened)
    (box.path / first / "notes.txt").write_bytes(b"mine")
    second = box.record(opened)
    shutil.rmtree(box.path / second)
    third = box.record(opened)
    assert box.names() == sorted([first, third])
    assert len(os.listdir(box.path / first)) == 3


# What fails


def test_one_that_is_larger_than_all_may_be_is_not_kept(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    opened = box.open(max_bytes=OVERHEAD_BYTES + 1000)
    recording = begin(opened, b"x" * 1001)
    box.settle(opened)
    assert recording.id is None
    recording.end("Hi.", {})
    assert opened.idle, "nothing more is tried"
    assert "larger than recordings_bytes allows" in caplog.text
    assert box.names() == []
    box.record(opened)


def test_one_that_cannot_be_kept_costs_none_that_are(box: Box) -> None:
    opened = box.open(max_bytes=5 * OVERHEAD_BYTES)
    kept = [box.record(opened) for _ in range(3)]
    too_large = begin(opened, b"x" * (4 * OVERHEAD_BYTES + 1))
    box.settle(opened)
    assert (too_large.id, box.names()) == (None, sorted(kept))
    growing = begin(opened)
    box.settle(opened)
    growing.heard(bytes(10 * OVERHEAD_BYTES))
    box.settle(opened)
    assert (growing.id, box.names()) == (None, sorted(kept))


def test_speech_that_becomes_too_long_costs_none_that_are_kept(box: Box) -> None:
    opened = box.open(max_bytes=5 * OVERHEAD_BYTES)
    kept = [box.record(opened) for _ in range(4)]
    growing = begin(opened)
    written = 0
    while growing.id is not None:
        growing.heard(bytes(OVERHEAD_BYTES))
        written += 1
        box.settle(opened)
    # Each sample takes half of what it took.
    assert (written, box.names()) == (8, sorted(kept))


def test_nothing_makes_way_for_a_recording_before_it_is_whole(box: Box) -> None:
    opened = box.open(max_bytes=3 * OVERHEAD_BYTES)
    kept = [box.record(opened) for _ in range(2)]
    growing = begin(opened)
    growing.heard(bytes(3 * OVERHEAD_BYTES))
    box.settle(opened)
    assert set(kept) < set(box.names())
    growing.end("Hi.", {})
    box.settle(opened)
    assert box.names() == [growing.id]


def test_a_full_disk_costs_the_recording_and_one_line(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    opened = box.open()
    # A limit on the size of files is met as a full disk is.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        recording = begin(opened)
        recording.heard(pcm(0.5))
        recording.end("Hi.", {})
        told = recording.id
        box.settle(opened)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert recording.id is None
    assert [record.getMessage() for record in caplog.records] == [
        f"recordings: dropped {told}: [Errno 27] File too large"
    ]
    assert box.names() == []
    assert box.record(opened), "and not the next one"


def test_a_folder_that_is_taken_away_costs_the_recordings_only(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    opened = box.open()
    recording = begin(opened)
    box.settle(opened)
    shutil.rmtree(box.path)
    recording.end("Hi.", {})
    box.settle(opened)
    another = begin(opened)
    box.settle(opened)
    assert (recording.id, another.id) == (None, None)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


def test_a_recording_that_somebody_removed_is_forgotten(box: Box) -> None:
    opened = box.open(max_bytes=OVERHEAD_BYTES + 1000)
    shutil.rmtree(box.path / box.record(opened))
    second = box.record(opened)
    assert box.names() == [second]


def test_what_waits_to_be_written_is_bounded(
    box: Box, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(under_test, "MAX_WAITING_BYTES", 1000)
    opened = box.open()
    first = begin(opened, b"x" * 600)
    assert opened.begin(b"x" * 401) is None, "what was written counts until it is collected"
    second = begin(opened, b"x" * 300)
    second.heard(pcm(*[0.0] * 26))
    assert second.id is None
    second.end("Hi.", {})
    first.end("Hi.", {})
    box.settle(opened)
    assert box.names() == [first.id]
    assert caplog.text.count("wait to be written") == 2
    box.record(opened, b"x" * 900)


def test_what_waits_is_written_before_the_end(box: Box) -> None:
    opened = box.open()
    recording = begin(opened)
    recording.end("Hi.", {})
    late = begin(opened)
    assert opened.stop(WAIT_S)
    assert opened.idle
    assert recording.id in box.names()
    late.drop()
    late.end("Hi.", {})
    assert opened.begin(PAYLOAD) is None


@pytest.mark.parametrize(
    ("place", "problem"),
    [("file", "Not a directory"), ("file/deeper", "Not a directory"), ("absent/deeper", "No such file or directory")],
)
def test_a_folder_that_cannot_be_is_refused(tmp_path: Path, place: str, problem: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        Recordings(str(tmp_path / place), 1 << 20, 0.0, lambda: None)
    advice = "choose a folder of this daemon's own that it can write to, with --recordings"
    assert str(caught.value) == f"recordings {tmp_path / place}: {problem}: {advice}"
    assert opened_below(tmp_path) == []


def test_a_folder_that_cannot_be_written_to_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^recordings /proc: "):
        Recordings("/proc", 1 << 20, 0.0, lambda: None)


def test_two_daemons_do_not_record_in_one_folder(box: Box) -> None:
    first = box.open()
    with pytest.raises(ConfigError, match="another daemon records into it"):
        box.open()
    assert first.stop(WAIT_S)
    box.open()
