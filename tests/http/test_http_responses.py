"""OpenAI's Responses API over HTTP: streams in which nothing comes, and responses that go on without their client."""

from __future__ import annotations

import json
from typing import Any

from http_world import HttpWorld, post

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Output, Placed, Started, Token, Usage
from umaserve.daemon.http.exchange import PING_S

BACKGROUND = {"input": "hi", "background": True}
END = Finished(FinishReason.STOP, Usage(3, 1))


def put(world: HttpWorld, *outputs: Output | RequestError) -> None:
    *_, session = world.sessions.running()
    for output in outputs:
        world.sessions.put(session, output)
    world.deliver()


def reply(world: HttpWorld) -> dict[str, Any]:
    head, _, body = world.received().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    found: dict[str, Any] = json.loads(body)
    return found


def fetched(world: HttpWorld, response_id: str) -> dict[str, Any]:
    world.send(f"GET /v1/responses/{response_id} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return reply(world)


def test_a_silent_stream_says_that_it_goes_on(world: HttpWorld) -> None:
    world.send(post("/v1/responses", {"input": "hi", "stream": True}))
    world.turn(PING_S + 1)
    put(world, Started(), Placed(), Token("a", 1), END)
    events = [json.loads(line[6:]) for line in world.received().split(b"\n") if line.startswith(b"data: ")]
    assert [event["type"] for event in events][:4] == [
        "response.created",
        *("response.in_progress", "response.in_progress"),
        "response.output_item.added",
    ]
    assert events[-1]["type"] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_a_response_in_the_background_goes_on_when_its_client_has_left(world: HttpWorld) -> None:
    world.send(post("/v1/responses", BACKGROUND))
    asked = reply(world)
    assert asked["status"] == "queued"
    world.client.close()
    world.turn()
    world.client, world.connection = world.join()
    put(world, Started(), Placed())
    assert fetched(world, asked["id"])["status"] == "in_progress"
    put(world, Token("a", 1), END)
    found = fetched(world, asked["id"])
    assert (found["status"], found["output"][0]["content"][0]["text"]) == ("completed", "a")


def test_a_response_in_the_background_that_is_cancelled_leaves_nothing_running(world: HttpWorld) -> None:
    world.send(post("/v1/responses", BACKGROUND))
    asked = reply(world)
    world.send(post(f"/v1/responses/{asked['id']}/cancel", {}))
    assert reply(world)["status"] == "cancelled"
    assert list(world.sessions.running()) == []


def test_a_response_in_the_background_tells_its_failure(world: HttpWorld) -> None:
    world.send(post("/v1/responses", BACKGROUND))
    asked = reply(world)
    put(world, RequestError(Fault.TIMED_OUT, "request", "it took too long"))
    found = fetched(world, asked["id"])
    assert (found["status"], found["error"]["message"]) == ("failed", "request: it took too long")


def test_a_bug_fails_a_response_in_the_background(world: HttpWorld) -> None:
    world.send(post("/v1/responses", BACKGROUND))
    asked = reply(world)
    broken: Any = Token("", 1)._replace(text=5)
    put(world, broken, END)
    found = fetched(world, asked["id"])
    assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
    assert list(world.sessions.running()) == []


def test_a_conversation_is_compacted_and_goes_on(world: HttpWorld) -> None:
    world.send(post("/v1/responses", {"input": "hi"}))
    put(world, Started(), Placed(), Token("a", 1), END)
    world.send(post("/v1/responses/compact", {"previous_response_id": reply(world)["id"]}))
    put(world, Started(), Placed(), Token("We met.", 1), END)
    output = reply(world)["output"]
    assert [item["type"] for item in output] == ["message", "compaction"]
    world.send(post("/v1/responses", {"input": [*output, {"role": "user", "content": "And?"}]}))
    *_, session = world.sessions.running()
    (turn,) = session.request.prompt
    assert turn.content.startswith("hi\n\n")
    assert turn.content.endswith("\n\nWe met.\n\nAnd?")


def test_a_conversation_of_which_the_model_says_nothing_is_not_compacted(world: HttpWorld) -> None:
    world.send(post("/v1/responses/compact", {"input": "hi"}))
    put(world, Started(), Placed(), END)
    head, _, body = world.received().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 ")
    assert json.loads(body)["error"]["message"].startswith("input: expected the model to write a summary, got none")
