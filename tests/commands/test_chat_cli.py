"""The parts of ``umaserve chat`` by themselves: the files it sends, and the line that tells how far it is."""

from __future__ import annotations

import argparse
import base64
import contextlib
import errno
import io
import wave
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from umaserve.cli import main
from umaserve.commands.chat import chat as chat_cli
from umaserve.commands.chat import media
from umaserve.commands.chat.input import COMMANDS, ChatError, Conversation, Message, questions
from umaserve.commands.chat.media import FileError
from umaserve.commands.chat.speech import SpeechFile
from umaserve.commands.chat.status import Status


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Typed(io.StringIO):
    """Standard input, a pipe or a terminal."""

    def __init__(self, text: str, watched: bool) -> None:
        super().__init__(text)
        self._watched = watched

    def isatty(self) -> bool:
        return self._watched


# The files


@pytest.mark.parametrize("kind", ["image", "video"])
def test_an_image_and_a_film_go_as_they_are(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\x00any bytes\xff")
    assert media.item(kind, str(path)) == {"type": kind, "data": base64.b64encode(path.read_bytes()).decode()}


def test_a_sound_goes_as_float32_of_16_khz(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="no media packages are installed (umaserve[media])")
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(np.full(8000, 1 << 14, "<i2").tobytes())
    item = media.item("audio", str(path))
    samples = np.frombuffer(base64.b64decode(item.pop("data")), "<f4")
    assert item == {"type": "audio", "sample_rate": 16_000}
    assert len(samples) == pytest.approx(16_000, abs=2)
    assert np.median(samples) == pytest.approx(0.5, abs=0.01)


def test_a_file_that_cannot_be_sent_is_named_and_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "MAX_BYTES", 1 << 20)
    for name, size in (("empty", 0), ("large", (1 << 20) + 1), ("largest", 1 << 20)):
        (tmp_path / name).write_bytes(bytes(size))
    for name, said in (
        ("absent", "No such file or directory: name a file that you may read"),
        ("", "Is a directory: name a file that you may read"),
        ("empty", "is empty"),
        ("large", "has more than 1 MiB, the most that a daemon accepts"),
    ):
        with pytest.raises(FileError) as caught:
            media.item("image", str(tmp_path / name))
        assert str(caught.value).startswith(f"{tmp_path / name}: {said}")
    with pytest.raises(FileError, match="no such file"):
        media.item("image", "a\0b")
    assert media.item("image", str(tmp_path / "largest"))


def test_a_sound_that_is_none_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.mp3"
    path.write_bytes(b"no sound at all")
    with pytest.raises(FileError, match=r"a\.mp3: "):
        media.sound(str(path))


def samples(path: Path) -> bytes:
    with wave.open(str(path), "rb") as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        return file.readframes(file.getnframes())


def test_spoken_answers_take_the_place_of_what_was_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "answer.wav"
    path.write_bytes(b"what was there, and longer than what comes" * 100)
    with SpeechFile(str(path)) as speech:
        speech.write(b"ab")
        speech.write(b"cd")
    assert samples(path) == b"abcd"


def test_without_sound_the_file_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "answer.wav"
    path.write_bytes(b"what was there")
    with pytest.raises(ChatError), SpeechFile(str(path)):
        raise ChatError("no daemon")
    assert path.read_bytes() == b"what was there"


def test_without_sound_no_file_is_made(tmp_path: Path) -> None:
    with SpeechFile(str(tmp_path / "answer.wav")):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_was_heard_before_the_connection_broke_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "answer.wav"
    with contextlib.suppress(ChatError), SpeechFile(str(path)) as speech:
        speech.write(b"ab")
        raise ChatError("broken")
    assert samples(path) == b"ab"


@pytest.mark.parametrize("name", ["", "missing/answer.wav", "a\0b"])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_asked(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="name a file that you may write"):
        SpeechFile(str(tmp_path / name))


def test_a_chat_that_reaches_no_daemon_leaves_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answer.wav"
    path.write_bytes(b"what was there")
    assert main(["chat", "--url", "http://127.0.0.1:1", "--speak", str(path), "Hi"]) == 1
    assert "start a daemon with --http" in capsys.readouterr().err
    assert path.read_bytes() == b"what was there"


def test_a_disk_that_is_full_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = base64.b64encode(np.zeros(8, "<f4").tobytes())

    def ask(*_: object) -> Iterator[Message]:
        yield {"type": "chunk", "text_delta": "Yes", "audio_data": sound}

    monkeypatch.setattr(chat_cli, "_ask", ask)
    # Where each write fails, as on a disk without room.
    assert main(["chat", "--speak", "/dev/full", "Hi"]) == 1
    assert "No space left on device" in capsys.readouterr().err


# What is typed


def typed(monkeypatch: pytest.MonkeyPatch, text: str, *, watched: bool) -> tuple[list[str], list[list[object]]]:
    """The questions, and what is attached to each."""
    monkeypatch.setattr("sys.stdin", Typed(text, watched))
    conversation = Conversation()
    prompts, files = [], []
    for prompt in questions(conversation):
        prompts.append(prompt)
        files.append([item["type"] for item in conversation.attached])
        conversation.attached.clear()
    return prompts, files


@pytest.mark.parametrize("watched", [False, True])
def test_files_that_are_named_go_with_the_next_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], watched: bool
) -> None:
    for name in ("a.png", "my film.mp4"):
        (tmp_path / name).write_bytes(b"x")
    monkeypatch.setenv("HOME", str(tmp_path))
    lines = [
        "/image ~/a.png",
        f"/video '{tmp_path}/my film.mp4'",
        f"/image   {tmp_path}/a.png ",
        "",
        "What is it?",
        " /images are not a command",
        "image a.png",
        f'/video "{tmp_path}/my film.mp4"',
        f"/video {tmp_path}/my film.mp4",
        "And now?",
    ]
    prompts, files = typed(monkeypatch, "\n".join(lines), watched=watched)
    assert prompts == ["What is it?", "/images are not a command", "image a.png", "And now?"]
    assert files == [["image", "video", "image"], [], [], ["video", "video"]]
    assert ("/image FILE" in capsys.readouterr().err) == watched, "there is a hint for those who type"


@pytest.mark.parametrize("space", ["\t", " \t ", "\u00a0"])
def test_any_white_space_parts_a_command_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, space: str
) -> None:
    (tmp_path / "a b.png").write_bytes(b"x")
    line = f"/image{space}{tmp_path}/a b.png"
    assert typed(monkeypatch, f"{line}\nWhat?\n", watched=True) == (["What?"], [["image"]])


def test_a_script_that_ends_without_a_question_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(ChatError, match=r"^the files have no question: "):
        typed(monkeypatch, f"What?\n/image {tmp_path}/a.png\n", watched=False)
    assert typed(monkeypatch, f"/image {tmp_path}/a.png\n", watched=True) == ([], [])


def test_an_interrupt_at_the_prompt_gives_a_fresh_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter([KeyboardInterrupt, "What?", KeyboardInterrupt, EOFError])

    def read(_prompt: str) -> str:
        line = next(lines)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", read)
    assert typed(monkeypatch, "", watched=True) == (["What?"], [[]])
    assert capsys.readouterr().err.endswith("\n\n"), "the prompts have lines of their own"
    lines = iter([KeyboardInterrupt])
    with pytest.raises(KeyboardInterrupt):
        typed(monkeypatch, "", watched=False)


@pytest.mark.parametrize("watched", [False, True])
def test_a_text_of_several_lines_is_one_question(monkeypatch: pytest.MonkeyPatch, watched: bool) -> None:
    text = '"""One\n/two\n\nthree"""\nFour\n  """  \n/bye\n"""\n"""five"""\n"""six\nseven'
    expected = ["One\n/two\n\nthree", "Four", "/bye", "five", "six\nseven"]
    assert typed(monkeypatch, text, watched=watched)[0] == expected


def test_what_is_pasted_is_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["/image\nis no command here\n", "/bye"])
    monkeypatch.setattr("builtins.input", lambda _prompt: next(lines))
    assert typed(monkeypatch, "", watched=True)[0] == ["/image\nis no command here"]


def test_a_mistyped_command_is_no_question(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = "no command is named /imgae, did you mean /image?: /help lists all commands"
    assert typed(monkeypatch, "/imgae a.png\n/etc/fstab has what?\n", watched=True)[0] == ["/etc/fstab has what?"]
    assert said in capsys.readouterr().err
    with pytest.raises(ChatError, match=said.replace("?", r"\?")):
        typed(monkeypatch, "/imgae a.png\nWhat?\n", watched=False)


def test_help_names_every_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(monkeypatch, "/help\n", watched=True) == ([], [])
    told = capsys.readouterr().err
    assert all(f"{command} " in told for command in COMMANDS)


def test_commands_change_what_is_sent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sent: list[tuple[str | None, list[str]]] = []

    def ask(_url: str, _key: object, request: Message, _status: object) -> Iterator[Message]:
        sent.append((request.get("model"), [message["content"] for message in request["messages"]]))
        yield {"type": "chunk", "text_delta": "Yes", "audio_data": None}

    def call(_url: str, _key: object, _method: str, _path: str) -> dict[str, Any]:
        return {"data": [{"id": "first", "aliases": ["first", "one"]}, {"id": "second", "aliases": ["second"]}]}

    monkeypatch.setattr(chat_cli, "_ask", ask)
    monkeypatch.setattr(chat_cli, "call", call)
    lines = [
        "A?",
        "/system Be brief.",
        "B?",
        "/model secnd",
        "C?",
        "/model one",
        "/clear",
        "D?",
        "/model",
        "/system",
        "E?",
    ]
    monkeypatch.setattr("sys.stdin", Typed("\n".join([*lines, "/bye", "F?"]), watched=False))
    assert main(["chat", "--model", "second.gguf"]) == 0
    assert sent == [
        ("second.gguf", ["A?"]),
        ("second.gguf", ["Be brief.", "A?", "Yes", "B?"]),
        ("secnd", ["Be brief.", "A?", "Yes", "B?", "Yes", "C?"]),
        ("one", ["Be brief.", "D?"]),
        (None, ["D?", "Yes", "E?"]),
    ]
    told = capsys.readouterr().err.splitlines()
    assert told == ["umaserve: no model is named secnd, did you mean second?: first answers"]


def asked(
    monkeypatch: pytest.MonkeyPatch, said: str, replies: Sequence[ChatError | None], *, watched: bool
) -> tuple[int, Any]:
    """The exit status after two questions, and the messages of each request."""
    requests: list[list[Message]] = []
    left = iter(replies)

    def ask(_url: str, _key: object, request: Message, _status: object) -> Iterator[Message]:
        requests.append(request["messages"])
        if said:
            yield {"type": "chunk", "text_delta": said, "audio_data": None}
        if (failure := next(left)) is not None:
            raise failure

    monkeypatch.setattr("sys.stdin", Typed("One?\nTwo?\n", watched))
    monkeypatch.setattr("umaserve.commands.chat.chat._ask", ask)
    return chat_cli.run(argparse.ArgumentParser(), [], lambda text: print(text, end="")), requests


@pytest.mark.parametrize("said", ["", "Well"])
def test_a_refusal_ends_a_script_and_no_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: str
) -> None:
    replies = [ChatError("Refused."), None]
    one, two = ({"role": "user", "content": text} for text in ("One?", "Two?"))
    begun = f"{said}\n" if said else ""
    assert asked(monkeypatch, said, replies, watched=True) == (0, [[one], [two]])
    printed, told = capsys.readouterr()
    assert told.endswith("umaserve: Refused.\n")
    assert printed.replace("> ", "") == f"{begun}{said}\n"
    assert asked(monkeypatch, said, replies, watched=False) == (1, [[one]])
    assert capsys.readouterr() == (begun, "umaserve: Refused.\n")


def test_a_connection_that_breaks_is_a_refusal_too() -> None:
    with (
        pytest.raises(ChatError, match=r"^http://box: Connection reset by peer: is the daemon"),
        chat_cli._told("http://box"),
    ):
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


@pytest.mark.parametrize("line", ["/image /nowhere.png", "/audio", "/video  "])
def test_a_wrong_file_ends_a_script_and_no_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    with pytest.raises(FileError):
        typed(monkeypatch, f"{line}\nhello\n", watched=False)
    assert typed(monkeypatch, f"{line}\nhello\n", watched=True) == (["hello"], [[]])
    assert "umaserve: /" in capsys.readouterr().err


# How far it is


def test_what_takes_over_a_second_is_told_on_one_line_that_goes() -> None:
    terminal, now = Terminal(), 100.0
    with Status(terminal, lambda: now) as status:
        status.begin("sending 80.0 MiB")
        now += 0.9
        status.tick("30%")
        assert terminal.getvalue() == ""
        now += 0.1
        status.tick("40%")
        assert terminal.getvalue() == "\rsending 80.0 MiB: 40%\x1b[K"
        status.begin("reading")
        assert terminal.getvalue().endswith("\r\x1b[K")
        now += 12
        status.tick()
        assert terminal.getvalue().endswith("\rreading: 12 s\x1b[K")
        status.clear()
        assert terminal.getvalue().endswith("\r\x1b[K")
        said = terminal.getvalue()
        now += 100
        status.tick()
        status.clear()
    assert terminal.getvalue() == said, "after the end nothing is said"


def test_the_line_goes_however_it_ends() -> None:
    terminal = Terminal()
    with Status(terminal, lambda: 0.0) as status:
        status.queued(3, 5, 12.4)
        status.queued(1, 4, None)
    assert terminal.getvalue() == (
        "\rwaiting for a slot, queue position 3 of 5, about 12 s\x1b[K"
        "\rwaiting for a slot, queue position 1 of 4\x1b[K\r\x1b[K"
    )


def test_a_pipe_hears_of_the_queue_only_and_once() -> None:
    pipe, now = io.StringIO(), 0.0
    with Status(pipe, lambda: now) as status:
        status.begin("sending")
        now += 9
        status.tick()
        status.queued(3, 5, None)
        status.queued(2, 5, None)
        status.begin("reading")
        now += 9
        status.tick()
    assert pipe.getvalue() == "waiting for a slot, queue position 3 of 5\n"
