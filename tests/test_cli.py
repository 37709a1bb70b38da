"""``umaserve ask`` and ``metrics`` against servers that a test scripts."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
from frames import uds_frame

from umaserve import cli
from umaserve.cli import main
from umaserve.commands.foreign_names import FLAGS
from umaserve.settings.daemon import SETTINGS

TOKEN = uds_frame({"event": "token", "id": "c", "text": "Yes", "token_id": 1})
END = uds_frame({"event": "eos", "id": "c", "reason": "stop", "usage": {}})
REFUSAL = uds_frame({"event": "error", "code": "E_LIMIT_SESSIONS", "message": "connection: 1 are open"})


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cli, "ANSWER_S", 0.1)
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts a server whose life is a function of its listening socket; its path."""
    threads: list[threading.Thread] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "uma.sock"))
    listener.listen()

    def start(life: Callable[[socket.socket], None]) -> str:
        threads.append(threading.Thread(target=life, args=[listener], daemon=True))
        threads[-1].start()
        return str(tmp_path / "uma.sock")

    yield start
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    listener.close()


def request(sock: socket.socket) -> dict:
    (length,) = struct.unpack("<I", sock.recv(4, socket.MSG_WAITALL))
    return json.loads(sock.recv(length, socket.MSG_WAITALL))


@pytest.mark.parametrize("answer", [uds_frame({"event": "metrics"}), REFUSAL])
def test_ask_waits_for_a_daemon_that_is_silent_but_answers_another_connection(
    answer: bytes, serve: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    def busy(listener: socket.socket) -> None:
        asking, _ = listener.accept()
        with asking:
            assert request(asking)["prompt"] == "Hi"
            checking, _ = listener.accept()
            with checking:
                assert request(checking) == {"type": "metrics"}
                checking.sendall(answer)
            asking.sendall(TOKEN + END)

    assert main(["ask", "--socket", serve(busy), "Hi"]) == 0
    assert capsys.readouterr() == ("Yes\n", "")


def test_ask_asks_nothing_else_of_a_daemon_that_answers_at_once(
    serve: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "ANSWER_S", 30.0)

    def quick(listener: socket.socket) -> None:
        asking, _ = listener.accept()
        with asking:
            request(asking)
            asking.sendall(TOKEN + END)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()

    assert main(["ask", "--socket", serve(quick), "Hi"]) == 0
    assert capsys.readouterr() == ("Yes\n", "")


@pytest.mark.parametrize("answers", [True, False])
def test_ctrl_c_asks_for_the_end_and_a_second_one_ends_without(
    answers: bool, serve: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(listener: socket.socket) -> None:
        asking, _ = listener.accept()
        with asking:
            id_ = request(asking)["id"]
            # From its question on, ask listens for Ctrl-C.
            checking, _ = listener.accept()
            with checking:
                checking.sendall(uds_frame({"event": "metrics"}))
            os.kill(os.getpid(), signal.SIGINT)
            assert request(asking) == {"event": "cancel", "id": id_}
            if answers:
                asking.sendall(END)
            else:
                os.kill(os.getpid(), signal.SIGINT)
                assert asking.recv(1) == b""

    assert main(["ask", "--socket", serve(interrupted), "Hi"]) == 128 + signal.SIGINT
    assert capsys.readouterr() == ("\n" if answers else "", "")


@pytest.mark.parametrize("command", [["ask", "Hi"], ["metrics"]])
def test_who_never_answers_is_told_with_what_to_look_for(
    command: list[str], serve: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    def silent(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with sock:
            while sock.recv(4096):
                continue

    path = serve(silent)
    assert main([*command, "--socket", path]) == 1
    error = "no answer within 0.1 s: is it a daemon with --protocol json, and is it still running?"
    assert capsys.readouterr() == ("", f"umaserve: {path}: {error}\n")


@pytest.mark.parametrize("command", [["ask", "Hi"], ["metrics"]])
@pytest.mark.parametrize(
    "reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", uds_frame(b"no JSON"), uds_frame(b"[]"), uds_frame(b"{}")]
)
def test_who_speaks_otherwise_is_told_so(
    command: list[str], reply: bytes, serve: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    def foreign(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(4096)
            sock.sendall(reply)

    path = serve(foreign)
    assert main([*command, "--socket", path]) == 1
    text, errors = capsys.readouterr()
    assert text == ""
    assert errors.startswith(f"umaserve: {path}: the server there does not speak framed JSON: ")
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_metrics_of_models_are_lines_of_their_own(
    serve: Callable[..., str], flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"event": "metrics", "state": "ready", "models": {"a b": {"state": "loaded", "aliases": ["c", "d"]}}}

    def answering(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with sock:
            request(sock)
            sock.sendall(uds_frame(told))

    assert main(["metrics", "--socket", serve(answering), *flags]) == 0
    out = capsys.readouterr().out
    if flags:
        assert orjson.loads(out) == told
    else:
        lines = ["state               ready", "models.a b.state    loaded", "models.a b.aliases  c, d"]
        assert out.splitlines() == lines


def test_metrics_that_are_refused_are_one_line(serve: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    def full(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with sock:
            request(sock)
            sock.sendall(REFUSAL)

    assert main(["metrics", "--socket", serve(full)]) == 1
    assert capsys.readouterr() == ("", "umaserve: E_LIMIT_SESSIONS: connection: 1 are open\n")


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("modles", "no command is named modles, did you mean models? (see umaserve --help)"),
        ("list", "no command is named list: umaserve models (see umaserve --help)"),
        ("\x1b[2J", 'no command is named "\\u001b[2J" (see umaserve --help)'),
    ],
)
def test_an_unknown_command_is_told(command: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "list"]) == 2
    assert capsys.readouterr().err == f"umaserve: {problem}\n"


@pytest.mark.parametrize("command", ["run", "start", "stop", "ls", "ps", "show", "rm"])
def test_what_other_servers_call_commands_is_told(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command]) == 2
    assert f"umaserve: no command is named {command}: " in capsys.readouterr().err


@pytest.mark.parametrize("words", [["a/b.gguf"], ["serve", "a/b.gguf"], ["--model", "a/b.gguf"]])
def test_a_model_needs_no_flag(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--n-ctx", "512", "--print-config"]) == 0
    printed = tomllib.loads(capsys.readouterr().out)
    assert (printed["model"], printed["n_ctx"]) == ("a/b.gguf", 512)


def test_what_other_servers_call_flags_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> str:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 2
        return capsys.readouterr().err

    settings = {one.flag for one in SETTINGS.by_key.values()} | {"--config"}
    for flag, here in FLAGS.items():
        assert here.partition(" ")[0] in settings
        assert f", {flag} is {here} here (see umaserve --help)" in said("serve", flag, "9")
    several = said("-m", "a.gguf", "--port=8081", "-ngl", "99")
    assert ", -m is --model here" in several
    assert ", --port is --http HOST:PORT here" in several
    assert ", -ngl is --n-gpu-layers here" in several
    assert ", a.gguf is --model a.gguf here" in said("--parallel", "2", "a.gguf")
    assert "--http" not in said("relay", "--port", "1")


@pytest.mark.parametrize("name", ["small", "other", "small:latest", "small.gguf", "default", "nosuch"])
def test_ask_warns_which_model_answers(
    name: str, serve: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    def life(listener: socket.socket) -> None:
        looking, _ = listener.accept()
        with looking:
            assert request(looking) == {"type": "metrics"}
            looking.sendall(uds_frame({"event": "metrics", "models": {"first": {}, "small": {"aliases": ["other"]}}}))
        asking, _ = listener.accept()
        with asking:
            assert request(asking)["model"] == name
            asking.sendall(TOKEN + END)

    assert main(["ask", "--socket", serve(life), "--model", name, "Hi"]) == 0
    warning = "umaserve: no model is named nosuch: first answers\n" if name == "nosuch" else ""
    assert capsys.readouterr() == ("Yes\n", warning)


HOSTILE = "\x1b]0;t\x07a\r\u009b2Jb\u202ec\u2066d\u2028é\u200d\tx\n"


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize("watched", [True, False])
def test_an_answer_does_not_steer_the_terminal(
    watched: bool,
    flags: list[str],
    serve: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def life(listener: socket.socket) -> None:
        asking, _ = listener.accept()
        with asking:
            request(asking)
            asking.sendall(uds_frame({"event": "token", "id": "c", "text": HOSTILE, "token_id": 1}) + END)

    monkeypatch.setattr(sys.stdout, "isatty", lambda: watched)
    assert main(["ask", "--socket", serve(life), *flags, "Hi"]) == 0
    out = capsys.readouterr().out
    if flags:
        assert orjson.loads(out.partition("\n")[0])["text"] == HOSTILE
        assert ("\u009b" in out) is not watched
    elif watched:
        assert out == "\\u001b]0;t\\u0007a\\u000d\\u009b2Jb\\u202ec\\u2066d\\u2028é\u200d\tx\n\n"
    else:
        assert out == HOSTILE + "\n"
