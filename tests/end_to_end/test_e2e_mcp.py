"""The daemon as a server of the Model Context Protocol: by its own words, and by the protocol's own Python client."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import wave
from collections.abc import Iterator
from typing import Any

import httpx
import media_files
import pytest
import standin_projectors as projectors
from daemon import ANSWER_S, Daemon, serving
from http_wire import Http, encode
from mcp_client import LONG, MODES, gives_up, with_client
from tiny_models import tiny_model

from umaserve.access.keys import KeyFile

MODEL = "SmolLM2-135M-Instruct.Q4_1"
BOTH = "application/json, text/event-stream"
RANK = 4
"""llama.cpp's pooling type of models that rank."""
YES = {"type": "object", "properties": {"yes": {"const": True}}, "required": ["yes"], "additionalProperties": False}
ASKED = {"prompt": "Is it so?", "json_schema": YES, "temperature": 0}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    yield from serving(tmp_path_factory, "--pooling", "mean")


@pytest.fixture(scope="module")
def http(daemon: Daemon) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{daemon.http}", headers={"Accept": BOTH}, timeout=ANSWER_S) as http:
        yield http


def message(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return message("tools/call", name=tool, arguments=arguments)


def result(http: httpx.Client, body: dict[str, Any]) -> Any:
    response = http.post("/mcp", json=body)
    assert response.status_code == 200, response.text
    return response.json()["result"]


def events(text: str) -> list[Any]:
    return [json.loads(one.removeprefix("data: ")) for one in text.split("\n\n") if one.startswith("data: ")]


# -- by the daemon's own words -----------------------------------------------------------------------------------


def test_a_handshake_and_the_tools(http: httpx.Client) -> None:
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    begun = http.post("/mcp", json=message("initialize", **about))
    assert begun.json()["result"]["protocolVersion"] == "2025-11-25"
    assert "mcp-session-id" not in begun.headers
    noted = http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert (noted.status_code, noted.content) == (202, b"")
    listed = [tool["name"] for tool in result(http, message("tools/list"))["tools"]]
    assert [name for name in listed if name != "speak"] == ["ask", "embed", "status"]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_it_has_neither_streams_nor_sessions(http: httpx.Client, method: str) -> None:
    response = http.request(method, "/mcp")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert response.json()["error"]["code"] == -32600


def test_foreign_pages_and_names_are_refused(http: httpx.Client) -> None:
    for header in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
        response = http.post("/mcp", json=message("ping"), headers=header)
        assert (response.status_code, response.json()["error"]["code"]) == (403, -32600)


def test_a_body_that_is_no_message(http: httpx.Client) -> None:
    for content, code in ((b"{", -32700), (b"[]", -32600), (b"\xff", -32700)):
        response = http.post("/mcp", content=content, headers={"Content-Type": "application/json"})
        assert (response.status_code, response.json()["error"]["code"], response.json()["id"]) == (400, code, None)
    assert http.post("/mcp", content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415


def test_an_answer(http: httpx.Client) -> None:
    said = result(http, call("ask", **ASKED))
    assert [json.loads(one["text"]) for one in said["content"]] == [{"yes": True}]
    assert said["isError"] is False


def test_vectors_are_those_of_the_other_api(http: httpx.Client) -> None:
    found = result(http, call("embed", input=["a", "b"]))["structuredContent"]
    other = http.post("/v1/embeddings", json={"input": ["a", "b"]}).json()
    assert found == other


def test_what_no_model_can_do_is_a_result(http: httpx.Client) -> None:
    for body, words in (
        (call("rerank", query="q", documents=["a"]), "ranks no documents"),
        (call("ask", prompt="a" * 100_000), "maximum context length"),
        (call("transcribe", audio="UklGRg=="), "audio"),
    ):
        refused = result(http, body)
        assert refused["isError"] is True
        assert words in refused["content"][0]["text"]


def test_progress_comes_before_the_response(http: httpx.Client) -> None:
    body = call("ask", **LONG, max_tokens=300)
    body["params"]["_meta"] = {"progressToken": "p"}
    response = http.post("/mcp", json=body)
    assert response.headers["content-type"] == "text/event-stream"
    *told, last = events(response.text)
    assert {one["params"]["progressToken"] for one in told} == {"p"}
    numbers = [one["params"]["progress"] for one in told]
    assert numbers == sorted(set(numbers))
    assert told
    text, note = (one["text"] for one in last["result"]["content"])
    assert last["id"] == 1
    assert "300 tokens" in note
    assert "".join(one["params"]["message"] for one in told if "of the prompt" not in one["params"]["message"]) in text


def test_a_closed_connection_ends_the_answer(daemon: Daemon) -> None:
    for token in ({}, {"_meta": {"progressToken": 1}}):
        body = call("ask", **LONG)
        body["params"] |= token
        client = Http(daemon.http)
        client.sock.sendall(encode("POST", "/mcp", body, {"Accept": BOTH}))
        daemon.wait_for(lambda values: values["active_sessions"] == 1)
        client.close()
        daemon.wait_until_quiet()


def test_keys_say_which_models_and_how_often(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("keyed")
    keys = KeyFile(str(directory / "keys.json"), missing_ok=True)
    ann, other = keys.add("ann"), keys.add("other", models=("another",))
    once = keys.add("once", requests_per_minute=1)
    for daemon in serving(tmp_path_factory, "--api-keys", str(directory / "keys.json")):
        with httpx.Client(base_url=f"http://{daemon.http}", timeout=ANSWER_S) as http:
            refused = http.post("/mcp", json=message("ping"))
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, -32600)
            assert refused.headers["www-authenticate"] == "Bearer"

            def said(key: str, body: dict[str, Any]) -> Any:
                response = http.post("/mcp", json=body, headers={"Authorization": f"Bearer {key}"})
                assert response.status_code == 200
                return response.json()["result"]

            assert not said(ann, call("ask", **ASKED))["isError"]
            not_granted = said(other, call("ask", **ASKED))
            assert not_granted["isError"]
            assert "model: expected a model" in not_granted["content"][0]["text"]
            assert said(other, call("status"))["structuredContent"]["models"] == []
            assert not said(once, call("ask", **ASKED))["isError"]
            assert said(once, call("ask", **ASKED))["isError"]


def test_documents_are_ranked_as_by_the_other_api(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = tiny_model(tmp_path_factory.mktemp("ranks") / "model.gguf", "bert", pooling_type=RANK)
    for daemon in serving(tmp_path_factory, "--model", model):
        with httpx.Client(base_url=f"http://{daemon.http}", timeout=ANSWER_S) as http:
            listed = [tool["name"] for tool in result(http, message("tools/list"))["tools"]]
            assert [name for name in listed if name != "speak"] == ["rerank", "status"]
            asked = {"query": "a", "documents": ["b", "c"], "top_n": 1}
            found = result(http, call("rerank", **asked))["structuredContent"]
            assert found == http.post("/rerank", json=asked).json()
            assert result(http, call("ask", prompt="a"))["isError"]


def test_a_recording_is_heard(tmp_path_factory: pytest.TempPathFactory) -> None:
    projector = projectors.audio(tmp_path_factory.mktemp("hears") / "mmproj.gguf")
    recording = base64.b64encode(media_files.wav(media_files.sine(seconds=2.5))).decode()
    for daemon in serving(tmp_path_factory, "--mmproj", str(projector), "--no-speculation"):
        with httpx.Client(base_url=f"http://{daemon.http}", timeout=ANSWER_S) as http:
            assert "transcribe" in [tool["name"] for tool in result(http, message("tools/list"))["tools"]]
            [heard] = result(http, call("transcribe", audio=recording, language="de"))["content"]
            form = {"file": ("a.wav", base64.b64decode(recording))}
            other = http.post("/v1/audio/transcriptions", files=form, data={"language": "de"}).json()
            assert heard["text"] == other["text"]
            refused = result(http, call("transcribe", audio="AAAA"))
            assert (refused["isError"], refused["content"][0]["text"].partition(":")[0]) == (True, "audio")


def test_a_text_is_spoken(http: httpx.Client) -> None:
    pytest.importorskip("hibari", reason="hibari-tts is not installed")
    [sound] = result(http, call("speak", input="Hello.", response_format="wav"))["content"]
    assert (sound["type"], sound["mimeType"]) == ("audio", "audio/wav")
    with wave.open(io.BytesIO(base64.b64decode(sound["data"]))) as file:
        assert file.getnframes() > file.getframerate() / 4


# -- by the protocol's own client --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_the_client_agrees_on_a_revision_and_calls(daemon: Daemon, mode: str) -> None:
    async def steps(client: Any) -> None:
        assert client.protocol_version == MODES[mode]
        assert client.server_info.name == "umaserve"
        listed = await client.list_tools()
        assert {"ask", "embed", "status"} <= {tool.name for tool in listed.tools}
        said = await client.call_tool("ask", ASKED)
        assert (json.loads(said.content[0].text), said.is_error) == ({"yes": True}, False)
        shown = await client.call_tool("status")
        assert shown.structured_content["models"][0]["name"] == MODEL
        refused = await client.call_tool("ask", {})
        assert refused.is_error
        assert "prompt: expected" in refused.content[0].text

    with_client(daemon.http, mode, steps)


@pytest.mark.parametrize("mode", MODES)
def test_the_client_is_told_of_progress(daemon: Daemon, mode: str) -> None:
    told: list[tuple[float, str | None]] = []

    async def take(progress: float, _total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async def steps(client: Any) -> None:
        said = await client.call_tool("ask", LONG | {"max_tokens": 300}, progress_callback=take)
        assert "300 tokens" in said.content[1].text

    with_client(daemon.http, mode, steps)
    assert told == sorted(told)
    assert told


def test_a_call_that_the_client_gives_up_ends(daemon: Daemon) -> None:
    gives_up(daemon.http, daemon)


def test_two_clients_beside_each_other(daemon: Daemon) -> None:
    async def steps(client: Any) -> None:
        said = await asyncio.gather(*(client.call_tool("ask", ASKED) for _ in range(4)))
        assert {one.content[0].text for one in said} == {said[0].content[0].text}

    with_client(daemon.http, "auto", steps)
