"""The daemon with llama.cpp in a process of its own: the same answers, and what happens when that process ends."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from daemon import ANSWER_S, FAR_FROM_A_TIE, Daemon


def engine_of(daemon: Daemon) -> int:
    """Its process."""
    children = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split()
    (pid,) = [int(pid) for pid in children if b"umaserve.engine" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return pid


def has_llama_cpp(pid: int) -> bool:
    return "libllama" in Path(f"/proc/{pid}/maps").read_text()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    flags = ("--http", "127.0.0.1:0", "--engine-process", "--no-speculation")
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
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "logprobs": True, "top_logprobs": 2}
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
    daemon = Daemon(tmp_path, "--engine-process", "--model", str(tmp_path / "model.gguf"), wait=False)
    assert daemon.process.wait(ANSWER_S) == 1
    assert "model.gguf" in daemon.logs
    assert "Traceback" not in daemon.logs


def test_when_the_engine_is_killed_its_requests_fail_and_the_daemon_ends(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--engine-process", env={"UMA_THREADS": "1"})
    with daemon.connect() as wire:
        wire.send({"id": "k", "prompt": "Once", "max_tokens": 4000, "ignore_eos": True})
        wire.receive_until("token")
        os.kill(engine_of(daemon), signal.SIGKILL)
        assert wire.receive_until("error")["code"] == "E_RUNTIME_DECODE"
    assert daemon.process.wait(ANSWER_S) == 1
    assert "the engine's process was killed" in daemon.logs


def test_the_engine_ends_with_a_killed_daemon(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--engine-process", env={"UMA_THREADS": "1"})
    descriptor = os.pidfd_open(engine_of(daemon))
    daemon.stop(signal.SIGKILL)
    assert select.select([descriptor], [], [], ANSWER_S)[0]
    os.close(descriptor)
