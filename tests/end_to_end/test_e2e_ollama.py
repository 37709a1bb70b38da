"""Ollama's API on the real daemon, by Ollama's own Python client, which is told nothing but the address."""

from __future__ import annotations

import json
import socket

import ollama
import pytest
from daemon import CHAT_FAR_FROM_A_TIE, FAR_FROM_A_TIE, Daemon
from http_wire import ask

MODEL = "SmolLM2-135M-Instruct.Q4_1:latest"
GREEDY = {"temperature": 0, "repeat_penalty": 1, "num_predict": 12}
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> ollama.Client:
    return ollama.Client(host=f"http://{daemon.http}")


def refused(ask) -> tuple[int, str]:
    with pytest.raises(ollama.ResponseError) as caught:
        ask()
    return caught.value.status_code, caught.value.error


# -- the model ---------------------------------------------------------------------------------------------------


def test_the_model_is_listed_and_shown(client: ollama.Client):
    (listed,) = client.list().models
    (running,) = client.ps().models
    assert listed.model == running.model == running.name == MODEL
    assert listed.digest == running.digest
    shown = client.show(MODEL)
    assert shown.details == listed.details == running.details
    assert shown.modelinfo["llama.context_length"] == running.context_length
    assert shown.capabilities == ["completion", "tools"]
    assert (shown.license, shown.parameters) == ("apache-2.0", "num_ctx 8192")
    assert client.show(MODEL.removesuffix(":latest")) == shown


def test_models_are_not_managed(client: ollama.Client):
    assert client.pull(MODEL).status == "success"
    assert [status.status for status in client.pull(MODEL, stream=True)] == ["success"]
    status, error = refused(lambda: client.pull("llama3"))
    assert status == 404
    assert error == "model 'llama3' not found"
    for asking in (lambda: client.delete(MODEL), lambda: client.copy(MODEL, "mine"), lambda: client.push(MODEL)):
        assert refused(asking)[0] == 400


def test_a_server_runs_and_tells_its_version(daemon: Daemon):
    response = ask(daemon, "HEAD", "/", headers={"User-Agent": "ollama/0.12.6"})
    assert response.status == 200
    other = ask(daemon, "GET", "/", headers={"User-Agent": "Mozilla"})
    assert "/api/chat" in json.loads(other.body)["paths"]
    version = json.loads(ask(daemon, "GET", "/api/version").body)["version"]
    assert all(part.isdigit() for part in version.split("."))


# -- chat --------------------------------------------------------------------------------------------------------


def test_a_stream_says_what_the_whole_answer_says(client: ollama.Client):
    request = {"model": "any", "messages": CHAT_FAR_FROM_A_TIE, "options": GREEDY}
    whole = client.chat(**request)
    *parts, last = client.chat(**request, stream=True)
    assert whole.model == MODEL
    assert whole.message.role == "assistant"
    assert "".join(part.message.content for part in parts) == whole.message.content != ""
    assert not any(part.done for part in parts)
    assert last.done
    assert last.done_reason == whole.done_reason == "length"
    assert last.eval_count == whole.eval_count == 12
    assert last.prompt_eval_count == whole.prompt_eval_count > 12
    assert last.total_duration >= last.eval_duration > 0


def test_a_prompt_is_answered_and_a_raw_one_goes_on(client: ollama.Client):
    said = client.generate("any", FAR_FROM_A_TIE, raw=True, options=GREEDY | {"num_predict": 6})
    assert said.response.startswith(" 6, 7")
    assert said.eval_count == 6
    parts = [*client.generate("any", "Hello", system="Be brief.", options=GREEDY, stream=True)]
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(part.response for part in parts)


@pytest.mark.parametrize("stream", [False, True])
def test_a_context_goes_on_from_an_earlier_answer(daemon: Daemon, client: ollama.Client, stream: bool):
    def said(prompt: str, context: list[int] | None = None) -> ollama.GenerateResponse:
        answer = client.generate("any", prompt, context=context, options=GREEDY, stream=stream)
        return [*answer][-1] if stream else answer

    first = said(f"Remember {daemon.http}, {stream}.")
    assert len(first.context) == first.prompt_eval_count + first.eval_count
    before = daemon.metrics()["prefix_reused_tokens_total"]
    second = said("Go on.", first.context)
    assert second.context[: len(first.context)] == first.context
    assert second.prompt_eval_count > len(first.context)
    # All that was computed, which the last token of an answer isn't.
    assert daemon.metrics()["prefix_reused_tokens_total"] - before >= len(first.context) - 1
    assert client.generate("any", "Hello", raw=True, options=GREEDY).context is None


def test_a_context_that_is_none_is_refused(client: ollama.Client):
    for context, problem in (
        ([1, 2**30], "context[1]: expected a token id from 0 to 49151, got 1073741824"),
        ([1] * 8192, "context: expected fewer than 8192 tokens, this daemon's context, got 8192"),
        ([1] * 8191, "prompt: expected at most 8191 tokens, got "),
    ):
        status, error = refused(lambda context=context: client.generate("any", "Hello", context=context))
        assert status == 400
        assert error.startswith(problem)


def test_nothing_to_say_loads_and_unloads(client: ollama.Client):
    assert client.chat("any").done_reason == "load"
    assert client.generate("any").done_reason == "load"
    assert [part.done_reason for part in client.generate("any", keep_alive=0, stream=True)] == ["unload"]


def test_a_format_binds_the_answer(client: ollama.Client):
    question = [{"role": "user", "content": "Is the sky blue?"}]
    answer = client.chat("any", question, format=SCHEMA, options=GREEDY | {"num_predict": 64})
    assert json.loads(answer.message.content)["answer"] in ("yes", "no")


def test_tools_are_described_to_the_model(client: ollama.Client):
    def get_weather(city: str) -> str:
        """Tells the weather.

        Args:
            city: The city.
        """

    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    bare = client.chat("any", question, options=GREEDY | {"num_predict": 1})
    told = client.chat("any", question, tools=[get_weather], options=GREEDY | {"num_predict": 1})
    assert told.prompt_eval_count > bare.prompt_eval_count + 20


def test_log_probabilities_are_told(client: ollama.Client):
    answer = client.chat("any", CHAT_FAR_FROM_A_TIE, options=GREEDY, logprobs=True, top_logprobs=2)
    assert len(answer.logprobs) == 12
    assert "".join(told.token for told in answer.logprobs) == answer.message.content
    assert all(len(told.top_logprobs) == 2 for told in answer.logprobs)


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_too_long_for_the_context_is_refused(client: ollama.Client, stream: bool):
    def asking(**fields):
        answer = client.chat("any", stream=stream, **fields)
        return [*answer] if stream else answer

    status, error = refused(lambda: asking(messages=[{"role": "user", "content": "word " * 9000}]))
    assert status == 400
    assert error.startswith("prompt: expected at most 8191 tokens, got 9")
    assert asking(messages=CHAT_FAR_FROM_A_TIE, options=GREEDY | {"num_ctx": 9000})


def test_a_client_that_leaves_frees_its_place(daemon: Daemon):
    host, port = daemon.http.split(":")
    body = json.dumps({"model": "any", "prompt": "Hello", "options": {"ignore_eos": True}}).encode()
    head = f"POST /api/generate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port)), timeout=120) as sock:
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
    daemon.wait_until_quiet()


# -- embeddings --------------------------------------------------------------------------------------------------


def test_a_model_that_makes_no_embeddings_says_so(client: ollama.Client):
    for asking in (lambda: client.embed("any", "hello"), lambda: client.embeddings("any", "hello")):
        status, error = refused(asking)
        assert status == 400
        assert "makes no embeddings; load an embedding model, or choose --pooling mean" in error


def test_texts_are_embedded(own_daemon):
    daemon = own_daemon("--http", "127.0.0.1:0", "--pooling", "mean")
    client = ollama.Client(host=f"http://{daemon.http}")
    embedded = client.embed("any", ["hello", "goodbye"])
    first, second = embedded.embeddings
    assert len(first) == len(second) == 576
    assert first != second
    assert embedded.prompt_eval_count > 1
    assert embedded.total_duration > embedded.load_duration == 0
    assert client.embeddings("any", "hello").embedding == pytest.approx(first, abs=1e-3)
