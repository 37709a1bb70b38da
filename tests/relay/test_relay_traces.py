"""The relay on the wire, trace by trace in the contract's order and words (contract: relay-wire-traces)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from relay_peers import CHAT, SECRET, Client, Relay, Worker, register, wait_until

EVENT = 'data: {"choices":[]}\n\n'
SHUTTING_DOWN = {"error": "the relay is shutting down"}


def streaming(relay: Relay, worker: Worker) -> tuple[Client, dict[str, Any]]:
    """A client that has had the first part of its answer, and its request as the worker got it."""
    client = relay.client().post(stream=True)
    request = worker.request()
    worker.chunk(request, EVENT)
    assert client.head()[0] == 200
    assert client.chunk() == EVENT.encode()
    return client, request


def queued(relay: Relay, **fields: Any) -> Client:
    """A client whose request waits for a worker."""
    before = relay.stat("queue_length")
    client = relay.client().post(**fields)
    relay.wait_for("queue_length", before + 1)
    return client


def serves_next(relay: Relay, worker: Worker) -> None:
    """Whether the next message that the worker gets is a new request, with nothing sent to it before."""
    client = relay.client().post(messages=["the next"])
    assert "the next" in worker.answer()["body"]
    assert client.receive().status == 200


# -- 1. Worker registration and heartbeat ------------------------------------------------------------------------------


def test_a_worker_registers(relay: Relay) -> None:
    worker = relay.dial()
    worker.send(
        {
            "type": "register",
            "worker_name": "gpu-box-1",
            "models": ["llama3-8b"],
            "max_concurrent": 4,
            "protocol_version": "1",
            "current_load": 0,
        }
    )
    ack = worker.receive()
    assert re.fullmatch("w-[0-9a-f]{6}", ack.pop("worker_id"))
    assert ack == {"type": "register_ack", "models": ["llama3-8b"], "protocol_version": "1"}
    (shown,) = relay.workers()
    assert (shown["name"], shown["max_concurrent"], shown["load"]) == ("gpu-box-1", 4, 0)


@pytest.mark.parametrize("version", ["1", "2026-04-bridge-v1", None])
def test_the_acknowledgement_echoes_the_version(relay: Relay, version: str | None) -> None:
    worker = relay.dial()
    message = register()
    del message["protocol_version"]
    worker.send(message | ({} if version is None else {"protocol_version": version}))
    assert worker.receive().get("protocol_version") == version


@pytest.mark.parametrize(
    "message",
    [
        register(protocol_version="2"),
        register(protocol_version=""),
        register(protocol_version=1),
        register(max_concurrent=-1),
        register(models="llama3-8b"),
        {"type": "register"},
        {"type": "pong", "current_load": 0},
        {"type": "hello"},
        "register",
    ],
)
def test_another_version_or_another_first_message_is_refused(relay: Relay, message: dict[str, Any] | str) -> None:
    worker = relay.dial()
    worker.send(message)
    assert worker.closed() == (1002, "worker registration protocol error")
    assert relay.workers() == []


def test_a_worker_that_does_not_register_in_time_is_closed(start: Callable[..., Relay]) -> None:
    assert start(header_timeout=0.5).dial().closed() == (1002, "worker registration protocol error")


def test_models_are_trimmed_listed_once_and_capped_with_warnings(
    start: Callable[..., Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("umaserve.relay.http.worker_link.MAX_MODELS", 2)
    worker = start().worker(" llama3-8b ", "", "llama3-8b", "x" * 300, "b", "c")
    assert worker.ack["models"] == ["llama3-8b", "b"]
    assert worker.ack["warnings"] == [
        "models: expected names of at most 256 bytes, left out 1",
        "models: expected at most 2, left out the last 1",
    ]


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("", {"x_worker_secret": SECRET}),
        ("?worker_secret=a%20worker%27s%20secret", {"x_other": ""}),
        ("?provider=local&worker_secret=wrong", {"x_worker_secret": SECRET}),
    ],
)
def test_the_secret_comes_as_a_header_or_in_the_query(relay: Relay, query: str, headers: dict[str, str]) -> None:
    worker = relay.dial(query, **headers)
    worker.send(register())
    assert worker.receive()["type"] == "register_ack"


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("", {"x_worker_secret": "wrong"}),
        ("?worker_secret=wrong", {"x_other": ""}),
        ("?worker_secret=a%20worker%27s%20secret", {"x_worker_secret": "wrong"}),
        ("?provider=elsewhere", {"x_worker_secret": SECRET}),
        ("", {"x_other": ""}),
    ],
)
def test_a_wrong_secret_or_provider_is_told_after_the_upgrade(
    relay: Relay, query: str, headers: dict[str, str]
) -> None:
    assert relay.dial(query, **headers).closed() == (1008, "worker authentication failed")


def test_a_wrong_secret_is_logged_but_no_more_than_five_times_a_minute(relay: Relay) -> None:
    for _ in range(5):
        assert relay.dial(x_worker_secret="wrong").closed() == (1008, "worker authentication failed")
    for _ in range(3):
        assert relay.dial(x_worker_secret="wrong").closed() == (1008, "worker authentication temporarily rate limited")
    refused = [one for one in relay.records if one.getMessage().startswith("refused a worker")]
    assert [one.getMessage() for one in refused] == ["refused a worker: its worker_secret is wrong"] * 5
    assert refused[0].fields == {"peer": "127.0.0.1"}  # type: ignore[attr-defined]


def test_a_right_secret_is_taken_whatever_others_at_its_address_tried(relay: Relay) -> None:
    for _ in range(6):
        relay.dial(x_worker_secret="wrong").closed()
    worker = relay.worker()
    serves_next(relay, worker)


@pytest.mark.parametrize(
    ("query", "headers", "reason"),
    [
        ("", {"x_other": ""}, "it has sent no worker_secret"),
        ("?provider=else%0Awhere", {"x_worker_secret": SECRET}, "provider: expected 'local', got 'else\\nwhere'"),
    ],
)
def test_the_log_has_why_a_worker_was_refused(relay: Relay, query: str, headers: dict[str, str], reason: str) -> None:
    relay.dial(query, **headers).closed()
    assert f"refused a worker: {reason}" in [one.getMessage() for one in relay.records]


def test_a_pong_updates_the_load(start: Callable[..., Relay]) -> None:
    relay = start(heartbeat_interval=0.05)
    worker = relay.worker()
    ping = worker.receive()
    assert ping["type"] == "ping"
    worker.send({"type": "pong", "current_load": 3, "timestamp_unix_ms": ping["timestamp_unix_ms"]})
    wait_until(lambda: relay.workers()[0]["load"] == 3)


def test_missed_heartbeats_end_the_link_and_its_request_goes_to_the_next_worker(start: Callable[..., Relay]) -> None:
    relay = start(heartbeat_interval=0.1, heartbeat_timeout=0.8)
    silent = relay.worker()
    client = relay.client().post()
    first = silent.request()
    assert silent.closed() == (1000, "worker heartbeat timed out")
    assert relay.worker().answer('{"by": 2}') == first
    assert client.receive().json == {"by": 2}


# -- 2. Normal non-streaming request -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages", "/v1/responses", "/v1/embeddings"])
def test_a_request_reaches_the_worker_as_it_was_read(relay: Relay, path: str) -> None:
    worker = relay.worker()
    body = '{"model":"llama3-8b" , "stream" : false,\n "messages":[{"content":"Grüße \\u0000 🦙"}]}'
    relay.client().post(path, body.encode())
    request = worker.request()
    assert re.fullmatch("r-[0-9]+", request.pop("request_id"))
    assert request == {
        "type": "request",
        "model": "llama3-8b",
        "endpoint_path": path,
        "is_streaming": False,
        "body": '{"model":"llama3-8b","stream":false,"messages":[{"content":"Grüße \\u0000 🦙"}]}',
        "headers": {"content-type": "application/json", "x-of-the-client": "yes", "via": "1.1 umaserve"},
    }


@pytest.mark.parametrize("status", [200, 201, 400, 429, 503])
def test_status_headers_and_body_reach_the_client_untouched(relay: Relay, status: int) -> None:
    worker = relay.worker()
    client = relay.client().post(stream=False)
    body = '{"choices": [ "Grüße 🦙" ]}\n'
    worker.complete(
        worker.request(),
        status,
        headers={"content-type": "application/json", "Retry-After": "7", "x-of-the-backend": "ü"},
        body=body,
        token_counts={"prompt_tokens": 42, "completion_tokens": 128, "total_tokens": 170},
    )
    response = client.receive()
    assert (response.status, response.body) == (status, body.encode())
    del response.headers["date"]
    assert response.headers == {
        "content-type": "application/json",
        "retry-after": "7",
        "x-of-the-backend": "ü",
        "via": "1.1 umaserve",
        "content-length": str(len(body.encode())),
    }


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_a_body_stays_one(relay: Relay, status: int) -> None:
    worker = relay.worker()
    client = relay.client().post()
    worker.complete(worker.request(), status, body="not to be sent")
    assert client.head()[0] == status
    client.post()
    worker.answer()
    assert client.receive().status == 200


def test_the_requests_of_a_connection_are_answered_in_turn(relay: Relay) -> None:
    worker = relay.worker()
    client = relay.client().post(messages=[1]).post(messages=[2])
    for number in (1, 2):
        assert json.loads(worker.answer(str(number))["body"])["messages"] == [number]
        assert client.receive().json == number


def test_the_least_loaded_worker_gets_the_request(relay: Relay) -> None:
    relay.worker(max_concurrent=4, current_load=2)
    idle = relay.worker(max_concurrent=4)
    relay.client().post()
    idle.request()


def test_a_workers_error_is_a_bad_gateway(relay: Relay) -> None:
    worker = relay.worker()
    client = relay.client().post()
    id_ = worker.request()["request_id"]
    worker.send({"type": "error", "request_id": id_, "code": "backend_down", "message": "nobody listens"})
    response = client.receive()
    assert (response.status, response.json) == (502, {"error": "nobody listens"})
    serves_next(relay, worker)


# -- 3. Streaming request (SSE) ----------------------------------------------------------------------------------------


def test_each_chunk_is_with_the_client_before_the_next_is_made(relay: Relay) -> None:
    worker = relay.worker()
    client = relay.client().post(stream=True)
    request = worker.request()
    assert request["is_streaming"] is True
    chunks = [EVENT, 'data: {"choices":', "[1]}", "\n", "\n", ": a comment\r\n\r\n", "Grüße 🦙\0", "data: [DONE]\n\n"]
    for number, chunk in enumerate(chunks):
        worker.chunk(request, chunk)
        if number == 0:
            status, headers = client.head()
            assert (status, headers["content-type"]) == (200, "text/event-stream")
        assert client.chunk() == chunk.encode()
    worker.complete(request, token_counts={"total_tokens": 9})
    assert client.chunk() == b""
    serves_next(relay, worker)


def test_the_first_chunk_may_bring_status_and_headers(relay: Relay) -> None:
    worker = relay.worker()
    client = relay.client().post(stream=True)
    request = worker.request()
    worker.chunk(request, "{", status_code=429, headers={"content-type": "application/json", "retry-after": "1"})
    status, headers = client.head()
    assert (status, headers["content-type"], headers["retry-after"]) == (429, "application/json", "1")
    assert client.chunk() == b"{"
    worker.chunk(request, "}")
    worker.complete(request)
    assert (client.chunk(), client.chunk()) == (b"}", b"")


def test_empty_chunks_end_nothing(relay: Relay) -> None:
    worker = relay.worker()
    client, request = streaming(relay, worker)
    worker.chunk(request, "")
    worker.chunk(request, "on")
    assert client.chunk() == b"on"


@pytest.mark.parametrize(("status", "shown"), [(204, 204), (304, 304), (101, 502), (199, 502)])
def test_a_stream_whose_status_allows_none_costs_no_other_request_anything(
    relay: Relay, status: int, shown: int
) -> None:
    worker = relay.worker(max_concurrent=2)
    other, others = streaming(relay, worker)
    client = relay.client().post(stream=True)
    request = worker.request()
    worker.chunk(request, EVENT, status_code=status)
    assert client.head()[0] == shown
    worker.complete(request)
    worker.chunk(others, "on")
    assert other.chunk() == b"on"


@pytest.mark.parametrize("body", [None, "", '{"error":"overloaded"}'])
def test_a_stream_that_never_began_ends_with_the_completions_own_words(relay: Relay, body: str | None) -> None:
    worker = relay.worker()
    client = relay.client().post(stream=True)
    worker.complete(worker.request(), 500, **({} if body is None else {"body": body}))
    response = client.receive()
    assert (response.status, response.body) == (500, (body or "").encode())


def test_a_streams_400_that_its_worker_sends_as_a_stream_stays_one(relay: Relay) -> None:
    worker = relay.worker()
    client = relay.client().post(stream=True)
    request = worker.request()
    body = '{"error": {"message": "max_tokens: expected at least 1", "code": 400}}'
    for part in (body[:5], body[5:]):
        worker.chunk(request, part)
    worker.complete(request, 400, headers={"content-type": "application/json"}, body="")
    response = client.receive()
    assert (response.status, response.headers["content-type"], response.body) == (
        400,
        "application/json",
        body.encode(),
    )


@pytest.mark.parametrize("unfinished", ['data: {"choices":[]}', 'data: {"choices":[]}\n', "data: {"])
def test_a_late_error_is_no_part_of_an_unfinished_event(relay: Relay, unfinished: str) -> None:
    worker = relay.worker()
    client, request = streaming(relay, worker)
    worker.chunk(request, unfinished)
    assert client.chunk() == unfinished.encode()
    worker.complete(request, 500)
    assert client.chunk() == b'\n\ndata: {"error":"the worker failed after it had begun to answer"}\n\n'
    assert client.chunk() == b""


def test_a_late_error_is_one_for_anthropics_clients_too(relay: Relay) -> None:
    worker = relay.worker()
    client = relay.client().post("/v1/messages", stream=True)
    worker.chunk(worker.request(), "event: ping\n\n")
    assert client.head()[0] == 200
    assert client.chunk() == b"event: ping\n\n"
    worker.crash()
    name, data = client.chunk().decode().split("\n", 1)
    assert name == "event: error"
    broken = "the worker disconnected after it had begun to answer"
    assert json.loads(data.removeprefix("data: ")) == {
        "type": "error",
        "error": {"type": "api_error", "message": broken},
    }
    assert client.chunk() == b""


def test_a_late_error_of_what_is_no_stream_of_events_leaves_it_unfinished(relay: Relay) -> None:
    worker = relay.worker()
    client = relay.client().post(stream=True)
    worker.chunk(worker.request(), "{}\n", headers={"content-type": "application/x-ndjson"})
    assert client.head()[0] == 200
    assert client.chunk() == b"{}\n"
    worker.crash()
    assert client.rest() == b"", "neither an event nor the last chunk"


def test_a_worker_that_fails_after_output_ends_the_stream_with_an_error(relay: Relay) -> None:
    worker = relay.worker()
    client, request = streaming(relay, worker)
    worker.complete(request, 500)
    assert client.chunk() == b'data: {"error":"the worker failed after it had begun to answer"}\n\n'
    assert client.chunk() == b""


# -- 4. Client cancellation propagation --------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", [Client.close, Client.reset])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_its_request(relay: Relay, leave: Callable[[Client], None], stream: bool) -> None:
    worker = relay.worker()
    if stream:
        client, request = streaming(relay, worker)
    else:
        client = relay.client().post()
        request = worker.request()
    leave(client)
    assert worker.receive() == {
        "type": "cancel",
        "request_id": request["request_id"],
        "reason": "client_disconnect",
    }


def test_a_cancelled_requests_place_is_free_once_the_worker_answers(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("umaserve.relay.pool.in_flight.CANCEL_GRACE_S", 3600.0)
    worker = relay.worker()
    client, request = streaming(relay, worker)
    client.close()
    assert worker.receive()["type"] == "cancel"
    waiting = queued(relay)
    assert relay.workers()[0]["cancelled"] == 1
    worker.chunk(request, "too late")
    worker.complete(request, 499)
    worker.answer()
    assert waiting.receive().status == 200


def test_a_cancelled_requests_place_is_free_after_the_grace(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umaserve.relay.pool.in_flight.CANCEL_GRACE_S", 0.2)
    worker = relay.worker()
    client, request = streaming(relay, worker)
    client.close()
    assert worker.receive()["type"] == "cancel"
    waiting = relay.client().post()
    second = worker.request()
    # What comes now for the first one is dropped.
    worker.complete(request, body='"the first"')
    worker.complete(second, body='"the second"')
    assert waiting.receive().body == b'"the second"'


def test_a_queued_request_whose_client_leaves_reaches_no_worker(relay: Relay) -> None:
    worker = relay.worker()
    client, request = streaming(relay, worker)
    queued(relay).close()
    relay.wait_for("queue_length", 0)
    worker.complete(request)
    assert client.chunk() == b""
    serves_next(relay, worker)


# -- 5. Worker disconnect mid-request (requeue path) -------------------------------------------------------------------


@pytest.mark.parametrize("leave", [Worker.crash, lambda worker: worker.connection.close()])
def test_the_request_of_a_lost_worker_is_answered_by_the_next(relay: Relay, leave: Callable[[Worker], None]) -> None:
    worker = relay.worker()
    client = relay.client().post()
    first = worker.request()
    leave(worker)
    assert relay.worker().answer('{"by": 2}') == first
    response = client.receive()
    assert (response.status, response.json) == (200, {"by": 2})


def test_a_requeued_request_goes_before_those_that_came_later(relay: Relay) -> None:
    worker = relay.worker()
    relay.client().post(messages=["the first"])
    worker.request()
    queued(relay, messages=["the second"])
    worker.crash()
    relay.wait_for("queue_length", 2)
    after = relay.worker()
    assert "the first" in after.answer()["body"]
    assert "the second" in after.answer()["body"]


def test_after_three_requeues_the_client_is_told(relay: Relay) -> None:
    client = relay.client()
    for attempt in range(4):
        worker = relay.worker()
        if attempt == 0:
            client.post()
        worker.request()
        worker.crash()
    response = client.receive()
    assert (response.status, response.json) == (503, {"error": "requeue attempts exhausted"})
    assert relay.stat("requeues_total") == 3
    serves_next(relay, relay.worker())


def test_a_request_is_nobody_elses_once_output_has_reached_its_client(relay: Relay) -> None:
    worker = relay.worker()
    client, _request = streaming(relay, worker)
    other = relay.worker()
    worker.crash()
    assert client.chunk() == b'data: {"error":"the worker disconnected after it had begun to answer"}\n\n'
    assert client.chunk() == b""
    serves_next(relay, other)


# -- 6. Queue-full error -----------------------------------------------------------------------------------------------


def test_a_full_queue_takes_no_more(start: Callable[..., Relay]) -> None:
    relay = start(max_queue_len=1)
    worker = relay.worker()
    relay.client().post()
    running = worker.request()
    waiting = queued(relay)
    response = relay.client().post().receive()
    assert (response.status, response.json) == (429, {"error": "queue full"})
    worker.complete(running)
    worker.answer()
    assert waiting.receive().status == 200


# -- 7. No workers available -------------------------------------------------------------------------------------------


def test_a_model_that_no_worker_ever_had_is_not_found(relay: Relay) -> None:
    for attempt in range(2):
        response = relay.client().post().receive()
        assert (response.status, response.json) == (404, {"error": "no provider for model llama3-8b"})
        if attempt == 0:
            relay.worker("codellama-13b")


def test_a_model_whose_worker_has_left_is_waited_for(relay: Relay) -> None:
    relay.worker().crash()
    relay.wait_for("workers", 0)
    client = queued(relay)
    relay.worker().answer()
    assert client.receive().status == 200


def test_one_models_wait_is_nobody_elses(relay: Relay) -> None:
    worker = relay.worker(max_concurrent=1)
    relay.client().post()
    worker.request()
    queued(relay)
    client = relay.client()
    other = relay.worker("codellama-13b")
    client.post(model="codellama-13b")
    other.answer()
    assert client.receive().status == 200


def test_a_worker_of_any_model_takes_every_model(relay: Relay) -> None:
    worker = relay.worker("*")
    client = relay.client().post(model="never heard of")
    assert worker.answer()["model"] == "never heard of"
    assert client.receive().status == 200


# -- 8. Graceful shutdown / worker drain -------------------------------------------------------------------------------


def test_a_drained_worker_finishes_what_it_has_and_gets_no_more(relay: Relay) -> None:
    worker = relay.worker(max_concurrent=2)
    client, request = streaming(relay, worker)
    shown = relay.admin("POST", f"/workers/{worker.id}/drain", {"reason": "maintenance", "drain_timeout_secs": 30})
    assert (shown.status, shown.json["draining"]) == (200, True)
    assert worker.receive() == {"type": "graceful_shutdown", "reason": "maintenance", "drain_timeout_secs": 30}
    waiting = queued(relay)
    worker.chunk(request, "on")
    assert client.chunk() == b"on"
    worker.complete(request)
    assert client.chunk() == b""
    assert worker.closed() == (1000, "graceful shutdown complete")
    relay.worker().answer()
    assert waiting.receive().status == 200


@pytest.mark.parametrize("path", ["/drain", None])
def test_an_idle_worker_is_closed_as_soon_as_it_is_drained(relay: Relay, path: str | None) -> None:
    worker = relay.worker()
    assert relay.admin("POST", path or f"/workers/{worker.id}/drain", {"drain_timeout_secs": 5}).status == 200
    assert worker.receive() == {"type": "graceful_shutdown", "reason": "maintenance", "drain_timeout_secs": 5}
    assert worker.closed() == (1000, "graceful shutdown complete")
    relay.wait_for("workers", 0)


def test_a_drain_that_takes_too_long_gives_the_request_to_another_worker(relay: Relay) -> None:
    worker = relay.worker()
    client = relay.client().post()
    first = worker.request()
    relay.admin("POST", f"/workers/{worker.id}/drain", {"drain_timeout_secs": 0.2})
    assert worker.receive()["type"] == "graceful_shutdown"
    assert worker.closed() == (1000, "graceful shutdown timed out")
    assert relay.worker().answer() == first
    assert client.receive().status == 200


def test_a_relay_that_stops_lets_its_workers_finish(start: Callable[..., Relay]) -> None:
    relay = start(drain_timeout=30.0)
    worker = relay.worker()
    client, request = streaming(relay, worker)
    waiting = queued(relay)
    relay.stop()
    assert worker.receive() == {
        "type": "graceful_shutdown",
        "reason": "the relay is shutting down",
        "drain_timeout_secs": 30,
    }
    for refused in (waiting, relay.client().post()):
        response = refused.receive()
        assert (response.status, response.json) == (503, SHUTTING_DOWN)
    health = relay.client().ask("GET", "/health")
    assert (health.status, health.json["status"]) == (503, "draining")
    assert relay.dial().closed()[0] == 1008
    worker.chunk(request, "on")
    worker.complete(request)
    assert (client.chunk(), client.chunk()) == (b"on", b"")
    assert worker.closed() == (1000, "graceful shutdown complete")
    relay.wait()


def test_load_balancers_see_the_end_of_a_relay_before_it_begins(start: Callable[..., Relay]) -> None:
    relay = start(drain_grace=2.0, drain_timeout=30.0)
    worker = relay.worker()
    probe = relay.client()
    assert probe.ask("GET", "/health/ready").status == 200
    relay.stop()
    while (ready := probe.ask("GET", "/health/ready")).status == 200:
        continue
    assert (ready.status, ready.json) == (503, {"status": "draining", "workers": 1})
    assert probe.ask("GET", "/health/live").json == probe.ask("GET", "/health").json == {"status": "ok", "workers": 1}
    client = relay.client().post()
    worker.answer()
    assert client.receive().status == 200
    relay.wait()


def test_a_relay_that_stops_waits_no_longer_than_it_was_told_to(start: Callable[..., Relay]) -> None:
    relay = start(drain_timeout=0.3)
    worker = relay.worker(max_concurrent=2)
    begun, _request = streaming(relay, worker)
    client = relay.client().post()
    worker.request()
    relay.stop()
    assert worker.receive()["type"] == "graceful_shutdown"
    assert {worker.receive()["reason"] for _ in range(2)} == {"server_shutdown"}
    assert worker.closed() == (1000, "graceful shutdown timed out")
    response = client.receive()
    assert (response.status, response.json) == (503, SHUTTING_DOWN)
    assert (begun.chunk(), begun.chunk()) == (b'data: {"error":"the relay is shutting down"}\n\n', b"")
    relay.wait()


# -- 9. Dynamic model update -------------------------------------------------------------------------------------------


def test_an_update_of_models_serves_those_who_wait_for_them(relay: Relay) -> None:
    relay.worker("codellama-13b").crash()
    relay.wait_for("workers", 0)
    worker = relay.worker(max_concurrent=4)
    client = queued(relay, model="codellama-13b")
    worker.send({"type": "models_update", "models": ["llama3-8b", "codellama-13b"], "current_load": 1})
    assert worker.answer()["model"] == "codellama-13b"
    assert client.receive().status == 200
    serves_next(relay, worker)


def test_a_model_that_was_removed_is_asked_of_its_worker_no_more(relay: Relay) -> None:
    worker = relay.worker("llama3-8b", "codellama-13b", max_concurrent=4)
    client, request = streaming(relay, worker)
    worker.send({"type": "models_update", "models": ["codellama-13b"], "current_load": 1})
    wait_until(lambda: relay.workers()[0]["models"] == ["codellama-13b"])
    waiting = queued(relay)
    # What it has begun it finishes.
    worker.complete(request)
    assert client.chunk() == b""
    relay.worker().answer()
    assert waiting.receive().status == 200


@pytest.mark.parametrize("path", ["/refresh", None])
def test_an_operator_has_a_worker_report_its_models(relay: Relay, path: str | None) -> None:
    worker = relay.worker()
    assert relay.admin("POST", path or f"/workers/{worker.id}/refresh").status == 200
    assert worker.receive() == {"type": "models_refresh", "reason": "admin"}
    worker.send({"type": "models_update", "models": [" codellama-13b", "codellama-13b"], "current_load": 0})
    wait_until(lambda: relay.workers()[0]["models"] == ["codellama-13b"])


# -- 10. Queue timeout -------------------------------------------------------------------------------------------------


def test_a_request_that_waits_too_long_never_reaches_a_worker(start: Callable[..., Relay]) -> None:
    relay = start(queue_timeout=0.3)
    worker = relay.worker()
    running, request = streaming(relay, worker)
    response = relay.client().post().receive()
    assert (response.status, response.json) == (504, {"error": "queue timeout: no worker available within deadline"})
    assert relay.stat("queue_timeouts_total") == 1
    worker.complete(request)
    assert running.chunk() == b""
    serves_next(relay, worker)


# -- 11. Request timeout (in-flight) -----------------------------------------------------------------------------------


def test_a_request_that_takes_too_long_is_cancelled(start: Callable[..., Relay]) -> None:
    relay = start(request_timeout=0.3)
    worker = relay.worker()
    client = relay.client().post()
    request = worker.request()
    assert worker.receive() == {"type": "cancel", "request_id": request["request_id"], "reason": "timeout"}
    response = client.receive()
    assert (response.status, response.json) == (504, {"error": "request timeout"})
    worker.complete(request, 499)
    wait_until(lambda: relay.workers()[0]["cancelled"] == 0)


def test_a_stream_that_takes_too_long_ends_with_an_error(start: Callable[..., Relay]) -> None:
    relay = start(request_timeout=0.8)
    worker = relay.worker()
    client, request = streaming(relay, worker)
    assert (client.chunk(), client.chunk()) == (b'data: {"error":"request timeout"}\n\n', b"")
    assert worker.receive() == {"type": "cancel", "request_id": request["request_id"], "reason": "timeout"}


# -- What the open-source ModelRelay's own worker does -----------------------------------------------------------------


def foreign_worker(relay: Relay) -> Worker:
    worker = relay.dial()
    worker.send(register(protocol_version="2026-04-bridge-v1"))
    ack = worker.receive()
    assert ack["protocol_version"] == "2026-04-bridge-v1"
    assert "features" not in ack
    return worker


def test_its_stream_ends_with_an_empty_completion(relay: Relay) -> None:
    worker = foreign_worker(relay)
    client, request = streaming(relay, worker)
    worker.complete(request, body="")
    assert client.chunk() == b""
    serves_next(relay, worker)


def test_it_answers_no_cancel_and_keeps_its_place_all_the_same(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umaserve.relay.pool.in_flight.CANCEL_GRACE_S", 0.1)
    worker = foreign_worker(relay)
    for _ in range(3):
        client, _request = streaming(relay, worker)
        client.close()
        assert worker.receive()["type"] == "cancel"
    serves_next(relay, worker)


def test_it_is_pinged_on_a_fixed_cadence_also_while_it_streams(start: Callable[..., Relay]) -> None:
    relay = start(heartbeat_interval=0.1)
    worker = foreign_worker(relay)
    client, request = relay.client().post(stream=True), None
    pings = 0
    while pings < 5:
        message = worker.receive()
        if message["type"] == "request":
            request = message
        else:
            pings += message["type"] == "ping"
            worker.send({"type": "pong", "current_load": 1})
        if request is not None:
            worker.chunk(request, EVENT)
    assert request is not None
    worker.complete(request, body="")
    assert set(client.receive().body.decode().split("\n\n")) == {EVENT.strip(), ""}


def test_it_is_sent_no_request_once_it_drains(relay: Relay) -> None:
    worker = foreign_worker(relay)
    client, request = streaming(relay, worker)
    relay.admin("POST", "/drain", {"drain_timeout_secs": 30})
    assert worker.receive()["type"] == "graceful_shutdown"
    waiting = queued(relay)
    # It finishes, leaves by itself, and comes back.
    worker.complete(request, body="")
    assert worker.closed() == (1000, "graceful shutdown complete")
    assert client.chunk() == b""
    foreign_worker(relay).answer()
    assert waiting.receive().status == 200
