"""OpenAI's responses at a relay, which keeps them while its workers know nothing of it."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_wire import encode
from relay_peers import CHAT, MODEL, Relay, Worker, wait_until

from umaserve.relay.http import background as background_module
from umaserve.relay.http import kept_reply as kept_reply_module
from umaserve.relay.http import responses as responses_module

PATH = "/v1/responses"
CONVERSATIONS = "/v1/conversations"
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Hi!"}]}
KEY = {"Authorization": "Bearer none"}


@pytest.fixture
def relay() -> Iterator[Relay]:
    relay = Relay()
    yield relay
    relay.end()


def response(response_id: str = "resp_1", **fields: Any) -> str:
    whole = {"id": response_id, "object": "response", "status": "completed", "store": False, "output": [SAID]}
    return json.dumps(whole | fields)


def event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, ensure_ascii=False)}\n\n"


def ask(relay: Relay, worker: Worker, answer: str = response(), headers: dict[str, str] = KEY, **fields: Any):
    """The reply to a request that the worker has answered, and the body that it got."""
    client = relay.client()
    client.send(encode("POST", PATH, {"model": MODEL, "input": "Hello", **fields}, headers))
    request = worker.answer(answer)
    assert request["endpoint_path"] == PATH
    return client.receive().json, json.loads(request["body"])


def get(relay: Relay, tail: str = "resp_1", method: str = "GET", headers: dict[str, str] = KEY):
    return relay.client().ask(method, f"{PATH}/{tail}", {} if method == "POST" else None, headers)


# -- a conversation ----------------------------------------------------------------------------------------------------


def test_a_response_is_kept_and_forgotten(relay: Relay) -> None:
    whole, body = ask(relay, relay.worker())
    assert body == {"model": MODEL, "input": "Hello"}, "the worker gets it as it is"
    assert whole == json.loads(response(store=True, previous_response_id=None, background=False))
    assert get(relay).json == whole
    assert get(relay, method="HEAD").status == 200
    assert get(relay, method="DELETE").json == {"id": "resp_1", "object": "response", "deleted": True}
    gone = get(relay)
    assert (gone.status, gone.error["code"]) == (404, "not_found")
    assert get(relay, method="DELETE").status == 404


def test_the_worker_of_a_response_that_follows_gets_all_items(relay: Relay) -> None:
    worker = relay.worker()
    ask(relay, worker)
    worker.crash()
    relay.wait_for("workers", 0)
    other = relay.worker()
    second, body = ask(relay, other, response("resp_2"), input="And?", previous_response_id="resp_1", instructions="x")
    assert second["previous_response_id"] == "resp_1"
    first, said, own = body.pop("input")
    assert (first["role"], first["content"]) == ("user", [{"type": "input_text", "text": "Hello"}])
    assert (said, own) == (SAID, {"role": "user", "content": "And?"})
    assert body == {"model": MODEL, "instructions": "x"}, "no worker could know of another's"
    items = get(relay, "resp_2/input_items?order=asc").json["data"]
    assert [item["type"] for item in items] == ["message"] * 3
    assert items[1] == SAID
    assert len({item["id"] for item in items}) == 3
    newest = get(relay, "resp_2/input_items?limit=1").json
    assert (newest["data"], newest["has_more"]) == ([items[2]], True)
    assert get(relay, "resp_2/input_items?after=none").error["message"].startswith("after: ")


def test_a_conversation_goes_on_at_the_relay_whichever_worker_answers(relay: Relay) -> None:
    worker, client = relay.worker(), relay.client()
    one = client.ask("POST", CONVERSATIONS, {"metadata": {"a": "b"}, "items": [{"role": "user", "content": "x"}]}, KEY)
    path = f"{CONVERSATIONS}/{one.json['id']}"
    whole, body = ask(relay, worker, conversation=one.json["id"])
    assert whole["conversation"] == {"id": one.json["id"]}
    assert [item["content"] for item in body["input"]] == [[{"type": "input_text", "text": "x"}], "Hello"]
    assert "conversation" not in body, "no worker could know of it"
    listed = client.ask("GET", f"{path}/items?order=asc", None, KEY).json
    assert [item["content"][0]["text"] for item in listed["data"]] == ["x", "Hello", "Hi!"]
    ask(relay, worker, response("resp_2", status="failed"), conversation={"id": one.json["id"]})
    assert client.ask("GET", f"{path}/items", None, KEY).json["data"] == listed["data"][::-1]
    assert client.ask("GET", f"{path}/items/msg_1", None, KEY).json == SAID
    assert client.ask("DELETE", path, None, KEY).json["deleted"]
    assert client.ask("GET", path, None, KEY).status == 404
    refused = client.post(PATH, json.dumps({"model": MODEL, "input": "x", "conversation": one.json["id"]}).encode())
    assert refused.receive().status == 404


def test_a_prompt_that_follows_is_counted_with_all_items(relay: Relay) -> None:
    worker = relay.worker()
    ask(relay, worker)
    client = relay.client()
    fields = json.dumps({"model": MODEL, "input": "And?", "previous_response_id": "resp_1"}).encode()
    client.post(f"{PATH}/input_tokens", fields)
    counted = '{"object":"response.input_tokens","input_tokens":9}'
    request = worker.answer(counted)
    assert (request["endpoint_path"], len(json.loads(request["body"])["input"])) == (f"{PATH}/input_tokens", 3)
    assert client.receive().body == counted.encode()


def test_a_conversation_that_the_relay_keeps_is_compacted_by_a_worker(relay: Relay) -> None:
    worker = relay.worker()
    ask(relay, worker)
    client = relay.client()
    client.post(f"{PATH}/compact", json.dumps({"model": MODEL, "previous_response_id": "resp_1"}).encode())
    compaction = json.dumps({"id": "resp_2", "object": "response.compaction", "output": []})
    request = worker.answer(compaction)
    assert request["endpoint_path"] == f"{PATH}/compact"
    body = json.loads(request["body"])
    assert (body.keys(), [item["role"] for item in body["input"]]) == ({"model", "input"}, ["user", "assistant"])
    assert client.receive().body == compaction.encode(), "it is no response, and is not kept"
    assert get(relay, "resp_2").status == 404


def test_what_is_not_to_be_kept_is_not(relay: Relay) -> None:
    worker = relay.worker()
    ask(relay, worker)
    whole, body = ask(relay, worker, response("resp_2"), store=False, previous_response_id="resp_1")
    assert (whole["store"], whole["previous_response_id"], body["store"]) == (False, "resp_1", False)
    assert get(relay, "resp_2").status == 404


@pytest.mark.parametrize(
    "answer",
    [
        "[]",
        "{}",
        "no JSON",
        response("a/b"),
        response("x" * 129),
        response(output={}),
        '{"id":"resp_1","output":' + "[" * 300 + "]" * 300 + "}",
    ],
    ids=["an array", "no id", "no JSON", "an odd id", "a long id", "an odd output", "a deep one"],
)
def test_what_is_no_response_passes_and_is_not_kept(relay: Relay, answer: str) -> None:
    worker, client = relay.worker(), relay.client()
    client.post(PATH, b'{"input":"Hello"}')
    worker.answer(answer)
    assert client.receive().body.decode() == answer
    assert get(relay).status == 404


def test_a_workers_error_passes_and_is_not_kept(relay: Relay) -> None:
    worker, client = relay.worker(), relay.client()
    client.post(PATH, b'{"input":"Hello"}')
    worker.complete(worker.request(), 400, headers={"content-type": "application/json"}, body=response())
    assert (reply := client.receive()).status == 400
    assert reply.json == json.loads(response())
    assert get(relay).status == 404


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed"])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_a_streamed_response_is_kept_before_its_client_has_all_of_it(relay: Relay, kind: str, ends: str) -> None:
    worker = relay.worker(max_concurrent=2)
    client = relay.client().post(PATH, json.dumps({"input": "Hello", "stream": True}).encode())
    request = worker.request()
    whole = json.loads(response(text="response.completed\u2028"))
    created = event("response.created", response=whole | {"output": []})
    delta = event("response.output_text.delta", delta='a "response.completed"')
    stream = (created + delta + event(f"response.{kind}", response=whole)).replace("\n", ends)
    # Wherever it is cut; of what is not whole yet, nothing is kept.
    parts = [stream[:3], stream[3:-120], stream[-120:-1], stream[-1:]]
    worker.chunk(request, parts[0], status_code=200, headers={"content-type": "text/event-stream"})
    assert client.head()[0] == 200
    assert client.chunk().decode() == parts[0]
    for part in parts[1:3]:
        worker.chunk(request, part)
        assert client.chunk().decode() == part, "byte for byte"
    if ends == "\n":  # Of CRLF, the CR is a line ending already.
        assert get(relay).status == 404
    worker.chunk(request, parts[3])
    assert client.chunk().decode() == parts[3]
    kept = get(relay).json
    assert kept == whole | {"store": True, "previous_response_id": None, "background": False}
    worker.complete(request)
    assert client.chunk() == b""


def test_a_stream_whose_event_is_too_long_passes_and_is_not_kept(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_reply_module, "MAX_BYTES", 200)
    worker = relay.worker()
    client = relay.client().post(PATH, json.dumps({"input": "Hello", "stream": True}).encode())
    request = worker.request()
    stream = event("response.completed", response=json.loads(response()))
    for part in (stream[:201], stream[201:]):
        worker.chunk(request, part)
    worker.complete(request)
    assert client.receive().body.decode() == stream
    assert get(relay).status == 404


# -- in the background -------------------------------------------------------------------------------------------------


def begin(relay: Relay, **fields: Any) -> dict[str, Any]:
    """A response in the background."""
    client = relay.client()
    reply = client.post(PATH, json.dumps({"input": "Hello", "background": True, **fields}).encode()).receive()
    assert reply.status == 200, reply
    begun: dict[str, Any] = reply.json
    assert begun["background"] is True
    assert get(relay, begun["id"]).json["id"] == begun["id"]
    return begun


def ended(relay: Relay, response_id: str) -> dict[str, Any]:
    def whole() -> dict[str, Any] | None:
        found: dict[str, Any] = get(relay, response_id).json
        return None if found["status"] in ("queued", "in_progress") else found

    return wait_until(whole)  # type: ignore[no-any-return]


def test_a_worker_is_told_what_the_relay_keeps(relay: Relay) -> None:
    worker = relay.worker()
    ask(relay, worker)
    fields = {"input": "x", "previous_response_id": "resp_1", "stream": True}
    # What a client says in its place goes no further.
    relay.client().send(encode("POST", PATH, fields, {"X-Relay-Response": "{}"}))
    headers = worker.answer()["headers"]
    told = {"background": False, "previous_response_id": "resp_1", "store": True}
    assert json.loads(headers["x-relay-response"]) == told
    assert "x-umaserve-priority" not in headers
    begin(relay)
    headers = worker.answer()["headers"]
    assert (json.loads(headers["x-relay-response"])["background"], headers["x-umaserve-priority"]) == (
        True,
        "background",
    )


def test_a_response_in_the_background_is_polled(relay: Relay) -> None:
    worker = relay.worker()
    first = begin(relay, metadata={"a": "b"})
    second = begin(relay)
    assert [first["status"], second["status"]] == ["in_progress", "queued"]
    assert (first["metadata"], first["model"], first["output"]) == ({"a": "b"}, MODEL, [])
    request = worker.request()
    assert json.loads(request["body"]).keys() == {"model", "input", "metadata"}
    refused = relay.client().post(PATH, json.dumps({"input": "x", "previous_response_id": first["id"]}).encode())
    assert "still runs in the background" in refused.receive().error["message"]
    worker.complete(request, body=response(metadata={"a": "b"}))
    whole = ended(relay, first["id"])
    assert whole == json.loads(response()) | {
        "id": first["id"],
        "created_at": first["created_at"],
        "metadata": {"a": "b"},
        "store": True,
        "previous_response_id": None,
        "background": True,
    }
    assert get(relay, f"{first['id']}/cancel", "POST").json == whole, "it has ended"
    wait_until(lambda: get(relay, second["id"]).json["status"] == "in_progress")
    worker.answer(response())
    assert ended(relay, second["id"])["output"] == [SAID]
    _, body = ask(relay, worker, input="And?", previous_response_id=first["id"])
    assert [item.get("id") for item in body["input"]][1] == "msg_1"


@pytest.mark.parametrize("in_flight", [True, False])
@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_a_response_in_the_background_is_cancelled_or_deleted(relay: Relay, how: str, in_flight: bool) -> None:
    worker = relay.worker()
    running = begin(relay)["id"]
    request = worker.request()
    one = running if in_flight else begin(relay)["id"]
    if how == "cancel":
        cancelled = get(relay, f"{one}/cancel", "POST").json
        assert (cancelled["id"], cancelled["status"]) == (one, "cancelled")
        assert get(relay, one).json == cancelled
    else:
        assert get(relay, one, "DELETE").status == 200
        assert get(relay, one).status == 404
    if in_flight:
        cancel = {"type": "cancel", "request_id": request["request_id"], "reason": "client_disconnect"}
        assert worker.receive() == cancel
        relay.wait_for("in_flight", 0)
    else:
        relay.wait_for("queue_length", 0)
    worker.complete(request, body=response())
    assert get(relay, one).status == (200 if how == "cancel" else 404)
    assert get(relay).status == 404, "the worker's own name of it"


def test_who_is_not_in_the_background_is_not_cancelled(relay: Relay) -> None:
    ask(relay, relay.worker())
    assert get(relay, "resp_1/cancel", "POST").error["param"] == "response_id"


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (
            400,
            '{"error":{"message":"too long","code":"context_length_exceeded"}}',
            {"code": "context_length_exceeded", "message": "too long"},
        ),
        (503, '{"error":"busy"}', {"code": "server_error", "message": "busy"}),
        (500, "[]", {"code": "server_error", "message": "the worker answered with status 500"}),
        (200, "[]", {"code": "server_error", "message": "the worker's answer is no response"}),
    ],
)
def test_what_fails_in_the_background_is_told_by_the_response(
    relay: Relay, status: int, body: str, error: dict[str, str]
) -> None:
    worker = relay.worker()
    one = begin(relay)["id"]
    worker.complete(worker.request(), status, body=body)
    failed = ended(relay, one)
    assert (failed["status"], failed["error"], failed["output"]) == ("failed", error, [])


def test_a_response_in_the_background_outlives_its_worker(relay: Relay) -> None:
    worker = relay.worker()
    one = begin(relay)["id"]
    worker.request()
    worker.crash()
    wait_until(lambda: get(relay, one).json["status"] == "queued")
    other = relay.worker()
    request = other.request()
    # As some workers answer: in parts.
    other.chunk(request, response()[:9], status_code=200, headers={"content-type": "application/json"})
    other.chunk(request, response()[9:])
    other.complete(request)
    assert ended(relay, one)["output"] == [SAID]


def test_a_body_in_parts_that_is_too_large_ends_a_response_in_the_background(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_module, "MAX_BYTES", 8)
    worker = relay.worker()
    one = begin(relay)["id"]
    request = worker.request()
    worker.chunk(request, response(), status_code=200, headers={"content-type": "application/json"})
    worker.complete(request)
    assert ended(relay, one)["error"]["message"] == "response: larger than 8 bytes"


def test_what_cant_be_queued_is_refused_in_the_background_too() -> None:
    relay = Relay(max_queue_len=0)
    relay.worker()
    running = begin(relay)["id"]
    for fields, status, error in (
        ({}, 429, "queue full"),
        ({"model": "other"}, 404, "no provider for model other"),
    ):
        body = json.dumps({"input": "x", "background": True, **fields}).encode()
        reply = relay.client().post(PATH, body).receive()
        assert (reply.status, reply.json) == (status, {"error": error})
    assert get(relay, running).json["status"] == "in_progress"
    relay.end()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"store": False}, "store"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"background": 1}, "background"),
        ({"previous_response_id": 7}, "previous_response_id"),
    ],
)
def test_what_is_wrong_reaches_no_worker(relay: Relay, fields: dict[str, Any], param: str) -> None:
    relay.worker()
    body = json.dumps({"input": "x", "background": True, **fields}).encode()
    reply = relay.client().post(PATH, body).receive()
    assert (reply.status, reply.error["param"]) == (400, param)
    assert relay.stat("requests_total") == 0


def test_a_body_that_is_nested_too_deep_to_be_written_is_refused(relay: Relay) -> None:
    relay.worker()
    deep = b"[" * 300 + b"]" * 300
    body = b'{"input":"x","background":true,"a":%b}' % deep
    for path in (PATH, CHAT):
        assert relay.client().post(path, body).receive().error["message"].startswith("body: expected nesting")


@pytest.mark.parametrize("fields", ['"input":5', '"store":"no","input":"x"', '"previous_response_id":null'])
def test_the_worker_says_what_is_wrong_with_the_rest(relay: Relay, fields: str) -> None:
    worker, client = relay.worker(), relay.client()
    body = f'{{"model":"{MODEL}",{fields}}}'
    client.post(PATH, body.encode())
    assert worker.answer(response())["body"] == body
    assert client.receive().body.decode() == response()
    assert get(relay).status == 404


# -- tenants and bounds ------------------------------------------------------------------------------------------------


def test_another_tenants_responses_are_not_there(tmp_path: Path) -> None:
    relay = Relay(client_keys=str(tmp_path / "keys.json"))
    worker = relay.worker()
    keys = {name: relay.admin("POST", "/keys", {"name": name}).json["key"] for name in ("ann", "bob")}
    ann, bob = ({"Authorization": f"Bearer {keys[name]}"} for name in ("ann", "bob"))
    ask(relay, worker, headers=ann)
    assert get(relay, headers=ann).status == 200
    for tail, method in (
        ("resp_1", "GET"),
        ("resp_1", "DELETE"),
        ("resp_1/input_items", "GET"),
        ("resp_1/cancel", "POST"),
    ):
        assert get(relay, tail, method, bob).status == 404
        assert get(relay, tail, method, {}).status == 401
    client = relay.client()
    client.send(encode("POST", PATH, {"input": "x", "previous_response_id": "resp_1"}, bob))
    refused = client.receive()
    assert (refused.status, refused.json["error"]["code"]) == (400, "previous_response_not_found")
    # A worker that gives his the same name.
    ask(relay, worker, response(text="bob's"), headers=bob)
    assert "text" not in get(relay, headers=ann).json
    assert get(relay, headers=bob).json["text"] == "bob's"
    relay.end()


def test_without_keys_a_tenant_is_an_address() -> None:
    relay = Relay(trusted_proxy=(ipaddress.ip_network("127.0.0.0/8"),))
    worker = relay.worker()
    ann, near, bob = ({"X-Forwarded-For": address} for address in ("2001:db8::1", "2001:db8::2", "2001:db8:1::1"))
    ask(relay, worker, headers=ann)
    assert [get(relay, headers=headers).status for headers in (ann, near, bob)] == [200, 200, 404]
    relay.end()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Relay]:
    """A relay that keeps no more bytes than that for each of its clients."""
    monkeypatch.setattr(responses_module, "MAX_BYTES_IN_ALL", 8 * request.param)
    relay = Relay()
    yield relay
    relay.end()


@pytest.mark.parametrize("small", [8000], indirect=True, ids=["two"])
def test_the_oldest_goes_first_and_ends_where_it_goes_on(small: Relay) -> None:
    relay = small
    worker = relay.worker(max_concurrent=2)
    one = begin(relay)["id"]
    request = worker.request()
    for number in (2, 3):
        ask(relay, worker, response(f"resp_{number}"))
    assert [get(relay, each).status for each in (one, "resp_2", "resp_3")] == [404, 200, 200]
    assert worker.receive()["request_id"] == request["request_id"]
    relay.wait_for("in_flight", 0)


@pytest.mark.parametrize("small", [100], indirect=True, ids=["none"])
def test_what_is_too_large_to_be_kept_is_not_and_says_so(small: Relay) -> None:
    relay = small
    worker = relay.worker()
    whole, _body = ask(relay, worker, input="x" * 100)
    assert whole["store"] is False
    assert get(relay).status == 404
    body = json.dumps({"input": "x" * 100, "background": True}).encode()
    reply = relay.client().post(PATH, body).receive()
    assert (reply.status, reply.error["param"]) == (413, "input")


def test_large_input_in_the_background_counts_until_it_ends(relay: Relay) -> None:
    worker = relay.worker()
    one = begin(relay, input="x" * (3 << 20))["id"]
    assert relay.drawn > 1 << 20
    worker.complete(worker.request(), body=response())
    ended(relay, one)
    wait_until(lambda: relay.drawn == 0)


def test_a_relay_that_ends_gives_up_what_is_in_the_background(relay: Relay) -> None:
    worker = relay.worker()
    begin(relay)
    worker.request()
    begin(relay)
    relay.stop()
    relay.wait()


# -- paths -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", f"{PATH}/resp_1", 405),
        ("POST", f"{PATH}/resp_1", 405),
        ("GET", f"{PATH}/resp_1/cancel", 405),
        ("GET", f"{PATH}/resp_1/other", 404),
        ("GET", f"{PATH}//input_items", 404),
        ("GET", PATH, 405),
    ],
)
def test_other_paths_and_methods_are_refused(relay: Relay, method: str, path: str, status: int) -> None:
    reply = relay.client().ask(method, path, {} if method in ("PUT", "POST") else None)
    assert (reply.status, reply.error["type"]) == (status, "invalid_request_error")


def test_the_short_path_is_the_same(relay: Relay) -> None:
    worker, client = relay.worker(), relay.client()
    client.post("/responses", b'{"input":"Hello"}')
    assert worker.answer(response())["endpoint_path"] == "/responses"
    assert client.receive().json == get(relay).json
