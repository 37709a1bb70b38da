"""What a client's key may do at a relay, and what it has used."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_wire import encode
from prometheus_client.parser import text_string_to_metric_families
from relay_peers import CHAT, MODEL, Client, Relay, Worker, wait_until

from umaserve.access.keys import KeyFile
from umaserve.core.errors import Fault, RequestError
from umaserve.relay.pool.accounts import SPEND_AT_ONCE, Accounts, Tally
from umaserve.wire.multipart import read_form
from umaserve.wire.relay_messages import TokenCounts

FULL = {"name": "full", "class": "background", "requests_per_minute": 2, "tokens_per_minute": 30, "models": [MODEL]}
USAGE = '{"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}}'


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    relay = Relay(client_keys=str(tmp_path / "keys.json"))
    yield relay
    relay.end()


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile.made(str(tmp_path / "keys.json"), lambda: 0.0)


def key(relay: Relay, name: str, **terms: Any) -> dict[str, str]:
    """The headers of a client with a new key."""
    made = relay.admin("POST", "/keys", {"name": name, **terms})
    assert made.status == 201, made.json
    return {"Authorization": f"Bearer {made.json['key']}"}


def ask(relay: Relay, headers: dict[str, str], path: str = CHAT, **fields: Any) -> Client:
    client = relay.client()
    client.send(encode("POST", path, {"model": MODEL, "messages": [], **fields}, headers))
    return client


def used(relay: Relay, name: str) -> dict[str, int]:
    (shown,) = [one for one in relay.admin("GET", "/keys").json["keys"] if one["name"] == name]
    return shown["used"]


# The terms.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"class": "operator"}, "class: expected "),
        ({"class": 5}, "class: expected "),
        ({"requests_per_minute": -1}, "requests_per_minute: expected "),
        ({"tokens_per_minute": "many"}, "tokens_per_minute: expected "),
        ({"models": []}, "models: expected an array of 1 to 256 names"),
        ({"models": "all"}, "models: expected an array"),
        ({"models": [MODEL, 5]}, "models[1]: expected "),
        ({"models": ["x" * 257]}, "models[0]: expected "),
    ],
)
def test_wrong_terms_make_no_key(relay: Relay, wrong: dict[str, Any], message: str) -> None:
    refused = relay.admin("POST", "/keys", {"name": "alice", **wrong})
    assert refused.status == 400
    assert refused.error["message"].startswith(message)
    assert relay.admin("GET", "/keys").json == {"keys": []}


def test_what_a_new_key_has_used_elsewhere_is_charged_at_once(keys: KeyFile, tmp_path: Path) -> None:
    of_another = KeyFile(str(tmp_path / "keys.json"))
    presented = of_another.add("alice", requests_per_minute=2)
    accounts = Accounts(keys, lambda: 0.0)
    accounts.charge({"nobody": (2, 0), "alice": (2, 0)}, 0.0)
    assert keys.match(presented) is not None
    with pytest.raises(RequestError, match="2 requests a minute"):
        accounts.admit("alice")


def test_operators_see_the_terms(relay: Relay) -> None:
    key(relay, **FULL)
    key(relay, "plain")
    full, plain = relay.admin("GET", "/keys").json["keys"]
    assert {**FULL, "revoked": None}.items() <= full.items()
    rates = {"requests_per_minute": 0, "tokens_per_minute": 0}
    assert {"class": "interactive", "models": None, **rates}.items() <= plain.items()


def test_a_key_of_the_command_line_is_shown_and_let_in_at_once(relay: Relay, tmp_path: Path) -> None:
    key(relay, "alice")
    presented = KeyFile(str(tmp_path / "keys.json")).add("boss", group="operator")
    _alice, boss = relay.admin("GET", "/keys").json["keys"]
    shown = {"id": "2", "name": "boss", "revoked": None, "class": "operator", "models": None}
    assert {**shown, "requests_per_minute": 0, "tokens_per_minute": 0}.items() <= boss.items()
    assert relay.client().ask("GET", "/v1/models", None, {"X-Api-Key": presented}).status == 200


def test_a_key_that_is_revoked_meanwhile_may_do_no_more_than_before(keys: KeyFile) -> None:
    keys.add("alice", models=[MODEL])
    accounts = Accounts(keys, lambda: 0.0)
    accounts.check_model("alice", MODEL)
    keys.revoke("alice")
    for refused in (
        lambda: accounts.check_model("alice", "other"),
        lambda: accounts.granted("alice"),
        lambda: accounts.visible("alice", ["other"]),
        lambda: accounts.admit("alice"),
    ):
        with pytest.raises(RequestError, match="this one was revoked") as raised:
            refused()
        assert raised.value.fault is Fault.UNAUTHORIZED


# Rates.


@pytest.mark.parametrize("unlimited", [None, 0])
def test_a_key_that_has_used_up_its_rate_is_told_when_to_come_back(keys: KeyFile, unlimited: float | None) -> None:
    now = 0.0
    keys.add("alice", requests_per_minute=2)
    keys.add("bob", requests_per_minute=unlimited)
    accounts = Accounts(keys, lambda: now)
    for name in ("alice", "alice", "bob", "bob", "bob"):
        accounts.admit(name)
    with pytest.raises(RequestError) as raised:
        accounts.admit("alice")
    assert (raised.value.fault, raised.value.retry_after_s) == (Fault.RATE_LIMITED, pytest.approx(30, abs=0.01))
    now = 30.1
    accounts.admit("alice")
    assert (accounts.shown("alice")["requests_total"], accounts.shown("alice")["refused_total"]) == (3, 1)


def test_who_has_got_too_many_tokens_waits(relay: Relay) -> None:
    worker, headers = relay.worker(), key(relay, "alice", tokens_per_minute=4)
    asked = ask(relay, headers)
    worker.answer(USAGE)
    assert asked.receive().status == 200
    refused = ask(relay, headers).receive()
    assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
    assert 1 <= int(refused.headers["retry-after"]) <= 16
    anthropics = ask(relay, headers, "/v1/messages").receive()
    assert anthropics.json["error"]["type"] == "rate_limit_error"
    assert relay.client().ask("GET", "/v1/models", None, headers).status == 200
    assert relay.client().ask("GET", "/v1/models", None, key(relay, "bob")).status == 200


def test_a_websocket_counts_as_a_request(relay: Relay) -> None:
    headers = key(relay, "alice", requests_per_minute=1)
    relay.connect("/generate", **headers)
    assert ask(relay, headers).receive().status == 429


def test_each_answer_that_a_websocket_asks_for_counts(relay: Relay) -> None:
    worker = relay.worker(features=["websocket"])
    socket = relay.connect("/generate", **key(relay, "alice", requests_per_minute=2, models=[MODEL]))
    config = {"type": "config", "model": MODEL}
    regenerate = {"type": "control", "action": "regenerate"}
    steering = [{"type": "control", "action": "pause"}, {"type": "feedback", "rating": "up"}]
    for message in (config, *steering, regenerate):
        socket.send(message)
        assert json.loads(worker.request()["body"]) == message
    for message in (config, regenerate):
        socket.send(message)
        assert "rate_limited" in json.dumps(socket.receive())
    socket.send(steering[0])
    assert json.loads(worker.request()["body"]) == steering[0]
    assert {"requests_total": 2, "refused_total": 2}.items() <= used(relay, "alice").items()


@pytest.mark.parametrize("answers", [0, 1])
def test_a_revoked_keys_websocket_asks_for_no_more(relay: Relay, answers: int) -> None:
    worker = relay.worker(MODEL, "other", features=["websocket"])
    socket = relay.connect("/generate", **key(relay, "alice", models=[MODEL]))
    for _ in range(answers):
        socket.send({"type": "config", "model": MODEL})
        worker.request()
    (alice,) = relay.admin("GET", "/keys").json["keys"]
    assert relay.admin("DELETE", f"/keys/{alice['id']}").status == 200
    for _ in range(answers):
        steering = {"type": "control", "action": "stop"}
        socket.send(steering)
        assert json.loads(worker.request()["body"]) == steering
    socket.send({"type": "config", "model": "other"})
    assert "was revoked" in json.dumps(socket.receive())
    assert socket.closed()[0] == 1011


# Models.


def test_a_key_sees_and_gets_only_its_models(relay: Relay) -> None:
    worker, headers = relay.worker(MODEL, "other"), key(relay, "alice", models=[MODEL, "not there"])
    client = relay.client()
    assert [one["id"] for one in client.ask("GET", "/v1/models", None, headers).json["data"]] == [MODEL]
    assert [one["name"] for one in client.ask("GET", "/api/tags", None, headers).json["models"]] == [f"{MODEL}:latest"]
    assert client.ask("GET", f"/v1/models/{MODEL}", None, headers).status == 200
    assert client.ask("GET", "/v1/models/other", None, headers).status == 404
    refused = ask(relay, headers, model="other").receive()
    assert (refused.status, refused.error["code"]) == (404, "model_not_found")
    assert refused.error["message"].endswith("lists for this key, got other")
    asked = ask(relay, headers)
    worker.answer()
    assert asked.receive().status == 200


@pytest.mark.parametrize(
    ("query", "first", "later"),
    [
        ("", {"type": "config", "model": "other"}, None),
        (f"?model={MODEL}", {"type": "config", "model": "other"}, None),
        (f"?model={MODEL}", {"type": "config"}, None),
        ("?model=other", {"type": "config", "model": MODEL}, None),
        ("", {"type": "control", "action": "stop"}, None),
        ("", {"type": "config", "model": MODEL}, {"type": "config", "model": "other"}),
        ("", {"type": "config", "model": MODEL}, {"type": "config"}),
    ],
)
def test_a_websocket_gets_only_the_keys_models(
    relay: Relay, query: str, first: dict[str, Any], later: dict[str, Any] | None
) -> None:
    worker = relay.worker(MODEL, "other", features=["websocket"])
    socket = relay.connect(f"/generate{query}", **key(relay, "alice", models=[MODEL]))
    socket.send(first)
    if later is not None:
        assert json.loads(worker.request()["body"]) == first
        steering = {"type": "control", "action": "pause"}
        socket.send(steering)
        assert json.loads(worker.request()["body"]) == steering
        socket.send(later)
    assert "this key" in json.dumps(socket.receive())
    assert socket.closed()[0] == 1011


FORM = "--b\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n"
AUDIO = FORM % ('name="file"; filename="a"', "RIFF")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f'{{"model": "{MODEL}", "Model": "other"}}', 'Model: expected the key "model" in lower case'),
        (f'{{"model": "{MODEL}", "\\u004dodel": "other"}}', 'Model: expected the key "model" in lower case'),
        (f'{{"model": "{MODEL}", "\u017ftream": true}}', 'expected the key "stream" in lower case'),
        (f'{{"model": "{MODEL}", "MAX_TOKENS": 9}}', 'MAX_TOKENS: expected the key "max_tokens" in lower case'),
        (f'{{"model": "other", "model": "{MODEL}"}}', "body: expected each key of an object once"),
        (f'{{"mode\\u006c": "other", "model": "{MODEL}"}}', "body: expected each key of an object once"),
        (f'{{"model": "{MODEL}", "messages": [{{"content": "a:b", "content": "c"}}]}}', "body: expected each key"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses", "/api/chat", "/tokenize"])
def test_a_body_that_servers_read_differently_reaches_none(relay: Relay, path: str, body: str, message: str) -> None:
    worker, headers = relay.worker(MODEL, "other"), key(relay, "alice", models=[MODEL])
    refused = post(relay, headers, path, "application/json", body).receive()
    assert (refused.status, message in refused.body.decode().replace('\\"', '"')) == (400, True), refused.body
    asked = ask(relay, headers, tools=[{"Model": "a", "model": "::"}], note='{"a":1}\\:')
    assert json.loads(worker.answer()["body"])["tools"] == [{"Model": "a", "model": "::"}]
    assert asked.receive().status == 200


def test_a_worker_gets_what_was_parsed_and_its_type(relay: Relay) -> None:
    worker, headers = relay.worker(MODEL, "other"), key(relay, "alice", models=[MODEL])
    # The count of colons is equal, so nothing seems repeated; and in UTF-7 the text would end early.
    text = "\\u003a +ACI-,+ACI-model+ACI-:+ACI-other"
    body = f'{{"model":"other","model":"{MODEL}","prompt":"{text}"}}'
    client = post(relay, headers, "/v1/completions", "application/json; charset=utf-7", body)
    request = worker.answer()
    assert request["headers"]["content-type"] == "application/json"
    assert request["body"] == json.dumps(
        {"model": MODEL, "prompt": text.replace("\\u003a", ":")}, separators=(",", ":"), ensure_ascii=False
    )
    assert client.receive().status == 200


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((('name="model"', MODEL), ('name="model"', "other")), "model: expected one value, got several"),
        ((('name="model"', MODEL), ('name="Model"', "other")), 'Model: expected the key "model" in lower case'),
        ((('name="model"; filename="m"', MODEL),), "model: expected a value, got a file"),
    ],
)
def test_a_form_that_servers_read_differently_reaches_none(
    relay: Relay, fields: tuple[tuple[str, str], ...], message: str
) -> None:
    relay.worker(MODEL, "other", features=["forms"])
    refused = transcribe(relay, fields).receive()
    assert (refused.status, refused.error["message"]) == (400, message)


def test_a_worker_gets_a_form_whose_boundary_no_client_knows(relay: Relay) -> None:
    worker = relay.worker(MODEL, "other", features=["forms"])
    # Some servers end lines at a bare LF.
    hidden = '\n--b\nContent-Disposition: form-data; name="model"\n\nother\n--b--\n'
    client = transcribe(relay, (("name=\"model\"; name*=utf-8''x", MODEL), ('name="prompt"', hidden)))
    request = worker.answer()
    content_type = request["headers"]["content-type"]
    assert content_type != "multipart/form-data; boundary=b"
    parts = read_form(base64.b64decode(request["body"]), content_type)
    assert [(part.name, bytes(part.data)) for part in parts] == [
        ("model", MODEL.encode()),
        ("prompt", hidden.encode()),
        ("file", b"RIFF"),
    ]
    assert client.receive().status == 200


def transcribe(relay: Relay, fields: tuple[tuple[str, str], ...]) -> Client:
    """A form with these fields and a file, from a client whose key has one model."""
    content = "".join(FORM % field for field in fields) + AUDIO + "--b--\r\n"
    headers = key(relay, "alice", models=[MODEL])
    return post(relay, headers, "/v1/audio/transcriptions", "multipart/form-data; boundary=b", content)


def post(relay: Relay, headers: dict[str, str], path: str, content_type: str, body: str) -> Client:
    client, content = relay.client(), body.encode()
    fields = {"Host": "localhost", "Content-Type": content_type, "Content-Length": len(content), **headers}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    client.send("\r\n".join(lines).encode() + content)
    return client


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "message",
    [
        f'{{"type": "config", "model": "{MODEL}", "Model": "other"}}',
        f'{{"type": "config", "model": "other", "model": "{MODEL}"}}',
        f'{{"type": "config", "Type": "control", "model": "{MODEL}"}}',
    ],
)
def test_a_message_that_servers_read_differently_reaches_none(relay: Relay, first: bool, message: str) -> None:
    worker = relay.worker(MODEL, "other", features=["websocket"])
    socket = relay.connect("/generate", **key(relay, "alice", models=[MODEL]))
    if not first:
        socket.send({"type": "config", "model": MODEL})
        worker.request()
    socket.send(message)
    assert "expected" in json.dumps(socket.receive())
    assert socket.closed()[0] == 1011


# Priorities.


def test_background_work_waits_for_all_others(relay: Relay) -> None:
    worker = relay.worker()
    slow, quick = key(relay, "slow", **{"class": "background"}), key(relay, "quick")
    running = ask(relay, quick)
    first = worker.request()
    waiting: list[Client] = []
    for number, headers in enumerate((slow, quick, {**quick, "X-Umaserve-Priority": "background"}, quick), 1):
        waiting.append(ask(relay, headers, seed=number))
        relay.wait_for("queue_length", number)
    worker.complete(first)
    order = []
    for _ in waiting:
        request = worker.request()
        order.append((json.loads(request["body"])["seed"], request["headers"].get("x-umaserve-priority")))
        worker.complete(request)
    assert order == [(2, None), (4, None), (1, "background"), (3, "background")]
    assert [client.receive().status for client in (running, *waiting)] == [200] * 5


# Usage.


def tallied(*chunks: str | bytes, body: str | None = None, counts: TokenCounts | None = None) -> tuple[int, int]:
    spent: list[tuple[int, int]] = []
    tally = Tally(lambda prompt, generated: spent.append((prompt, generated)))
    for chunk in chunks:
        tally.chunk(chunk)
    if body is not None:
        tally.end(body, counts)
    tally.close()
    return sum(prompt for prompt, _ in spent), sum(generated for _, generated in spent)


EVENT = 'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


@pytest.mark.parametrize(
    ("found", "prompt", "generated"),
    [
        (tallied(body=USAGE), 7, 5),
        (tallied(body='{"usage":{"input_tokens":3,"output_tokens": 4}}'), 3, 4),
        (tallied(body='{"done":true,"prompt_eval_count":6,"eval_count":8}'), 6, 8),
        (tallied(body=USAGE, counts=TokenCounts(1, 2, 3)), 1, 2),
        (tallied(body='{"error":"no"}'), 0, 0),
        (tallied(body='{"content":"\\"completion_tokens\\": 99"}'), 0, 0),
        (tallied(body=""), 0, 0),
        (tallied(EVENT * 3, EVENT), 0, 4),
        (tallied(EVENT * 3, f"data: {USAGE}\n\n", "data: [DONE]\n\n", body=""), 7, 5),
        (tallied(EVENT * 3, f"data: {USAGE[:20]}", f"{USAGE[20:]}\n\n", body=""), 7, 5),
        (tallied('{"response":"a"}\n', '{"response":"b"}\n'), 0, 2),
        (tallied('{"type":"token"}', '{"type":"token"}'), 0, 2),
        (tallied(b"sound"), 0, 0),
        (tallied(*[EVENT] * (2 * SPEND_AT_ONCE), body="", counts=TokenCounts(9, 2 * SPEND_AT_ONCE + 7)), 9, 135),
    ],
)
def test_tokens_are_counted_as_reported_else_by_events(found: tuple[int, int], prompt: int, generated: int) -> None:
    assert found == (prompt, generated)


def stream_and_leave(relay: Relay, worker: Worker, headers: dict[str, str]) -> None:
    client = ask(relay, headers, stream=True)
    request = worker.request()
    worker.chunk(request, EVENT * 2)
    assert client.head()[0] == 200
    client.close()
    assert worker.receive()["type"] == "cancel"


def test_operators_see_what_each_key_has_used_and_a_client_its_own(relay: Relay) -> None:
    worker = relay.worker(max_concurrent=9)
    alice, bob = key(relay, "alice"), key(relay, "bob", requests_per_minute=1)
    client = ask(relay, alice)
    worker.answer(USAGE)
    assert client.receive().status == 200
    stream_and_leave(relay, worker, bob)
    assert ask(relay, bob).receive().status == 429
    totals = {"requests_total": 1, "refused_total": 0, "prompt_tokens_total": 7, "generated_tokens_total": 5}
    assert used(relay, "alice") == totals
    wait_until(lambda: used(relay, "bob")["generated_tokens_total"] == 2)
    assert used(relay, "bob")["refused_total"] == 1

    def shown(body: bytes) -> dict[tuple[str, str], float]:
        return {
            (sample.name.removeprefix("umaserve_relay_key_"), sample.labels["key"]): sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
            if "key" in sample.labels
        }

    every = shown(relay.admin("GET", "/metrics").body)
    assert every["generated_tokens_total", "alice"] == 5
    assert every["refused_total", "bob"] == 1
    own = shown(relay.client().ask("GET", "/metrics", None, alice).body)
    assert own == {place: value for place, value in every.items() if place[1] == "alice"}
