"""The OpenAPI document: it describes the routes there are, and the running server's answers are as it says."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import jsonschema
import openapi_spec_validator
import pytest
import websockets.sync.client
from daemon import ANSWER_S, Daemon
from http_wire import Http
from openapi_document import (
    BODIES,
    DOCUMENT,
    EXAMPLES,
    FORMS,
    GETS,
    OPERATIONS,
    POSTS,
    check_answer,
    check_request,
    check_response,
    fields,
    request_schema,
    resolved,
)
from routes import MODEL_INFO, aliases, dialects, facts, routes
from standin import StandInEngine

import umaserve
from umaserve.access.keys import KeyFile
from umaserve.core.errors import RequestError
from umaserve.core.events import VoiceInfo
from umaserve.daemon.http.health import health
from umaserve.dialects.facts import Facts
from umaserve.dialects.openai.speech import text_to_speech
from umaserve.dialects.routes import EngineQuestion, SpeechReply, TextReply
from umaserve.settings.daemon import Config
from umaserve.wire.fields import Fields
from umaserve.wire.http_head import Request

ROUTES = routes()
SPEAKING = replace(
    facts(), voice=VoiceInfo(("en",), clones=False, name="small"), model=lambda _name: StandInEngine().info
)
OLLAMAS = {"User-Agent": "ollama-python"}
"""Only Ollama's clients find something at the root."""
FILES, BATCHES = "/v1/files", "/v1/batches"
EMBEDDING = ("/v1/embeddings", "/embedding", "/api/embed", "/api/embeddings")
LONG = ("/v1/responses/compact",)
"""Answers as long as the model likes, which takes the default one a minute."""
ABSENT = ("/models/load", "/models/unload", "/api/box/end", BATCHES)
"""Their examples name a model, a session or a file that this daemon has not."""
WITH_A_VOICE = {("/v1/chat/completions", "spoken"), ("/v1/audio/speech", "plain"), ("/v1/audio/speech", "samples")}
WITH_MEDIA = {
    "/v1/chat/completions",
    "/v1/chat/completions/input_tokens",
    "/v1/responses",
    "/v1/responses/input_tokens",
    "/v1/responses/compact",
}
WITH_MEDIA |= {"/v1/messages", "/v1/messages/count_tokens", "/api/chat", "/api/generate", "/v1/generate", "/mcp"}


@pytest.fixture(scope="module")
def http(daemon: Daemon):
    with httpx.Client(base_url=f"http://{daemon.http}", headers=OLLAMAS, timeout=ANSWER_S) as http:
        yield http


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory):
    """A client with a key of a daemon that wants one, makes embeddings, and writes short answers."""
    directory = tmp_path_factory.mktemp("keyed")
    file = str(directory / "keys.json")
    key = KeyFile(file, missing_ok=True).add("ann")
    store = str(directory / "store")
    flags = ("--http", "127.0.0.1:0", "--pooling", "mean", "--api-keys", file, "--store", store, "--max-tokens", "32")
    daemon = Daemon(directory, *flags, env={"UMA_THREADS": "1"})
    headers = OLLAMAS | {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=f"http://{daemon.http}", headers=headers, timeout=ANSWER_S) as http:
        yield http
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


def url_of(path: str, http: httpx.Client) -> str:
    if "{response_id}" in path:
        kept = http.post("/v1/responses", json={"input": "a", "max_output_tokens": 1})
        return path.replace("{response_id}", kept.json()["id"])
    if "{conversation_id}" in path:
        kept = http.post("/v1/conversations", json={}).json()["id"]
        items = {"items": [{"role": "user", "content": "a"}]}
        item = http.post(f"/v1/conversations/{kept}/items", json=items).json()["last_id"]
        return path.replace("{conversation_id}", kept).replace("{item_id}", item)
    if "{file_id}" in path or "{batch_id}" in path:
        kept = http.post(FILES, files={"file": b"{}\n"}, data={"purpose": "batch"}).json()["id"]
        asked = {"input_file_id": kept, "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = http.post(BATCHES, json=asked).json()["id"]
        return path.replace("{file_id}", kept).replace("{batch_id}", batch)
    if "{file}" in path:
        return path.replace("{file}", "main.js")
    return path if "{" not in path else path.replace("{model}", http.get("/v1/models").json()["data"][0]["id"])


# -- the document by itself --------------------------------------------------------------------------------------


def test_it_is_valid_and_of_this_version():
    openapi_spec_validator.validate(DOCUMENT)
    assert DOCUMENT["info"]["version"] == umaserve.__version__


def test_it_has_the_routes_that_there_are_and_no_others():
    described = {(path, method.upper()) for path, method, _operation in OPERATIONS}
    assert described == {(path, each.method) for path, route in ROUTES.items() for each in route.each}
    public = {path for path, _method, operation in OPERATIONS if operation.get("security") == []}
    assert public == {path for path, route in ROUTES.items() if route.public}


def test_it_names_each_alias_where_its_path_is() -> None:
    assert aliases().keys().isdisjoint(ROUTES)
    for alias, path in aliases().items():
        for operation in DOCUMENT["paths"][path].values():
            assert alias in re.findall("/[a-z0-9_/]+", operation["description"].partition(". ")[0])


def test_every_component_is_used():
    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            yield from ([value["$ref"]] if "$ref" in value else [])
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from references(item)

    made = {
        f"#/components/{kind}/{name}"
        for kind in ("schemas", "responses", "headers")
        for name in DOCUMENT["components"][kind]
    }
    assert set(references(DOCUMENT)) == made


# -- the server's answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", GETS)
def test_what_is_got_is_as_described(http: httpx.Client, path: str):
    response = http.get(url_of(path, http))
    # This daemon was given no voice of its own.
    assert response.status_code == (404 if path == "/api/default_ref_audio" else 200)
    check_response(response, GETS[path])


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/v1/health", "/props"])
def test_what_is_got_while_the_model_loads_is_as_described(path: str):
    headers = {"Content-Type": "application/json"}
    try:
        status, headers["Content-Type"], body = ROUTES[path].endpoint.make(facts(), Request("GET", path, {}, (), b""))
    except RequestError as error:
        status, body, more = next(d.errors for d in dialects() if path in d.routes).of_request(error)
        headers |= dict(more)
        assert headers["Retry-After"] == "1"
    assert status == 503
    check_response(httpx.Response(status, headers=headers, content=body), GETS[path])


def test_health_says_why_chats_are_refused():
    info = replace(MODEL_INFO, chat_problem="the model's chat template can't be used")
    services = SimpleNamespace(models=SimpleNamespace(default=SimpleNamespace(info=info)), stuck=dict)
    status, body = health(services)
    assert (status, json.loads(body)) == (200, {"status": "ok", "chat_problem": info.chat_problem})
    check_response(httpx.Response(status, headers={"Content-Type": "application/json"}, content=body), GETS["/health"])


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/{model}", "/api/tags", "/api/ps"])
def test_models_are_listed_while_they_load(path: str):
    request = Request("GET", path.replace("{model}", MODEL_INFO.name), {}, (), b"")
    status, kind, body = ROUTES[path].endpoint.make(facts(), request)
    assert (status, MODEL_INFO.name in body.decode()) == (200, path != "/api/ps")
    check_response(httpx.Response(status, headers={"Content-Type": kind}, content=body), GETS[path])


def test_the_document_is_served(http: httpx.Client):
    assert http.get("/openapi.json").json() == DOCUMENT


@pytest.mark.parametrize(("path", "name", "body"), EXAMPLES, ids=[f"{path} {name}" for path, name, _ in EXAMPLES])
def test_examples_work(http: httpx.Client, keyed: httpx.Client, path: str, name: str, body: dict):
    check_request(body, request_schema(POSTS[path]))
    client = keyed if path in (*EMBEDDING, *LONG) else http
    response = client.post(url_of(path, client), json=body)
    if (path, name) in WITH_A_VOICE and importlib.util.find_spec("hibari") is None:
        assert response.status_code == 400
        assert "this daemon has no voice" in response.json()["error"]["message"]
        return
    if path in ABSENT:
        assert response.status_code == 404
        return
    if path in ("/infill", "/rerank", "/models"):
        assert response.status_code == 501
        assert re.search("can't fill gaps|ranks no documents|sets model_downloads", response.json()["error"]["message"])
        return
    assert response.status_code == 200, response.text
    streamed = response.headers["content-type"] in ("text/event-stream", "application/x-ndjson")
    assert streamed == (isinstance(body, dict) and body.get("stream", False)) == (name == "streamed")
    check_response(response, POSTS[path])


EMPTY = {"content": b"{}"}


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ({"content": b"{"}, 400),
        ({"content": b"5"}, 400),
        (EMPTY, 400),
        ({"content": b"{}", "headers": {"Content-Type": "text/plain"}}, 415),
    ],
    ids=["broken", "no object", "empty", "no JSON"],
)
def test_refusals_are_as_described(http: httpx.Client, path: str, request_: dict, status: int):
    response = http.post(url_of(path, http), **{"headers": {"Content-Type": "application/json"}} | request_)
    if path in ("/v1/realtime/client_secrets", "/v1/conversations") and request_ == EMPTY:
        status = 200  # All of its fields may be absent.
    assert response.status_code == status
    check_response(response, POSTS[path])


@pytest.mark.parametrize("path", BODIES)
def test_a_body_that_is_too_large_is_refused_as_described(daemon: Daemon, path: str):
    config = Config().sized(0)
    most = config.max_chat_bytes if path in WITH_MEDIA or path in FORMS else config.max_frame_bytes
    most = config.store_bytes // 4 if path == FILES else most
    kind = "multipart/form-data; boundary=b" if path in FORMS else "application/json"
    with Http(daemon.http) as wire:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {most + 1}"
        wire.send(f"{head}\r\n\r\n".encode())
        status, headers, body = wire.receive()
    assert status == 413
    check_response(httpx.Response(status, headers=headers, content=body), BODIES[path])


@pytest.mark.parametrize("path", FORMS)
def test_forms_are_refused_as_described(http: httpx.Client, path: str):
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    for content, headers, status in (
        (b"", form, 400),
        (b"--b--", form, 400),
        (b"--b", {"Content-Type": "multipart/form-data"}, 400),
        (b"{}", {"Content-Type": "application/json"}, 415),
    ):
        response = http.post(path, content=content, headers=headers)
        assert response.status_code == status, response.text
        check_response(response, FORMS[path])
    deaf = http.post(path, files={"file": b"RIFF"}, data={"model": "any", "purpose": "vision"})
    assert deaf.status_code == 400
    why = "for batches only, got vision" if path == FILES else "load its projector with --mmproj"
    assert deaf.json()["error"]["message"].endswith(why)
    check_response(deaf, FORMS[path])


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS, ids=[f"{m} {p}" for p, m, _ in OPERATIONS])
def test_other_methods_and_callers_without_a_key_are_refused(
    keyed: httpx.Client, path: str, method: str, operation: dict
):
    url = url_of(path, keyed)
    other = keyed.request("PUT", url)
    assert other.status_code == 405
    check_response(other, operation)
    kind = "multipart/form-data; boundary=b" if path in FORMS else "application/json"
    headers = {"Authorization": "", "Content-Type": kind}
    if "101" in operation["responses"]:
        headers |= {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        headers |= {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Protocol": "bearer.wrong"}
    unknown = keyed.request(method, url, headers=headers)
    assert unknown.status_code == (200 if operation.get("security") == [] else 401)
    check_response(unknown, operation)


def test_a_model_that_cannot_embed_and_a_path_and_a_model_that_are_not_there(http: httpx.Client):
    response = http.post("/v1/embeddings", json={"input": "hello"})
    assert response.status_code == 400
    check_response(response, POSTS["/v1/embeddings"])
    missing = http.get("/v1/models/gpt-9")
    assert missing.status_code == 404
    check_response(missing, GETS["/v1/models/{model}"])
    assert http.get("/debug/nothing").json().keys() == {"error"}


# -- requests ----------------------------------------------------------------------------------------------------


def with_value(path: str, where: tuple[str, ...], value: Any) -> dict:
    """An example of a body with ``value`` at ``where``."""
    body = copy.deepcopy(next(example for of, _name, example in EXAMPLES if of == path))
    known = dict(fields(request_schema(POSTS[path])))
    inner = body
    for i, name in enumerate(where[:-1], 1):
        inner = inner.setdefault(name, kind_of(known[where[:i]]))
    inner[where[-1]] = value
    return body


def kind_of(described: dict) -> dict:
    """The fields that say of what kind an object is."""
    schema = resolved(described)
    required = ((name, schema["properties"][name]) for name in schema.get("required", ()))
    return {name: part.get("const") or part["enum"][0] for name, part in required if {"const", "enum"} & part.keys()}


def refusal(http: httpx.Client, path: str, where: tuple[str, ...], value: Any) -> str:
    """The words, after the field's name, in which a body with ``value`` at ``where`` is refused; none if it isn't."""
    response = http.post(url_of(path, http), json=with_value(path, where, value))
    check_response(response, POSTS[path])
    if response.status_code != 400:
        return ""
    error = response.json()
    message = error["message"] if "message" in error else error["error"]
    field, _, words = (message if isinstance(message, str) else message["message"]).partition(": ")
    return words if field.startswith(".".join(where)) else ""


STAND_FOR_NONE = {(path, (name,)) for path in ("/completion", "/infill") for name in ("seed", "top_k")}
"""Whose bounds are llama-server's words for "none", which errors don't name."""


@pytest.mark.parametrize("path", POSTS)
def test_every_field_is_read_and_has_these_bounds(http: httpx.Client, path: str):
    wrong = []
    for where, described in fields(request_schema(POSTS[path])):
        if not refusal(http, path, where, [[]]):
            wrong.append((where, "is not read"))
        for key in ("minimum", "exclusiveMinimum", "maximum"):
            bound = described.get(key)
            if bound is None or (path, where) in STAND_FOR_NONE:
                continue
            words = refusal(http, path, where, bound + (1 if key == "maximum" else -1))
            if not {str(bound), f"{bound:g}"} & set(re.findall(r"[-+.e0-9]*[0-9]", words.partition(", got")[0])):
                wrong.append((where, key, words))
    assert wrong == []


def take(path: str, body: dict) -> None:
    """Read ``body`` as the route at ``path`` does; raises ``RequestError``."""
    content = json.dumps(body).encode()
    match ROUTES[path].endpoint:
        case TextReply() | SpeechReply() as endpoint:
            endpoint.new_body(SPEAKING).receive(content)
        case EngineQuestion() as endpoint:
            endpoint.parse(content, SPEAKING)


def optional(schema: dict, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict]]:
    """The fields of a request that may be absent, with those of the objects in it."""
    schema = resolved(schema)
    for part in schema.get("allOf", ()):
        yield from optional(part, path)
    for name, described in schema.get("properties", {}).items():
        if name not in schema.get("required", ()):
            yield (*path, name), described
        yield from optional(described, (*path, name))


@pytest.mark.parametrize("path", POSTS)
def test_null_stands_for_an_absent_field_as_described(path: str):
    example = next(value for where, _name, value in EXAMPLES if where == path)
    described = jsonschema.Draft202012Validator({**request_schema(POSTS[path]), "components": DOCUMENT["components"]})
    take(path, example)
    for where, _described in optional(request_schema(POSTS[path])):
        if where[0] in ("audio", "response_format") and len(where) > 1:
            continue  # Beside other fields that these require.
        if path == "/rerank" and where == ("documents",):
            continue  # It may be absent only where there are texts.
        if path == "/v1/responses/compact" and where == ("input",):
            continue  # It may be absent only where a response is followed.
        if path == "/api/box/end" and where == ("session",):
            continue  # It may be absent only where there is a batch.
        if path == "/mcp":
            continue  # JSON-RPC has no null there.
        body = with_value(path, where, None)
        assert described.is_valid(body), where
        take(path, body)


ADAPTERS = [
    ({}, True),
    ({"a": -10, "b": 10}, True),
    ({str(adapter): 1 for adapter in range(16)}, True),
    ({str(adapter): 1 for adapter in range(17)}, False),
    ({"a": 10.5}, False),
    ({"a": None}, False),
    ({"": 1}, False),
    ({"a" * 257: 1}, False),
    (["a"], False),
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/generate"])
@pytest.mark.parametrize(("lora", "good"), ADAPTERS)
def test_adapters_are_taken_as_described(path: str, lora: Any, good: bool):
    body = {**next(value for where, _name, value in EXAMPLES if where == path), "lora": lora}
    described = jsonschema.Draft202012Validator({**request_schema(POSTS[path]), "components": DOCUMENT["components"]})
    assert described.is_valid(body) is good
    receive = ROUTES[path].endpoint.new_body(facts()).receive
    if good:
        assert {request.lora for request in receive(json.dumps(body).encode())} == {tuple(lora.items())}
    else:
        with pytest.raises(RequestError, match=r"^lora(\..)?: expected "):
            receive(json.dumps(body).encode())


TEXT = {"type": "text", "text": "a"}
PNG = "data:image/png;base64,"


@pytest.mark.parametrize(
    ("content", "good"),
    [
        ([TEXT, {"type": "image_url", "image_url": {"url": PNG + "QUJD", "detail": "low"}}], True),
        ([{"type": "image_url", "image_url": {"url": "DATA:image/PNG;x=y;BASE64,QUJD"}}], True),
        ([{"type": "image_url", "image_url": {"url": PNG + "QUJD", "detail": "original"}}], True),
        ([{"type": "image_url", "image_url": {"url": PNG}}], False),
        ([{"type": "image_url", "image_url": {"url": "https://a.example/"}}], False),
        ([{"type": "image_url", "image_url": {"url": PNG + "QUJD", "detail": "some"}}], False),
        ([{"type": "image_url"}], False),
        ([{"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}}], True),
        ([{"type": "input_audio", "input_audio": {"data": "", "format": "mp3"}}], False),
        ([{"type": "input_audio", "input_audio": {"data": "QUJD", "format": "flac"}}], False),
        ([{"type": "input_audio", "input_audio": {"data": "QUJD"}}], False),
    ],
)
def test_media_are_taken_as_described(content: Any, good: bool):
    body = {"messages": [{"role": "user", "content": content}]}
    path = "/v1/chat/completions"
    described = jsonschema.Draft202012Validator({**request_schema(POSTS[path]), "components": DOCUMENT["components"]})
    assert described.is_valid(body) is good
    receive = ROUTES[path].endpoint.new_body(facts()).receive
    if good:
        (request,) = receive(json.dumps(body).encode())
        assert len(request.prompt[0].attachments) == 1
    else:
        with pytest.raises(RequestError, match=r"^messages\[0\].content\[0\]\."):
            receive(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("voice", "good"),
    [
        ("alloy", True),
        ("marin", True),
        ("x" * 64, True),
        ({"id": "voice_1"}, True),
        ("", False),
        ("x" * 65, False),
        (5, False),
        ({}, False),
        ({"id": ""}, False),
    ],
)
def test_voices_are_taken_as_described(voice: Any, good: bool):
    schema = request_schema(POSTS["/v1/audio/speech"])
    body = {"input": "Hello.", "voice": voice}
    described = jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]})
    assert described.is_valid(body) is good
    if good:
        text_to_speech(Fields(body), VoiceInfo(("en",), clones=False))
    else:
        with pytest.raises(RequestError, match=r"^voice(\.id)?: expected "):
            text_to_speech(Fields(body), VoiceInfo(("en",), clones=False))


@pytest.mark.parametrize("about", [facts(), SPEAKING])
def test_voices_are_listed_as_described(about: Facts):
    path = "/v1/audio/voices"
    status, content_type, body = ROUTES[path].endpoint.make(about, Request("GET", path, {}, (), b""))
    check_response(httpx.Response(status, headers={"Content-Type": content_type}, content=body), GETS[path])
    assert len(json.loads(body)["voices"]) == (about.voice is not None)


# -- the WebSocket -----------------------------------------------------------------------------------------------


def test_a_conversation_is_as_described(daemon: Daemon):
    operation = DOCUMENT["paths"]["/generate"]["get"]
    plain = httpx.get(f"http://{daemon.http}/generate")
    assert (plain.status_code, plain.headers["upgrade"]) == (426, "websocket")
    check_response(plain, operation)
    upgraded = operation["responses"]["101"]
    kinds = set()

    with websockets.sync.client.connect(f"ws://{daemon.http}/generate") as socket:

        def send(message: dict) -> None:
            check_request(message, upgraded["x-client-message"])
            socket.send(json.dumps(message))

        def receive_until(kind: str) -> None:
            while True:
                message = json.loads(socket.recv(ANSWER_S))
                check_answer(message, upgraded["x-server-message"])
                kinds.add(message["type"])
                if message["type"] == kind:
                    return

        options = {"include_timing": True, "include_logprobs": True, "include_token_ids": True}
        parameters = {"max_tokens": 200, "ignore_eos": True}
        config = {"type": "config", "prompt": "Once upon a time", "parameters": parameters, "options": options}
        send(config)
        receive_until("token")
        for control in ({"action": "pause"}, {"action": "modify", "parameters": {"temperature": 1}}):
            send({"type": "control", **control})
            receive_until("status")
        send({"type": "feedback", "rating": 1, "text": "Good", "position": 3})
        receive_until("status")
        send(config)
        receive_until("error")
        for action in ("resume", "stop"):
            send({"type": "control", "action": action})
        receive_until("completion")
    assert kinds == {"init", "token", "status", "error", "completion"}


@pytest.mark.parametrize("request_", [{"streaming": True}, {"streaming": False}, {"generation": {"top_p": 7}}])
def test_a_turn_of_a_chat_is_as_described(daemon: Daemon, request_: dict):
    upgraded = DOCUMENT["paths"]["/ws/chat"]["get"]["responses"]["101"]
    message = {"messages": [{"role": "user", "content": "Hello!"}], "generation": {"max_new_tokens": 4}, **request_}
    last = None
    with websockets.sync.client.connect(f"ws://{daemon.http}/ws/chat") as socket:
        if "top_p" not in str(request_):
            check_request(message, upgraded["x-client-message"])
        socket.send(json.dumps(message))
        with contextlib.suppress(websockets.exceptions.ConnectionClosedError):
            for text in socket:
                last = json.loads(text)
                check_answer(last, upgraded["x-server-message"])
    assert last is not None
    assert last["type"] == ("error" if "top_p" in str(request_) else "done")


@pytest.mark.parametrize("path", POSTS)
def test_no_number_is_too_large_to_be_refused(http: httpx.Client, path: str):
    failed = []
    for where, _described in fields(request_schema(POSTS[path])):
        for value in (1e308, -1e308, 2**64, -(2**63) - 1):
            response = http.post(path, json=with_value(path, where, value))
            if response.status_code not in (200, 400, 404, 501):
                failed.append((where, value, response.status_code))
    assert failed == []
