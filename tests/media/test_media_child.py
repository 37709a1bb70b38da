"""What a file does to the process that decodes it reaches nobody but who sent it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from media_files import BLUE, RED, film, pitch, sine, wav

from umaserve.media import child, sounds, videos
from umaserve.media.errors import MediaError


def decoder_that(does: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the decoder do this instead of decoding, within the same limits."""
    does = does.replace("\n", "\n    ")
    program = f"""
import ctypes, os, signal, sys, time
from umaserve.media import decoder
def answer(file, task):
    {does}
decoder._answer = answer
decoder.main(sys.argv[1:])
"""
    monkeypatch.setattr(child, "_PROGRAM", ("-c", program))


def refusal() -> str:
    with pytest.raises(MediaError) as caught:
        sounds.decode_file(b"any")
    return str(caught.value)


def test_a_recording_is_decoded_apart():
    samples, rate = sounds.decode_file(wav(sine(880)))
    assert (samples.dtype, len(samples), rate) == (np.float32, 16_000, 16_000)
    assert pitch(samples, rate) == pytest.approx(880, abs=1)


@pytest.mark.parametrize("sound", [None, sine(660, 2.0)])
def test_a_film_is_decoded_apart(sound: sounds.Samples | None):
    shown = videos.decode(film([RED] * 5 + [BLUE] * 5, sound=sound), 3)
    assert [frame.time_s for frame in shown.frames] == [0, 1]
    for frame, red_and_blue in zip(shown.frames, ((255, 0), (0, 255)), strict=True):
        picture, tiles = frame.pictures
        assert (picture.width, picture.height, tiles.width, tiles.height) == (64, 48, 64, 24)
        assert (picture.rgb[0], picture.rgb[2]) == pytest.approx(red_and_blue, abs=12)
        assert (tiles.rgb[-3], tiles.rgb[-1]) == pytest.approx(red_and_blue, abs=12)
    if sound is None:
        assert (shown.samples, shown.rate) == (None, 0)
    else:
        assert shown.samples is not None
        assert (shown.rate, pitch(shown.samples, shown.rate)) == (16_000, pytest.approx(660, abs=1))


def test_what_the_decoder_refuses_is_told():
    assert refusal() == "expected a sound, got 3 bytes that are damaged, cut off, too large or of an unknown format"
    with pytest.raises(MediaError, match="expected a video, got a file without a video track"):
        videos.decode(wav(sine()), 1)


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("ctypes.string_at(0)", r"it crashes its decoder \(Segmentation fault\)"),
        ("os.abort()", r"it crashes its decoder \(Aborted\)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "its decoder was killed, probably since memory was short"),
        ("raise ZeroDivisionError", r"its decoder failed \(status 1\)"),
        ("bytearray(1 << 30)", "it takes more than 512 MiB of memory"),
        ("while True: pass", "it takes more than 1 s of computing"),
        # More than it may answer.
        ("return {}, [memoryview(bytes(5000))]", r"its decoder failed \(status \d+\)"),
    ],
)
def test_a_decoder_that_dies_costs_the_file_alone(does: str, why: str, monkeypatch: pytest.MonkeyPatch):
    decoder_that(does, monkeypatch)
    monkeypatch.setattr(child, "MAX_MEMORY_BYTES", 512 << 20)
    monkeypatch.setattr(child, "MAX_CPU_S", 1)
    monkeypatch.setattr(child, "MAX_ANSWER_BYTES", 4000)
    with pytest.raises(MediaError, match=f"^can't be decoded: {why}$"):
        sounds.decode_file(b"any")


def test_a_decoder_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "pid"
    decoder_that(f"open({str(path)!r}, 'w').write(str(os.getpid())); time.sleep(600)", monkeypatch)
    monkeypatch.setattr(child, "MAX_SECONDS", 1)
    assert refusal() == "can't be decoded: it takes longer than 1 s"
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), 0)


def test_nobodys_file_keeps_those_of_others_waiting_for_long(monkeypatch: pytest.MonkeyPatch):
    decoder_that("import resource; return {'cpu': resource.getrlimit(resource.RLIMIT_CPU)}, []", monkeypatch)
    run, patience = subprocess.run, []

    def noted(*arguments: Any, timeout: float, **options: Any) -> subprocess.CompletedProcess[bytes]:
        patience.append(timeout)
        return run(*arguments, timeout=timeout, **options)

    monkeypatch.setattr(subprocess, "run", noted)
    head, _ = child.decoded(b"any", "film", "1")
    assert head["cpu"] == [90, 91]
    assert patience == [300]


def test_a_decoder_ends_with_its_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "started"
    os.mkfifo(path)
    decoder_that(f"open({str(path)!r}, 'wb').write(b'%d' % os.getpid()); time.sleep(600)", monkeypatch)
    program = f"from umaserve.media import child; child._PROGRAM = {child._PROGRAM!r}; child.decoded(b'any', 'sound')"
    fifo = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    daemon = subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    try:
        assert select.select([fifo], [], [], 30)[0]
        decoder = os.pidfd_open(int(os.read(fifo, 20)))
    finally:
        os.close(fifo)
        daemon.kill()
        daemon.wait()
    try:
        assert select.select([decoder], [], [], 30)[0]
    finally:
        os.close(decoder)


def test_a_decoder_has_nothing_but_its_file(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("UMASERVE_SECRET", "1")
    with open(os.devnull) as held:
        os.set_inheritable(held.fileno(), True)
        decoder_that(
            """
import resource
told = [sorted(os.environ), os.listdir("/proc/self/fd"), os.nice(0), os.getpid() == os.getsid(0), file.read().decode()]
try:
    told.append([open(os.devnull) for _ in range(20)])
except OSError:
    told.append("no more files")
told.append(resource.getrlimit(resource.RLIMIT_NPROC)[0])
return {"told": told}, []
""".strip(),
            monkeypatch,
        )
        head, parts = child.decoded(b"the file", "sound")
    names, opened, niceness, leads, file, more, processes = head["told"]
    assert set(names) <= {"LC_CTYPE", "LD_LIBRARY_PATH", "OPENBLAS_NUM_THREADS", "PYTHONHOME", "PYTHONPATH"}
    # The fourth is the folder that is listed.
    assert len(opened) == 4
    assert (niceness, leads, file, more, processes, parts) == (
        min(os.nice(0) + 10, 19),
        True,
        "the file",
        "no more files",
        0,
        [],
    )


SOUND, FILM = "sound", "film"


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        *(
            (SOUND, answer)
            for answer in (b"", b"\n", b"no json\n", b"[" * 70_000, b'{"rate":8000}\n', b'{"parts":7}\n')
        ),
        (SOUND, b'{"rate":8000,"parts":[]}\n'),
        (SOUND, b'{"rate":8000,"parts":[4,4]}\n12345678'),
        (SOUND, b'{"rate":"8000","parts":[4]}\n1234'),
        (SOUND, b'{"rate":999,"parts":[4]}\n1234'),
        (SOUND, b'{"rate":384001,"parts":[4]}\n1234'),
        # Not as many bytes as it says, or more of them than may be.
        (SOUND, b'{"rate":8000,"parts":[8]}\n1234'),
        (SOUND, b'{"rate":8000,"parts":[4]}\n12345678'),
        (SOUND, b'{"rate":8000,"parts":[-4,8]}\n1234'),
        (SOUND, b'{"rate":8000,"parts":[4.0]}\n1234'),
        (SOUND, b'{"rate":8000,"parts":[32004]}\n' + bytes(32_004)),
        (SOUND, b'{"rate":8000,"parts":[40000]}\n' + bytes(40_000)),
        (FILM, b'{"rate":0,"parts":[]}\n'),
        (FILM, b'{"frames":[],"rate":0,"parts":[]}\n'),
        *(
            (FILM, b'{"frames":[%s],"rate":8000,"parts":[%s]}\n%s' % (frames, parts, bytes(size)))
            for frames, parts, size in (
                (b"7", b"3", 3),
                (b"[0,7]", b"3", 3),
                (b"[0,[]]", b"", 0),
                (b'["0",[[1,1]]]', b"3", 3),
                (b"[-1,[[1,1]]]", b"3", 3),
                (b"[3601,[[1,1]]]", b"3", 3),
                (b"[0,[[1,1],[1,1],[1,1]]]", b"3,3,3", 9),
                (b"[0,[[1,1,1]]]", b"3", 3),
                (b"[0,[[1.0,1]]]", b"3", 3),
                (b"[0,[[-1,-1]]]", b"3", 3),
                (b"[0,[[0,1]]]", b"0", 0),
                (b"[0,[[2,1]]]", b"3", 3),
                (b"[0,[[1,1]]]", b"", 0),
                (b"[0,[[101,1]]]", b"303", 303),
                (b"[0,[[1,1]]]", b"3,4,4", 11),
                (b"[0,[[1,1]]]", b"3,32004", 32_007),
                (b"[0,[[1,1]]],[0,[[1,1]]]", b"3,3", 6),
                (b"[0,[[1,1]]],[1,[[1,1]]],[2,[[1,1]]]", b"3,3,3", 9),
            )
        ),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(task: str, answer: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sounds, "MAX_SECONDS", 1)
    monkeypatch.setattr(videos, "MAX_FRAMES", 2)
    monkeypatch.setattr(videos, "MAX_KEPT_PIXELS", 100)
    monkeypatch.setattr(child, "MAX_ANSWER_BYTES", 36_000)
    with pytest.raises(MediaError) as caught:
        answered(task, answer, monkeypatch)
    assert str(caught.value) == "can't be decoded: its decoder has sent an invalid answer"


def test_an_answer_that_makes_sense_is_taken(monkeypatch: pytest.MonkeyPatch):
    half = np.float32(0.5).tobytes()
    assert answered(SOUND, b'{"rate":8000,"parts":[4]}\n' + half, monkeypatch) == ([0.5], 8000)
    shown = answered(
        FILM, b'{"frames":[[0,[[1,1]]],[1.5,[[1,1]]]],"rate":8000,"parts":[3,3,4]}\nabcdef' + half, monkeypatch
    )
    assert isinstance(shown, videos.Film)
    assert [(frame.time_s, frame.pictures[0].rgb) for frame in shown.frames] == [(0, b"abc"), (1.5, b"def")]
    assert shown.samples == [0.5]


@pytest.mark.parametrize("sample", ["nan", "inf"])
def test_samples_that_are_no_numbers_are_refused(sample: str, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(MediaError, match=f"expected finite samples, got {sample} at index 0"):
        answered(SOUND, b'{"rate":8000,"parts":[4]}\n' + np.float32(sample).tobytes(), monkeypatch)


def answered(task: str, answer: bytes, monkeypatch: pytest.MonkeyPatch) -> object:
    """What comes of the answer where the decoder gives it."""

    def run(*_: object, stdout: object, **__: object) -> subprocess.CompletedProcess[bytes]:
        os.write(stdout.fileno(), answer)
        return subprocess.CompletedProcess([], 0)

    monkeypatch.setattr(subprocess, "run", run)
    return sounds.decode_file(b"any") if task == SOUND else videos.decode(b"any", 1)


def test_without_processes_nothing_is_decoded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert refusal() == "can't be decoded: no decoder can be started: No such file or directory"


def test_a_file_in_the_working_directory_is_no_part_of_the_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "av.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert sounds.decode_file(wav(sine()))[1] == 16_000
