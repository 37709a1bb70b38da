"""The daemon's life: starting, loading, refusing, draining, ending; and the command line."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from daemon import Daemon
from program import run

from umaserve.engine.llama.model import find

LONG = {"max_tokens": 500, "ignore_eos": True}


# -- starting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--n-ctx", "many"], '--n-ctx: expected "auto", or 0 or a whole number'),
        (["--parallel", "0"], "--parallel: expected a whole number from 1 to 256"),
        (["--protocol", "xml"], "--protocol: expected"),
        (["--sockett", "x"], "unrecognized arguments: --sockett"),
        (["--socket", "/" + "x" * 200], "the path is 201 bytes long, the kernel allows 107"),
        (["--socket", "/nowhere/uma.sock"], "No such file or directory: choose a path you may write to"),
        (["--config", "/nowhere.toml"], "/nowhere.toml"),
        (["ask"], "the following arguments are required: prompt"),
    ],
)
def test_a_wrong_setting_is_one_line_and_status_2(arguments: list[str], words: str):
    result = run(*arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert [line for line in result.stderr.splitlines() if " INFO " not in line][1:] == []


def test_print_config_and_the_word_serve():
    result = run("serve", "--print-config", "--parallel", "3")
    assert result.returncode == 0
    assert next(line for line in result.stdout.splitlines() if line.startswith("parallel")).endswith("# flag")


def bad_models(directory: Path) -> dict[str, Path]:
    real = find("")
    paths = {name: directory / f"{name}.gguf" for name in ("text", "empty", "short", "header")}
    paths["text"].write_text("This is no model.\n" * 100)
    paths["empty"].write_bytes(b"")
    shutil.copy(real, paths["short"])
    os.truncate(paths["short"], 50_000_000)
    with open(real, "rb") as file:
        paths["header"].write_bytes(file.read(10_000))
    return paths


@pytest.mark.parametrize("name", ["text", "empty", "short", "header"])
def test_a_model_that_cannot_be_loaded_is_one_line_and_status_1(tmp_path: Path, name: str):
    result = run("--socket", str(tmp_path / "s"), "--model", str(bad_models(tmp_path)[name]), "--log-level", "error")
    assert result.returncode == 1
    assert name in result.stderr
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("flag", ["--model", "--lora", "--mmproj", "--draft-model"])
def test_a_missing_file_is_found_before_anything_and_status_2(tmp_path: Path, flag: str):
    result = run("--socket", str(tmp_path / "s"), flag, str(tmp_path / "none.gguf"))
    assert result.returncode == 2
    key = flag.removeprefix("--").replace("-", "_")
    advice = "No such file or directory: name a GGUF file that this user may read"
    assert result.stderr == f"umaserve: {key}: {tmp_path / 'none.gguf'}: {advice}\n"


def test_a_waiting_request_is_told_that_the_model_cannot_be_loaded(own_daemon, tmp_path: Path):
    # The tensors are whole by the header, and of a kind that llama.cpp does not know: the failure comes late.
    model = tmp_path / "unknown.gguf"
    data = Path(find("")).read_bytes()
    model.write_bytes(data.replace(b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama",
                                   b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0lxxma", 1))  # fmt: skip
    daemon = own_daemon("--model", str(model), wait=False)
    assert daemon.process.wait(60) == 1
    assert "llama.cpp could not load it" in daemon.logs


def test_a_live_socket_is_refused_and_a_stale_one_replaced(own_daemon, tmp_path: Path):
    daemon = own_daemon()
    second = run("--socket", daemon.path)
    assert second.returncode == 2
    assert f"a running umaserve (pid {daemon.process.pid}) serves it" in second.stderr
    assert daemon.stop(signal.SIGKILL) == -signal.SIGKILL
    assert os.path.exists(daemon.path)
    again = Daemon(Path(daemon.path).parent)
    assert again.text(max_tokens=1)
    assert again.stop() == 0
    assert not os.path.exists(daemon.path)
    assert not os.path.exists(daemon.path + ".lock")


def test_a_terminal_sees_a_progress_bar(tmp_path: Path):
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "umaserve", "--socket", str(tmp_path / "s"), "--http", ""]
    process = subprocess.Popen(command, stderr=child)
    os.close(child)
    screen = b""
    while b"ready" not in screen:
        screen += os.read(parent, 4096)
    process.terminate()
    assert process.wait(30) == 0
    os.close(parent)
    assert b"loading SmolLM2" in screen
    assert "░".encode() in screen


def test_what_to_type_next_is_told_and_works(own_daemon):
    daemon = own_daemon("--http", "127.0.0.1:0")
    told = daemon.logs.partition(" ready ")[2].splitlines()[1:]
    assert told[0] == "Now type in another terminal:"
    ask, metrics, curl = (line.strip() for line in told[1:4])
    assert ask == f'{shlex.quote(sys.executable)} -m umaserve ask --socket {daemon.path} "Why is the sky blue?"'
    assert curl == f"curl http://{daemon.http}/v1/models"
    assert told[4] == f"or open http://{daemon.http} in a browser. Ctrl-C ends the daemon."
    shown = subprocess.run(metrics, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.splitlines()[0].split() == ["state", "ready"]


def test_the_usual_address_of_http_may_be_taken(tmp_path: Path):
    with contextlib.ExitStack() as stack:
        # If somebody else has it, that is as good.
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_server(("127.0.0.1", 8080)))
        daemon = Daemon(tmp_path, without=("UMA_HTTP",))
        assert "HTTP is off: address 127.0.0.1:8080: Address already in use: stop the program" in daemon.logs
        assert "curl" not in daemon.logs
        assert daemon.text(max_tokens=1)
        assert daemon.stop() == 0
        asked_for = run("--socket", str(tmp_path / "s"), "--http", "127.0.0.1:8080")
    assert asked_for.returncode == 2
    assert "Address already in use" in asked_for.stderr


# -- ending ------------------------------------------------------------------------------------------------------


def test_sigterm_lets_running_streams_end_and_takes_no_more(own_daemon):
    daemon = own_daemon("--parallel", "1", "--drain-timeout", "60")
    with daemon.connect() as running, daemon.connect() as waiting, daemon.connect() as late:
        running.send({"id": "r", "prompt": "Once", "max_tokens": 150, "ignore_eos": True})
        running.receive_until("token")
        waiting.send({"id": "w", "prompt": "Once"})
        daemon.wait_for(lambda values: values["waiting_sessions"] == 1)
        daemon.process.send_signal(signal.SIGTERM)
        assert waiting.receive()["code"] == "E_SHUTDOWN"
        late.send({"id": "l", "prompt": "Once"})
        error = late.receive()
        assert (error["id"], error["code"]) == ("l", "E_SHUTDOWN")
        assert daemon.metrics()["state"] == "draining"
        assert running.receive_until("eos")["reason"] == "length"
        assert daemon.process.wait(30) == 0
    assert not os.path.exists(daemon.path)


def test_the_drain_has_an_end(own_daemon):
    daemon = own_daemon("--drain-timeout", "0.3")
    with daemon.connect() as wire:
        wire.send({"id": "r", "prompt": "Once", **LONG})
        wire.receive_until("token")
        daemon.process.send_signal(signal.SIGTERM)
        assert wire.receive_until("error")["code"] == "E_SHUTDOWN"
    assert daemon.process.wait(30) == 0


def test_a_second_signal_ends_at_once(own_daemon):
    daemon = own_daemon("--drain-timeout", "3600")
    with daemon.connect() as wire:
        wire.send({"id": "r", "prompt": "Once", **LONG})
        wire.receive_until("token")
        daemon.process.send_signal(signal.SIGTERM)
        daemon.wait_for(lambda values: values["state"] == "draining")
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(10) == 128 + signal.SIGTERM
    assert not os.path.exists(daemon.path)


def test_load_balancers_see_the_end_before_it_begins(own_daemon):
    daemon = own_daemon("--http", "127.0.0.1:0", "--drain-grace", "3600")
    ready, live = f"http://{daemon.http}/health/ready", f"http://{daemon.http}/health/live"
    assert httpx.get(ready).status_code == 200
    daemon.process.send_signal(signal.SIGTERM)
    while httpx.get(ready).status_code == 200:
        time.sleep(0.01)
    assert httpx.get(ready).json()["status"] == "draining"
    assert httpx.get(live).status_code == 200
    assert daemon.ask("Once", max_tokens=2)[-1]["event"] == "eos", "a new connection is served as before"
    assert daemon.stop() == 128 + signal.SIGTERM, "the second signal"


def test_the_drain_begins_when_the_grace_is_over(own_daemon):
    daemon = own_daemon("--drain-grace", "0.3", "--drain-timeout", "60")
    with daemon.connect() as wire:
        wire.send({"id": "r", "prompt": "Once", "max_tokens": 100, "ignore_eos": True})
        wire.receive_until("token")
        daemon.process.send_signal(signal.SIGTERM)
        assert wire.receive_until("eos")["reason"] == "length"
    assert daemon.process.wait(30) == 0
    assert daemon.logs.index(
        "shutting down after a grace period, in which requests are still accepted"
    ) < daemon.logs.index("INFO    draining")


def test_sigterm_while_the_model_loads(own_daemon):
    daemon = own_daemon(wait=False)
    daemon.wait_for_socket()
    with daemon.connect() as wire:
        wire.send({"id": "e", "prompt": "Once"})
        assert daemon.metrics()["state"] == "loading"
        daemon.process.send_signal(signal.SIGTERM)
        assert wire.receive()["code"] == "E_SHUTDOWN"
    assert daemon.process.wait(30) == 0


def test_an_idle_daemon_ends_at_once_though_clients_stay_connected(own_daemon):
    daemon = own_daemon()
    with daemon.connect(), daemon.connect():
        assert daemon.stop() == 0


# -- the command line's clients ----------------------------------------------------------------------------------


def test_ask_prints_the_answer(daemon: Daemon):
    result = run("ask", "--socket", daemon.path, "--raw", "--max-tokens", "8", "The capital of France is")
    assert result.returncode == 0
    assert result.stdout == daemon.text("The capital of France is", max_tokens=8) + "\n"


def test_ask_reads_standard_input_and_prints_raw_events(daemon: Daemon):
    result = run("ask", "--socket", daemon.path, "--json", "--max-tokens", "3", "-", input="Hello")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["event"] for event in events] == ["token"] * 3 + ["eos"]


def test_ask_ends_on_ctrl_c_with_a_cancel(daemon: Daemon):
    command = [sys.executable, "-m", "umaserve", "ask", "--json", "--socket", daemon.path, "--raw", "Count: 1, 2, 3,"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    events = [json.loads(line) for line in process.stdout]
    assert events[-1]["reason"] == "cancelled"
    assert process.wait(30) == 128 + signal.SIGINT
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()


def test_a_daemon_of_lines_is_told_in_one_line(own_daemon):
    daemon = own_daemon("--protocol", "newline", wait=False)
    daemon.wait_for_socket()
    for command in (["metrics"], ["ask", "Hi"]):
        result = run(*command, "--socket", daemon.path)
        assert result.returncode == 1
        assert "no answer within 5 s: is it a daemon with --protocol json" in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_metrics_prints_a_table(daemon: Daemon):
    result = run("metrics", "--socket", daemon.path)
    assert result.returncode == 0
    assert ["state", "ready"] in [line.split() for line in result.stdout.splitlines()]


@pytest.mark.parametrize("command", [["metrics"], ["ask", "--raw", "Once upon a time", "--max-tokens", "200"]])
def test_a_reader_that_has_seen_enough_is_no_error(daemon: Daemon, command: list[str]):
    reading, writing = os.pipe()
    os.close(reading)
    whole = [sys.executable, "-m", "umaserve", command[0], "--socket", daemon.path, *command[1:]]
    done = subprocess.run(whole, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_no_daemon_is_one_line_that_says_what_to_do(tmp_path: Path):
    for command in (["ask", "Hi"], ["metrics"]):
        result = run(command[0], "--socket", str(tmp_path / "none"), *command[1:])
        assert result.returncode == 1
        assert "is the daemon running there?" in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_an_error_of_the_server_is_one_line(daemon: Daemon):
    result = run("ask", "--socket", daemon.path, "--temperature", "99", "Hi")
    assert result.returncode == 1
    assert result.stderr == "umaserve: E_PROTO_BAD_REQUEST: temperature: expected a number from 0 to 10, got 99.0\n"


# -- as a service ------------------------------------------------------------------------------------------------


class Manager:
    """The receiving end of sd_notify(3)."""

    def __init__(self, directory: Path):
        self.path = str(directory / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(60)

    def wait_for(self, line: str) -> None:
        while line not in self.socket.recv(4096).decode().splitlines():
            continue


def test_the_manager_hears_of_readiness_of_each_turn_and_of_the_end(own_daemon, tmp_path: Path):
    manager = Manager(tmp_path)
    daemon = own_daemon(env={"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "200000"}, wait=False)
    manager.wait_for("READY=1")
    assert daemon.metrics()["state"] == "ready"
    for _ in range(3):
        manager.wait_for("WATCHDOG=1")
    daemon.process.send_signal(signal.SIGTERM)
    manager.wait_for("STOPPING=1")
    assert daemon.process.wait(30) == 0
    manager.socket.close()


HANGING = """
import sys, threading
from umaserve import cli
from umaserve.daemon import periodic
from umaserve.models import engine_threads
from umaserve.remote.client import RemoteEngine

engine_threads.MAX_PREPARING_S = periodic.WATCH_S = 0.1
RemoteEngine.prepare = lambda *_arguments: threading.Event().wait()
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_thread_that_hangs_is_told_by_health_log_and_metrics(own_daemon):
    flags = ("--http", "127.0.0.1:0", "--drain-timeout", "0.1", "--engine-timeout", "0")
    daemon = own_daemon(*flags, program=("-c", HANGING))
    probes = [f"http://{daemon.http}/health{name}" for name in ("", "/live", "/ready")]
    assert [httpx.get(probe).json() for probe in probes] == [{"status": "ok"}] * 3
    with daemon.connect() as wire:
        wire.send({"id": "t", "prompt": "Once"})
        daemon.wait_for(lambda values: values["stuck_threads"] == 1)
        answers = [httpx.get(probe) for probe in probes]
    assert [answer.status_code for answer in answers] == [503] * 3
    threads, live_threads, ready = (answer.json() for answer in answers)
    assert list(threads["threads"]) == list(live_threads["threads"]) == ["preparing"]
    assert ready["error"]["message"].startswith("model: a call to the engine of SmolLM2")
    assert daemon.logs.count("the preparing thread has not advanced") == 1


@pytest.mark.skipif(shutil.which("systemd-socket-activate") is None, reason="systemd-socket-activate is not installed")
@pytest.mark.parametrize(("name", "line"), [("newline", b"metrics\n"), ("uds", None)])
def test_a_socket_made_by_the_manager(tmp_path: Path, name: str, line: bytes | None):
    path = str(tmp_path / "passed.sock")
    command = ["systemd-socket-activate", "-l", path, f"--fdname={name}", sys.executable, "-m", "umaserve"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    while b"Listening on" not in (tmp_path / "log").read_bytes():
        time.sleep(0.01)
    daemon = Daemon.__new__(Daemon)
    daemon.path, daemon.process, daemon._log_path = path, process, tmp_path / "log"
    with daemon.connect() as wire:
        if line is not None:
            wire.sock.sendall(line)
            assert json.loads(wire.sock.makefile().readline())["state"] in ("loading", "ready")
        else:
            wire.send({"id": "a", "prompt": "Once", "max_tokens": 2})
            assert wire.receive_until("eos")["reason"] == "length"
    assert daemon.stop() == 0, daemon.logs
    assert os.path.exists(path), "a socket that the manager made is the manager's to remove"


# -- closed standard streams ------------------------------------------------------------------------------------------


def close_all() -> None:
    for number in (0, 1, 2):
        os.close(number)


def test_a_daemon_without_standard_streams_serves_and_ends(own_daemon):
    daemon = own_daemon(preexec_fn=close_all)
    assert daemon.ask("Once", max_tokens=2)[-1]["event"] == "eos"
    for number in (0, 1, 2):
        assert os.readlink(f"/proc/{daemon.process.pid}/fd/{number}") == os.devnull
    assert daemon.stop() == 0


@pytest.mark.parametrize("closed", [0, 1, 2])
@pytest.mark.parametrize("command", [["ask", "Hi", "--max-tokens", "1"], ["metrics"]])
def test_a_client_without_a_standard_stream_ends_as_with_one(daemon: Daemon, command: list[str], closed: int):
    result = run(*command, "--socket", daemon.path, preexec_fn=lambda: os.close(closed))
    assert "Traceback" not in result.stderr
    assert result.returncode == 0


def test_ask_without_a_standard_input_to_read_says_so_in_one_line(daemon: Daemon):
    result = run("ask", "-", "--socket", daemon.path, preexec_fn=lambda: os.close(0))
    assert result.returncode == 1
    assert "prompt: expected a non-empty string" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_chat_without_a_standard_stream_ends_as_with_one(daemon: Daemon, closed: int):
    result = run(
        *("chat", "--url", f"http://{daemon.http}", "--max-tokens", "1", "Hi"), preexec_fn=lambda: os.close(closed)
    )
    assert "Traceback" not in result.stderr
    assert result.returncode == 0


@pytest.mark.parametrize(
    "command",
    [
        ["relay", "--listen", "127.0.0.1:0", "--worker-secret", "secret"],
        ["worker", "--relay", "http://127.0.0.1:1", "--worker-secret", "secret"],
    ],
)
def test_a_relay_and_a_worker_without_standard_streams_run_and_end(command: list[str]):
    process = subprocess.Popen([sys.executable, "-m", "umaserve", *command], preexec_fn=close_all)

    def handles_signals() -> bool:
        (caught,) = re.findall(r"SigCgt:\t([0-9a-f]+)", Path(f"/proc/{process.pid}/status").read_text())
        return bool(int(caught, 16) >> (signal.SIGUSR1 - 1) & 1)

    deadline = time.monotonic() + 60
    while not handles_signals():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.terminate()
    assert process.wait(60) == 0
