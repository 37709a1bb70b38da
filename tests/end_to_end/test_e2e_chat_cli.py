"""``umaserve chat`` in a terminal's place: pipes to the real program, against the real daemon."""

from __future__ import annotations

import signal
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from daemon import ANSWER_S, Daemon, serving

from umaserve.speech.load import load

with_voice = pytest.mark.skipif(load() is None, reason="no voice is installed (umaserve[speech])")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    yield from serving(tmp_path_factory, "--max-chat-bytes", "1MiB")


def chat(daemon: Daemon, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "umaserve", "chat", "--url", f"http://{daemon.http}", "--temperature", "0"]
    return subprocess.run([*command, *arguments], input=typed, capture_output=True, text=True, timeout=ANSWER_S)


def test_one_question_is_answered(daemon: Daemon) -> None:
    done = chat(daemon, "--max-tokens", "8", "Say hello.")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def prompt_tokens(daemon: Daemon) -> int:
    """Of all prompts so far, computed or reused."""
    values = daemon.wait_until_quiet()
    return values["prompt_tokens_total"] + values["prefix_reused_tokens_total"]


def test_a_conversation_remembers_its_turns(daemon: Daemon) -> None:
    flags = ("--system", "Be brief.", "--max-tokens", "8")
    counts = [prompt_tokens(daemon)]
    for typed in ("One, two, three.\n", "One, two, three.\n\nOne, two, three.\n"):
        done = chat(daemon, *flags, typed=typed)
        assert (done.returncode, done.stderr) == (0, "")
        counts.append(prompt_tokens(daemon))
    one, two = counts[1] - counts[0], counts[2] - counts[1]
    assert 2 * one < two < 4 * one, "the second turn holds the first one, and an empty line asks nothing"


@with_voice
def test_what_is_spoken_goes_into_a_file(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "answer.wav"
    done = chat(daemon, "--max-tokens", "16", "--speak", str(path), "Say hello.")
    assert (done.returncode, done.stderr) == (0, "")
    with wave.open(str(path)) as wav:
        assert (wav.getframerate(), wav.getnchannels(), wav.getsampwidth()) == (24_000, 1, 2)
        samples = np.frombuffer(wav.readframes(wav.getnframes()), "<i2")
    assert len(samples) > 0.3 * 24_000
    assert abs(samples.astype(float)).max() > 1000, "it can be heard"


def test_what_is_wrong_is_said_in_one_line(daemon: Daemon) -> None:
    wrong = [
        (("--max-tokens", "0", "hello"), "generation.max_new_tokens: expected"),
        (
            ("--url", "http://127.0.0.1:9", "hello"),
            "http://127.0.0.1:9: Connection refused: start a daemon with --http",
        ),
        (("--url", "box", "hello"), "--url: expected a URL such as http://127.0.0.1:8080, got box"),
        (("--url", f"http://{daemon.http}/elsewhere", "hello"), "check the version of the daemon"),
        (
            ("--speak", "/nowhere/answer.wav", "hello"),
            "--speak /nowhere/answer.wav: No such file or directory: name a file that you may write",
        ),
        (
            ("--image", "/nowhere.png", "hello"),
            "/nowhere.png: No such file or directory: name a file that you may read",
        ),
        (("--audio", __file__, "hello"), f"{__file__}: "),
        (("--voice", __file__, "--speak", "/dev/null", "hello"), f"{__file__}: "),
    ]
    for arguments, said in wrong:
        done = chat(daemon, *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("umaserve: ")


@pytest.mark.parametrize("kind", ["image", "video"])
def test_what_the_model_cannot_see_is_told_in_one_line(daemon: Daemon, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"not seen by anybody")
    asked, typed = (f"--{kind}", str(path), "What is it?"), f"/{kind} {path}\nWhat is it?\n"
    for done in (chat(daemon, *asked), chat(daemon, typed=typed)):
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("umaserve: messages[0].content[0]")
        assert done.stderr.count("\n") == 1


def test_a_message_that_is_too_large_is_told_with_what_helps(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    path.write_bytes(bytes(12 << 20))
    done = chat(daemon, "--image", str(path), "What is it?")
    assert (done.returncode, done.stdout) == (1, "")
    said = "umaserve: message: expected at most 1048576 bytes, got "
    assert done.stderr.startswith(said)
    assert done.stderr.endswith(": send smaller files, or fewer, or have the daemon take more with --max-chat-bytes\n")


def test_a_voice_is_for_what_is_spoken(daemon: Daemon) -> None:
    done = chat(daemon, "--voice", "me.wav", "hello")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--voice: expected --speak FILE too" in done.stderr


def test_the_files_go_in_the_order_of_their_flags(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"not seen by anybody")
    done = chat(daemon, "--video", str(path), "--image", "/nowhere.png", "--video", "/nowhere.mp4", "hello")
    assert done.stderr.startswith("umaserve: /nowhere.png: "), "and each is read before anything is asked"


def test_the_help_shows_how_it_is_done() -> None:
    command = [sys.executable, "-m", "umaserve", "chat", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S).stdout
    for example in ('--image before.jpg --image after.jpg "', '--audio meeting.mp3 "', "--voice me.wav --speak"):
        assert f"umaserve chat {example}" in shown


def test_an_interrupt_ends_the_answer_and_not_the_chat(daemon: Daemon) -> None:
    command = [sys.executable, "-m", "umaserve", "chat", "--url", f"http://{daemon.http}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"Write a very long story about the sea, with all of its ships.\n")
    process.stdin.flush()
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    daemon.wait_until_quiet()
    process.stdin.write(b"Say hello.\n")
    process.stdin.close()
    assert process.stdout.read()
    assert process.wait(ANSWER_S) == 0
