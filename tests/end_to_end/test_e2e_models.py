"""Several models of one daemon, each with llama.cpp in a process of its own: who answers, what loading and unloading
leave behind, and what a crash does to the others."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from daemon import FAR_FROM_A_TIE, Daemon
from engine_processes import engine_of, engines
from generate_wire import COUNTING, Conversation, text_of
from minilm import write_minilm
from prometheus_client.parser import text_string_to_metric_families
from tiny_models import tiny_model

from bench.soak import Soak
from umaserve.settings.model_files import default_model

DEFAULT = Path(default_model()).stem
TINY_PROMPT = "abcdef"
ONE_THREAD = {"UMA_THREADS": "1"}
FLAGS = ("--http", "127.0.0.1:0", "--no-speculation", "--parallel", "8", "--n-ctx", "4096")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of models: the default one under another name, one of another architecture, and one that embeds."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copy(default_model(), folder / "twin.gguf")
    tiny_model(folder / "tiny.gguf", "mamba")
    write_minilm(folder / "minilm.gguf")
    return folder


def descriptors(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


def states(daemon: Daemon) -> dict[str, str]:
    listed = httpx.get(f"http://{daemon.http}/v1/models").raise_for_status().json()["data"]
    return {one["id"]: one["status"]["value"] for one in listed}


def wait_for_state(daemon: Daemon, name: str, *wanted: str) -> None:
    daemon.wait_for(lambda _metrics: states(daemon)[name] in wanted)


def end(daemon: Daemon, within_s: float = 30) -> None:
    """It ends as it should, and its engines with it."""
    running = [os.pidfd_open(pid) for pid in engines(daemon)]
    assert daemon.stop(timeout=within_s) == 0, daemon.logs
    for engine in running:
        assert select.select([engine], [], [], 5)[0], "an engine's process is left"
        os.close(engine)
    assert "Traceback" not in daemon.logs, daemon.logs
    assert "Exception" not in daemon.logs, daemon.logs


# -- who answers -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    flags = (*FLAGS, "--models-dir", str(folder), "--vllm-metrics")
    daemon = Daemon(tmp_path_factory.mktemp("served"), *flags, env=ONE_THREAD)
    yield daemon
    end(daemon)


def post(daemon: Daemon, path: str, **body: object) -> httpx.Response:
    return httpx.post(f"http://{daemon.http}{path}", json=body, timeout=30)


def by_openai(daemon: Daemon, model: str) -> tuple[str, str]:
    reply = post(daemon, "/v1/completions", model=model, prompt=FAR_FROM_A_TIE, max_tokens=8, temperature=0)
    answer = reply.raise_for_status().json()
    return answer["model"], answer["choices"][0]["text"]


def by_ollama(daemon: Daemon, model: str) -> tuple[str, str]:
    options = {"num_predict": 8, "temperature": 0}
    asked = {"model": model, "prompt": FAR_FROM_A_TIE, "raw": True, "stream": False, "options": options}
    answer = post(daemon, "/api/generate", **asked).raise_for_status().json()
    return answer["model"].removesuffix(":latest"), answer["response"]


def by_anthropic(daemon: Daemon, model: str) -> tuple[str, str]:
    messages = [{"role": "user", "content": "Say yes"}]
    asked = {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0}
    answer = post(daemon, "/v1/messages", **asked).raise_for_status().json()
    return answer["model"], answer["content"][0]["text"]


def by_llama_server(daemon: Daemon, model: str) -> tuple[str, str]:
    asked = {"model": model, "prompt": FAR_FROM_A_TIE, "n_predict": 8, "temperature": 0}
    answer = post(daemon, "/completion", **asked).raise_for_status().json()
    return answer["model"], answer["content"]


def by_generate(daemon: Daemon, model: str) -> tuple[str, str]:
    with Conversation(daemon) as client:
        client.send("config", model=model, prompt=FAR_FROM_A_TIE, parameters={"max_tokens": 8, "temperature": 0})
        told = client.until("completion", "error")
    assert told[-1]["type"] == "completion", told[-1]
    (init,) = [message for message in told if message["type"] == "init"]
    return init["model"], text_of(told)


def by_socket(daemon: Daemon, model: str) -> tuple[str, str]:
    return model, daemon.text(FAR_FROM_A_TIE, model=model, max_tokens=8)


BY = [by_openai, by_ollama, by_anthropic, by_llama_server, by_generate, by_socket]


@pytest.mark.parametrize("ask", BY, ids=lambda ask: ask.__name__)
def test_each_model_answers_by_its_name(served: Daemon, ask: Callable[[Daemon, str], tuple[str, str]]) -> None:
    answers = {name: ask(served, name) for name in (DEFAULT, "twin", "tiny")}
    assert {name: answer[0] for name, answer in answers.items()} == {name: name for name in answers}
    assert answers[DEFAULT][1] == answers["twin"][1] != ""
    assert answers["tiny"][1] not in ("", answers["twin"][1])


@pytest.mark.parametrize("ask", [one for one in BY if one is not by_generate], ids=lambda ask: ask.__name__)
def test_an_unknown_name_is_answered_by_the_default_model(
    served: Daemon, ask: Callable[[Daemon, str], tuple[str, str]]
) -> None:
    name, text = ask(served, "gpt-5")
    assert text == ask(served, DEFAULT)[1]
    assert name == DEFAULT or ask is by_socket, "whose replies name no model"


def test_an_embedding_model_answers_beside_them(served: Daemon) -> None:
    of_openai = post(served, "/v1/embeddings", model="minilm", input="a cat").raise_for_status().json()
    of_ollama = post(served, "/api/embed", model="minilm", input="a cat").raise_for_status().json()
    assert (of_openai["model"], of_ollama["model"]) == ("minilm", "minilm:latest")
    assert len(of_openai["data"][0]["embedding"]) == len(of_ollama["embeddings"][0]) == 384
    refused = post(served, "/v1/completions", model="minilm", prompt="a cat")
    assert refused.status_code == 400
    assert "only makes embeddings" in refused.json()["error"]["message"]
    assert "--chat-template sets another file=minilm.gguf" in served.logs, (
        "an engine's lines say of which model they are"
    )


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_the_commands_ask_the_model_of_a_name(served: Daemon, command: str) -> None:
    where = ("--socket", served.path) if command == "ask" else ("--url", f"http://{served.http}", "--temperature", "0")

    def tokens_of(model: str) -> int:
        generated: int = served.wait_until_quiet()["models"][model]["tokens_generated_total"]
        return generated

    before = tokens_of("tiny")
    arguments = [command, *where, "--model", "tiny", "--max-tokens", "5", "abc"]
    subprocess.run([sys.executable, "-m", "umaserve", *arguments], check=True, capture_output=True, timeout=60)
    assert tokens_of("tiny") == before + 5


def test_all_models_are_listed_with_their_states(served: Daemon) -> None:
    by_openai(served, "twin")
    assert set(states(served)) == {DEFAULT, "twin", "tiny", "minilm"}
    assert {states(served)[name] for name in (DEFAULT, "twin")} == {"loaded"}


def test_vllms_metrics_are_of_each_model(served: Daemon) -> None:
    def told() -> dict[tuple[str, str], float]:
        families = text_string_to_metric_families(httpx.get(f"http://{served.http}/metrics").text)
        samples = [sample for family in families for sample in family.samples if sample.name.startswith("vllm:")]
        return {(one.name, one.labels["model_name"]): one.value for one in samples if "le" not in one.labels}

    served.wait_until_quiet()
    before = told()
    by_openai(served, "twin")
    served.wait_until_quiet()
    after = told()
    grown = {name: after[name, "twin"] - before[name, "twin"] for name, model in after if model == "twin"}
    assert grown["vllm:generation_tokens_total"] == 8
    assert grown["vllm:prompt_tokens_total"] > 8
    assert grown["vllm:inter_token_latency_seconds_count"] == 7
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert grown[f"vllm:{name}_seconds_count"] == 1
        assert 0 < grown[f"vllm:{name}_seconds_sum"] < 60
    assert after["vllm:kv_cache_usage_perc", "twin"] == after["vllm:num_requests_waiting", "twin"] == 0
    assert after["vllm:cache_config_info", "twin"] == 1
    others = {key: value for key, value in after.items() if key[1] != "twin" and "info" not in key[0]}
    assert others == {key: before[key] for key in others}


def test_strict_names_are_refused_in_each_apis_own_form(folder: Path, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, *FLAGS, "--models-dir", str(folder), "--strict-models", env=ONE_THREAD)
    messages = [{"role": "user", "content": "Hi"}]
    completion = post(daemon, "/v1/completions", model="gpt-5", prompt="Hi")
    assert (completion.status_code, completion.json()["error"]["code"]) == (404, "model_not_found")
    message = post(daemon, "/v1/messages", model="gpt-5", messages=messages, max_tokens=8)
    assert (message.status_code, message.json()["error"]["type"]) == (404, "not_found_error")
    generated = post(daemon, "/api/generate", model="gpt-5", prompt="Hi")
    assert generated.status_code == 404
    assert "gpt-5" in generated.json()["error"]
    of_llama_server = post(daemon, "/completion", model="gpt-5", prompt="Hi")
    assert of_llama_server.status_code == 404
    assert "gpt-5" in of_llama_server.json()["error"]["message"]
    embedded = post(daemon, "/v1/embeddings", model="gpt-5", input="Hi")
    assert (embedded.status_code, embedded.json()["error"]["code"]) == (404, "model_not_found")
    claude = httpx.get(f"http://{daemon.http}/v1/models/claude-sonnet-4-5", headers={"anthropic-version": "2023-06-01"})
    assert (claude.status_code, claude.json()["error"]["type"]) == (404, "not_found_error")
    assert "an alias" in claude.json()["error"]["message"]
    props = httpx.get(f"http://{daemon.http}/props", params={"model": "gpt-5"})
    assert (props.status_code, props.json()["error"]["type"]) == (404, "not_found_error")
    (refused,) = daemon.ask("Hi", model="gpt-5")
    assert refused["event"] == "error"
    assert "gpt-5" in refused["message"]
    assert by_openai(daemon, "tiny")[0] == "tiny"
    props = httpx.get(f"http://{daemon.http}/props", params={"model": "tiny"}).raise_for_status().json()
    assert (props["model_alias"], props["total_slots"]) == ("tiny", 8)
    end(daemon)


# -- streams of several models ---------------------------------------------------------------------------------------

COUNT = " ".join(map(str, range(1, 41)))
NUMBERS = 'root ::= "6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20"'
REQUESTS = [
    {"prompt": FAR_FROM_A_TIE, "max_tokens": 48},
    {"prompt": COUNT, "max_tokens": 48},
    {"prompt": FAR_FROM_A_TIE, "max_tokens": 48, "grammar": NUMBERS},
    {"prompt": FAR_FROM_A_TIE, "max_tokens": 48, "repeat_penalty": 1.01, "temperature": 0.01, "seed": 7},
]
"""Of one model, all at once."""


def texts(
    daemon: Daemon,
    models: tuple[str, ...],
    at_three_tokens: Callable[[], object] = lambda: None,
    requests: Sequence[dict[str, Any]] = REQUESTS,
) -> dict[str, list[str]]:
    """The texts of ``requests`` by each model, all at once; something happens when each has three tokens. Each must end
    whole, with the counts that belong to its text."""
    with contextlib.ExitStack() as stack:
        wires = {name: [stack.enter_context(daemon.connect()) for _ in requests] for name in models}
        for name, of_model in wires.items():
            for number, (wire, request) in enumerate(zip(of_model, requests, strict=True)):
                wire.send({"id": f"{name}-{number}", "model": name, **request})
        streams = [
            (name, wire, [wire.receive_until("token") for _ in range(3)]) for name in models for wire in wires[name]
        ]
        at_three_tokens()
        found: dict[str, list[str]] = {name: [] for name in models}
        for name, wire, events in streams:
            events += wire.receive_all()
            assert events[-1]["event"] == "eos", events[-1]
            assert [event["event"] for event in events[:-1]] == ["token"] * (len(events) - 1)
            found[name].append("".join(event["text"] for event in events[:-1]))
    return found


@pytest.fixture(scope="module")
def alone(served: Daemon) -> dict[str, list[str]]:
    """The texts of each model, while the other has nothing to do."""
    return texts(served, (DEFAULT,)) | texts(served, ("twin",))


def test_streams_of_two_models_go_on_beside_each_other(served: Daemon, alone: dict[str, list[str]]) -> None:
    assert alone[DEFAULT] == alone["twin"]
    assert texts(served, (DEFAULT, "twin")) == alone
    came: list[str] = []

    def stream(name: str) -> None:
        with served.connect() as wire:
            wire.send({"id": name, "model": name, "prompt": COUNT, "max_tokens": 60, "ignore_eos": True})
            for _ in range(60):
                wire.receive_until("token")
                came.append(name)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(stream, (DEFAULT, "twin"))) == [None, None]
    changes = sum(one != other for one, other in itertools.pairwise(came))
    assert changes > 20, came


@pytest.mark.parametrize("lost", [DEFAULT, "twin"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT], ids=lambda number: number.name)
def test_a_crash_costs_neither_model_a_token(
    served: Daemon, alone: dict[str, list[str]], number: signal.Signals, lost: str
) -> None:
    before, crashes = descriptors(served), served.metrics()["engine_crashes_total"]
    other = DEFAULT if lost == "twin" else "twin"
    survivor, victim = (engine_of(served, f"{name}.gguf") for name in (other, lost))
    assert texts(served, (DEFAULT, "twin"), lambda: os.kill(victim, number)) == alone
    assert served.metrics()["engine_crashes_total"] == crashes + 1
    assert number.name in served.logs
    assert engine_of(served, f"{other}.gguf") == survivor
    assert engine_of(served, f"{lost}.gguf") != victim
    served.wait_until_quiet()
    served.wait_for(lambda _metrics: descriptors(served) <= before)


def test_a_kill_in_a_preparation_costs_neither_model_a_token(served: Daemon, alone: dict[str, list[str]]) -> None:
    with served.connect() as wire:

        def kill() -> None:
            pid = engine_of(served, "twin.gguf")
            os.kill(pid, signal.SIGSTOP)
            wire.send({"id": "prepared", "model": "twin", **REQUESTS[0]})
            served.wait_for(lambda values: values["waiting_sessions"] == 1)
            os.kill(pid, signal.SIGKILL)

        assert texts(served, (DEFAULT, "twin"), kill) == alone
        *tokens, last = wire.receive_all()
    assert last["event"] == "eos", last
    assert "".join(token["text"] for token in tokens) == alone["twin"][0]


def test_a_kill_in_a_save_to_disk_costs_neither_model_a_token(folder: Path, tmp_path: Path) -> None:
    flags = (*FLAGS, "--models-dir", str(folder), "--kv-cache", str(tmp_path / "kv"))
    daemon = Daemon(tmp_path, *flags, env=ONE_THREAD)
    streams = [{"prompt": COUNT, "max_tokens": 250}]
    # At first shorter than what is written, so that few of its tokens are left to be computed beside the streams.
    short, long = (" ".join(map(str, range(200, last, -1))) for last in (141, 131))
    assert daemon.ask(short, model="twin", max_tokens=1)[-1]["usage"]["prompt_tokens"] < 250

    def kill() -> None:
        assert daemon.ask(long, model="twin", max_tokens=1)[-1]["usage"]["prompt_tokens"] > 256
        daemon.wait_for(lambda _values: any((tmp_path / "kv").rglob(".*.part")))
        assert daemon.metrics()["active_sessions"] == 2
        os.kill(engine_of(daemon, "twin.gguf"), signal.SIGKILL)

    alone = texts(daemon, (DEFAULT,), requests=streams)[DEFAULT]
    assert texts(daemon, (DEFAULT, "twin"), kill, streams) == {DEFAULT: alone, "twin": alone}
    assert daemon.metrics()["engine_crashes_total"] == 1
    end(daemon)


def test_a_crash_is_not_told_to_the_other_models_clients(served: Daemon) -> None:
    with Conversation(served) as client:
        client.send("config", model="twin", prompt=COUNTING, parameters={"max_tokens": 80, "temperature": 0})
        told = client.until("token")
        with served.connect() as wire:
            wire.send({"id": "d", "prompt": FAR_FROM_A_TIE, "max_tokens": 20})
            wire.receive_until("token")
            os.kill(engine_of(served, f"{DEFAULT}.gguf"), signal.SIGKILL)
            assert wire.receive_all()[-1]["event"] == "eos"
        told += client.until("completion", "error")
    types = [message["type"] for message in told]
    assert set(types[types.index("token") :]) == {"token", "completion"}


# -- loading ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def streaming(daemon: Daemon) -> Iterator[None]:
    """Beside a stream of the default model, which must end whole."""
    with daemon.connect() as wire:
        wire.send({"id": "beside", "prompt": COUNT, "max_tokens": 60})
        wire.receive_until("token")
        yield
        rest = wire.receive_all()
    assert rest[-1]["event"] == "eos", rest[-1]
    assert [event["event"] for event in rest[:-1]] == ["token"] * 59


def new_engine(daemon: Daemon, before: list[int]) -> int:
    """The process that was started last, as soon as it is there."""
    found: list[int] = []

    def there(_metrics: dict) -> bool:
        found[:] = [pid for pid in engines(daemon) if pid not in before]
        return bool(found)

    daemon.wait_for(there)
    return found[0]


@pytest.fixture
def fresh(folder: Path, tmp_path: Path) -> Iterator[Daemon]:
    """Has loaded the default model only."""
    daemon = Daemon(tmp_path, *FLAGS, "--models-dir", str(folder), "--drain-timeout", "2", env=ONE_THREAD)
    yield daemon
    if daemon.process.poll() is None:
        end(daemon)


@pytest.mark.parametrize("after_s", [0.0, 0.6])
def test_an_engine_that_is_killed_while_it_loads_is_started_again(fresh: Daemon, after_s: float) -> None:
    before = engines(fresh)
    with streaming(fresh), ThreadPoolExecutor(2) as pool:
        asked = pool.submit(by_openai, fresh, "twin")
        questioned = pool.submit(post, fresh, "/tokenize", model="twin", content="a cat")
        pid = new_engine(fresh, before)
        time.sleep(after_s)
        os.kill(pid, signal.SIGKILL)
        assert asked.result()[0] == "twin"
        assert questioned.result().status_code == 200
    assert engines(fresh)[0] == before[0], "the default model's goes on"
    assert len(engines(fresh)) == 2


def test_a_file_that_ends_llama_cpp_fails_its_own_requests_alone(folder: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    whole = Path(tiny_model(models / "broken.gguf", "llama")).read_bytes()
    count = b"llama.block_count" + struct.pack("<I", 4)
    (models / "broken.gguf").write_bytes(whole.replace(count + struct.pack("<I", 2), count + struct.pack("<I", 0)))
    daemon = Daemon(tmp_path, *FLAGS, "--models-dir", str(models), env=ONE_THREAD)
    with streaming(daemon), ThreadPoolExecutor(3) as pool:
        replies = [
            pool.submit(post, daemon, path, model="broken", **body)
            for path, body in (
                ("/v1/completions", {"prompt": "Hi"}),
                ("/v1/embeddings", {"input": "Hi"}),
                ("/api/generate", {"prompt": "Hi"}),
            )
        ]
        assert [reply.result().status_code for reply in replies] == [503, 503, 503]
    assert "Retry-After" in replies[0].result().headers
    assert states(daemon)["broken"] == "unloaded"
    assert "broken.gguf: llama.cpp can't take it" in daemon.logs
    assert len(engines(daemon)) == 1
    end(daemon)


def test_who_leaves_while_a_model_loads_leaves_nothing_behind(fresh: Daemon) -> None:
    before, open_before = engines(fresh), descriptors(fresh)
    asked = {"model": "twin", "prompt": "Hi", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with fresh.connect() as wire, httpx.Client(base_url=f"http://{fresh.http}", timeout=0.2) as client:
        wire.send({"id": "leaves", **asked})
        bodies = {"/v1/completions": asked, "/v1/embeddings": {"model": "twin", "input": "Hi"}, "/api/generate": asked}
        pid = None
        for path, body in bodies.items():
            with contextlib.suppress(httpx.ReadTimeout), client.stream("POST", path, json=body) as reply:
                reply.read()
            pid = pid or new_engine(fresh, before)
            os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGCONT)
    wait_for_state(fresh, "twin", "loaded", "unloaded")
    assert fresh.wait_until_quiet()["tokens_generated_total"] < 10
    assert by_openai(fresh, "twin")[0] == "twin"
    fresh.wait_for(lambda _metrics: descriptors(fresh) == open_before + 9 * (len(engines(fresh)) - 1))


def test_the_time_for_a_request_is_over_while_its_model_loads(folder: Path, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, *FLAGS, "--models-dir", str(folder), "--request-timeout", "2", env=ONE_THREAD)
    before = engines(daemon)
    with ThreadPoolExecutor(4) as pool:
        replies = [
            pool.submit(post, daemon, path, model="twin", **body)
            for path, body in (
                ("/v1/completions", {"prompt": "Hi"}),
                ("/v1/embeddings", {"input": "Hi"}),
                ("/api/generate", {"prompt": "Hi"}),
                ("/tokenize", {"content": "Hi"}),
            )
        ]
        pid = new_engine(daemon, before)
        os.kill(pid, signal.SIGSTOP)
        assert [reply.result().status_code for reply in replies] == [504] * 4
    os.kill(pid, signal.SIGCONT)
    # A box may be too busy for a request to load it in time.
    post(daemon, "/models/load", model="twin")
    wait_for_state(daemon, "twin", "loaded")
    assert by_openai(daemon, "twin")[0] == "twin"
    end(daemon)


@pytest.mark.parametrize("how", ["runs", "hangs"])
def test_the_daemon_ends_in_the_middle_of_a_load(fresh: Daemon, how: str) -> None:
    before = engines(fresh)
    with fresh.connect() as wire:
        wire.send({"id": "waits", "model": "twin", "prompt": "Hi"})
        pid = new_engine(fresh, before)
        if how == "hangs":
            os.kill(pid, signal.SIGSTOP)
        end(fresh)
        assert wire.receive_until("error")["code"] == "E_SHUTDOWN"


@pytest.mark.parametrize("how", ["runs", "hangs", "is killed"])
def test_the_daemon_ends_in_the_middle_of_an_unload(fresh: Daemon, how: str) -> None:
    by_openai(fresh, "twin")
    pid = engine_of(fresh, "twin.gguf")
    if how != "runs":
        os.kill(pid, signal.SIGSTOP)
    post(fresh, "/models/unload", model="twin").raise_for_status()
    if how == "is killed":
        os.kill(pid, signal.SIGKILL)
    end(fresh)


# -- memory for two --------------------------------------------------------------------------------------------------


def test_a_paused_stream_makes_way_and_goes_on_later(folder: Path, tmp_path: Path) -> None:
    settings = ONE_THREAD | {"BOX_MIB": "400"}
    flags = (*FLAGS, "--models-dir", str(folder), "--memory-reserve", "0")
    daemon = Daemon(tmp_path, *flags, env=settings, program=("-m", "bench.small_box"), cwd=Path(__file__).parents[2])
    with Conversation(daemon) as client:
        client.config(COUNTING, max_tokens=200, temperature=0)
        expected = text_of(client.until("completion", "error"))
    with Conversation(daemon) as client:
        client.config(COUNTING, max_tokens=200, temperature=0)
        told = client.until("token")
        client.control("pause")
        told += client.until("pause")
        assert by_openai(daemon, "twin")[0] == "twin"
        assert states(daemon) | {DEFAULT: "unloaded", "twin": "loaded"} == states(daemon)
        client.control("resume")
        told += client.until("completion", "error")
    assert told[-1]["type"] == "completion"
    assert text_of(told) == expected
    end(daemon)


def test_no_request_is_lost_while_models_take_turns_and_engines_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMA_THREADS", "1")
    soak = Soak(seed=1)
    soak.run(requests=24, clients=6, kill_every_s=3.0)
    assert soak.wrong == []
    assert soak.answered == 24
    assert soak.killed
    assert len(soak.engines) > 4, "models took turns"
