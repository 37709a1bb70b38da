"""Sessions of OpenAI's Realtime API, between a client and a worker that both are scripted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from relay_peers import MODEL, Relay, Socket, Worker
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from umaserve.relay.pool.accounts import SessionTally

PATH = "/v1/realtime"
CREATED = {"type": "session.created", "event_id": "event_1"}
APPEND = {"type": "input_audio_buffer.append", "audio": "AAAA"}


@pytest.fixture
def keyed(start: Callable[..., Relay], tmp_path: Path) -> Relay:
    return start(client_keys=str(tmp_path / "keys.json"))


@pytest.fixture
def worker(relay: Relay) -> Worker:
    return relay.worker(features=["flow", "websocket", "realtime"])


def compact(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"))


def opened(relay: Relay, worker: Worker, **headers: str) -> tuple[Socket, dict[str, Any]]:
    """A session's client, and the request that its worker has."""
    client = relay.connect(f"{PATH}?model={MODEL}", **headers)
    request = worker.request()
    worker.chunk(request, compact(CREATED))
    assert client.receive() == CREATED
    return client, request


def test_a_worker_opens_the_session_and_events_pass_unchanged(relay: Relay, worker: Worker) -> None:
    client, request = opened(relay, worker)
    expected = {"endpoint_path": PATH, "model": MODEL, "is_streaming": True, "body": "{}"}
    assert {name: request[name] for name in expected} == expected
    for event in ('{"type": "response.create",  "b": 1, "a": "Grüße 🦙"}', "no JSON"):
        client.send(event)
        follows = worker.request()
        assert (follows["request_id"], follows["body"]) == (request["request_id"], event)
        worker.chunk(request, event)
        assert client.text() == event
    client.connection.close()
    assert worker.receive()["type"] == "cancel"


@pytest.mark.parametrize("query", ["", "?model=default"])
def test_a_session_without_a_model_has_the_only_one(relay: Relay, worker: Worker, query: str) -> None:
    relay.connect(PATH + query)
    assert worker.request()["model"] == MODEL


def error_in(client: Socket) -> str:
    event = client.receive()
    assert list(event) == ["type", "event_id", "error"]
    assert event["type"] == "error"
    message: str = event["error"]["message"]
    return message


@pytest.mark.parametrize(
    ("models", "features", "error"),
    [
        (["other"], ["realtime"], f"no provider for model {MODEL}"),
        (
            [MODEL],
            ["flow", "websocket"],
            "realtime: no worker with this model has sessions of the Realtime API: have an umaserve daemon of this"
            " version work for the relay",
        ),
    ],
)
def test_a_session_that_no_worker_can_have_is_told_so(
    relay: Relay, models: list[str], features: list[str], error: str
) -> None:
    relay.worker(*models, features=features)
    client = relay.connect(f"{PATH}?model={MODEL}")
    assert error_in(client) == error
    assert client.closed()[0] == 1011


def test_a_session_is_lost_with_its_worker(relay: Relay, worker: Worker) -> None:
    client, _request = opened(relay, worker)
    relay.worker(features=["realtime"])
    worker.crash()
    assert error_in(client) == "the worker disconnected after it had begun to answer"
    assert client.closed()[0] == 1011


def test_one_that_is_not_open_yet_goes_to_another_worker_with_all_that_was_said(relay: Relay, worker: Worker) -> None:
    client = relay.connect(f"{PATH}?model={MODEL}")
    for _ in range(100):
        client.send(APPEND)
    opening, *sound = [worker.request() for _ in range(101)]
    worker.crash()
    after = relay.worker(features=["realtime"])
    assert [after.request() for _ in range(101)] == [opening, *sound]
    assert json.loads(sound[-1]["body"]) == APPEND


def test_what_is_said_before_is_limited_and_so_is_an_event(start: Callable[..., Relay]) -> None:
    relay = start(max_body_bytes=1024)
    relay.worker(features=["realtime"])
    client = relay.connect(PATH)
    for _ in range(2):
        client.send("x" * 600)
    assert error_in(client) == "message: expected at most 1024 bytes before the answer begins, got more"
    assert client.closed()[0] == 1011
    client = relay.connect(PATH)
    client.send("x" * 1025)
    assert error_in(client) == "message: expected at most 1024 bytes, got 1025"
    assert client.closed()[0] == 1009


def test_a_session_may_say_more_than_a_response(start: Callable[..., Relay]) -> None:
    relay = start(max_response_bytes=1024)
    worker = relay.worker(features=["realtime"])
    client, request = opened(relay, worker)
    for _ in range(3):
        worker.chunk(request, "x" * 1000)
        assert client.text() == "x" * 1000


def test_a_microphone_waits_for_its_worker_and_piles_up_nowhere(relay: Relay, worker: Worker) -> None:
    client, _request = opened(relay, worker)
    packet, n = compact({**APPEND, "audio": "A" * 2**16}), 512
    speaking = threading.Thread(target=lambda: [client.send(packet) for _ in range(n)], daemon=True)
    speaking.start()
    most = 0
    for _ in range(n):
        assert worker.request()["body"] == packet
        most = max(most, relay.queued)
    assert most < n * len(packet) // 8


def test_a_worker_is_told_to_pause_for_a_client_that_listens_slowly(relay: Relay, worker: Worker) -> None:
    client, request = opened(relay, worker)
    sound = compact({"type": "response.output_audio.delta", "delta": "A" * 2**16})
    told: list[Any] = []
    listening = threading.Thread(target=lambda: told.append(worker.receive()), daemon=True)
    listening.start()
    n = 0
    while not told:
        worker.chunk(request, sound)
        n += 1
    flow = {"type": "flow", "request_id": request["request_id"]}
    assert told == [{**flow, "paused": True}]
    assert {client.text() for _ in range(n)} == {sound}
    assert worker.receive() == {**flow, "paused": False}


def begins(worker: Worker, request: dict[str, Any], id_: str) -> dict[str, Any]:
    event = {"type": "response.created", "event_id": "event_2", "response": {"id": id_}}
    worker.chunk(request, compact(event))
    return event


def test_each_response_counts_and_one_too_many_is_cancelled(keyed: Relay) -> None:
    worker = keyed.worker(features=["realtime"])
    client, request = opened(keyed, worker, **keyed.key(requests_per_minute=2))
    for number in (1, 2):
        # Its user has ended to speak: nobody has asked for it by an event.
        event = begins(worker, request, f"resp_{number}")
        assert client.receive() == event
    assert error_in(client).startswith("request: the limit of 2 requests a minute is used up")
    assert json.loads(worker.request()["body"]) == {"type": "response.cancel", "response_id": "resp_2"}
    worker.chunk(request, "goes on")
    assert client.text() == "goes on"


def test_a_revoked_keys_session_ends_with_its_next_response(keyed: Relay) -> None:
    worker = keyed.worker(features=["realtime"])
    client, request = opened(keyed, worker, **keyed.key())
    assert keyed.admin("DELETE", "/keys/1").status == 200
    begins(worker, request, "resp_1")
    assert client.receive()["type"] == "response.created"
    assert "was revoked" in error_in(client)
    assert client.closed()[0] == 1008
    assert worker.receive()["type"] == "cancel"


def test_the_worker_is_told_the_models_and_the_class_of_the_key(keyed: Relay) -> None:
    worker = keyed.worker(MODEL, "other", features=["realtime"])
    key = keyed.key(models=[MODEL, "writer"], **{"class": "background"})
    _client, request = opened(keyed, worker, **key)
    assert json.loads(request["body"]) == {"models": [MODEL, "writer"]}
    assert request["headers"]["x-umaserve-priority"] == "background"
    assert not request["headers"].keys() & {"x-api-key", "authorization", "sec-websocket-protocol"}
    for query, status in (("?model=other", 404), ("", 400)):
        with pytest.raises(InvalidStatus, match=str(status)):
            connect(f"ws://{keyed.address}{PATH}{query}", additional_headers=key, proxy=None)


DELTA = '{"type":"response.output_text.delta","delta":"a"}'
DONE = '{"type":"response.done","response":{"usage":{"total_tokens":9,"input_tokens":7,"output_tokens":2}}}'


@pytest.mark.parametrize(
    ("chunks", "spent"),
    [
        ([DELTA, DELTA, DONE], (7, 2)),
        ([DELTA, DELTA, DONE, DELTA, DONE], (14, 4)),
        ([DELTA, DELTA, DONE, DELTA], (7, 3)),
        (['{"type":"response.output_audio.delta","delta":"AAAA"}', '{"type":"error"}', b"\0"], (0, 0)),
        (['{"type":"conversation.item.input_audio_transcription.completed","usage":{"output_tokens":3}}'], (0, 3)),
    ],
)
def test_a_sessions_tokens_are_those_that_its_answers_tell(chunks: list[str | bytes], spent: tuple[int, int]) -> None:
    told: list[tuple[int, int]] = []
    tally = SessionTally(lambda prompt, generated: told.append((prompt, generated)))
    for chunk in chunks:
        tally.chunk(chunk)
    tally.close()
    assert tuple(map(sum, zip(*told, strict=True))) == spent


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("POST", "/v1/realtime/client_secrets", 404, "a relay makes no client secrets: make a key for the page"),
        ("POST", "/v1/files", 404, "send them to a daemon that has --store"),
        ("GET", "/v1/files/file-1/content", 404, "send them to a daemon that has --store"),
        ("GET", "/v1/batches", 404, "send them to a daemon that has --store"),
        ("GET", "/v1/responses", 405, "and of responses none: POST each one"),
    ],
)
def test_what_only_a_daemon_has_is_refused_with_what_to_do_instead(
    relay: Relay, method: str, path: str, status: int, words: str
) -> None:
    refused = relay.client().ask(method, path, {} if method == "POST" else None)
    assert refused.status == status
    assert words in refused.error["message"]
