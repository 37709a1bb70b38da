"""The HTTP client's codec: whatever the framing and the split of a response, its events are the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.wire.http11 import HttpCodec
from umaserve.wire.http_client import MAX_HEAD_BYTES, Body, End, Event, Head, HttpClientCodec, HttpClientError
from umaserve.wire.http_head import MAX_HEADERS

# A busy machine is no fault of the code.

HOST = [("Host", "backend")]
OK = b"HTTP/1.1 200 OK\r\n"


def asked(method: str = "POST", body: bytes = b"{}") -> HttpClientCodec:
    codec = HttpClientCodec()
    codec.request(method, "/v1/completions", HOST, body)
    return codec


def drain(codec: HttpClientCodec) -> list[Event]:
    return list(iter(codec.next_event, None))


def feed(codec: HttpClientCodec, chunks: Iterable[bytes]) -> list[Event]:
    events: list[Event] = []
    for chunk in chunks:
        codec.receive_data(chunk)
        events += drain(codec)
    return events


def joined(events: Sequence[Event]) -> tuple[Head, bytes, bool]:
    """The head, the body, and whether the response is whole."""
    head, *rest = events
    assert isinstance(head, Head)
    whole = bool(rest) and isinstance(rest[-1], End)
    body = rest[:-1] if whole else rest
    assert all(isinstance(event, Body) and event.data for event in body)
    return head, b"".join(event.data for event in body if isinstance(event, Body)), whole


def single_bytes(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    inner = sorted(place % (len(data) + 1) for place in places)
    return [data[start:end] for start, end in itertools.pairwise([0, *inner, len(data)])]


places = st.lists(st.integers(0, 2**12), max_size=10)


def in_chunks(parts: Sequence[bytes], trailers: bytes = b"") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n" + trailers + b"\r\n"


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "body"), [("POST", b'{"a":1}'), ("POST", b""), ("GET", b""), ("GET", b"odd")])
def test_a_request_is_what_a_strict_server_reads(method: str, body: bytes) -> None:
    server = HttpCodec(16384, 16384)
    server.receive_data(HttpClientCodec().request(method, "/v1/models?a=b", [*HOST, ("X-Name", "où")], body))
    request = server.next_request()
    assert request is not None
    assert (request.method, request.path, request.query, request.body) == (method, "/v1/models", {"a": "b"}, body)
    lengths = [str(len(body))] if body or method == "POST" else []
    assert (request.header_values("content-length"), request.header("x-name")) == (lengths, "où")
    assert server.buffered == 0


@pytest.mark.parametrize(
    ("path", "headers", "message"),
    [
        ("/a b", HOST, "request: "),
        ("/\r\n", HOST, "request: "),
        ("/é", HOST, "request: "),
        ("/", [], "request: Missing mandatory Host: header"),
        ("/", [*HOST, ("a", "b\r\nc: d")], "request: "),
        ("/", [*HOST, ("a b", "c")], "request: "),
        ("/", [*HOST, ("a", "\u0100")], "request: "),
        ("/", [*HOST, ("é", "a")], "request: "),
        ("/", [*HOST, ("content-length", "3")], "content-length: expected none, since the body decides on it, got one"),
        (
            "/",
            [*HOST, ("Transfer-Encoding", "chunked")],
            "Transfer-Encoding: expected none, since the body decides on it, got one",
        ),
    ],
)
def test_a_request_that_cannot_be_is_refused_and_the_next_one_is_made(
    path: str, headers: list[tuple[str, str]], message: str
) -> None:
    codec = HttpClientCodec()
    with pytest.raises(HttpClientError) as raised:
        codec.request("POST", path, headers, b"abc")
    assert str(raised.value).startswith(message)
    assert not raised.value.midway
    assert codec.next_event() is None
    assert codec.request("POST", "/", HOST, b"abc").endswith(b"\r\n\r\nabc")


# -- responses ---------------------------------------------------------------------------------------------------------

bodies = st.lists(st.binary(max_size=40) | st.just(b"data: {}\n\n"), max_size=5)


@given(bodies, st.sampled_from(["length", "chunks", "close"]), st.sampled_from([200, 404, 503]), places)
def test_however_a_body_is_framed_and_split_it_is_the_same(
    parts: list[bytes], framing: str, status: int, at: list[int]
) -> None:
    body = b"".join(parts)
    head, wire = {
        "length": (b"Content-Length: %d" % len(body), body),
        "chunks": (b"Transfer-Encoding: chunked", in_chunks(parts, b"X-Trailer: dropped\r\n")),
        "close": (b"Connection: close", body),
    }[framing]
    wire = b"HTTP/1.1 %d Some Reason\r\nX-Name: \xe9 \r\n%b\r\n\r\n" % (status, head) + wire
    name, value = head.decode().lower().split(": ")
    for chunks in ([wire], single_bytes(wire), cut(wire, at)):
        codec = asked()
        events = feed(codec, chunks)
        assert codec.keep_alive is (framing != "close")
        if framing == "close":
            assert not any(isinstance(event, End) for event in events)
            codec.receive_eof()
            events += drain(codec)
        assert joined(events) == (Head(status, (("x-name", "é"), (name, value))), body, True)
        assert codec.next_event() is None


def test_a_body_of_http_1_0_ends_with_the_connection() -> None:
    codec = asked()
    events = feed(codec, [b"HTTP/1.0 200 OK\r\n\r\nsome", b" text"])
    codec.receive_eof()
    assert joined(events + drain(codec)) == (Head(200, ()), b"some text", True)
    assert not codec.keep_alive


def test_parts_come_out_as_they_come_in() -> None:
    codec = asked()
    assert feed(codec, [OK + b"Transfer-Encoding: chunked\r\n\r\n"]) == [Head(200, (("transfer-encoding", "chunked"),))]
    assert feed(codec, [b"3\r\none\r\n"]) == [Body(b"one")]
    assert feed(codec, [b"3\r\ntw"]) == [Body(b"tw")]
    assert feed(codec, [b"o\r\n0\r\n"]) == [Body(b"o")]
    assert feed(codec, [b"\r\n"]) == [End()]


@pytest.mark.parametrize(("method", "status"), [("HEAD", b"200"), ("POST", b"204"), ("GET", b"304")])
def test_a_response_that_has_no_body_ends_with_its_head(method: str, status: bytes) -> None:
    codec = asked(method, b"")
    events = feed(codec, [b"HTTP/1.1 " + status + b" X\r\nContent-Length: 9\r\n\r\n"])
    assert events == [Head(int(status), (("content-length", "9"),)), End()]
    assert codec.keep_alive


def test_informational_responses_are_skipped() -> None:
    wire = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + OK + b"Content-Length: 0\r\n\r\n"
    for chunks in ([wire], single_bytes(wire)):
        assert feed(asked(), chunks) == [Head(200, (("content-length", "0"),)), End()]


def test_one_connection_serves_one_request_after_the_other() -> None:
    codec = HttpClientCodec()
    for body in (b"first", b"", b"third"):
        assert codec.request("POST", "/", HOST, body).endswith(b"\r\n\r\n" + body)
        assert not codec.answered
        events = feed(codec, [OK + b"Content-Length: %d\r\n\r\n" % len(body) + body])
        assert codec.answered
        assert joined(events)[1:] == (body, True)
        assert codec.keep_alive


@pytest.mark.parametrize(
    ("head", "more"),
    [
        (b"Connection: close\r\n", b""),
        (b"", b"HTTP/1.1 200 OK\r\n"),  # an answer that nobody asked for
        (b"", None),
    ],
)
def test_a_connection_is_not_kept_where_the_server_says_too_much_or_leaves(head: bytes, more: bytes | None) -> None:
    codec = asked()
    assert feed(codec, [OK + head + b"Content-Length: 0\r\n\r\n"])[-1] == End()
    if more is None:
        codec.receive_eof()
    else:
        codec.receive_data(more)
    assert codec.next_event() is None
    assert not codec.keep_alive


# -- failures ----------------------------------------------------------------------------------------------------------

LONG = b"a" * MAX_HEAD_BYTES


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", ""),
        (b"HTTP/1.1 OK\r\n\r\n", ""),
        (b"HTTP/1.1 600 X\r\nContent-Length: 0\r\n\r\n", "expected a status from 200 to 599, got 600"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n", ""),
        (OK + b"no colon\r\n\r\n", ""),
        (OK + b"Content-Length: x\r\n\r\n", ""),
        (OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", ""),
        (OK + b"Transfer-Encoding: gzip\r\n\r\n", ""),
        (OK + b"X-Odd: a\x01b\r\n\r\n", r"x-odd: expected no control characters, got 'a\x01b'"),
        (OK + b"A: b\r\n" * (MAX_HEADERS + 1) + b"\r\n", f"expected at most {MAX_HEADERS} headers in "),
        (
            OK + b"A: " + LONG + b"\r\n\r\n",
            f"expected at most {MAX_HEADERS} headers in {MAX_HEAD_BYTES} bytes, got 1 in ",
        ),
        (OK + b"A: " + LONG, ""),
    ],
)
def test_a_response_that_is_no_good_is_refused_before_its_head_is_given(wire: bytes, message: str) -> None:
    codec = asked()
    codec.receive_data(wire)
    with pytest.raises(HttpClientError) as raised:
        drain(codec)
    assert str(raised.value).startswith(f"response: {message}")
    assert not raised.value.midway
    assert not codec.keep_alive
    assert codec.next_event() is None


def test_a_change_of_protocol_is_refused_even_where_it_was_asked_for() -> None:
    codec = HttpClientCodec()
    codec.request("GET", "/", [*HOST, ("Connection", "Upgrade"), ("Upgrade", "websocket")])
    codec.receive_data(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n")
    with pytest.raises(HttpClientError, match="expected no change of protocol, got one"):
        drain(codec)
    assert not codec.keep_alive


@pytest.mark.parametrize("split", [lambda wire: [wire], single_bytes], ids=["whole", "bytes"])
@pytest.mark.parametrize("wire", [b"x\r\n", b"3\r\nabcd\r\n", b"3;" + LONG])
def test_a_chunk_that_is_no_good_is_a_failure_midway(wire: bytes, split: Callable[[bytes], list[bytes]]) -> None:
    codec = asked()
    feed(codec, [OK + b"Transfer-Encoding: chunked\r\n\r\n"])
    with pytest.raises(HttpClientError) as raised:
        feed(codec, split(wire))
    assert raised.value.midway
    assert not codec.keep_alive
    assert codec.next_event() is None


ENDED = "response: the connection ended before it was whole"


@pytest.mark.parametrize(
    ("wire", "midway"),
    [
        (b"", False),
        (b"HTTP/1.1 200", False),
        (b"HTTP/1.1 100 Continue\r\n\r\n", False),
        (OK + b"Content-Length: 5\r\n", False),
        (OK + b"Content-Length: 5\r\n\r\n", True),
        (OK + b"Content-Length: 5\r\n\r\nfour", True),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", True),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nfi", True),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nfive!\r\n", True),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nfive!\r\n0\r\n", True),
    ],
)
def test_a_connection_that_ends_too_early_says_how_far_it_came(wire: bytes, midway: bool) -> None:
    for chunks in ([wire], single_bytes(wire)):
        codec = asked()
        feed(codec, chunks)
        codec.receive_eof()
        with pytest.raises(HttpClientError) as raised:
            drain(codec)
        assert (str(raised.value), raised.value.midway, codec.answered) == (ENDED, midway, wire != b"")
        assert not codec.keep_alive
        assert codec.next_event() is None


def test_what_came_before_the_end_is_given_first() -> None:
    codec = asked()
    codec.receive_data(OK + b"Content-Length: 5\r\n\r\nfour")
    codec.receive_eof()
    assert [codec.next_event(), codec.next_event()] == [Head(200, (("content-length", "5"),)), Body(b"four")]
    with pytest.raises(HttpClientError, match=ENDED):
        codec.next_event()


lines = st.sampled_from(
    [OK, b"HTTP/1.1 100 X\r\n\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"\r\n"]
)
pieces = lines | st.sampled_from([b"3\r\nabc\r\n", b"0\r\n", b"abc", b"\n", b": "]) | st.binary(max_size=5)


@given(st.lists(pieces, max_size=8).map(b"".join), places, st.booleans())
def test_any_split_of_any_bytes_gives_what_the_whole_gives(wire: bytes, at: list[int], ends: bool) -> None:
    outcomes = []
    for chunks in ([wire], single_bytes(wire), cut(wire, at)):
        codec = asked()
        events: list[Event] = []
        failure: HttpClientError | None = None
        try:
            for chunk in chunks:
                codec.receive_data(chunk)
                while (event := codec.next_event()) is not None:
                    events.append(event)
            if ends:
                codec.receive_eof()
                while (event := codec.next_event()) is not None:
                    events.append(event)
        except HttpClientError as error:
            failure = error
        outcomes.append((joined(events) if events else None, failure and failure.midway, codec.keep_alive))
    assert outcomes[0] == outcomes[1] == outcomes[2]
