"""Both of ours against each other with the real model: relays, daemons that work for them, and ordinary clients."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import shutil
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
import trustme
from daemon import FAR_FROM_A_TIE, READY_S, Daemon
from mcp_client import LONG, MODES, gives_up, with_client
from openai.types.responses import Response
from program import Program
from redis_server import MISSING, PROGRAM, RedisServer
from relays import SECRET_FLAGS, Relay, box
from websockets.sync.client import connect

from umaserve.settings.model_files import default_model


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Relay, Daemon]]:
    directory = tmp_path_factory.mktemp("relay")
    relay = Relay(directory)
    daemon = box(directory / "box", relay, flags=("--http", "127.0.0.1:0"))
    relay.wait_for_workers(1)
    yield relay, daemon
    assert daemon.stop() == 0, daemon.logs
    assert relay.stop() == 0, relay.logs
    assert "Traceback" not in daemon.logs + relay.logs, daemon.logs + relay.logs


def test_models_are_the_workers(pair: tuple[Relay, Daemon]) -> None:
    relay, daemon = pair
    assert [model.id for model in relay.client.models.list()] == [daemon.metrics()["model"]]


def test_an_answer_is_the_same_through_the_relay(pair: tuple[Relay, Daemon]) -> None:
    relay, daemon = pair
    request = {"model": daemon.metrics()["model"], "prompt": FAR_FROM_A_TIE, "max_tokens": 12, "temperature": 0}
    direct = httpx.post(f"http://{daemon.http}/v1/completions", json=request, timeout=60).json()
    relayed = relay.client.completions.create(**request)
    assert relayed.choices[0].text == direct["choices"][0]["text"]
    assert relayed.usage.completion_tokens == 12
    streamed = list(relay.client.completions.create(**request, stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed) == direct["choices"][0]["text"]


def test_ollamas_client_is_served_through_the_relay(pair: tuple[Relay, Daemon]) -> None:
    relay, daemon = pair
    request = {"model": f"{daemon.metrics()['model']}:latest", "prompt": FAR_FROM_A_TIE, "raw": True}
    request["options"] = {"num_predict": 8, "temperature": 0, "repeat_penalty": 1}
    client = ollama.Client(host=relay.url)
    whole = client.generate(**request)
    *parts, last = client.generate(**request, stream=True)
    assert "".join(part.response for part in parts) == whole.response
    assert (last.done, last.eval_count, whole.eval_count) == (True, 8, 8)


def test_ollamas_client_is_told_of_the_models_through_the_relay(pair: tuple[Relay, Daemon]) -> None:
    relay, daemon = pair
    client, direct = ollama.Client(host=relay.url), ollama.Client(host=f"http://{daemon.http}")
    (model,) = client.list().models
    assert [model.model] == [listed.model for listed in direct.list().models]
    assert client.ps().models[0].model == model.model
    assert client.show(model.model) == direct.show(model.model)
    with pytest.raises(ollama.ResponseError) as raised:
        client.show("other")
    assert raised.value.status_code == 404


def test_anthropics_client_may_ask_for_claude_through_the_relay(pair: tuple[Relay, Daemon]) -> None:
    relay, _daemon = pair
    asked = {"model": "claude-opus-5", "messages": [{"role": "user", "content": "Count: 1, 2, 3"}]}
    with anthropic.Anthropic(base_url=relay.url, api_key="none", max_retries=0) as client:
        counted = client.messages.count_tokens(**asked).input_tokens
        assert client.messages.create(**asked, max_tokens=2).usage.input_tokens == counted
        with pytest.raises(anthropic.NotFoundError) as raised:
            client.messages.batches.list()
    assert raised.value.body["error"]["type"] == "not_found_error"


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_calls_tools_through_the_relay(pair: tuple[Relay, Daemon], mode: str) -> None:
    relay, daemon = pair
    model = daemon.metrics()["model"]
    yes = {"type": "object", "properties": {"yes": {"const": True}}, "required": ["yes"], "additionalProperties": False}
    told: list[float] = []

    async def take(progress: float, _total: float | None, _message: str | None) -> None:
        told.append(progress)

    async def steps(client: Any) -> None:
        assert (client.protocol_version, client.server_info.name) == (MODES[mode], "umaserve")
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == ["ask", "embed", "rerank", "transcribe", "speak", "status"]
        shown = await client.call_tool("status")
        assert [one["name"] for one in shown.structured_content["models"]] == [model]
        said = await client.call_tool("ask", {"prompt": "Is it so?", "json_schema": yes, "temperature": 0})
        assert (json.loads(said.content[0].text), said.is_error) == ({"yes": True}, False)
        said = await client.call_tool("ask", LONG | {"max_tokens": 200}, progress_callback=take)
        assert "200 tokens" in said.content[1].text
        for tool, arguments, words in (
            ("ask", {}, "prompt: expected"),
            ("ask", {"prompt": "a", "model": "nobodys"}, "no provider for model nobodys"),
            ("rerank", {"query": "q", "documents": ["a"]}, "ranks no documents"),
        ):
            refused = await client.call_tool(tool, arguments)
            assert refused.is_error
            assert words in refused.content[0].text

    with_client(relay.address, mode, steps)
    assert told
    assert told == sorted(told)


def test_a_call_that_an_agent_gives_up_ends(pair: tuple[Relay, Daemon]) -> None:
    relay, daemon = pair
    gives_up(relay.address, daemon)


def test_errors_of_the_worker_come_through_untouched(pair: tuple[Relay, Daemon]) -> None:
    relay, daemon = pair
    request = {"model": daemon.metrics()["model"], "messages": "no list"}
    direct = httpx.post(f"http://{daemon.http}/v1/chat/completions", json=request)
    relayed = httpx.post(f"{relay.url}/v1/chat/completions", json=request)
    assert direct.status_code == 400
    assert (relayed.status_code, relayed.json()) == (direct.status_code, direct.json())


def ended(client: openai.OpenAI, response_id: str) -> Response:
    deadline = time.monotonic() + READY_S
    while (found := client.responses.retrieve(response_id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_a_conversation_of_responses_goes_on_through_the_relay(pair: tuple[Relay, Daemon]) -> None:
    relay, daemon = pair
    client, fields = relay.client, {"model": "default", "temperature": 0, "max_output_tokens": 8}
    first = client.responses.create(**fields, input="Name three colours.")
    second = client.responses.create(**fields, input="And more?", previous_response_id=first.id)
    said = [
        {"role": "user", "content": "Name three colours."},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And more?"},
    ]
    direct = openai.OpenAI(base_url=f"http://{daemon.http}/v1", api_key="none").responses.create(**fields, input=said)
    assert (second.output_text, second.usage.input_tokens) == (direct.output_text, direct.usage.input_tokens)
    assert (second.previous_response_id, second.store, second.usage.output_tokens) == (first.id, True, 8)
    assert client.responses.retrieve(second.id) == second
    counted = client.responses.input_tokens.count(model="default", input="And more?", previous_response_id=first.id)
    assert counted.input_tokens == second.usage.input_tokens
    items = list(client.responses.input_items.list(second.id, limit=2))
    assert [item.content[0].text for item in reversed(items)] == [item["content"] for item in said]
    client.responses.delete(first.id)
    for ask in (
        lambda: client.responses.retrieve(first.id),
        lambda: client.responses.create(**fields, input="x", previous_response_id=first.id),
    ):
        with pytest.raises((openai.NotFoundError, openai.BadRequestError), match="that is still stored"):
            ask()


def test_a_streamed_response_is_kept_by_the_relay(pair: tuple[Relay, Daemon]) -> None:
    relay, _daemon = pair
    client, fields = relay.client, {"model": "default", "temperature": 0, "max_output_tokens": 8}
    with client.responses.stream(**fields, input="Name three colours.") as stream:
        for event in stream:
            if event.type == "response.incomplete":
                whole = event.response
                # Before the stream has ended.
                follows = client.responses.create(**fields, input="And?", previous_response_id=whole.id)
    assert client.responses.retrieve(whole.id) == whole
    assert follows.usage.input_tokens > whole.usage.input_tokens + 8
    with client.responses.stream(**fields, input="And?", previous_response_id=whole.id) as stream:
        *_events, last = stream
    assert last.response.output_text == follows.output_text
    assert (last.response.previous_response_id, last.response.store) == (whole.id, True)


def test_a_response_goes_on_in_the_background_of_a_relay(pair: tuple[Relay, Daemon]) -> None:
    relay, daemon = pair
    client, fields = relay.client, {"model": "default", "temperature": 0, "input": "Name three colours."}
    asked = client.responses.create(**fields, max_output_tokens=8, background=True)
    assert (asked.status, asked.background, asked.output_text) == ("in_progress", True, "")
    whole = ended(client, asked.id)
    assert (whole.id, whole.status, whole.usage.output_tokens) == (asked.id, "incomplete", 8)
    assert whole.output_text == client.responses.create(**fields, max_output_tokens=8).output_text
    long = client.responses.create(**fields, background=True, extra_body={"ignore_eos": True})
    daemon.wait_for(lambda values: values["active_sessions"] == 1)
    assert client.responses.cancel(long.id).status == "cancelled"
    daemon.wait_until_quiet()
    assert client.responses.retrieve(long.id).status == "cancelled"
    wrong = client.responses.create(model="default", input=[{"role": "user", "content": 5}], background=True)
    assert "input[0].content" in ended(client, wrong.id).error.message


def test_responses_are_their_keys_alone_and_outlive_their_worker(pair: tuple[Relay, Daemon], tmp_path: Path) -> None:
    _relay, daemon = pair
    token = tmp_path / "token"
    token.write_text("a-token-of-the-tests")
    token.chmod(0o600)
    front = Relay(tmp_path, "--client-keys", str(tmp_path / "keys.json"), "--admin-token-file", str(token))
    admin = {"Authorization": "Bearer a-token-of-the-tests"}
    keys = [
        httpx.post(f"{front.url}/admin/keys", json={"name": name}, headers=admin).json()["key"]
        for name in ("ann", "bob")
    ]
    ann, bob = (openai.OpenAI(base_url=f"{front.url}/v1", api_key=key, max_retries=0) for key in keys)
    behind = ("--relay", front.url, *SECRET_FLAGS, "--backend", f"http://{daemon.http}")
    fields = {"model": daemon.metrics()["model"], "temperature": 0, "max_output_tokens": 4}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    worker = Program(tmp_path / "first", "worker", *behind)
    front.wait_for_workers(1)
    first = ann.responses.create(**fields, input="Name three colours.")
    assert worker.stop() == 0, worker.logs
    assert ann.responses.retrieve(first.id) == first
    worker = Program(tmp_path / "second", "worker", *behind)
    second = ann.responses.create(**fields, input="And?", previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.total_tokens
    for ask in (
        lambda: bob.responses.retrieve(first.id),
        lambda: bob.responses.delete(first.id),
        lambda: bob.responses.input_items.list(first.id),
        lambda: bob.responses.create(**fields, input="x", previous_response_id=first.id),
    ):
        with pytest.raises((openai.NotFoundError, openai.BadRequestError), match="that is still stored"):
            ask()
    assert ann.responses.retrieve(first.id) == first
    assert worker.stop() == 0, worker.logs
    assert front.stop() == 0, front.logs
    assert "Traceback" not in worker.logs + front.logs, worker.logs + front.logs


def test_a_client_that_leaves_ends_its_generation(pair: tuple[Relay, Daemon]) -> None:
    relay, daemon = pair
    request = {"model": daemon.metrics()["model"], "prompt": FAR_FROM_A_TIE, "max_tokens": 500, "stream": True}
    with httpx.stream("POST", f"{relay.url}/v1/completions", json={**request, "ignore_eos": True}) as response:
        lines = response.iter_lines()
        next(lines)
        daemon.wait_for(lambda values: values["active_sessions"] == 1)
    daemon.wait_until_quiet()


def test_a_conversation_is_steered_through_the_relay(pair: tuple[Relay, Daemon]) -> None:
    relay, daemon = pair
    with connect(f"ws://{relay.address}/generate") as socket:
        for _ in range(2):
            socket.send(
                json.dumps(
                    {
                        "type": "config",
                        "prompt": FAR_FROM_A_TIE,
                        "parameters": {"max_tokens": 400, "ignore_eos": True},
                        "options": {"include_generated_text": False},
                    }
                )
            )
            seen = []
            while "token" not in seen:
                seen.append(json.loads(socket.recv(60))["type"])
            socket.send(json.dumps({"type": "control", "action": "stop"}))
            while seen[-1] != "completion":
                seen.append(json.loads(socket.recv(60))["type"])
    daemon.wait_until_quiet()


@pytest.mark.parametrize(
    ("asked", "types"),
    [({}, ["prefill_done", "done"]), ({"tts": {"language": "xx"}}, ["error"])],
    ids=["an answer", "an error"],
)
def test_a_chat_comes_through_the_relay_to_its_end(pair: tuple[Relay, Daemon], asked: dict, types: list[str]) -> None:
    relay, _daemon = pair
    with connect(f"ws://{relay.address}/ws/chat") as socket:
        hello = [{"role": "user", "content": "Hello!"}]
        socket.send(json.dumps({"messages": hello, "streaming": False, "generation": {"max_new_tokens": 4}, **asked}))
        assert [json.loads(message)["type"] for message in socket] == types


@pytest.mark.parametrize(
    ("query", "messages", "error"),
    [
        ("?model=nobodys", [], "no provider for model nobodys"),
        ("", "x" * (33 << 20), "message: expected at most "),
    ],
    ids=["no such model", "too large"],
)
def test_what_the_relay_itself_refuses_of_a_chat_is_an_error_as_the_daemons(
    pair: tuple[Relay, Daemon], query: str, messages: object, error: str
) -> None:
    relay, _daemon = pair
    with connect(f"ws://{relay.address}/ws/chat{query}") as socket:
        socket.send(json.dumps({"messages": messages}))
        told = json.loads(socket.recv(60))
    assert list(told) == ["type", "error"]
    assert told["type"] == "error"
    assert told["error"].startswith(error)


def test_a_conversation_that_is_left_ends(pair: tuple[Relay, Daemon]) -> None:
    relay, daemon = pair
    with connect(f"ws://{relay.address}/generate") as socket:
        parameters = {"max_tokens": 500, "ignore_eos": True}
        socket.send(json.dumps({"type": "config", "prompt": FAR_FROM_A_TIE, "parameters": parameters}))
        daemon.wait_for(lambda values: values["active_sessions"] == 1)
    daemon.wait_until_quiet()


def test_all_models_of_a_box_are_offered_and_the_relay_hears_when_they_change(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    shutil.copyfile(default_model(), folder / "second.gguf")
    relay = Relay(tmp_path)
    flags = ("--models-dir", str(folder), "--weights", "as-is", "--http", "127.0.0.1:0")
    daemon = box(tmp_path / "box", relay, flags=flags)
    relay.wait_for_workers(1)
    first = str(daemon.metrics()["model"])

    def until_models_are(*names: str) -> None:
        deadline = time.monotonic() + READY_S
        while sorted(model.id for model in relay.client.models.list()) != sorted(names):
            assert time.monotonic() < deadline, relay.logs + daemon.logs
            time.sleep(0.05)

    until_models_are(first, "second")
    answer = relay.client.completions.create(model="second", prompt=FAR_FROM_A_TIE, temperature=0, max_tokens=4)
    assert (answer.model, answer.usage and answer.usage.completion_tokens) == ("second", 4)
    for address in (relay.address, daemon.http):
        with connect(f"ws://{address}/generate?model=second") as socket:
            for named, model in (({}, "second"), ({"model": first}, first)):
                parameters = {"max_tokens": 1}
                socket.send(json.dumps({"type": "config", "prompt": FAR_FROM_A_TIE, "parameters": parameters, **named}))
                told = [json.loads(socket.recv(60))]
                while told[-1]["type"] != "completion":
                    told.append(json.loads(socket.recv(60)))
                assert next(message["model"] for message in told if message["type"] == "init") == model
    shutil.copyfile(default_model(), folder / "third.gguf")
    daemon.process.send_signal(signal.SIGHUP)
    until_models_are(first, "second", "third")
    # Without a signal, too.
    (folder / "second.gguf").unlink()
    until_models_are(first, "third")
    assert daemon.stop() == 0, daemon.logs
    assert relay.stop() == 0, relay.logs


def test_a_worker_in_front_of_another_server(pair: tuple[Relay, Daemon], tmp_path: Path) -> None:
    relay, daemon = pair
    front = Relay(tmp_path)
    worker = Program(
        tmp_path, "worker", "--relay", front.url, *SECRET_FLAGS, "--backend", f"http://{daemon.http}", "--name", "front"
    )
    front.wait_for_workers(1)
    request = {"model": daemon.metrics()["model"], "prompt": FAR_FROM_A_TIE, "max_tokens": 8, "temperature": 0}
    expected = relay.client.completions.create(**request).choices[0].text
    assert front.client.completions.create(**request).choices[0].text == expected
    streamed = front.client.completions.create(**request, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == expected
    assert worker.stop() == 0, worker.logs
    assert front.stop() == 0, front.logs
    assert "Traceback" not in worker.logs + front.logs, worker.logs + front.logs


def test_a_worker_checks_the_relays_certificate(pair: tuple[Relay, Daemon], tmp_path: Path) -> None:
    _, daemon = pair
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    for part in certificate.cert_chain_pems:
        part.write_to_path(str(tmp_path / "cert.pem"), append=True)
    relay = Relay(tmp_path, "--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    port = relay.address.rpartition(":")[2]
    url = f"wss://localhost:{port}"
    backend = ("--backend", f"http://{daemon.http}")
    (tmp_path / "trusting").mkdir()
    doubting = Program(tmp_path, "worker", "--relay", url, *SECRET_FLAGS, *backend)
    doubting.wait_for_line("certificate verify failed.*: check the URL, and that ca_file has the authority")
    ca_file = str(tmp_path / "ca.pem")
    trusting = Program(tmp_path / "trusting", "worker", "--relay", url, *SECRET_FLAGS, *backend, "--ca-file", ca_file)
    trusting.wait_for_line("registered with a relay")
    context = ssl.create_default_context(cafile=ca_file)
    models = httpx.get(f"https://localhost:{port}/v1/models", verify=context).json()["data"]
    assert [model["id"] for model in models] == [daemon.metrics()["model"]]
    for program in (doubting, trusting, relay):
        assert program.stop() == 0, program.logs


def _ask(relay: Relay, model: str, index: int, *, stream: bool) -> str:
    """An answer, and ``broken`` where it broke off after it had begun; what had not begun may not fail."""
    prompt = f"{FAR_FROM_A_TIE} {index}"
    request = {"model": model, "prompt": prompt, "max_tokens": 16, "extra_body": {"ignore_eos": True}}
    if not stream:
        return relay.client.completions.create(**request).choices[0].text
    text = ""
    try:
        for chunk in relay.client.completions.create(**request, stream=True):
            text += chunk.choices[0].text
    except openai.APIError:
        assert text, "it had not begun"
        return "broken"
    return text


def test_a_box_that_dies_under_load_fails_nothing_that_had_not_begun(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    boxes = [box(tmp_path / name, relay, flags=("--worker-name", name)) for name in ("one", "two")]
    relay.wait_for_workers(2)
    model = boxes[0].metrics()["model"]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(_ask, relay, model, index, stream=index % 3 == 0) for index in range(36)]
        boxes[0].wait_for(lambda values: values["active_sessions"] >= 3)
        boxes[0].process.kill()
        answers = [one.result(120) for one in asked]
    assert all(answers)
    assert answers.count("broken") <= 12
    assert relay.total("requeues") > 0
    assert relay.total("completed") + answers.count("broken") >= len(asked)
    assert boxes[1].stop() == 0, boxes[1].logs
    assert relay.stop() == 0, relay.logs


def test_of_two_relays_one_may_die(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    relays = [Relay(tmp_path / name) for name in ("first", "second")]
    daemon = box(tmp_path / "box", *relays)
    for relay in relays:
        relay.wait_for_workers(1)
    model = daemon.metrics()["model"]

    def ask(index: int) -> str:
        # A name with both addresses behind it: whoever finds one dead asks the other.
        for relay in (*relays, *relays):
            with contextlib.suppress(openai.APIError):
                return _ask(relay, model, index, stream=False)
        return ""

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, index) for index in range(12)]
        daemon.wait_for(lambda values: values["active_sessions"] >= 2)
        relays[0].process.kill()
        assert all(one.result(120) for one in asked)
    daemon.wait_until_quiet()
    assert daemon.stop() == 0, daemon.logs
    assert relays[1].stop() == 0, relays[1].logs


@pytest.mark.skipif(PROGRAM is None, reason=MISSING)
def test_relays_that_meet_at_redis_share_workers_and_rates(pair: tuple[Relay, Daemon], tmp_path: Path) -> None:
    _, daemon = pair
    meeting = RedisServer(tmp_path)
    meeting.start()
    admin = {"Authorization": "Bearer a-token-of-the-tests"}
    common = ("--client-keys", str(tmp_path / "keys.json"), "--admin-token", "a-token-of-the-tests")
    for name in ("first", "second", "shared", "idle"):
        (tmp_path / name).mkdir()
    first, second = (Relay(tmp_path / name, "--redis", meeting.url, *common) for name in ("first", "second"))
    behind = (*SECRET_FLAGS, "--backend", f"http://{daemon.http}", "--max-concurrent", "2")
    shared = Program(tmp_path / "shared", "worker", "--relay", f"{first.url},{second.url}", "--name", "shared", *behind)
    first.wait_for_workers(1)
    second.wait_for_workers(1)

    def client(relay: Relay, key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{relay.url}/v1", api_key=key, max_retries=0)

    def until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + READY_S
        while not condition():
            assert time.monotonic() < deadline, first.logs + second.logs
            time.sleep(0.02)

    def made_key(**fields: object) -> str:
        key = httpx.post(f"{first.url}/admin/keys", json=fields, headers=admin).json()["key"]
        # The other relay looks at the file every second.
        until(lambda: httpx.get(f"{second.url}/v1/models", headers={"X-Api-Key": key}).status_code == 200)
        return key

    def loads() -> dict[str, tuple[int, int]]:
        """By name, what each worker of the second relay has, and what it has of that relay."""
        workers = httpx.get(f"{second.url}/admin/workers", headers=admin).json()["workers"]
        return {one["name"]: (one["load"], one["in_flight"]) for one in workers}

    key = made_key(name="unlimited")
    request = {"model": daemon.metrics()["model"], "prompt": FAR_FROM_A_TIE, "stream": True, "max_tokens": 2000}
    request["extra_body"] = {"ignore_eos": True}
    streams = [client(first, key).completions.create(**request) for _ in range(2)]
    until(lambda: loads()["shared"] == (2, 0))
    idle = Program(tmp_path / "idle", "worker", "--relay", second.url, "--name", "idle", *behind)
    second.wait_for_workers(2)
    streams += [client(second, key).completions.create(**request) for _ in range(2)]
    assert loads() == {"shared": (2, 0), "idle": (2, 2)}
    for stream in streams:
        stream.close()
    until(lambda: loads() == {"shared": (0, 0), "idle": (0, 0)})

    limited = made_key(name="limited", requests_per_minute=3)
    request |= {"stream": False, "max_tokens": 1}
    for relay in (first, second, first):
        client(relay, limited).completions.create(**request)

    def is_used_up() -> bool:
        # Until the other relay has heard of the first ones, it has one more.
        try:
            client(second, limited).completions.create(**request)
        except openai.RateLimitError:
            return True
        return False

    until(is_used_up)
    for program in (shared, idle, first, second):
        assert program.stop() == 0, program.logs
        assert "Traceback" not in program.logs, program.logs
    meeting.kill()
