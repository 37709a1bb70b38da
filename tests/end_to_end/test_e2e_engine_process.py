"""The daemon with llama.cpp in a process of its own: the same answers, and what happens when that process ends."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from daemon import ANSWER_S, FAR_FROM_A_TIE, Daemon
from engine_processes import engine_of, engines
from generate_wire import Conversation, text_of


def has_llama_cpp(pid: int) -> bool:
    return "libllama" in Path(f"/proc/{pid}/maps").read_text()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    flags = ("--http", "127.0.0.1:0", "--no-speculation")
    daemon = Daemon(tmp_path_factory.mktemp("remote"), *flags, env={"UMA_THREADS": "1"})
    yield daemon
    engine = engine_of(daemon)
    assert daemon.stop() == 0, daemon.logs
    assert not Path(f"/proc/{engine}").exists(), "the engine's process ends with the daemon"
    assert "Traceback" not in daemon.logs, daemon.logs


def test_the_answers_are_as_ever_and_the_daemon_has_no_llama_cpp(served: Daemon) -> None:
    text = served.text(FAR_FROM_A_TIE, max_tokens=12)
    assert text.startswith(" 6, 7, 8")
    assert served.text("Hi", grammar='root ::= "yes" | "no"', max_tokens=8) in ("yes", "no")
    asked = [{"role": "user", "content": "Hi"}]
    body = {"messages": asked, "temperature": 0, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    chat = (
        httpx.post(f"http://{served.http}/v1/chat/completions", json=body, timeout=ANSWER_S).raise_for_status().json()
    )
    assert len(chat["choices"][0]["logprobs"]["content"]) == 4
    assert chat["choices"][0]["logprobs"]["content"][0]["logprob"] < 0
    assert has_llama_cpp(engine_of(served))
    assert not has_llama_cpp(served.process.pid)


def test_a_request_that_cannot_be_has_its_error(served: Daemon) -> None:
    (error,) = served.ask("Hi", grammar="root ::= nothing", max_tokens=8)
    assert (error["event"], error["code"]) == ("error", "E_PROTO_BAD_REQUEST")
    assert "grammar" in error["message"]


def test_a_stream_is_cancelled_while_it_runs(served: Daemon) -> None:
    with served.connect() as wire:
        wire.send({"id": "c", "prompt": "Once", "max_tokens": 4000, "ignore_eos": True})
        wire.receive_until("token")
        wire.send({"event": "cancel", "id": "c"})
        assert wire.receive_until("eos")["reason"] == "cancelled"
    served.wait_until_quiet()


def test_a_prompt_goes_on_from_what_another_has_computed(served: Daemon) -> None:
    prompt = " ".join(map(str, range(100)))
    served.text(prompt, max_tokens=2)
    end = served.ask(f"{prompt} and", max_tokens=2)[-1]
    assert end["usage"]["prefix_reused_tokens"] > 100


def test_its_memory_counts(served: Daemon) -> None:
    fields = (Path(f"/proc/{engine_of(served)}") / "statm").read_text().split()
    assert served.metrics()["rss_bytes"] > int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_file_that_is_no_model_is_refused_as_ever(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF and nothing more")
    daemon = Daemon(tmp_path, "--model", str(tmp_path / "model.gguf"), wait=False)
    assert daemon.process.wait(ANSWER_S) == 1
    assert "model.gguf" in daemon.logs
    assert "Traceback" not in daemon.logs


COUNT = " ".join(map(str, range(1, 41)))
CONVERSATION = {
    "chat": [
        {"role": "user", "content": "Count: 1, 2, 3"},
        {"role": "assistant", "content": "4, 5, 6, 7"},
        {"role": "user", "content": "Repeat: 1, 2, 3, 4, 5, 6, 7, 8, 9"},
    ],
    "max_tokens": 24,
}
REQUESTS = [
    {"prompt": FAR_FROM_A_TIE, "max_tokens": 60},
    {"prompt": COUNT, "max_tokens": 60},
    {**CONVERSATION, "grammar": 'root ::= "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15"'},
    {"prompt": FAR_FROM_A_TIE, "max_tokens": 50, "repeat_penalty": 1.01, "stop": ["31"]},
]


def texts(daemon: Daemon, at_three_tokens: Callable[[], None] | None = None) -> list[tuple[str, dict]]:
    """The texts and ends of ``REQUESTS``, all at once; something happens when each has three tokens."""
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(daemon.connect()) for _ in REQUESTS]
        for number, (wire, request) in enumerate(zip(wires, REQUESTS, strict=True)):
            wire.send({"id": f"r{number}", **request})
        events = [[wire.receive_until("token") for _ in range(3)] for wire in wires]
        if at_three_tokens is not None:
            at_three_tokens()
        for wire, of_wire in zip(wires, events, strict=True):
            of_wire += wire.receive_all()
    return [("".join(event.get("text", "") for event in of_wire), of_wire[-1]) for of_wire in events]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT], ids=lambda number: number.name)
def test_when_the_engine_ends_in_mid_stream_all_streams_go_on(tmp_path: Path, number: signal.Signals) -> None:
    flags = ("--no-speculation", "--parallel", "4")
    daemon = Daemon(tmp_path, *flags, env={"UMA_THREADS": "1"})
    expected = texts(daemon)
    for crashes in (1, 2):
        engine = engine_of(daemon)
        got = texts(daemon, lambda pid=engine: os.kill(pid, number))
        for (text, end), (text_before, end_before) in zip(got, expected, strict=True):
            assert text == text_before, daemon.logs
            assert end["event"] == "eos", end
            assert end["reason"] == end_before["reason"]
            usage = [one["usage"][key] for one in (end, end_before) for key in ("prompt_tokens", "completion_tokens")]
            assert usage[:2] == usage[2:]
        assert daemon.metrics()["engine_crashes_total"] == crashes
        assert engine_of(daemon) != engine
    assert number.name in daemon.logs
    assert "Traceback" not in daemon.logs
    daemon.wait_until_quiet()
    assert daemon.stop() == 0


def test_clients_of_other_protocols_go_on_too_and_are_told(tmp_path: Path) -> None:
    flags = ("--http", "127.0.0.1:0", "--no-speculation")
    daemon = Daemon(tmp_path, *flags, env={"UMA_THREADS": "1"})

    def by_events(at_three: Callable[[], None] | None = None) -> str:
        body = {"prompt": FAR_FROM_A_TIE, "max_tokens": 200, "stream": True, "temperature": 0}
        texts: list[str] = []
        with httpx.stream("POST", f"http://{daemon.http}/v1/completions", json=body, timeout=ANSWER_S) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    texts.append(json.loads(line[6:])["choices"][0]["text"])
                    if len(texts) == 3 and at_three is not None:
                        at_three()
        return "".join(texts)

    def by_generate(at_three: Callable[[], None] | None = None) -> tuple[str, list[str]]:
        with Conversation(daemon) as client:
            client.config(FAR_FROM_A_TIE, max_tokens=200, temperature=0)
            told = client.until("token")
            if at_three is not None:
                at_three()
            told += client.until("completion", "error")
        return text_of(told), [message["type"] for message in told]

    def kill() -> None:
        os.kill(engine_of(daemon), signal.SIGKILL)

    assert by_events(kill) == by_events()
    expected, _ = by_generate()
    text, types = by_generate(kill)
    assert (text, types[-1]) == (expected, "completion")
    assert "status" in types[types.index("token") :]
    assert daemon.stop() == 0


FAULTY = """
import itertools, os, signal, sys
from umaserve import cli
from umaserve.remote.channel import Channel, Kind
from umaserve.remote.process import EngineProcess
from umaserve.remote.run_ahead import RunAhead

lives = itertools.chain([30], range(14, 34), itertools.repeat(10**9))
begin, send, grant = EngineProcess.__init__, Channel.send, RunAhead.grant

def faulty_begin(self, *arguments):
    begin(self, *arguments)
    self.calls_left = next(lives)
    for end in (*self._channels, self.run_ahead):
        end.process = self

def deadly(process, call):
    process.calls_left -= 1
    dies = process.calls_left == 0
    if dies and process.pid % 2:
        os.kill(process.pid, signal.SIGKILL)
    result = call()
    if dies and process.pid % 2 == 0:
        os.kill(process.pid, signal.SIGKILL)
    return result

def faulty_send(self, kind, *content, **others):
    call = lambda: send(self, kind, *content, **others)
    return deadly(self.process, call) if kind is Kind.CALL else call()

EngineProcess.__init__, Channel.send = faulty_begin, faulty_send
RunAhead.grant = lambda self, *granted: deadly(self.process, lambda: grant(self, *granted))
sys.exit(cli.main(sys.argv[1:]))
"""
"""The daemon, whose engines are killed at a call or a granted tick each: the second one at its first, the third one at
its second, …"""


def test_wherever_the_engine_is_killed_nobody_loses_a_token(tmp_path: Path) -> None:
    flags = ("--no-speculation", "--parallel", "4")
    whole = Daemon(tmp_path, *flags, env={"UMA_THREADS": "1"})
    expected = texts(whole)
    assert whole.stop() == 0
    daemon = Daemon(tmp_path, *flags, env={"UMA_THREADS": "1"}, program=("-c", FAULTY))
    got = texts(daemon)
    assert [text for text, _ in got] == [text for text, _ in expected]
    assert [end["reason"] for _, end in got] == [end["reason"] for _, end in expected]
    # An engine computes all prompts in a tick or two, so that each makes a token more than the one before.
    assert daemon.metrics()["engine_crashes_total"] >= 5, "engines were killed while the texts were made"
    descriptors = Path(f"/proc/{daemon.process.pid}/fd")
    assert len(list(descriptors.iterdir())) < 40, "no engine leaves its sockets behind"
    # The last one may just have been killed, and the next one not begun.
    daemon.wait_for(lambda _: len(engines(daemon)) == 1)
    assert daemon.stop() == 0


def test_an_engine_that_hangs_is_ended_and_its_streams_go_on(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--engine-timeout", "1", env={"UMA_THREADS": "1"})
    expected = daemon.text(FAR_FROM_A_TIE, max_tokens=200)
    with daemon.connect() as wire:
        wire.send({"id": "h", "prompt": FAR_FROM_A_TIE, "max_tokens": 200})
        first = wire.receive_until("token")
        os.kill(engine_of(daemon), signal.SIGSTOP)
        rest = wire.receive_all()
    assert rest[-1]["event"] == "eos", rest[-1]
    assert "".join(event["text"] for event in [first, *rest[:-1]]) == expected
    assert "cause=hang" in daemon.logs
    assert daemon.stop() == 0


def test_a_new_engine_is_waited_for(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--http", "127.0.0.1:0", env={"UMA_THREADS": "1"})
    os.kill(engine_of(daemon), signal.SIGKILL)
    assert daemon.text(FAR_FROM_A_TIE, max_tokens=12).startswith(" 6, 7, 8")
    os.kill(engine_of(daemon), signal.SIGKILL)
    asked = httpx.post(f"http://{daemon.http}/tokenize", json={"content": "Hi"}, timeout=ANSWER_S).raise_for_status()
    assert asked.json()["tokens"]
    assert daemon.stop() == 0


def test_an_engine_is_started_again_once_there_are_descriptors_for_it(tmp_path: Path) -> None:
    """Clients have all that are left when it ends."""
    limits = (80, 80)
    daemon = Daemon(
        tmp_path, env={"UMA_THREADS": "1"}, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    )
    with contextlib.ExitStack() as clients:
        for _ in range(limits[0]):
            clients.enter_context(daemon.connect())
        wait_for_log(daemon, "accepting connections is paused")
        os.kill(engine_of(daemon), signal.SIGKILL)
        wait_for_log(daemon, "the engine's process can't be started: Too many open files")
    assert daemon.text(FAR_FROM_A_TIE, max_tokens=12).startswith(" 6, 7, 8")
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.logs, daemon.logs


def wait_for_log(daemon: Daemon, words: str) -> None:
    deadline = time.monotonic() + ANSWER_S
    while words not in daemon.logs:
        assert daemon.process.poll() is None, daemon.logs
        assert time.monotonic() < deadline, daemon.logs
        time.sleep(0.01)


def test_too_few_descriptors_for_the_daemon_itself_are_an_error_of_settings(tmp_path: Path) -> None:
    few = (20, 20)
    daemon = Daemon(tmp_path, wait=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, few))
    assert daemon.process.wait(ANSWER_S) == 2
    (line,) = daemon.logs.splitlines()
    assert "may have 20 files and sockets open" in line
    assert "ulimit -Hn" in line


def test_the_engine_ends_with_a_killed_daemon(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, env={"UMA_THREADS": "1"})
    descriptor = os.pidfd_open(engine_of(daemon))
    daemon.stop(signal.SIGKILL)
    assert select.select([descriptor], [], [], ANSWER_S)[0]
    os.close(descriptor)
