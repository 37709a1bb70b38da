"""Streams that outlive their connections: read on from any byte, by whoever began them, and ended by name."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from http_world import CONFIG, HttpWorld, post

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Placed, Started, Token, Usage
from umaserve.daemon import kept_streams
from umaserve.daemon.detached import LOST_BYTES
from umaserve.sessions.session import Hold, Session

NAMED = "X-Conversation-Id: talk::small-1"
STREAM = {"prompt": "hi", "stream": True}
KEPT = replace(CONFIG, resume_window=10.0)


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> Iterator[HttpWorld]:
    world = HttpWorld(config=KEPT)
    yield world
    world.close()
    assert "Traceback" not in caplog.text


def session(world: HttpWorld) -> Session:
    """The one that began last."""
    return [*world.sessions.running()][-1]


def put(world: HttpWorld, *outputs: Any) -> None:
    running = session(world)
    for output in outputs:
        world.sessions.put(running, output)
    world.deliver()


def end(world: HttpWorld) -> None:
    put(world, Finished(FinishReason.STOP, Usage(3, 1)))


def begun(world: HttpWorld, *headers: str) -> bytes:
    """Begin a stream whose first event has come; what its client has got."""
    world.send(post("/v1/completions", STREAM, *headers))
    put(world, Started(), Placed(), Token("one", 1))
    return read(world.client)


def left(world: HttpWorld) -> None:
    world.client.close()
    world.turn()


def read(client: socket.socket) -> bytes:
    """The bytes of a reply's body that have come."""
    try:
        rest = client.recv(1 << 20)
    except BlockingIOError:
        return b""
    head, blank, body = rest.partition(b"\r\n\r\n") if rest.startswith(b"HTTP/") else (b"", b"", rest)
    if b"chunked" not in head and blank:
        return body
    data = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        data, body = data + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return data


def asked(world: HttpWorld, request: str, peer: str = "ip:127.0.0.1") -> socket.socket:
    client, _connection = world.join(peer)
    client.sendall(request.encode())
    world.turn()
    return client


def get(world: HttpWorld, at: int = 0, peer: str = "ip:127.0.0.1", name: str = "talk::small-1") -> socket.socket:
    return asked(world, f"GET /v1/stream?conv_id={name}&from={at} HTTP/1.1\r\nHost: localhost\r\n\r\n", peer)


def status(client: socket.socket) -> int:
    found = re.match(rb"HTTP/1\.1 (\d+) ", client.recv(65536))
    assert found is not None
    return int(found[1])


def found(world: HttpWorld, *names: str) -> list[dict[str, Any]]:
    client = asked(world, post("/v1/streams/lookup", {"conversation_ids": names}).decode())
    told: list[dict[str, Any]] = json.loads(client.recv(65536).partition(b"\r\n\r\n")[2])
    return told


def test_a_stream_goes_on_without_its_client_which_reads_the_rest(world: HttpWorld) -> None:
    first = begun(world, NAMED)
    assert b'"one"' in first
    left(world)
    put(world, Token("two", 1))
    again = get(world, len(first))
    assert b'"two"' in (missed := read(again))
    assert b'"one"' not in missed
    put(world, Token("three", 1))
    end(world)
    rest = read(again)
    assert b'"three"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")
    assert read(get(world)) == first + missed + rest, "all of it is there until the window is over"


def test_a_client_that_stays_notices_nothing(world: HttpWorld) -> None:
    named = begun(world, NAMED)
    end(world)
    named += read(world.client)
    plain = begun(world)
    end(world)
    plain += read(world.client)
    without_ids = [re.sub(rb'"id":"[^"]*"', b"", text) for text in (named, plain)]
    assert without_ids[0] == without_ids[1]


def test_without_the_header_the_client_takes_its_stream_along(world: HttpWorld) -> None:
    begun(world)
    left(world)
    assert [*world.sessions.running()] == []
    assert status(get(world)) == 404


@pytest.mark.parametrize("window", [0.0, 10.0])
def test_only_streams_go_on_and_only_with_a_window(window: float) -> None:
    world = HttpWorld(config=replace(KEPT, resume_window=window))
    world.send(post("/v1/completions", STREAM | {"stream": window == 0}, NAMED))
    put(world, Started(), Placed())
    left(world)
    assert [*world.sessions.running()] == []
    assert found(world, "talk") == []
    world.close()


def test_it_is_kept_for_a_while(world: HttpWorld) -> None:
    begun(world, NAMED)
    left(world)
    world.turn(11)
    assert len(found(world, "talk")) == 1, "it has not ended"
    end(world)
    world.turn(9)
    assert len(found(world, "talk")) == 1
    world.turn(2)
    assert found(world, "talk") == []
    assert status(get(world)) == 404


def test_only_those_that_are_named_are_told(world: HttpWorld) -> None:
    first = begun(world, NAMED)
    (told,) = found(world, "other", "talk")
    assert told == {
        "conversation_id": "talk::small-1",
        "is_done": False,
        "total_bytes": len(first),
        "started_at": told["started_at"],
        "completed_at": 0,
    }
    end(world)
    (told,) = found(world, "talk::small-1")
    assert told["is_done"]
    assert told["completed_at"] >= told["started_at"] > 0
    assert found(world) == found(world, "tal", "small-1") == []


def test_it_is_its_clients_alone(world: HttpWorld) -> None:
    begun(world, NAMED)
    assert status(get(world, peer="uid:1000")) == 404
    stop = "DELETE /v1/stream?conv_id=talk::small-1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert status(asked(world, stop, "uid:1000")) == 204
    assert session(world), "that was another client's name"


def test_it_is_ended_by_name(world: HttpWorld) -> None:
    begun(world, NAMED)
    reader = get(world)
    read(reader)
    stop = "DELETE /v1/stream?conv_id=talk::small-1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert status(asked(world, stop)) == 204
    assert [*world.sessions.running()] == []
    assert world.client.recv(100) == reader.recv(100) == b"0\r\n\r\n", "their replies are complete"
    assert status(asked(world, stop)) == 204


def test_the_next_stream_of_the_name_ends_it(world: HttpWorld) -> None:
    begun(world, NAMED)
    before = session(world)
    again = asked(world, post("/v1/completions", STREAM, NAMED).decode())
    assert before.ended
    put(world, Started(), Placed(), Token("new", 1))
    assert b'"new"' in read(again)
    assert b'"new"' in read(get(world))


@pytest.mark.parametrize("at", ["1000", "-1", "x", "1" * 30])
def test_bytes_that_are_not_there(world: HttpWorld, at: str) -> None:
    begun(world, NAMED)
    refused = asked(world, f"GET /v1/stream?conv_id=talk::small-1&from={at} HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert re.match(rb'HTTP/1\.1 400 .*"from: expected', refused.recv(65536), re.DOTALL)


@pytest.mark.parametrize("name", ["", "a b", "\xe9", "x" * 257])
def test_what_is_no_name(world: HttpWorld, name: str) -> None:
    world.client.sendall(
        post("/v1/completions", STREAM).replace(b"Host:", f"{NAMED[:18]} {name}\r\nHost:".encode("latin-1"))
    )
    world.turn()
    assert re.match(rb"HTTP/1\.1 400 .*x-conversation-id: expected 1 to 256 ", world.received(), re.DOTALL)
    assert [*world.sessions.running()] == []


def test_an_error_before_the_stream_is_a_reply_and_nothing_is_kept(world: HttpWorld) -> None:
    world.send(post("/v1/completions", STREAM, NAMED))
    waiting = get(world)
    put(world, RequestError(Fault.QUEUE_FULL, "request", "too many"))
    assert world.statuses() == [503]
    assert status(waiting) == 503
    assert found(world, "talk") == []


def test_a_client_that_leaves_before_it_has_anything_is_one_that_comes_back(world: HttpWorld) -> None:
    world.send(post("/v1/completions", STREAM, NAMED))
    left(world)
    put(world, Started(), Placed(), Token("one", 1))
    assert b'"one"' in read(get(world))


def test_a_reader_that_is_behind_holds_it_until_it_leaves(world: HttpWorld) -> None:
    begun(world, NAMED)
    running = session(world)
    world.sessions.prompt_done(running)
    while Hold.READER not in running.holds:
        put(world, Token("x" * 50_000, 1))
    left(world)
    assert not running.holds


def test_of_a_long_stream_the_last_part_is_kept(world: HttpWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_streams, "STREAM_BYTES", 4000)
    begun(world, NAMED)
    left(world)
    for number in range(40):
        put(world, Token(f"-{number}-" + "x" * 100, 1))
    (told,) = found(world, "talk")
    refused = get(world)
    least = re.search(rb"from: expected a number from (\d+) to (\d+)", refused.recv(65536))
    assert least is not None
    assert int(least[2]) == told["total_bytes"]
    assert 0 < int(least[2]) - int(least[1]) <= 4000
    assert b"-39-" in (kept := read(get(world, int(least[1]))))
    assert b"-3-" not in kept
    assert len(kept) == int(least[2]) - int(least[1])


def test_the_oldest_are_let_go_where_all_take_too_much() -> None:
    world = HttpWorld(config=replace(KEPT, resume_bytes=2 * LOST_BYTES + 3000))
    clients = [asked(world, post("/v1/completions", STREAM, f"X-Conversation-Id: {name}").decode()) for name in "ab"]
    clients[0].close()
    world.turn()
    assert len([*world.sessions.running()]) == 2
    clients.append(asked(world, post("/v1/completions", STREAM, "X-Conversation-Id: c").decode()))
    assert [one["conversation_id"] for one in found(world, *"abc")] == ["b", "c"]
    assert len([*world.sessions.running()]) == 2, "nobody can ask for the first one any more"
    clients.append(asked(world, post("/v1/completions", STREAM, "X-Conversation-Id: d").decode()))
    assert len([*world.sessions.running()]) == 3, "the second one has its reader"
    clients[1].close()
    world.turn()
    assert len([*world.sessions.running()]) == 2
    world.close()
