"""Several models of one daemon, each with llama.cpp in a process of its own: who answers, what loading and unloading
leave behind, and what a crash does to the others."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from daemon import ANSWER_S, FAR_FROM_A_TIE, Daemon
from generate_wire import COUNTING, Conversation, text_of
from minilm import write_minilm
from tiny_models import tiny_model

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


def engines(daemon: Daemon) -> list[int]:
    """Their processes, the oldest first."""
    children = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"umaserve.engine" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def engine_of(daemon: Daemon, file: str) -> int:
    """The process that has the model's file mapped."""
    (pid,) = [pid for pid in engines(daemon) if file in Path(f"/proc/{pid}/maps").read_text()]
    return pid


def descriptors(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


def states(daemon: Daemon) -> dict[str, str]:
    listed = httpx.get(f"http://{daemon.http}/v1/models").raise_for_status().json()["data"]
    return {one["id"]: one["status"]["value"] for one in listed}


def wait_for_state(daemon: Daemon, name: str, *wanted: str) -> None:
    daemon.wait_for(lambda _metrics: states(daemon)[name] in wanted)


def end(daemon: Daemon) -> None:
    """It ends as it should, and leaves nothing behind."""
    running = engines(daemon)
    assert daemon.stop() == 0, daemon.logs
    assert not [pid for pid in running if Path(f"/proc/{pid}").exists()], "the engines' processes end with the daemon"
    assert "Traceback" not in daemon.logs, daemon.logs
    assert "Exception" not in daemon.logs, daemon.logs


# -- who answers -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    flags = (*FLAGS, "--models-dir", str(folder))
    daemon = Daemon(tmp_path_factory.mktemp("served"), *flags, env=ONE_THREAD)
    yield daemon
    end(daemon)


def post(daemon: Daemon, path: str, **body: object) -> httpx.Response:
    return httpx.post(f"http://{daemon.http}{path}", json=body, timeout=ANSWER_S)


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


def test_all_models_are_listed_with_their_states(served: Daemon) -> None:
    by_openai(served, "twin")
    assert set(states(served)) == {DEFAULT, "twin", "tiny", "minilm"}
    assert {states(served)[name] for name in (DEFAULT, "twin")} == {"loaded"}


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
    (refused,) = daemon.ask("Hi", model="gpt-5")
    assert refused["event"] == "error"
    assert "gpt-5" in refused["message"]
    assert by_openai(daemon, "tiny")[0] == "tiny"
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
    daemon: Daemon, models: tuple[str, ...], at_three_tokens: Callable[[], object] = lambda: None
) -> dict[str, list[str]]:
    """The texts of ``REQUESTS`` by each model, all at once; something happens when each has three tokens. Each must end
    whole, with the counts that belong to its text."""
    with contextlib.ExitStack() as stack:
        wires = {name: [stack.enter_context(daemon.connect()) for _ in REQUESTS] for name in models}
        for name, of_model in wires.items():
            for number, (wire, request) in enumerate(zip(of_model, REQUESTS, strict=True)):
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
