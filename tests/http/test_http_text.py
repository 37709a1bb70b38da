"""Requests for text over HTTP: pings in silent streams, priority and targets in headers, and clients that leave."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from http_world import CONFIG, HttpWorld, post
from world import DaemonWorld

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import CacheMiss, Finished, FinishReason, Placed, Prefilled, Started, Token, Usage
from umaserve.core.requests import Priority
from umaserve.daemon.http.exchange import PING_S
from umaserve.daemon.relays.relay_backend import DaemonBackend
from umaserve.dialects.http import miss_header
from umaserve.wire.relay_messages import Request

MESSAGE = {"model": "any", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
COMMENT = b":\n\n"
PATHS = [("/v1/messages", MESSAGE), ("/v1/chat/completions", MESSAGE), ("/v1/completions", {"prompt": "hi"})]
STREAMS = [*PATHS, ("/completion", {"prompt": "hi"}), ("/v1/generate", {"prompt": "hi"}), ("/api/chat", MESSAGE)]


def put(world: DaemonWorld, *outputs: Any) -> None:
    (session,) = world.sessions.running()
    for output in outputs:
        world.sessions.put(session, output)
    world.deliver()


# -- pings -------------------------------------------------------------------------------------------------------


def test_a_silent_stream_is_pinged(world: HttpWorld) -> None:
    world.send(post("/v1/messages", {**MESSAGE, "stream": True}))
    world.turn(PING_S - 1)
    assert world.received() == b""
    world.turn(1.1)
    assert world.received().count(PING) == 1
    put(world, Prefilled(3), Token("a", 1))
    assert PING not in world.received()
    world.turn(PING_S - 1)
    assert world.received() == b""
    for _ in range(2):
        world.turn(PING_S + 1)
        assert world.received().count(PING) == 1
    put(world, Finished(FinishReason.STOP, Usage(3, 1)))
    assert b"event: message_stop" in world.received()
    world.turn(3 * PING_S)
    assert PING not in world.received()


def test_an_error_after_a_ping_is_an_event(world: HttpWorld) -> None:
    world.send(post("/v1/messages", {**MESSAGE, "stream": True}))
    world.turn(PING_S + 1)
    put(world, RequestError(Fault.TIMED_OUT, "request", "it took too long"))
    received = world.received()
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b'event: error\ndata: {"type":"error","error":{"type":"timeout_error"' in received


@pytest.mark.parametrize(("path", "body"), STREAMS)
def test_a_whole_reply_is_not_pinged(world: HttpWorld, path: str, body: Mapping[str, Any]) -> None:
    world.send(post(path, {**body, "stream": False}))
    put(world, Started(), Placed())
    world.turn(PING_S + 1)
    assert world.received() == b""


def body_of(received: bytes) -> bytes:
    """The body of a chunked reply, of which the head is there if it is the beginning."""
    body = b""
    rest = received.partition(b"\r\n\r\n")[2] if received.startswith(b"HTTP/") else received
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return body


@pytest.mark.parametrize(("path", "body"), STREAMS[1:5])
def test_a_silent_stream_of_events_has_comments(world: HttpWorld, path: str, body: Mapping[str, Any]) -> None:
    world.send(post(path, {**body, "stream": True}))
    put(world, Started())
    world.turn(PING_S - 1)
    assert world.received() == b""
    for _ in range(2):
        world.turn(PING_S)
        assert body_of(world.received()) == COMMENT
    put(world, Placed(), Prefilled(3), Token("a", 1), Finished(FinishReason.STOP, Usage(3, 1)))
    assert body_of(world.received()).startswith(b"data: {")


@pytest.mark.parametrize(
    ("path", "body", "empty"),
    [
        ("/api/chat", MESSAGE, {"message": {"role": "assistant", "content": ""}}),
        ("/api/generate", {"model": "any", "prompt": "hi"}, {"response": ""}),
    ],
)
def test_a_silent_stream_of_lines_has_empty_ones(
    world: HttpWorld, path: str, body: Mapping[str, Any], empty: Mapping[str, Any]
) -> None:
    world.send(post(path, body))
    world.turn(PING_S + 1)
    line = json.loads(body_of(world.received()))
    assert line.pop("created_at").endswith("Z")
    assert line == {"model": "any", **empty, "done": False}


@pytest.mark.parametrize(("path", "body"), STREAMS)
def test_the_head_of_a_stream_comes_when_its_prompt_starts(
    world: HttpWorld, path: str, body: Mapping[str, Any]
) -> None:
    world.send(post(path, {**body, "stream": True}))
    put(world, Started())
    assert world.received() == b""
    put(world, Placed())
    received = world.received()
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.endswith(b"\r\n\r\n"), "what comes first is the time to the first token"
    put(world, RequestError(Fault.TIMED_OUT, "request", "it took too long"))
    assert b"it took too long" in body_of(world.received())


@pytest.mark.parametrize(("path", "body"), STREAMS)
def test_an_error_before_the_head_has_a_status(world: HttpWorld, path: str, body: Mapping[str, Any]) -> None:
    world.send(post(path, {**body, "stream": True}))
    put(world, Started(), RequestError(Fault.CONTEXT_EXCEEDED, "messages", "too long"))
    assert world.statuses() == [400]


def test_the_head_waits_for_all_prompts_of_a_body(world: HttpWorld) -> None:
    world.send(post("/v1/completions", {"prompt": ["hi", "ho"], "stream": True}))
    first, second = world.sessions.running()
    for session, came in ((first, False), (second, True)):
        world.sessions.put(session, Placed())
        world.deliver()
        assert (world.received() != b"") == came


def test_a_client_that_leaves_ends_its_request_within_a_turn_and_is_pinged_no_more(world: HttpWorld) -> None:
    world.send(post("/v1/messages", {**MESSAGE, "stream": True}))
    assert len(list(world.sessions.running())) == 1
    world.client.close()
    world.turn(count=1)
    assert list(world.sessions.running()) == []
    world.turn(PING_S + 1)


# -- the form of errors --------------------------------------------------------------------------------------------

VERSION = "anthropic-version: 2023-06-01"


@pytest.mark.parametrize(
    ("method", "path", "header", "anthropics"),
    [
        ("POST", "/v1/messages/batches", "x: 1", True),
        ("GET", "/v1/messages/batches/of/mine", "x: 1", True),
        ("GET", "/v1/messages", "x: 1", True),
        ("GET", "/v1/models/other", VERSION, True),
        ("POST", "/v1/models", VERSION, True),
        ("GET", "/v1/other", VERSION, True),
        ("GET", "/v1/other", "x-api-key: none", False),
        ("POST", "/v1/models", "x-api-key: none", False),
        ("GET", "/v1/messaging", "x: 1", False),
        ("GET", "/v1/chat/completions", VERSION, False),
    ],
)
def test_errors_have_the_form_of_the_api_that_was_asked(
    world: HttpWorld, method: str, path: str, header: str, anthropics: bool
) -> None:
    world.send(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\nContent-Length: 0\r\n\r\n".encode())
    head, _, body = world.received().partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 404", b"HTTP/1.1 405"))
    assert (json.loads(body).get("type") == "error") == anthropics
    world.send(b"GET /v1/other HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b'{"error":' in world.received(), "each request on a connection has its own"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/files"),
        ("GET", "/v1/files?limit=3"),
        ("GET", "/v1/files/file_1"),
        ("DELETE", "/v1/files/file_1"),
        ("GET", "/v1/files/file_1/content"),
    ],
)
def test_anthropics_clients_are_told_that_no_files_are_kept(world: HttpWorld, method: str, path: str) -> None:
    form = "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 100"
    sent = f"\r\n{form}" if method == "POST" else ""
    world.send(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{VERSION}{sent}\r\n\r\n".encode())
    head, _, body = world.received().removesuffix(b"<closed>").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404")
    path = path.partition("?")[0]
    assert json.loads(body)["error"] == {
        "type": "not_found_error",
        "message": f"path: there is no {path}: no files are kept for this API: send images, and documents as text, in"
        " the messages of /v1/messages",
    }


# -- why nothing was reused --------------------------------------------------------------------------------------

MISS = CacheMiss(411, 530, 'say "date": 2026-11-', "23\n", "22\n")
MISSED = b'x-umaserve-cache-miss: token 412 of 530: "say \\"date\\": 2026-11-" then "23\\n" where it was "22\\n"\r\n'
ENDED = Finished(FinishReason.STOP, Usage(530, 1, 411))


@pytest.mark.parametrize(("path", "body"), [*PATHS, ("/api/chat", MESSAGE), ("/completion", {"prompt": "hi"})])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("miss", [MISS, None])
def test_a_cache_miss_is_told_in_a_header(
    world: HttpWorld, path: str, body: Mapping[str, Any], stream: bool, miss: CacheMiss | None
) -> None:
    world.send(post(path, {**body, "stream": stream}))
    put(world, Started(), Placed(miss), Prefilled(530, 411), Token("a", 1), ENDED)
    head, _, _ = world.received().partition(b"\r\n\r\n")
    assert (MISSED in head + b"\r\n") == (miss is not None) == (b"x-umaserve-cache-miss" in head)


def test_of_several_choices_the_first_miss_is_told(world: HttpWorld) -> None:
    world.send(post("/v1/completions", {"prompt": ["hi", "ho"], "max_tokens": 1}))
    first, second = world.sessions.running()
    for session, miss in ((second, MISS), (first, CacheMiss(1, 2, "", "a", "b"))):
        for output in (Started(), Placed(miss), Prefilled(530, 411), Token("a", 1), ENDED):
            world.sessions.put(session, output)
        world.deliver()
    received = world.received()
    assert received.count(b"x-umaserve-cache-miss") == 1
    assert MISSED in received


def test_a_head_that_was_sent_before_does_not_wait_for_it(world: HttpWorld) -> None:
    world.send(post("/v1/messages", {**MESSAGE, "stream": True}))
    world.turn(PING_S + 1)
    put(world, Placed(MISS), Prefilled(530, 411), Token("a", 1), ENDED)
    received = world.received()
    assert b"x-umaserve-cache-miss" not in received
    assert b"event: message_stop" in received


@pytest.mark.parametrize("text", ["\x00\x7f\r\n" * 20, "é\u2028" * 40, "\U0001f600" * 40, '"\\' * 40, "a" * 99, ""])
def test_whatever_the_text_the_header_is_short_and_plain(text: str) -> None:
    name, value = miss_header(CacheMiss(10**7 - 2, 10**7 - 1, text, text, text))
    assert name == "x-umaserve-cache-miss"
    assert len(value) <= 200
    assert value.isascii()
    assert value.isprintable()
    quoted = re.findall(r'"(?:[^"\\]|\\.)*"', value)
    before, here, known = map(json.loads, quoted)
    assert text.endswith(before)
    assert text.startswith(here)
    assert here == known
    assert "where" not in miss_header(CacheMiss(1, 2, text, text, None))[1]


# -- headers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "body"), PATHS, ids=[path for path, _body in PATHS])
def test_priority_and_targets_may_be_headers(world: HttpWorld, path: str, body: dict[str, Any]) -> None:
    headers = ("X-Umaserve-Priority: background", "x-umaserve-slo-tbt-ms: 80", "x-umaserve-slo-ttft-ms: 500.5")
    world.send(post(path, body, *headers))
    (session,) = world.sessions.running()
    request = session.request
    assert (request.priority, request.target_tbt_s, request.target_ttft_s) == (Priority.BACKGROUND, 0.08, 0.5005)


def test_targets_in_the_body_come_first(world: HttpWorld) -> None:
    body = {**MESSAGE, "priority": "background", "slo": {"target_tbt_ms": 50}}
    headers = ("x-umaserve-priority: interactive", "x-umaserve-slo-tbt-ms: 80", "x-umaserve-slo-ttft-ms: 500")
    world.send(post("/v1/messages", body, *headers))
    (session,) = world.sessions.running()
    request = session.request
    assert (request.priority, request.target_tbt_s, request.target_ttft_s) == (Priority.BACKGROUND, 0.05, 0.5)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("x-umaserve-priority: urgent", 'x-umaserve-priority: expected "interactive" or "background", got "urgent"'),
        ("x-umaserve-slo-tbt-ms: soon", "x-umaserve-slo-tbt-ms: expected a number above 0 up to 3.6e+06, got a string"),
        ("x-umaserve-slo-tbt-ms: 0", "x-umaserve-slo-tbt-ms: expected a number above 0 up to 3.6e+06, got 0.0"),
        ("x-umaserve-slo-ttft-ms: nan", "x-umaserve-slo-ttft-ms: expected a number above 0 up to 3.6e+06, got nan"),
        ("x-umaserve-slo-ttft-ms: 1e400", "x-umaserve-slo-ttft-ms: expected a number above 0 up to 3.6e+06, got inf"),
    ],
)
def test_a_wrong_header_is_named(world: HttpWorld, header: str, problem: str) -> None:
    world.send(post("/v1/messages", MESSAGE, header))
    received = world.received()
    assert received.startswith(b"HTTP/1.1 400 ")
    error = json.loads(received.partition(b"\r\n\r\n")[2])
    assert (error["type"], error["error"]["message"]) == ("error", problem)


# -- through a relay ---------------------------------------------------------------------------------------------


class Told:
    """What the worker tells the relay."""

    def __init__(self) -> None:
        self.chunks: list[str | bytes] = []
        self.end: tuple[int, Mapping[str, str], str | bytes] | None = None

    def chunk(self, chunk: str | bytes, _status: int, _headers: Mapping[str, str]) -> None:
        self.chunks.append(chunk)

    def complete(self, status: int, headers: Mapping[str, str], body: str | bytes) -> None:
        self.end = status, headers, body

    def abort(self) -> None:
        raise AssertionError("a job ended in disorder")


IN_BACKGROUND = {"X-Umaserve-Priority": "background"}


def answered_by_worker(world: DaemonWorld, request: Request) -> tuple[list[str | bytes], str | bytes]:
    """What a worker tells of a request whose answer is "Hi": the chunks, and the whole reply."""
    reply = Told()
    assert DaemonBackend(world.services).start(request, reply) is not None
    (session,) = world.sessions.running()
    assert session.request.priority is Priority.BACKGROUND
    put(world, Prefilled(3), Token("Hi", 1), Finished(FinishReason.STOP, Usage(3, 1)))
    world.turn()
    assert reply.end is not None
    status, _headers, whole = reply.end
    assert status == 200
    return reply.chunks, whole


@pytest.mark.parametrize("stream", [True, False])
def test_a_worker_answers_messages(stream: bool) -> None:
    world = DaemonWorld(CONFIG)
    body = json.dumps({**MESSAGE, "stream": stream})
    chunks, whole = answered_by_worker(world, Request("r-1", "m", "/v1/messages", stream, body, IN_BACKGROUND))
    if stream:
        text = "".join(map(str, chunks))
        assert text.startswith("event: message_start\ndata: ")
        assert text.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')
    else:
        assert json.loads(whole)["content"] == [{"type": "text", "text": "Hi"}]
    world.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_worker_answers_calls_of_tools(stream: bool) -> None:
    world = DaemonWorld(CONFIG)
    params = {"name": "ask", "arguments": {"prompt": "Hello"}} | ({"_meta": {"progressToken": 1}} if stream else {})
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    chunks, whole = answered_by_worker(
        world,
        Request("r-1", "m", "/mcp", stream, body, {"Accept": "application/json, text/event-stream", **IN_BACKGROUND}),
    )
    told = "".join(map(str, chunks)).removeprefix("data: ") if stream else whole
    assert json.loads(told)["result"]["content"] == [{"type": "text", "text": "Hi"}]
    world.close()


def test_a_worker_answers_what_is_no_call_at_once() -> None:
    world = DaemonWorld(CONFIG)
    for body, status, key in (('{"jsonrpc":"2.0","id":1,"method":"ping"}', 200, "result"), ("[]", 400, "error")):
        reply = Told()
        assert DaemonBackend(world.services).start(Request("r-1", "m", "/mcp", False, body, {}), reply) is None
        assert reply.end is not None
        assert (reply.end[0], reply.end[1]) == (status, {"content-type": "application/json"})
        assert key in json.loads(reply.end[2])
    world.close()


@pytest.mark.parametrize("path", ["/models/load", "/models/unload"])
def test_models_are_not_moved_through_a_relay(path: str) -> None:
    world = DaemonWorld(CONFIG)
    reply = Told()
    assert DaemonBackend(world.services).start(Request("r-1", "m", path, False, '{"model":"m"}', {}), reply) is None
    assert reply.end is not None
    assert reply.end[0] == 404
    assert world.services.models.moved == []
    world.close()


def test_a_worker_refuses_in_the_form_of_the_path() -> None:
    world = DaemonWorld(CONFIG)
    backend, reply = DaemonBackend(world.services), Told()
    assert backend.start(Request("r-1", "m", "/v1/messages", False, "{}", {}), reply) is None
    assert reply.end is not None
    assert reply.end[0] == 400
    assert json.loads(reply.end[2])["error"]["type"] == "invalid_request_error"
    world.close()
