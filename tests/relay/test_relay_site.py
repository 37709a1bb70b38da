"""The relay's HTTP side and what peers do wrong: refusals, keys, operators, conversations, slow clients."""

from __future__ import annotations

import base64
import ipaddress
import json
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from http_wire import WEBSOCKET
from prometheus_client.parser import text_string_to_metric_families
from relay_peers import CHAT, MODEL, SECRET, Client, Relay, Socket, Worker, register, wait_until

from umaserve.access.keys import KeyFile
from umaserve.dialects.ollama.models import API_VERSION
from umaserve.net.channel import Channel
from umaserve.net.loop import Loop
from umaserve.relay.http import bodies as bodies_module
from umaserve.relay.http import site as site_module
from umaserve.relay.http.worker_link import MESSAGES_PER_TURN, LinkLimits, WorkerLink
from umaserve.relay.pool import request as request_module
from umaserve.relay.pool.pool import Pool, PoolLimits
from umaserve.relay.pool.request import RelayedRequest
from umaserve.wire.long_texts import LONG
from umaserve.wire.multipart import read_form
from umaserve.wire.websocket import WebSocketCodec

FLOWING = ["flow", "websocket"]
WELL = {"model": MODEL, "messages": []}


def streaming(relay: Relay, worker: Worker) -> tuple[Client, dict[str, Any]]:
    """A client whose answer has begun, and its request as the worker got it."""
    client = relay.client().post(stream=True)
    request = worker.request()
    worker.chunk(request, "data: 1\n\n")
    assert client.head()[0] == 200
    assert client.chunk() == b"data: 1\n\n"
    return client, request


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "payload: not valid JSON"),
        (b"\xff", "payload: not valid JSON"),
        (b"[]", "body: expected an object, got an array"),
        (b'{"model":5}', "model: expected "),
        (b'{"model":""}', "model: expected "),
        (b'{"model":"%s"}' % (b"x" * 257), "model: expected "),
        (b'{"model":"llama3-8b","stream":"yes"}', "stream: expected true or false, got a string"),
    ],
)
def test_a_body_that_is_wrong_reaches_no_worker(relay: Relay, body: bytes, message: str) -> None:
    worker = relay.worker()
    client = relay.client()
    response = client.post(body=body).receive()
    assert response.status == 400
    assert response.error["message"].startswith(message)
    client.post()
    assert json.loads(worker.answer()["body"]) == WELL


# -- which model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("named", [{}, {"model": None}, {"model": "default"}, {"model": MODEL}])
def test_who_names_no_model_gets_the_only_one_there_is(relay: Relay, path: str, named: dict[str, Any]) -> None:
    worker = relay.worker()
    film = "x" * 2 * LONG
    fields = {"content": "é", "messages": [{"content": [{"data": film}]}], "n": [1, 2.5, True]}
    relay.client().post(path, json.dumps({**named, **fields}).encode())
    request = worker.request()
    assert (request["endpoint_path"], request["model"]) == (path, MODEL)
    assert json.loads(request["body"]) == {"model": MODEL, **fields}, "other servers know no default"


@pytest.mark.parametrize(
    ("path", "named", "streams"),
    [
        ("/api/chat", {}, True),
        ("/api/generate", {"stream": None}, True),
        ("/api/generate", {"stream": False}, False),
        ("/api/embed", {}, False),
    ],
)
def test_ollamas_clients_get_streams_by_default_and_may_name_a_tag(
    relay: Relay, path: str, named: dict[str, Any], streams: bool
) -> None:
    worker = relay.worker()
    relay.client().post(path, json.dumps({"model": f"{MODEL}:latest", **named}).encode())
    request = worker.request()
    assert (request["endpoint_path"], request["model"], request["is_streaming"]) == (path, MODEL, streams)
    assert json.loads(request["body"]) == {"model": MODEL, **named}


def test_ollamas_clients_see_the_models_of_all_workers(relay: Relay) -> None:
    relay.worker(MODEL, "org/name:7b", "*")
    client = relay.client()
    assert client.ask("GET", "/api/version").json == {"version": API_VERSION}
    for path, more in (("/api/tags", {"modified_at"}), ("/api/ps", {"expires_at", "size_vram"})):
        first, second = client.ask("GET", path).json["models"]
        assert (first["name"], first["model"], second["name"]) == (f"{MODEL}:latest", f"{MODEL}:latest", "org/name:7b")
        assert first.keys() == {"name", "model", "size", "digest", "details"} | more
        assert first["digest"] != second["digest"]


@pytest.mark.parametrize(
    "named",
    [
        {"model": MODEL},
        {"name": f"{MODEL}:latest"},
        {"model": f"{MODEL}:latest"},
        {"model": "", "name": f"{MODEL}:latest"},
        {},
    ],
)
def test_a_worker_tells_ollamas_clients_of_its_model(relay: Relay, named: dict[str, str]) -> None:
    worker = relay.worker()
    relay.client().post("/api/show", json.dumps(named).encode())
    request = worker.request()
    assert (request["endpoint_path"], request["model"], request["is_streaming"]) == ("/api/show", MODEL, False)
    assert json.loads(request["body"])["model"] == MODEL


def test_another_name_is_not_the_only_models(relay: Relay) -> None:
    relay.worker()
    response = relay.client().post("/api/show", b'{"name":"other"}').receive()
    assert (response.status, response.json) == (404, {"error": "no provider for model other"})


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_anthropics_clients_may_ask_for_claude(relay: Relay, path: str) -> None:
    worker = relay.worker(max_concurrent=9)
    relay.client().post(path, b'{"model":"claude-opus-5"}')
    request = worker.request()
    assert (request["model"], json.loads(request["body"])) == (MODEL, {"model": MODEL})
    headers = {"anthropic-version": "2023-06-01"}
    assert relay.client().ask("GET", "/v1/models/claude-opus-5", None, headers).json["id"] == MODEL
    assert relay.client().ask("GET", "/v1/models/claude-opus-5").status == 404, "another API has no such names"
    assert relay.client().post(CHAT, b'{"model":"claude-opus-5"}').receive().status == 404


@pytest.mark.parametrize("models", [("claude-opus-5", MODEL), ("*",)])
def test_a_worker_that_has_claude_gets_its_requests(start: Callable[..., Relay], models: tuple[str, ...]) -> None:
    relay = start(default_model=MODEL)
    worker = relay.worker(*models)
    relay.client().post("/v1/messages", b'{"model":"claude-opus-5"}')
    assert worker.request()["model"] == "claude-opus-5"


def test_of_several_models_claude_is_none_without_a_default(relay: Relay) -> None:
    relay.worker("a", "b")
    response = relay.client().post("/v1/messages", b'{"model":"claude-opus-5"}').receive()
    assert (response.status, response.json) == (404, {"error": "no provider for model claude-opus-5"})


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/v1/messages", {}, 400),
        ("POST", "/v1/messages/batches", {}, 404),
        ("GET", "/v1/models/other", {"anthropic-version": "2023-06-01"}, 404),
        ("GET", "/v1/files", {"anthropic-version": "2023-06-01"}, 404),
    ],
)
def test_what_the_relay_refuses_of_anthropics_clients_is_in_their_form(
    relay: Relay, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    response = relay.client().ask(method, path, [] if method == "POST" else None, headers)
    assert response.status == status
    assert response.json["type"] == "error"


def test_what_the_relay_refuses_of_ollamas_clients_is_in_their_form(relay: Relay) -> None:
    response = relay.client().post("/api/chat", b"[]").receive()
    assert (response.status, response.json) == (400, {"error": "body: expected an object, got an array"})


def test_the_only_model_is_waited_for_while_its_worker_is_away(relay: Relay) -> None:
    relay.worker().crash()
    relay.wait_for("workers", 0)
    relay.client().post(body=b"{}")
    relay.wait_for("queue_length", 1)
    assert relay.worker().request()["model"] == MODEL


@pytest.mark.parametrize("models", [[], ["a", "b"]])
def test_of_several_models_or_none_nobody_chooses_one(relay: Relay, models: list[str]) -> None:
    if models:
        relay.worker(*models)
    response = relay.client().post(body=b"{}").receive()
    assert (response.status, response.error["message"]) == (
        400,
        "model: expected a name that GET /v1/models lists, since there is not exactly one model, got null",
    )
    response = relay.client().post(model="default").receive()
    assert (response.status, response.json) == (404, {"error": "no provider for model default"})


def test_of_several_models_the_operators_is_the_default(start: Callable[..., Relay]) -> None:
    relay = start(default_model="b")
    worker = relay.worker("a", "b", features=["websocket"], max_concurrent=9)
    for body in (b"{}", b'{"model":"default"}', b'{"model":"b"}'):
        relay.client().post(body=body)
        request = worker.request()
        assert (request["model"], request["body"].replace(" ", "")) == ("b", '{"model":"b"}')
    for first in ({"type": "config"}, {"model": "default"}, {"model": ""}):
        relay.connect("/generate").send(first)
        request = worker.request()
        assert (request["model"], json.loads(request["body"])) == ("b", first)


def test_a_model_that_is_called_default_is_itself(relay: Relay) -> None:
    worker = relay.worker("default", "other")
    relay.client().post(model="default")
    assert worker.request()["model"] == "default"


def test_one_model_is_described(relay: Relay) -> None:
    relay.worker("org/name:7b")
    client = relay.client()
    for name in ("org/name:7b", "org%2Fname%3A7b", "default"):
        response = client.ask("GET", f"/v1/models/{name}")
        assert response.status == 200
        described = response.json
        assert described.pop("created") > 0
        assert described == {"id": "org/name:7b", "object": "model", "owned_by": "local"}
    response = client.ask("GET", "/v1/models/other")
    assert (response.status, response.error["message"]) == (
        404,
        "model: expected one that /v1/models lists, got other",
    )
    assert client.ask("POST", "/v1/models/default", WELL).status == 405


def test_the_context_is_what_every_worker_takes(relay: Relay) -> None:
    client, headers = relay.client(), {"anthropic-version": "2023-06-01"}

    def contexts() -> list[int | None]:
        told = [one.get("context_length") for one in client.ask("GET", "/models").json["data"]]
        assert told == [one.get("context_length") for one in client.ask("GET", "/v1/models").json["data"]]
        assert told == [one.get("max_model_len") for one in client.ask("GET", "/v1/models").json["data"]]
        of_anthropic = client.ask("GET", "/v1/models", None, headers).json["data"]
        assert told == [one.get("max_input_tokens") for one in of_anthropic]
        for path in ("/api/tags", "/api/ps"):
            assert told == [one.get("context_length") for one in client.ask("GET", path).json["models"]]
        return told

    one = relay.worker("a", "b", "*", contexts={"a": 8192, "other": 5})
    assert contexts() == [8192, None]
    other = relay.worker("b", "a", contexts={"a": 4096, "b": 1024})
    assert contexts() == [4096, 1024]
    assert client.ask("GET", "/v1/models/a").json["context_length"] == 4096
    of_codex = client.ask("GET", "/v1/models?client_version=1").json["models"]
    assert [(one["slug"], one["context_window"]) for one in of_codex] == [("a", 4096), ("b", 1024)]
    assert client.ask("GET", "/v1/models").json["models"] == []
    other.send({"type": "models_update", "models": ["a"], "current_load": 0, "contexts": {"a": 16384}})
    one.send({"type": "models_update", "models": ["a"], "current_load": 0})
    listed = [{"id": "a", "context_length": 16384}]
    wait_until(
        lambda: (
            [
                {key: one[key] for key in ("id", "context_length") if key in one}
                for one in client.ask("GET", "/v1/models").json["data"]
            ]
            == listed
        )
    )
    assert contexts() == [16384]


def test_anthropics_clients_see_the_models_a_page_at_a_time(relay: Relay) -> None:
    relay.worker("a", "b", "c", "d", "*")
    client, headers = relay.client(), {"anthropic-version": "2023-06-01"}

    def page(query: str) -> tuple[list[str], bool]:
        told = client.ask("GET", f"/v1/models?{query}", None, headers).json
        ids = [model["id"] for model in told["data"]]
        assert (told["first_id"], told["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
        return ids, told["has_more"]

    assert page("") == (["a", "b", "c", "d"], False)
    assert page("limit=3") == (["a", "b", "c"], True)
    assert page("limit=3&after_id=c") == (["d"], False)
    assert page("limit=1&before_id=c") == (["b"], True)
    assert page("before_id=c&after_id=a") == (["b"], False)
    assert page("after_id=d") == ([], False)
    assert page("after_id=gone") == (["a", "b", "c", "d"], False)
    one = client.ask("GET", "/v1/models/b", None, headers).json
    assert one == client.ask("GET", "/v1/models", None, headers).json["data"][1]
    assert (one["type"], one["display_name"]) == ("model", "b")
    for query in ("limit=0", "limit=x", f"limit={'0' * 5000}1", "after_id=", f"before_id={'x' * 1000}"):
        response = client.ask("GET", f"/v1/models?{query}", None, headers)
        assert (response.status, response.json["error"]["type"]) == (400, "invalid_request_error")
    assert "object" in client.ask("GET", "/v1/models", None, {"x-api-key": "of another API"}).json


def test_a_body_of_too_many_values_is_not_parsed(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies_module, "MAX_VALUES", 40)
    worker = relay.worker()
    client = relay.client()
    response = client.post(x=[[]] * 40).receive()
    assert (response.status, response.error["message"]) == (
        400,
        "payload: expected at most 40 commas and brackets, got more",
    )
    client.post(x="." * 1000)
    assert json.loads(worker.answer()["body"])["x"] == "." * 1000


def test_what_no_worker_would_take_costs_none_its_link(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_module, "MAX_MESSAGE_BYTES", 4096)
    worker = relay.worker("*", features=["websocket"], max_concurrent=9)
    client, error = relay.client(), "request: larger than 67108864 bytes as a message to a worker"
    response = client.post(content='"' * 1900).receive()
    assert (response.status, response.json) == (413, {"error": error})
    response = client.ask("POST", CHAT, WELL, {"x" * 257: "1"})
    assert (response.status, response.error["message"]) == (400, "header: expected a name of at most 256 bytes")
    # Controls take six bytes each in JSON.
    talker = relay.connect("/generate?model=" + "%C3%A9" * 200)
    talker.send("\0" * 700)
    too_large = failed("/generate", "invalid_request", error)
    assert talker.receive() == too_large
    talker = relay.connect("/generate?model=" + "%C3%A9" * 200)
    talker.send("hello")
    request = worker.request()
    assert request["model"] == "é" * 128
    talker.send("\0" * 700)
    assert worker.receive() == {
        "type": "cancel",
        "request_id": request["request_id"],
        "reason": {"other": "message too large"},
    }
    assert talker.receive() == too_large
    client.post()
    assert json.loads(worker.answer()["body"]) == WELL


def test_a_client_forges_no_line_of_the_log(relay: Relay) -> None:
    assert relay.client().post(model="no\nsuch").receive().status == 404
    failed = [one for one in relay.records if one.getMessage() == "request failed"]
    assert [one.fields["error"] for one in failed] == ["no provider for model no\nsuch"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", CHAT, {"Content-Type": "text/plain"}, 415),
        ("POST", "/v1/chat", {}, 404),
        ("GET", "/", {}, 404),
        ("GET", CHAT, {}, 405),
        ("DELETE", "/v1/models", {}, 405),
        ("POST", "/models", {}, 405),
        ("DELETE", "/models", {}, 405),
        ("GET", "/models/sse", {}, 404),
        ("POST", "/v1/worker/connect", {}, 405),
        ("GET", "/v1/worker/connect", {}, 426),
        ("GET", "/generate", {}, 426),
        ("GET", "/health", {"Host": "rebound.example"}, 403),
        ("GET", "/health", {"Origin": "https://foreign.example"}, 403),
    ],
)
def test_what_is_not_served_is_refused(
    relay: Relay, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    client = relay.client()
    response = client.ask(method, path, WELL if method == "POST" else None, headers)
    assert (response.status, response.error["type"]) == (status, "invalid_request_error")
    assert client.ask("GET", "/health").status == 200


def test_who_asks_a_relay_for_what_only_daemons_have_is_told_what_it_carries(relay: Relay) -> None:
    response = relay.client().ask("POST", "/v1/generate", {"prompt": "Hello."})
    assert response.status == 404
    assert response.error["message"] == (
        "path: there is no /v1/generate: a relay forwards /api/chat, /api/embed, /api/embeddings, /api/generate, "
        "/api/show, /audio/transcriptions, /chat/completions, /chat/completions/input_tokens, /completion, "
        "/completions, /detokenize, /embedding, /embeddings, /generate, /infill, /mcp, /responses, /tokenize, "
        "/v1/audio/speech, /v1/audio/transcriptions, /v1/audio/translations, /v1/chat/completions, "
        "/v1/chat/completions/input_tokens, /v1/completions, /v1/embeddings, /v1/messages, "
        "/v1/messages/count_tokens, /v1/realtime, /v1/responses, /v1/responses/compact, "
        "/v1/responses/input_tokens, /ws/chat; "
        "ask a daemon directly for anything else"
    )


SOUND = bytes(range(256)) * 3


@pytest.mark.parametrize("in_parts", [True, False])
def test_speech_is_relayed_by_workers_that_send_bytes(relay: Relay, in_parts: bool) -> None:
    relay.worker()
    asked = json.dumps({"input": "Hello."}).encode()
    refused = relay.client().post("/v1/audio/speech", asked).receive()
    assert refused.status == 503
    assert refused.json["error"].startswith("speech: no worker with this model carries sound, only text: ")
    worker = relay.worker(features=["bytes"])
    assert worker.ack["features"] == ["bytes"]
    client = relay.client().post("/v1/audio/speech", asked)
    request = worker.request()
    assert (request["endpoint_path"], request["model"]) == ("/v1/audio/speech", MODEL)
    head, sound = {"content-type": "audio/wav"}, base64.b64encode(SOUND).decode()
    if in_parts:
        worker.chunk(request, sound, encoding="base64", status_code=200, headers=head)
        status, headers = client.head()
        assert (status, headers["content-type"], client.chunk()) == (200, "audio/wav", SOUND)
        worker.chunk(request, sound, encoding="base64")
        assert client.chunk() == SOUND
        worker.complete(request)
        assert client.chunk() == b""
    else:
        worker.complete(request, headers=head, body=sound, encoding="base64")
        response = client.receive()
        assert (response.headers["content-type"], response.body) == ("audio/wav", SOUND)


def form(**fields: str) -> bytes:
    parts = [f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}' for name, value in fields.items()]
    file = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n' % SOUND
    return file + "\r\n".join([*parts, "--b--"]).encode()


def transcribe(relay: Relay, path: str = "/v1/audio/transcriptions", **fields: str) -> Client:
    content = form(**fields)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    client = relay.client()
    client.send(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return client


def sent_form(request: dict[str, Any]) -> list[tuple[str, bytes, str | None]]:
    """The parts of the form that a worker gets."""
    parts = read_form(base64.b64decode(request["body"]), request["headers"]["content-type"])
    return [(part.name, bytes(part.data), part.filename) for part in parts]


@pytest.mark.parametrize("stream", ["true", "false"])
def test_a_form_is_relayed_to_workers_that_take_them(relay: Relay, stream: str) -> None:
    relay.worker(features=["bytes"])
    refused = transcribe(relay, model=MODEL).receive()
    assert refused.status == 503
    assert refused.json["error"].startswith("form: no worker with this model takes forms with files: ")
    worker = relay.worker(features=["forms"])
    assert worker.ack["features"] == ["forms"]
    client = transcribe(relay, model=MODEL, stream=stream)
    request = worker.request()
    assert (request["model"], request["is_streaming"], request["encoding"]) == (MODEL, stream == "true", "base64")
    assert sent_form(request) == [
        ("model", MODEL.encode(), None),
        ("file", SOUND, "a"),
        ("stream", stream.encode(), None),
    ]
    worker.complete(request, headers={"content-type": "application/json"}, body='{"text":"It rains."}')
    assert client.receive().json == {"text": "It rains."}


@pytest.mark.parametrize("fields", [{"model": "default"}, {}])
@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/audio/transcriptions", "/v1/audio/translations"])
def test_a_form_gets_the_name_of_the_default_model(relay: Relay, path: str, fields: dict[str, str]) -> None:
    worker = relay.worker(features=["forms"])
    client = transcribe(relay, path, **fields)
    request = worker.request()
    assert (request["model"], request["endpoint_path"]) == (MODEL, path)
    assert sent_form(request) == [("model", MODEL.encode(), None), ("file", SOUND, "a")]
    client.close()


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{}", "application/json", 415),
        (b"no form", "multipart/form-data; boundary=b", 400),
        (form(model=""), "multipart/form-data; boundary=b", 400),
        (form(model="x" * 257), "multipart/form-data; boundary=b", 400),
    ],
)
def test_what_is_no_form_is_refused(relay: Relay, content: bytes, kind: str, status: int) -> None:
    client = relay.client()
    head = f"POST /v1/audio/translations HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    client.send(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    response = client.receive()
    assert (response.status, response.error["type"]) == (status, "invalid_request_error")


def test_speech_that_breaks_off_is_no_whole_sound(relay: Relay) -> None:
    worker = relay.worker(features=["bytes"])
    client = relay.client().post("/v1/audio/speech", b"{}")
    head, sound = {"content-type": "audio/wav"}, base64.b64encode(SOUND).decode()
    worker.chunk(worker.request(), sound, encoding="base64", status_code=200, headers=head)
    assert client.head()[0] == 200
    assert client.chunk() == SOUND
    worker.crash()
    assert client.rest() == b""


def test_bytes_that_are_none_cost_a_worker_its_link(relay: Relay) -> None:
    worker = relay.worker(features=["bytes"])
    client = relay.client().post("/v1/audio/speech", b"{}")
    worker.chunk(worker.request(), "no base64", encoding="base64")
    assert worker.closed() == (1002, "worker protocol error")
    assert relay.worker(features=["bytes"]).request()["body"].startswith("{")
    client.close()


@pytest.mark.parametrize("framing", ["Content-Length: 1025\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n401\r\n"])
def test_a_body_that_is_too_large_is_refused_before_it_comes(start: Callable[..., Relay], framing: str) -> None:
    client = start(max_body_bytes=1024).client()
    client.send(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{framing}".encode())
    assert client.receive().status == 413


@pytest.mark.parametrize(
    ("path", "allowed"),
    [(CHAT, "POST, OPTIONS"), ("/v1/models", "GET, HEAD, OPTIONS"), ("/admin/keys/1", "DELETE, OPTIONS")],
)
def test_options_tell_the_methods(relay: Relay, path: str, allowed: str) -> None:
    response = relay.client().ask("OPTIONS", path)
    assert (response.status, response.headers["allow"]) == (200, allowed)


def test_pages_of_a_named_origin_may_ask_and_read(start: Callable[..., Relay]) -> None:
    relay = start(cors_origin=("https://chat.example",))
    worker, client = relay.worker(), relay.client()
    origin = {"Origin": "https://chat.example"}
    preflight = client.ask("OPTIONS", CHAT, None, origin | {"Access-Control-Request-Headers": "authorization"})
    assert preflight.status == 200
    assert preflight.headers["access-control-allow-headers"] == "authorization"
    client.send(
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 21\r\n"
        f'Origin: https://chat.example\r\n\r\n{{"model":"llama3-8b"}}'.encode()
    )
    # Whose pages may read it is for the relay to say, and once.
    worker.complete(worker.request(), headers={"Access-Control-Allow-Origin": "*", "vary": "accept"}, body="{}")
    status, headers = client.head()
    assert (status, headers["access-control-allow-origin"]) == (200, "https://chat.example")


def test_connections_beyond_the_limit_are_closed(start: Callable[..., Relay]) -> None:
    relay = start(max_connections=1)
    client = relay.client()
    assert client.ask("GET", "/health").status == 200
    assert relay.client().rest() == b""
    assert client.ask("GET", "/health").status == 200


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def keyed(start: Callable[..., Relay], tmp_path: Path) -> Relay:
    return start(client_keys=str(tmp_path / "keys.json"))


def made_key(relay: Relay, name: str = "alice") -> str:
    response = relay.admin("POST", "/keys", {"name": name})
    assert response.status == 201
    return response.json["key"]


def models_with(relay: Relay, *headers: tuple[str, str]) -> int:
    return relay.client().ask("GET", "/v1/models", None, dict(headers)).status


def test_every_request_of_a_client_needs_a_key(keyed: Relay) -> None:
    keyed.worker()
    client = keyed.client()
    for path, body in ((CHAT, WELL), ("/v1/embeddings", WELL), ("/v1/models", None)):
        for headers in ({}, {"Authorization": "Bearer umar_wrong"}, {"X-Api-Key": "x" * 9999}):
            response = client.ask("POST" if body else "GET", path, body, headers)
            assert response.status == 401
            assert response.headers["www-authenticate"] == "Bearer"
    assert client.ask("GET", "/generate", None, WEBSOCKET).status == 401
    assert client.ask("GET", "/health").status == 200


@pytest.mark.parametrize("header", ["Authorization", "X-Api-Key"])
def test_the_worker_is_told_whose_request_it_is_and_not_the_key(keyed: Relay, header: str) -> None:
    worker, key = keyed.worker(), made_key(keyed)
    presented = {header: f"Bearer {key}" if header == "Authorization" else key}
    client = keyed.client()
    content = json.dumps(WELL).encode()
    fields = {"Host": "x", "Content-Type": "application/json", "Content-Length": len(content), "X-Relay-Client": "bob"}
    lines = [f"{name}: {value}" for name, value in ({**fields, **presented, "Host": "localhost"}).items()]
    client.send("\r\n".join([f"POST {CHAT} HTTP/1.1", *lines, "", ""]).encode() + content)
    request = worker.answer()
    assert request["headers"] == {
        "content-type": "application/json",
        "x-relay-client": "alice",
        "via": "1.1 umaserve",
    }
    assert key not in json.dumps(request)
    assert client.receive().status == 200


def test_without_keys_a_client_names_itself_to_nobody(relay: Relay) -> None:
    worker = relay.worker()
    relay.client().send(
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 21\r\n"
        f'X-Relay-Client: alice\r\nAuthorization: Bearer backend\r\n\r\n{{"model":"llama3-8b"}}'.encode()
    )
    assert worker.request()["headers"] == {
        "content-type": "application/json",
        "authorization": "Bearer backend",
        "via": "1.1 umaserve",
    }


def test_a_revoked_key_opens_nothing_any_more(keyed: Relay) -> None:
    key, other = made_key(keyed), made_key(keyed, "bob")
    assert models_with(keyed, ("X-Api-Key", key)) == 200
    listed = keyed.admin("GET", "/keys")
    assert [(one["name"], one["revoked"]) for one in listed.json["keys"]] == [("alice", None), ("bob", None)]
    assert key not in listed.body.decode()
    id_ = listed.json["keys"][0]["id"]
    assert keyed.admin("DELETE", f"/keys/{id_}").status == 200
    assert models_with(keyed, ("X-Api-Key", key)) == 401
    assert models_with(keyed, ("X-Api-Key", other)) == 200
    assert keyed.admin("DELETE", f"/keys/{id_}").status == 404


def test_a_key_that_another_process_revokes_is_noticed(keyed: Relay, tmp_path: Path) -> None:
    key = made_key(keyed)
    assert models_with(keyed, ("X-Api-Key", key)) == 200
    assert KeyFile(str(tmp_path / "keys.json")).revoke("alice")
    wait_until(lambda: models_with(keyed, ("X-Api-Key", key)) == 401)


@pytest.mark.parametrize(("method", "path", "body"), [("POST", "/keys", {"name": "bob"}), ("GET", "/keys", None)])
def test_a_file_of_keys_that_cannot_be_used_is_an_error_reply(
    method: str, path: str, body: dict | None, keyed: Relay, tmp_path: Path
) -> None:
    key = made_key(keyed)
    (tmp_path / "keys.json").write_text("broken")
    answer = keyed.admin(method, path, body)
    assert answer.status == 500
    assert answer.json["error"]["message"] == "keys: the file of keys can't be used: see the relay's log"
    assert models_with(keyed, ("X-Api-Key", key)) == 200, "the keys read before hold"


def test_keys_survive_a_restart(keyed: Relay, start: Callable[..., Relay], tmp_path: Path) -> None:
    key, revoked = made_key(keyed), made_key(keyed, "bob")
    assert keyed.admin("DELETE", "/keys/2").status == 200
    keyed.end()
    again = start(client_keys=str(tmp_path / "keys.json"))
    assert models_with(again, ("Authorization", f"Bearer {key}")) == 200
    assert models_with(again, ("Authorization", f"Bearer {revoked}")) == 401


# -- operators ---------------------------------------------------------------------------------------------------------


def test_without_a_token_there_is_no_admin_api(start: Callable[..., Relay]) -> None:
    relay = start(admin_token="")
    for token in ("", "anything"):
        assert relay.admin("GET", "/workers", token=token).status == 404


def test_wrong_tokens_are_refused_and_then_even_the_right_one(relay: Relay) -> None:
    for number in range(5):
        assert relay.admin("GET", "/workers", token=f"wrong {number}").status == 401
    assert relay.admin("GET", "/workers").status == 429


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("POST", "/workers", {}, 405),
        ("POST", "/workers/w-000000/drain", {}, 404),
        ("POST", "/workers/w-000000/refresh", {}, 404),
        ("POST", "/drain", {"drain_timeout_secs": -1}, 400),
        ("POST", "/drain", {"reason": 5}, 400),
        ("POST", "/drain", [], 400),
        ("POST", "/keys", {}, 400),
        ("POST", "/keys", {"name": "a b"}, 400),
        ("POST", "/keys", {"name": "taken"}, 400),
        ("DELETE", "/keys/9", None, 404),
        ("DELETE", "/keys/x", None, 404),
    ],
)
def test_operators_mistakes_change_nothing(keyed: Relay, method: str, path: str, body: Any, status: int) -> None:
    keyed.worker()
    made_key(keyed, "taken")
    assert keyed.admin(method, path, body).status == status
    assert [worker["draining"] for worker in keyed.workers()] == [False]
    assert len(keyed.admin("GET", "/keys").json["keys"]) == 1


def test_where_clients_need_no_keys_there_are_none_to_make(relay: Relay) -> None:
    for method, path, body in (("GET", "/keys", None), ("POST", "/keys", {"name": "a"}), ("DELETE", "/keys/1", None)):
        assert relay.admin(method, path, body).status == 404


# -- whose address counts ----------------------------------------------------------------------------------------------


def fail_from(relay: Relay, address: str) -> str:
    return relay.dial(x_worker_secret="wrong", x_forwarded_for=address).closed()[1]


def test_a_trusted_proxy_says_who_has_failed(start: Callable[..., Relay]) -> None:
    relay = start(trusted_proxy=(ipaddress.ip_network("127.0.0.0/8"),))
    for _ in range(5):
        assert fail_from(relay, "192.0.2.1") == "worker authentication failed"
    assert fail_from(relay, "192.0.2.1") == "worker authentication temporarily rate limited"
    assert fail_from(relay, "192.0.2.1, 192.0.2.2") == "worker authentication failed"


def test_anybody_else_is_not_believed(relay: Relay) -> None:
    for number in range(5):
        assert fail_from(relay, f"192.0.2.{number}") == "worker authentication failed"
    assert fail_from(relay, "192.0.2.9") == "worker authentication temporarily rate limited"


# -- pages -------------------------------------------------------------------------------------------------------------


def test_the_models_are_those_of_all_workers(relay: Relay) -> None:
    for models in (["a", "b"], ["b", "*", "c"]):
        relay.worker(*models)
    gone = relay.worker("gone")
    gone.crash()
    relay.wait_for("workers", 2)
    listed = relay.client().ask("GET", "/v1/models").json
    assert listed["object"] == "list"
    assert [(one["id"], one["object"], one["owned_by"]) for one in listed["data"]] == [
        (name, "model", "local") for name in ("a", "b", "c")
    ]


def test_health_and_metrics_tell_how_it_is(relay: Relay) -> None:
    worker = relay.worker()
    client, _request = streaming(relay, worker)
    other = relay.client()
    assert other.ask("GET", "/health").json == {"status": "ok", "workers": 1}
    assert other.ask("HEAD", "/health").status == 200
    metrics = {
        sample.name: sample.value
        for family in text_string_to_metric_families(other.ask("GET", "/metrics").body.decode())
        for sample in family.samples
    }
    found = {
        name: metrics[f"umaserve_relay_{name}"] for name in ("workers", "in_flight", "requests_total", "failed_total")
    }
    assert found == {"workers": 1, "in_flight": 1, "requests_total": 1, "failed_total": 0}
    client.close()


# -- workers that do wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"binary", 1003),
        ("{", 1002),
        ("[]", 1002),
        ({"type": "hello"}, 1002),
        (register(), 1002),
        ({"type": "pong"}, 1002),
        ({"type": "models_update", "models": [5], "current_load": 0}, 1002),
        ({"type": "response_chunk", "request_id": "r-1"}, 1002),
        ({"type": "response_complete", "request_id": "r-1", "status_code": 99}, 1002),
        ({"type": "response_complete", "request_id": "r-1", "status_code": 200, "headers": {"a\r\nb": "c"}}, 1002),
        ({"type": "response_complete", "request_id": "r-1", "status_code": 200, "headers": {"a": "b\r\nc: d"}}, 1002),
        ({"type": "response_complete", "request_id": "r-1", "status_code": 200, "headers": {"a": "€"}}, 1002),
        ({"type": "response_complete", "request_id": "r-1", "status_code": 200, "headers": {"a": 5}}, 1002),
        ("x" * (64 * 1024 + 1), 1009),
    ],
)
def test_a_worker_that_breaks_the_protocol_loses_its_link_and_nobody_else_anything(
    start: Callable[..., Relay], message: Any, code: int
) -> None:
    relay = start(max_message_bytes=64 * 1024)
    wrong = relay.worker()
    client = relay.client().post()
    first = wrong.request()
    right = relay.worker(max_concurrent=2)
    other, others = streaming(relay, right)
    wrong.send(message)
    assert wrong.closed()[0] == code
    assert right.answer() == first
    assert client.receive().status == 200
    right.chunk(others, "on")
    assert other.chunk() == b"on"


def long_frame(opcode: int, data: bytes) -> bytes:
    """As a client sends it (RFC 6455 5.2), with a mask of zeros and a length in two bytes."""
    return struct.pack("!BBH4x", 0x80 | opcode, 0x80 | 126, len(data)) + data


def test_a_worker_that_has_broken_the_protocol_is_gone_before_its_connection_is(relay: Relay) -> None:
    wrong = relay.client()
    assert wrong.ask("GET", "/v1/worker/connect", None, WEBSOCKET | {"X-Worker-Secret": SECRET}).status == 101
    wrong.send(long_frame(1, json.dumps(register(worker_name="x" * 200)).encode()))
    relay.wait_for("workers", 1)
    wrong.send(long_frame(2, bytes(200)))
    # It neither answers the close nor leaves.
    heard = b""
    while not heard.endswith(b"expected text, got binary"):
        heard += wrong.file.read(1) or pytest.fail("it was closed without a reason")
    assert relay.workers() == []


@pytest.mark.parametrize(
    "message",
    [
        {"type": "response_chunk", "request_id": "r-99", "chunk": "x"},
        {"type": "response_complete", "request_id": "r-99", "status_code": 200},
        {"type": "error", "request_id": "r-99", "code": "x", "message": "x"},
        {"type": "error", "code": "x", "message": "x"},
    ],
)
def test_what_a_worker_says_of_no_request_of_its_own_is_dropped(relay: Relay, message: dict[str, Any]) -> None:
    worker, other = relay.worker(), relay.worker("other")
    client = relay.client().post(model="other")
    request = other.request()
    worker.send(message)
    # Nor may it answer for another.
    worker.complete(request, body='"not mine"')
    relay.client().post()
    worker.answer()
    other.complete(request, body='"mine"')
    assert client.receive().body == b'"mine"'


def test_headers_of_the_workers_own_connection_stay_there(relay: Relay) -> None:
    worker, client = relay.worker(), relay.client()
    headers = {
        "Connection": "close, X-Hop",
        "X-Hop": "1",
        "Keep-Alive": "timeout=1",
        "Proxy-Connection": "close",
        "Transfer-Encoding": "chunked",
        "Content-Length": "1",
        "Trailer": "x",
        "TE": "trailers",
        "Upgrade": "h2c",
        "Date": "never",
        "X-Kept": "yes",
        "VIA": "1.1 backend",
    }
    via = "1.1 backend, 1.1 umaserve"
    client.post()
    worker.complete(worker.request(), headers=headers, body="the body")
    response = client.receive()
    assert response.body == b"the body"
    assert response.headers.pop("date") != "never"
    assert response.headers == {"x-kept": "yes", "via": via, "content-length": "8"}
    client.post(stream=True)
    worker.chunk(worker.request(), "the stream", headers=headers)
    head = client.head()[1]
    del head["date"]
    assert head == {"x-kept": "yes", "via": via, "transfer-encoding": "chunked"}
    assert client.chunk() == b"the stream"


@pytest.mark.parametrize(
    ("version", "before", "after"),
    [
        ("1.1", "", "1.1 umaserve"),
        ("1.0", "", "1.0 umaserve"),
        ("1.1", "Via: 1.0 a\r\nVia: 1.1 b\r\n", "1.0 a, 1.1 b, 1.1 umaserve"),
    ],
)
def test_headers_of_the_clients_own_connection_stay_there(relay: Relay, version: str, before: str, after: str) -> None:
    worker = relay.worker()
    relay.client().send(
        f"POST {CHAT} HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 21\r\n"
        "Connection: keep-alive, X-Hop,\r\nX-Hop: 1\r\nConnection: x-other\r\nX-Other: 2\r\nTE: trailers\r\n"
        f'Accept-Encoding: gzip\r\nX-Kept: yes\r\n{before}\r\n{{"model":"llama3-8b"}}'.encode()
    )
    assert worker.request()["headers"] == {"content-type": "application/json", "x-kept": "yes", "via": after}


def test_only_so_many_workers_are_taken(start: Callable[..., Relay]) -> None:
    relay = start(max_workers=1)
    relay.worker()
    assert relay.dial().closed() == (1008, "the relay accepts no more workers")


# -- large answers and slow clients ------------------------------------------------------------------------------------


def test_an_answer_that_is_too_large_is_a_bad_gateway(start: Callable[..., Relay]) -> None:
    relay = start(max_response_bytes=1024)
    worker, error = relay.worker(max_concurrent=9), {"error": "response: larger than 1024 bytes"}
    client = relay.client().post()
    worker.complete(worker.request(), body="x" * 1025)
    assert client.receive().json == error
    client.post(stream=True)
    request = worker.request()
    worker.chunk(request, "x" * 1025)
    assert client.receive().json == error
    assert (worker.receive()["type"], relay.stat("failed_total")) == ("cancel", 2)
    client, request = streaming(relay, worker)
    worker.chunk(request, "x" * 1016)
    assert client.chunk() == b'data: {"error":"response: larger than 1024 bytes"}\n\n'
    assert client.chunk() == b""
    client.post()
    assert worker.receive()["type"] == "cancel"
    worker.complete(worker.request(), body="x" * 1024)
    assert client.receive().body == b"x" * 1024


def flood(worker: Worker, request: dict[str, Any], n: int) -> bytes:
    for _ in range(n):
        worker.chunk(request, ":" * 2**15)
    return b":" * (n * 2**15)


def test_a_worker_is_told_to_pause_for_a_slow_client_and_others_go_on(relay: Relay) -> None:
    worker = relay.worker(max_concurrent=2, features=[*FLOWING, "unheard-of"])
    assert worker.ack["features"] == FLOWING
    slow = relay.client(receive_buffer=4096).post(stream=True)
    request = worker.request()
    sent = flood(worker, request, 32)
    assert worker.receive() == {"type": "flow", "request_id": request["request_id"], "paused": True}
    other, others = streaming(relay, worker)
    for _ in range(3):
        worker.chunk(others, "on")
        assert other.chunk() == b"on"
    assert slow.head()[0] == 200
    received = b"".join(slow.chunk() for _ in range(32))
    assert received == sent
    assert worker.receive() == {"type": "flow", "request_id": request["request_id"], "paused": False}
    worker.complete(request)
    assert slow.chunk() == b""


def test_a_worker_that_cannot_pause_loses_a_client_that_does_not_read(relay: Relay) -> None:
    worker = relay.worker(max_concurrent=2)
    relay.client(receive_buffer=4096).post(stream=True)
    request = worker.request()
    other, others = streaming(relay, worker)
    flood(worker, request, 160)
    assert worker.receive() == {
        "type": "cancel",
        "request_id": request["request_id"],
        "reason": "client_disconnect",
    }
    worker.chunk(others, "on")
    assert other.chunk() == b"on"


def test_a_client_that_reads_nothing_for_the_idle_timeout_is_dropped(start: Callable[..., Relay]) -> None:
    relay = start(idle_timeout=0.5)
    worker = relay.worker(features=["flow"])
    relay.client(receive_buffer=4096).post(stream=True)
    request = worker.request()
    flood(worker, request, 32)
    assert worker.receive() == {"type": "flow", "request_id": request["request_id"], "paused": True}
    cancel = {"type": "cancel", "request_id": request["request_id"], "reason": "client_disconnect"}
    assert worker.receive() == cancel


def test_a_large_part_of_an_answer_is_no_slow_client(relay: Relay) -> None:
    worker = relay.worker()
    client, request = streaming(relay, worker)
    part = "x" * 5 * 2**20
    for _ in range(2):
        worker.chunk(request, part)
        assert client.chunk() == part.encode()


class Heard:
    """A client of the pool that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def begin(self, status: int, headers: object) -> None:
        self.told.append(f"begin {status}")

    def write(self, chunk: str) -> None:
        self.told.append(chunk)

    def end(self) -> None:
        self.told.append("end")

    def fail(self, status: int, error: str) -> None:
        self.told.append(error)


def test_a_worker_that_leaves_is_heard_to_its_last_word() -> None:
    loop, (ours, theirs) = Loop(), socket.socketpair()
    pool = Pool(loop, PoolLimits(1, 10.0, 10.0, 10.0, 2**20))
    channel = Channel(loop, ours, high_water=2**16, stall_timeout=10.0)
    link = WorkerLink(
        loop, pool, channel, WebSocketCodec(2**20), LinkLimits(10.0, 20.0, 10.0), "peer", lambda _link: None
    )
    codec, client = WebSocketCodec(2**20, client=True), Heard()
    link.data_received(codec.send(json.dumps(register()).encode()))
    pool.submit(RelayedRequest("r-1", MODEL, CHAT, True, "{}", {}, client))  # type: ignore[arg-type]
    parts = [f"data:{number}\n\n" for number in range(2 * MESSAGES_PER_TURN)]
    messages = [{"type": "response_chunk", "request_id": "r-1", "chunk": part} for part in parts]
    messages.append({"type": "response_complete", "request_id": "r-1", "status_code": 200})
    # Within TLS, the end may come in one piece with all that was before it.
    link.data_received(b"".join(codec.send(json.dumps(message).encode()) for message in messages) + codec.close(1000))
    link.input_ended()
    for _ in range(8):
        loop.call_soon(lambda: None)
        loop.turn()
    assert client.told == ["begin 200", *parts, "end"]
    assert not channel.open
    channel.abort()
    theirs.close()
    loop.close()


# -- conversations -----------------------------------------------------------------------------------------------------

HELLO = {"type": "config", "model": MODEL}


def failed(path: str, kind: str, message: str, recovery: str | None = "modify_request") -> dict[str, Any]:
    """An error as the contract of the path has it; ``recovery``: what ``/generate`` advises, if anything helps."""
    if path == "/ws/chat":
        return {"type": "error", "error": message}
    advice = {"recoverable": recovery is not None, "recovery_action": recovery or "none"}
    return {"type": "error", "error": kind, "message": message, **advice}


@pytest.mark.parametrize("path", ["/generate", "/ws/chat"])
def test_a_websocket_is_relayed_frame_by_frame(relay: Relay, path: str) -> None:
    relay.worker()
    worker = relay.worker(features=["websocket"])
    client = relay.connect(path)
    client.send(HELLO)
    request = worker.request()
    assert (request["endpoint_path"], request["model"], request["is_streaming"]) == (path, MODEL, True)
    assert json.loads(request["body"]) == HELLO
    assert not request["headers"].keys() & {"upgrade", "connection", "sec-websocket-key"}
    for number, frame in enumerate(('{"token": "Grüße 🦙"}', "not JSON at all", "")):
        worker.chunk(request, frame)
        assert client.text() == frame
        client.send(f"frame {number}")
        follows = worker.request()
        assert (follows["request_id"], follows["body"]) == (request["request_id"], f"frame {number}")
        assert "headers" not in follows
    worker.complete(request)
    assert client.closed()[0] == 1000


@pytest.mark.parametrize(
    "leave", [lambda client: client.connection.close(), Socket.crash, lambda client: client.send(b"binary")]
)
def test_a_client_that_closes_its_websocket_cancels_it(relay: Relay, leave: Callable[[Socket], None]) -> None:
    worker = relay.worker(features=["websocket"])
    client = relay.connect("/generate")
    client.send(HELLO)
    request = worker.request()
    leave(client)
    assert worker.receive() == {
        "type": "cancel",
        "request_id": request["request_id"],
        "reason": "client_disconnect",
    }


def test_what_a_client_has_said_before_an_answer_is_said_to_the_next_worker(relay: Relay) -> None:
    worker = relay.worker(features=["websocket"])
    client = relay.connect("/generate")
    client.send(HELLO)
    client.send("and more")
    messages = [worker.request(), worker.request()]
    worker.crash()
    after = relay.worker(features=["websocket"])
    assert [after.request(), after.request()] == messages
    after.chunk(messages[0], "an answer")
    assert client.text() == "an answer"
    # After an answer it is nobody else's.
    after.crash()
    broken = "the worker disconnected after it had begun to answer"
    assert client.receive() == failed("/generate", "internal_error", broken, None)
    assert client.closed()[0] == 1011


@pytest.mark.parametrize("path", ["/generate", "/ws/chat"])
@pytest.mark.parametrize(
    ("models", "queue_len", "error"),
    [
        (["other"], 1, ("invalid_request", "no provider for model llama3-8b")),
        ([MODEL], 0, ("rate_limited", "queue full", "retry")),
        ([MODEL], 1, ("timeout", "queue timeout: no worker available within deadline", "retry")),
    ],
)
def test_a_websocket_that_no_worker_can_have_is_told_so(
    start: Callable[..., Relay], models: list[str], queue_len: int, error: tuple[str, ...], path: str
) -> None:
    relay = start(queue_timeout=0.2, max_queue_len=queue_len)
    worker = relay.worker(*models, features=["websocket"])
    relay.client().post(model=models[0])
    worker.request()
    client = relay.connect(path)
    client.send(HELLO)
    assert client.receive() == failed(path, *error)
    assert client.closed()[0] == 1011


@pytest.mark.parametrize("path", ["/generate", "/ws/chat"])
def test_a_websocket_waits_for_no_worker_that_carries_none(relay: Relay, path: str) -> None:
    relay.worker()
    client = relay.connect(path)
    client.send(HELLO)
    no_websockets = (
        "websocket: no worker with this model carries WebSockets, only HTTP: use /v1/chat/completions, or have an "
        "umaserve daemon work for the relay"
    )
    assert client.receive() == failed(path, "internal_error", no_websockets, "reconnect")
    assert client.closed()[0] == 1011


@pytest.mark.parametrize("path", ["/generate", "/ws/chat"])
@pytest.mark.parametrize(
    ("message", "code", "error"),
    [
        ("x" * 1025, 1009, "message: expected at most 1024 bytes, got 1025"),
        (b"binary", 1003, "message: expected text, got binary"),
    ],
)
@pytest.mark.parametrize("begun", [False, True])
def test_a_message_that_cannot_be_taken_is_explained_before_the_close(
    start: Callable[..., Relay], path: str, message: str | bytes, code: int, error: str, begun: bool
) -> None:
    relay = start(max_body_bytes=1024)
    worker = relay.worker(features=["websocket"])
    client = relay.connect(path)
    if begun:
        client.send(HELLO)
        worker.request()
    client.send(message)
    assert client.receive() == failed(path, "invalid_request", error)
    assert client.closed() == (code, error)


def test_a_relay_that_ends_says_so_to_those_who_wait(start: Callable[..., Relay]) -> None:
    relay = start()
    relay.worker(features=["websocket"]).crash()
    relay.wait_for("workers", 0)
    clients = {path: relay.connect(path) for path in ("/generate", "/ws/chat")}
    for client in clients.values():
        client.send(HELLO)
    relay.wait_for("queue_length", 2)
    relay.stop()
    for path, client in clients.items():
        assert client.receive() == failed(path, "internal_error", "the relay is shutting down", "reconnect")


@pytest.mark.parametrize(
    ("query", "first", "model"),
    [
        ("?model=b", {"model": "a"}, "a"),
        ("?model=b", {"model": "default"}, "b"),
        ("?model=b", {"type": "config"}, "b"),
        ("", {"model": "b"}, "b"),
        ("?model=default", {"model": "a"}, "a"),
        ("?model=default", {}, ""),
        ("", {"model": "default"}, ""),
        ("", {"type": "config"}, ""),
        ("", "not JSON", ""),
    ],
)
def test_the_model_of_a_websocket_is_in_the_first_message_or_the_query(
    relay: Relay, query: str, first: Any, model: str
) -> None:
    worker = relay.worker("a", "b", features=["websocket"])
    client = relay.connect(f"/generate{query}")
    client.send(first)
    assert worker.request()["model"] == model


@pytest.mark.parametrize("path", ["/generate", "/ws/chat"])
@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (404, "there is no such thing", "invalid_request", "there is no such thing"),
        (413, '{"error":{"message":"body: too long","type":"x"}}', "invalid_request", "body: too long"),
        (503, '{"error":"it leaves"}', "internal_error", "it leaves"),
        (400, '{"error":7}', "invalid_request", '{"error":7}'),
        (404, "", "invalid_request", "the worker answered with status 404"),
    ],
)
def test_a_worker_that_refuses_a_websocket_is_quoted(
    relay: Relay, status: int, body: str, kind: str, words: str, path: str
) -> None:
    worker = relay.worker(features=["websocket"])
    client = relay.connect(path)
    client.send(HELLO)
    worker.complete(worker.request(), status, body=body)
    recovery = "reconnect" if status == 503 else "modify_request"
    assert client.receive() == failed(path, kind, words, recovery)
    assert client.closed()[0] == 1011


def test_a_websocket_may_not_say_too_much_before_an_answer(relay: Relay) -> None:
    worker = relay.worker(features=["websocket"])
    client = relay.connect("/generate")
    for number in range(66):
        client.send(str(number) if number else HELLO)
    too_many = "message: expected at most 64 frames before the answer begins, got more"
    assert client.receive() == failed("/generate", "invalid_request", too_many)
    assert client.closed()[0] == 1011
    assert [worker.request()["body"] for _ in range(65)][1:] == [str(number) for number in range(1, 65)]
    assert worker.receive()["type"] == "cancel"


def test_nor_too_large_a_part_of_it(start: Callable[..., Relay]) -> None:
    relay = start(max_body_bytes=1024)
    client = relay.connect(f"/generate?model={MODEL}")
    relay.worker(features=["websocket"])
    for size in (1000, 600, 600):
        client.send("x" * size)
    too_large = "message: expected at most 1024 bytes before the answer begins, got more"
    assert client.receive() == failed("/generate", "invalid_request", too_large)
    assert client.closed()[0] == 1011


@pytest.mark.parametrize("path", ["/generate", "/ws/chat"])
def test_a_websocket_that_says_nothing_is_closed(start: Callable[..., Relay], path: str) -> None:
    client = start(idle_timeout=0.3).connect(path)
    assert client.receive() == failed(path, "timeout", "request: it did not arrive in time", "retry")
    assert client.closed()[0] == 1001


def test_a_key_may_end_between_a_handshake_and_its_first_message(keyed: Relay) -> None:
    keyed.worker(features=["websocket"])
    client = keyed.connect("/generate", authorization=f"Bearer {made_key(keyed)}")
    assert keyed.admin("DELETE", "/keys/1").status == 200
    client.send(HELLO)
    assert "was revoked" in json.dumps(client.receive())
    assert client.closed()[0] == 1011


# -- what it is made of ------------------------------------------------------------------------------------------------


def test_a_relay_takes_all_the_descriptors_that_it_may_have(start: Callable[..., Relay]) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] // 2, before[1]))
    try:
        start()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_relay_needs_no_engine() -> None:
    program = "import umaserve.relay.server, sys; assert 'llama_cpp' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


LARGE = 3 * site_module.SMALL_BYTES


@pytest.mark.parametrize("path", ["/generate", "/ws/chat"])
def test_what_a_conversation_sends_counts_until_it_is_answered(start: Callable[..., Relay], path: str) -> None:
    relay = start(idle_timeout=2.0)
    worker = relay.worker(features=["websocket"])
    client = relay.connect(path)
    client.send({**HELLO, "padding": "x" * LARGE})
    request = worker.request()
    assert LARGE > relay.drawn > site_module.SMALL_BYTES
    worker.chunk(request, "answer")
    assert client.text() == "answer"
    assert relay.drawn == 0
    # The next one never comes whole.
    client.connection.socket.sendall(WebSocketCodec(LARGE, client=True).send(b" " * LARGE)[:-1])
    assert client.receive() == failed(path, "timeout", "request: it did not arrive in time", "retry")
    assert client.closed()[0] == 1001
    assert relay.drawn == 0


@pytest.mark.parametrize("end", ["begun", "answered", "failed", "left"])
def test_a_body_counts_until_it_is_answered_or_nobody_waits(start: Callable[..., Relay], end: str) -> None:
    relay = start()
    worker = relay.worker()
    client = relay.client().post(body=json.dumps({"model": MODEL, "stream": True, "padding": "x" * LARGE}).encode())
    request = worker.request()
    assert LARGE > relay.drawn > site_module.SMALL_BYTES
    match end:
        case "begun":
            worker.chunk(request, "data: x\n\n")
        case "answered":
            worker.complete(request, body="{}")
        case "failed":
            worker.send({"type": "error", "request_id": request["request_id"], "code": "x", "message": "x"})
        case "left":
            client.reset()
    wait_until(lambda: relay.drawn == 0)
