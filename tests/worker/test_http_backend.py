"""The HTTP backend against scripted servers: what is asked of them, and what becomes of their answers."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worker_wire import PATIENCE_S, BackendPeer, LoopThread, Server, listing

from umaserve.wire.relay_messages import Request, TokenCounts
from umaserve.worker import http_backend
from umaserve.worker.dialer import Dialer, ServerUrl
from umaserve.worker.http_backend import HttpBackend, HttpSettings, token_counts

SSE = "text/event-stream"


class Collected:
    """A reply: what it was told, in order."""

    def __init__(self) -> None:
        self.told: queue.Queue[tuple[Any, ...]] = queue.Queue()

    def chunk(self, data: str | bytes, status: int, headers: Mapping[str, str]) -> None:
        self.told.put(("chunk", data, status, dict(headers)))

    def complete(
        self, status: int, headers: Mapping[str, str], body: str | bytes, token_counts: TokenCounts | None = None
    ) -> None:
        self.told.put(("complete", status, dict(headers), body, token_counts))

    def next(self) -> tuple[Any, ...]:
        return self.told.get(timeout=PATIENCE_S)

    def text(self) -> tuple[str, tuple[Any, ...]]:
        """All chunks together, and the end."""
        text = ""
        while (told := self.next())[0] == "chunk":
            text += told[1]
        return text, told

    def failure(self) -> tuple[int, str]:
        """The status and error of an end without output."""
        kind, status, headers, body, counts = self.next()
        assert (kind, headers, counts) == ("complete", {"content-type": "application/json"}, None)
        return status, json.loads(body)["error"]


class ServedBackend:
    """A backend's server, and the backend on a loop."""

    def __init__(self, stack: ExitStack, **changes: Any) -> None:
        self.server = Server(stack)
        self.thread = LoopThread()
        stack.callback(self.thread.close)
        self._dialer = self.thread.call(lambda: Dialer(self.thread.loop, self.thread.resolving.submit))
        self._settings = HttpSettings(self.server.url, "", (), 4, 100.0, 1024 * 1024)
        self.configure(**changes)

    def configure(self, **changes: Any) -> None:
        self.backend = HttpBackend(self.thread.loop, self._dialer, replace(self._settings, **changes))

    def start(self, reply: Collected | None = None, **fields: Any) -> tuple[Any, Collected]:
        reply = reply or Collected()
        about = {"model": "m", "endpoint_path": "/v1/chat/completions", "is_streaming": False, "body": "{}"}
        request = Request("r-1", **{**about, **fields})
        return self.thread.call(lambda: self.backend.start(request, reply)), reply

    def accept(self) -> BackendPeer:
        return BackendPeer(self.server.accept())

    def refresh(self) -> queue.Queue[tuple[str, ...]]:
        """Gets the models when they are there."""
        done: queue.Queue[tuple[str, ...]] = queue.Queue()
        self.thread.call(lambda: self.backend.refresh(lambda: done.put(tuple(self.backend.models))))
        return done


@pytest.fixture
def served(caplog: pytest.LogCaptureFixture) -> Iterator[ServedBackend]:
    with ExitStack() as stack:
        yield ServedBackend(stack)
    assert not [record for record in caplog.get_records("call") if record.exc_info]


# Requests.


def test_a_request_goes_to_the_backend_with_its_headers_but_those_of_its_connection(served: ServedBackend) -> None:
    given = {"X-Trace": "t", "authorization": "Bearer theirs", "Content-Type": "application/json; charset=utf-8"}
    dropped = {
        "host": "relay",
        "connection": "x-hop",
        "X-Hop": "1",
        "content-length": "9",
        "accept-encoding": "br",
        "te": "trailers",
    }
    served.configure(url=f"{served.server.url}/prefix/")
    served.start(body='{"é":1}', headers={**given, **dropped})
    peer = served.accept()
    assert (peer.line, peer.body) == ("POST /prefix/v1/chat/completions HTTP/1.1", '{"é":1}'.encode())
    assert sorted(peer.headers) == [
        ("accept-encoding", "identity"),
        ("authorization", "Bearer theirs"),
        ("connection", "close"),
        ("content-length", "8"),
        ("content-type", "application/json; charset=utf-8"),
        ("host", f"127.0.0.1:{served.server.port}"),
        ("x-trace", "t"),
    ]


def test_the_backends_own_key_takes_the_place_of_the_clients(served: ServedBackend) -> None:
    served.configure(key="ours")
    served.start(headers={"Authorization": "Bearer theirs", "X-Api-Key": "theirs"})
    headers = served.accept().headers
    assert [value for name, value in headers if name == "authorization"] == ["Bearer ours"]
    assert "x-api-key" not in dict(headers)
    assert dict(headers)["content-type"] == "application/json"


@pytest.mark.parametrize(("status", "text"), [("200 OK", '{"a":"é"}'), ("418 No", '{"error":"no"}'), ("200 OK", "")])
def test_an_answer_in_one_piece_goes_on_as_it_is(served: ServedBackend, status: str, text: str) -> None:
    _, reply = served.start()
    peer = served.accept()
    hop = ("Connection: X-Hop", "X-Hop: 1")
    peer.answer(text.encode(), status, "application/json", "X-Id: 1", "X-Id: 2", "Keep-Alive: timeout=5", *hop)
    headers = {"content-type": "application/json", "x-id": "1, 2"}
    assert reply.next() == ("complete", int(status[:3]), headers, text, None)
    assert peer.ended()
    assert served.thread.call(lambda: served.backend.load) == 0


def test_of_several_cookies_the_first_goes_on_and_the_log_says_so(
    served: ServedBackend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    _, reply = served.start()
    cookies = ("Set-Cookie: a=1; Path=/", "Set-Cookie: b=2; Path=/")
    served.accept().answer(b"{}", "200 OK", "application/json", *cookies)
    headers = {"content-type": "application/json", "set-cookie": "a=1; Path=/"}
    assert reply.next() == ("complete", 200, headers, "{}", None)
    assert "the backend set 2 cookies: only the first is sent to the relay" in caplog.text


@pytest.mark.parametrize(
    ("is_streaming", "kind", "status", "in_parts"),
    [
        (True, SSE, "200 OK", True),
        (False, "Text/Event-Stream; charset=utf-8", "200 OK", True),
        (True, "application/x-ndjson", "200 OK", True),
        (True, "application/json", "200 OK", False),
        (False, "text/plain", "200 OK", False),
        (True, SSE, "500 Oh", False),
    ],
)
def test_what_is_streamed(served: ServedBackend, is_streaming: bool, kind: str, status: str, in_parts: bool) -> None:
    _, reply = served.start(is_streaming=is_streaming)
    served.accept().answer(b"data: x\n\n", status, kind)
    head = (int(status[:3]), {"content-type": kind})
    if in_parts:
        assert reply.next() == ("chunk", "data: x\n\n", *head)
        assert reply.next() == ("complete", *head, "", None)
    else:
        assert reply.next() == ("complete", *head, "data: x\n\n", None)


def test_what_is_no_text_stays_bytes(served: ServedBackend) -> None:
    _, reply = served.start(endpoint_path="/v1/audio/speech")
    peer = served.accept()
    peer.begin("audio/wav")
    head = (200, {"content-type": "audio/wav"})
    for data in (b"\xff\0", b"\n\n\x80"):
        peer.chunk(data)
        assert reply.next() == ("chunk", data, *head)
    peer.chunk(b"")
    assert reply.next() == ("complete", *head, "", None)
    _, reply = served.start(endpoint_path="/v1/audio/speech")
    served.accept().answer(b"\xff", "503 Busy", "image/png")
    assert reply.next() == ("complete", 503, {"content-type": "image/png"}, b"\xff", None)


def test_a_stream_goes_on_as_it_comes(served: ServedBackend) -> None:
    _, reply = served.start(is_streaming=True)
    peer = served.accept()
    peer.begin()
    for text in ("data: 1\n\n", "data: 2\n\n"):
        peer.chunk(text.encode())
        assert reply.next()[:2] == ("chunk", text)
    peer.chunk(b"")
    assert reply.next() == ("complete", 200, {"content-type": SSE}, "", None)


def test_a_character_that_is_split_is_held_back_until_it_is_whole(served: ServedBackend) -> None:
    _, reply = served.start(is_streaming=True)
    peer = served.accept()
    peer.begin("text/plain")
    data = "a€".encode()
    peer.chunk(data[:2])
    assert reply.next()[1] == "a"
    peer.chunk(data[2:3])
    served.thread.turn()
    assert reply.told.empty()
    peer.chunk(data[3:])
    assert reply.next()[1] == "€"
    peer.chunk(b"\xe2\x82")
    peer.chunk(b"")
    assert reply.text()[0] == "\N{REPLACEMENT CHARACTER}"


@given(text=st.text(min_size=1, max_size=40), cuts=st.sets(st.integers(1, 160)))
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_stream_is_the_same_text_however_it_is_cut(served: ServedBackend, text: str, cuts: set[int]) -> None:
    _, reply = served.start(is_streaming=True)
    peer = served.accept()
    peer.begin()
    data = text.encode()
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for start, end in pairwise(places):
        peer.chunk(data[start:end])
    peer.chunk(b"")
    assert reply.text() == (text, ("complete", 200, {"content-type": SSE}, "", None))


def test_an_event_is_held_back_until_it_is_whole(served: ServedBackend) -> None:
    _, reply = served.start(is_streaming=True)
    peer = served.accept()
    peer.begin()
    peer.chunk(b"data: 1\n\ndata: 2")
    assert reply.next()[1] == "data: 1\n\n"
    peer.chunk(b"\r")
    peer.chunk(b"\n")
    served.thread.turn()
    assert reply.told.empty()
    peer.chunk(b"\r\ndata: [DO")
    assert reply.next()[1] == "data: 2\r\n\r\n"
    peer.chunk(b"NE]")
    peer.chunk(b"")
    assert reply.text() == ("data: [DONE]", ("complete", 200, {"content-type": SSE}, "", None))


def test_an_event_that_is_very_long_goes_on_as_it_comes(served: ServedBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_backend, "MAX_EVENT", 10)
    _, reply = served.start(is_streaming=True)
    peer = served.accept()
    peer.begin()
    peer.chunk(b"data: 1234")
    peer.chunk(b"5")
    assert reply.next()[1] == "data: 12345"


# Ends before the end.


def test_an_abort_closes_the_backends_connection_and_the_reply_hears_no_more(served: ServedBackend) -> None:
    job, reply = served.start(is_streaming=True)
    peer = served.accept()
    peer.begin()
    peer.chunk(b"data: 1\n\n")
    reply.next()
    served.thread.call(job.abort)
    assert peer.ended()
    served.thread.pass_time(1000.0)
    assert reply.told.empty()
    assert served.thread.call(lambda: served.backend.load) == 0


def test_a_backend_that_is_down_is_a_502(served: ServedBackend) -> None:
    served.server.stop()
    _, reply = served.start()
    assert reply.failure() == (502, f"backend: can't connect to 127.0.0.1:{served.server.port}: Connection refused")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "response: the connection ended before it was whole"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{", "response: the connection ended before it was whole"),
        (b"SSH-2.0-x\r\n\r\n", "response: "),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", "content-encoding: expected none, got 'gzip'"),
    ],
)
def test_a_backend_that_answers_wrongly_is_a_502(served: ServedBackend, said: bytes, reason: str) -> None:
    _, reply = served.start()
    peer = served.accept()
    peer.send(said)
    peer.sock.shutdown(socket.SHUT_WR)
    status, error = reply.failure()
    assert status == 502
    assert error.startswith(f"backend: {reason}")
    assert peer.ended()


def test_a_stream_that_breaks_off_ends_with_a_status_that_says_so(served: ServedBackend) -> None:
    _, reply = served.start(is_streaming=True)
    peer = served.accept()
    peer.begin()
    peer.chunk(b"data: 1\n\ndata: {")
    peer.sock.close()
    assert reply.text() == ("data: 1\n\n", ("complete", 502, {}, "", None))


def test_a_stream_that_breaks_off_in_its_first_event_has_not_begun(served: ServedBackend) -> None:
    _, reply = served.start(is_streaming=True)
    peer = served.accept()
    peer.begin()
    peer.chunk(b"data: {")
    peer.sock.close()
    assert reply.failure() == (502, "backend: response: the connection ended before it was whole")


def test_an_answer_that_takes_too_long_is_a_504(served: ServedBackend) -> None:
    _, reply = served.start()
    peer = served.accept()
    served.thread.pass_time(99.0)
    assert reply.told.empty()
    served.thread.pass_time(2.0)
    assert reply.failure() == (504, "backend: no whole answer within 100 s")
    assert peer.ended()


@pytest.mark.parametrize(("extra", "fits"), [(0, True), (1, False)])
def test_an_answer_in_one_piece_is_capped(served: ServedBackend, extra: int, fits: bool) -> None:
    served.configure(max_response_bytes=1000)
    _, reply = served.start()
    peer = served.accept()
    peer.answer(b"x" * (1000 + extra))
    if fits:
        assert reply.next()[3] == "x" * 1000
    else:
        assert reply.failure() == (502, "backend: response: expected at most 1000 bytes, got more")


@pytest.mark.parametrize(
    "path",
    ["/", "//evil", "/a//b", "/v1/../x", "/v1/..", "/a..b", "/v1?x=1", "/v1#x", "/v1%2e%2e", "/a\\b", "v1", "/.a"],
)
def test_a_path_that_might_lead_elsewhere_is_refused(served: ServedBackend, path: str) -> None:
    job, reply = served.start(endpoint_path=path)
    assert job is None
    status, error = reply.failure()
    assert status == 400
    assert error.startswith("endpoint_path: expected a plain path without escapes and .., got '")


@pytest.mark.parametrize("path", ["/generate", "/ws/chat"])
def test_a_websocket_is_none_of_its_endpoints(served: ServedBackend, path: str) -> None:
    _, reply = served.start(endpoint_path=path)
    assert reply.failure() == (404, f"endpoint_path: this worker has no WebSocket {path}")


# Pausing.


def test_a_paused_job_leaves_the_answer_with_the_backend(served: ServedBackend) -> None:
    job, reply = served.start(is_streaming=True)
    peer = served.accept()
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
    reply.next()
    served.thread.call(lambda: job.pause(True))
    peer.sock.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while sent < 64 * 1024 * 1024:
            sent += peer.sock.send(b"x" * 65536)
    assert sent < 64 * 1024 * 1024, "somebody reads"
    served.thread.turn()
    assert reply.told.empty()
    served.thread.call(lambda: job.pause(False))
    peer.sock.settimeout(PATIENCE_S)
    peer.sock.shutdown(socket.SHUT_WR)
    text, end = reply.text()
    assert (len(text), end[1]) == (sent, 200)


# Places.


def test_more_than_the_places_wait_in_order_and_go_when_nobody_wants_them(served: ServedBackend) -> None:
    served.configure(max_concurrent=1)
    first, second, third, fourth = (served.start(body=str(number)) for number in range(4))
    peer = served.accept()
    assert peer.body == b"0"
    assert served.thread.call(lambda: served.backend.load) == 4
    served.thread.call(second[0].abort)
    peer.answer(b"{}")
    peer = served.accept()
    assert peer.body == b"2"
    served.thread.call(third[0].abort)
    assert served.accept().body == b"3"
    assert first[1].next()[1] == 200
    assert second[1].told.empty()
    assert served.thread.call(lambda: served.backend.load) == 1
    assert fourth[0] is not None


def test_a_job_that_is_paused_while_it_waits_is_paused_when_it_begins(served: ServedBackend) -> None:
    served.configure(max_concurrent=1)
    first, _ = served.start()
    second, reply = served.start(is_streaming=True)
    served.accept()
    served.thread.call(lambda: second.pause(True))
    served.thread.call(first.abort)
    peer = served.accept()
    peer.answer(b"data: x\n\n", kind=SSE)
    served.thread.turn()
    assert reply.told.empty()
    served.thread.call(lambda: second.pause(False))
    assert reply.text()[0] == "data: x\n\n"


def test_those_who_wait_are_not_without_number(served: ServedBackend) -> None:
    served.configure(max_concurrent=1)
    served.start()
    last = [served.start()[1] for _ in range(257)][-1]
    assert last.next()[1] == 503


# Models.


@pytest.mark.parametrize(
    ("body", "models"),
    [
        (listing("a", "b", "a", " "), ("a", "b")),
        (b'{"object":"list","data":null}', ()),
        (b'{"models":[{"name":"x"}],"object":"list","data":[{"id":"a","meta":{}}]}', ("a",)),
    ],
)
def test_the_models_are_those_that_the_backend_lists(
    served: ServedBackend, body: bytes, models: tuple[str, ...]
) -> None:
    served.configure(key="ours")
    done, again = served.refresh(), served.refresh()
    peer = served.accept()
    assert peer.line == "GET /v1/models HTTP/1.1"
    assert ("authorization", "Bearer ours") in peer.headers
    peer.answer(body)
    assert done.get(timeout=PATIENCE_S) == again.get(timeout=PATIENCE_S) == models


def test_the_contexts_are_those_that_the_backend_lists(served: ServedBackend) -> None:
    done = served.refresh()
    listed = [
        {"id": "a", "context_length": 8192, "max_model_len": 1},
        {"id": " b ", "max_model_len": 4096},
        {"id": "c", "meta": {"n_ctx": 2048}},
        {"id": "d", "context_length": "8192", "meta": None},
        {"id": "e", "context_length": 0, "max_model_len": True, "meta": {"n_ctx": 1 << 60}},
        {"id": "f", "context_length": None, "max_model_len": 512},
    ]
    served.accept().answer(json.dumps({"data": listed}).encode())
    assert done.get(timeout=PATIENCE_S) == ("a", "b", "c", "d", "e", "f")
    assert served.backend.contexts == {"a": 8192, "b": 4096, "c": 2048, "f": 512}


def test_configured_models_are_not_looked_up(served: ServedBackend) -> None:
    served.configure(models=("a", "b"))
    assert served.refresh().get_nowait() == ("a", "b")


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"{}", "200 OK", "data: expected an array, got null"),
        (b"[]", "200 OK", "models: expected an object, got an array"),
        (b"<html>", "200 OK", "payload: not valid JSON"),
        (b'{"data":[{"id":7}]}', "200 OK", "id: expected a non-empty string, got a whole number"),
        (b"no", "401 Unauthorized", "status 401: 'no'"),
    ],
)
def test_a_backend_without_a_list_has_no_models_until_it_has_one(
    served: ServedBackend, caplog: pytest.LogCaptureFixture, body: bytes, status: str, reason: str
) -> None:
    for _ in range(2):
        done = served.refresh()
        served.accept().answer(body, status)
        assert done.get(timeout=PATIENCE_S) == ()
    assert caplog.text.count(f"the backend doesn't list its models: {reason}") == 1
    done = served.refresh()
    served.accept().answer(listing("a"))
    assert done.get(timeout=PATIENCE_S) == ("a",)
    served.server.stop()
    assert served.refresh().get(timeout=PATIENCE_S) == ()


def test_a_backend_that_is_too_busy_to_list_keeps_its_models(served: ServedBackend) -> None:
    done = served.refresh()
    served.accept().answer(listing("a"))
    done.get(timeout=PATIENCE_S)
    done = served.refresh()
    served.accept()
    served.thread.pass_time(11.0)
    assert done.get(timeout=PATIENCE_S) == ("a",)


# Small parts.


@pytest.mark.parametrize(
    ("body", "counts"),
    [
        ('{"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}', TokenCounts(1, 2, 3)),
        ('{"usage":{"prompt_tokens":1}}', TokenCounts(1, None, None)),
        ('{"usage":null}', None),
        ('{"usage":[]}', None),
        ('{"usage":{"prompt_tokens":-1}}', None),
        ('{"usage"', None),
        ("{}", None),
        ('{"usage":{"prompt_tokens":1}}' + " " * 300_000, None),
    ],
)
def test_token_counts_come_from_the_usage(body: str, counts: TokenCounts | None) -> None:
    assert token_counts(body) == counts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("http://a", (False, "a", 80, "a", "")),
        ("WS://A.example:81/x/", (False, "a.example", 81, "A.example:81", "/x")),
        ("https://[::1]", (True, "::1", 443, "[::1]", "")),
        ("wss://a/x/y", (True, "a", 443, "a", "/x/y")),
    ],
)
def test_where_a_url_leads(text: str, parts: tuple[Any, ...]) -> None:
    assert ServerUrl.parse(text) == ServerUrl(text, *parts)
