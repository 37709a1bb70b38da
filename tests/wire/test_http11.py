"""The HTTP/1.1 codec: no split of the input matters, nothing ambiguous gets through, and each answer is well framed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.wire import http_body, http_head
from umaserve.wire.http11 import HttpCodec, Phase
from umaserve.wire.http_head import Refusal, Request

# A busy machine is no fault of the code.

MAX_HEAD = 32 * 1024
MAX_BODY = 64
HOST = b"Host: h\r\n"
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: h\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

# The requests answered in turn, and the refusal that ended them.
Decoded = tuple[list[Request], tuple[int, str] | None]


def new() -> HttpCodec:
    return HttpCodec(MAX_HEAD, MAX_BODY)


def take(codec: HttpCodec) -> Decoded:
    """Take and answer requests until there is no more."""
    requests: list[Request] = []
    try:
        # The bound is for a codec that gives one request twice: it would hang the tests.
        for _ in range(codec.buffered + 2):
            request = codec.next_request()
            if request is None and not codec.more:
                break
            if request is not None:
                requests.append(request)
                codec.respond(200, [], b"")
    except Refusal as refusal:
        return requests, (refusal.status, refusal.message)
    return requests, None


def decode(chunks: Iterable[bytes], codec: HttpCodec | None = None) -> Decoded:
    codec = codec or new()
    requests: list[Request] = []
    for chunk in chunks:
        codec.receive_data(chunk)
        more, refused = take(codec)
        requests += more
        if refused:
            return requests, refused
    return requests, None


def only(wire: bytes) -> Request:
    """The one request in ``wire``."""
    requests, refused = decode([wire])
    assert (len(requests), refused) == (1, None)
    return requests[0]


def given_out(wire: bytes) -> HttpCodec:
    """A codec that owes the response to ``wire``."""
    codec = new()
    codec.receive_data(wire)
    assert codec.next_request() is not None
    return codec


def refused(wire: bytes, codec: HttpCodec | None = None) -> tuple[int, str]:
    """The status and message of the refusal that ``wire`` gets."""
    refusal = decode([wire], codec)[1]
    assert refusal is not None
    return refusal


def single_bytes(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def get(*headers: bytes, line: bytes = b"GET / HTTP/1.1", host: bytes = b"Host: h") -> bytes:
    return b"\r\n".join([line, *([host] if host else []), *headers, b"", b""])


# What a request is.


def test_a_request_is_given_with_its_parts() -> None:
    wire = b"POST /v1/caf%C3%A9%20x?a=1&b=%2B+&a=2&c HTTP/1.1\r\nHOST: h:80\r\nX-A: \tone \xe9\t\r\nx-a:two\r\n"
    request = only(wire + b"Content-Length: 3\r\n\r\nabc")
    assert (request.method, request.path, request.body) == ("POST", "/v1/café x", b"abc")
    assert request.query == {"a": "2", "b": "+ ", "c": ""}
    assert request.headers == (("host", "h:80"), ("x-a", "one é"), ("x-a", "two"), ("content-length", "3"))
    assert (request.header("x-a"), request.header_values("x-a")) == ("one é", ["one é", "two"])
    assert (request.header("none"), request.header_values("none")) == (None, [])


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (b"GET / HTTP/1.1", "/"),
        (b"GET /a%2Fb%2541 HTTP/1.1", "/a/b%41"),
        (b"GET /a? HTTP/1.1", "/a"),
        (b"GET /a/b/?x=/ HTTP/1.1", "/a/b"),
        (b"GET // HTTP/1.1", "/"),
        (b"OPTIONS * HTTP/1.1", "*"),
        (b"GET http://H HTTP/1.1", "/"),
        (b"GET HTTP://h?x HTTP/1.1", "/"),
        (b"GET https://h/a/b HTTP/1.1", "/a/b"),
        (b"A" * 32 + b" / HTTP/1.1", "/"),
    ],
)
def test_path_of_each_form_of_target(line: bytes, path: str) -> None:
    assert only(get(line=line)).path == path


@pytest.mark.parametrize(
    "host",
    ["h", "h:", "h.", "a-b.example.:8080", "my_host", "127.0.0.1:65535", "127.0.0.1:", "[::1]", "[::1]:",
     "[fe80::1]:80", "[::ffff:1.2.3.4]", "a" * 255],
)  # fmt: skip
def test_good_hosts_pass(host: str) -> None:
    assert only(get(host=f"Host: {host}".encode())).header("host") == host


def test_http_1_0_may_lack_a_host_and_may_not_upgrade() -> None:
    assert only(b"GET / HTTP/1.0\r\nUpgrade: websocket\r\nX: y\r\n\r\n").headers == (("x", "y"),)


def test_chunks_are_joined_and_their_extensions_and_trailers_dropped() -> None:
    wire = CHUNKED + b'3;a=b\r\nabc\r\n000A ; q="x"\r\n0123456789\r\n0;last\r\nX-Sum: 1\r\nhost: evil\r\n\r\n'
    request = only(wire)
    assert request.body == b"abc0123456789"
    assert request.headers == (("host", "h"), ("transfer-encoding", "chunked"))


# Splits and pipelining.

SAMPLES = [
    GET,
    b"\r\n" + get(b"A: b", line=b"PUT /x?y=z HTTP/1.1"),
    b"GET / HTTP/1.0\r\n\r\n",
    get(b"Connection: close"),
    POST + b"Content-Length: 5\r\n\r\nab\r\nc",
    POST + b"Content-Length: 65\r\n\r\n",
    CHUNKED + b"2\r\nab\r\n3;x\r\ncde\r\n0\r\nT: u\r\n\r\n",
    CHUNKED + b"0\r\n\r\n",
    CHUNKED + b"40\r\n" + b"x" * 64 + b"\r\n1\r\n",
    CHUNKED + b"1\r\nabc",
    b"GET / HTTP/1.1\nHost: h\n\n",
    b"GET  / HTTP/1.1\r\n\r\n",
    b"\r\n\r\n",
    b"\r",
    b"GET / HT",
]


@st.composite
def split(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A byte string, and the same in pieces, empty ones among them."""
    wire = b"".join(draw(st.lists(st.sampled_from(SAMPLES) | st.binary(max_size=20), max_size=5)))
    cuts = sorted(draw(st.lists(st.integers(0, len(wire)), max_size=10)))
    return wire, [wire[start:end] for start, end in itertools.pairwise([0, *cuts, len(wire)])]


@given(split())
def test_any_split_of_any_bytes_decodes_as_the_whole_does(case: tuple[bytes, list[bytes]]) -> None:
    wire, chunks = case
    assert decode(chunks) == decode([wire]) == decode(single_bytes(wire))


@given(st.lists(st.sampled_from(SAMPLES[:9]).map(bytearray), max_size=3), st.data())
def test_a_changed_byte_gives_requests_or_a_refusal_and_no_other_error(
    wires: list[bytearray], data: st.DataObject
) -> None:
    for wire in wires:
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    codec = new()
    result = decode([b"".join(wires)], codec)
    if result[1] is not None:
        assert codec.respond(400, [], b"x").endswith(b"Connection: close\r\n\r\nx")
        assert not codec.keep_alive


@pytest.mark.parametrize("wire", [GET, POST + b"Content-Length: 2\r\n\r\nab", CHUNKED + b"2\r\nab\r\n0\r\n\r\n"])
@pytest.mark.parametrize("rest", [b"", b"\r", GET[:9], GET])
def test_what_follows_a_request_waits_for_the_end_of_its_response(wire: bytes, rest: bytes) -> None:
    codec = given_out(wire + rest)
    codec.receive_data(b"")
    assert (codec.next_request(), codec.phase, codec.buffered) == (None, Phase.RESPONSE, len(rest))
    codec.begin(200, [])
    codec.chunk(b"x")
    assert (codec.next_request(), codec.phase) == (None, Phase.RESPONSE)
    codec.end()
    assert (codec.next_request() is not None) == (rest == GET)


def test_phases_follow_the_request() -> None:
    codec, seen = new(), []
    for piece in [b"", b"\r\n", POST, b"Content-Length: 2\r\n\r\n", b"a", b"b"]:
        codec.receive_data(piece)
        seen.append((codec.next_request() is not None, codec.phase, codec.buffered))
    assert seen == [
        (False, Phase.IDLE, 0),
        (False, Phase.IDLE, 0),
        (False, Phase.HEAD, len(POST)),
        (False, Phase.BODY, 0),
        (False, Phase.BODY, 1),
        (True, Phase.RESPONSE, 0),
    ]
    codec.respond(200, [], b"")
    assert codec.phase is Phase.IDLE


@pytest.mark.parametrize("framing", [b"Content-Length: 2", b"Transfer-Encoding: chunked"])
def test_the_head_is_to_be_had_while_its_body_is_to_come(framing: bytes) -> None:
    codec = new()
    head = get(framing, b"X-A: b", line=b"POST /a?b=c HTTP/1.1")
    for data in (b"", head[:-1]):
        codec.receive_data(data)
        assert (codec.next_request(), codec.head) == (None, None)
    codec.receive_data(head[-1:])
    for data in (b"", b"2\r\n" if b"chunked" in framing else b"h"):
        codec.receive_data(data)
        assert codec.next_request() is None
        assert codec.head is not None
        assert (codec.head.method, codec.head.path, codec.head.body) == ("POST", "/a", b"")
        assert (codec.head.query, codec.head.header("x-a")) == ({"b": "c"}, "b")
    codec.receive_data(b"hi\r\n0\r\n\r\n" if b"chunked" in framing else b"i")
    request = codec.next_request()
    assert request is not None
    assert (request.body, codec.head) == (b"hi", None)
    codec.respond(200, [], b"")
    assert codec.head is None


def test_there_is_no_head_of_a_request_that_is_refused() -> None:
    codec = new()
    codec.receive_data(CHUNKED)
    assert codec.next_request() is None
    assert codec.head is not None
    refused(b"z\r\n", codec)
    assert codec.head is None


def test_the_body_so_far_counts_as_buffered() -> None:
    codec = new()
    codec.receive_data(CHUNKED + b"5\r\nhello\r\n4\r\nwo")
    assert codec.next_request() is None
    assert codec.buffered == len(b"hello" + b"wo")


def test_a_body_of_many_small_chunks_takes_several_calls() -> None:
    codec = HttpCodec(MAX_HEAD, 1000)
    codec.receive_data(CHUNKED + b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n")
    calls = 1
    while (request := codec.next_request()) is None:
        assert (codec.more, codec.phase) == (True, Phase.BODY)
        calls += 1
    assert (request.body, codec.more) == (b"x" * 1000, False)
    assert calls == -(-2002 // http_body.STEPS_PER_CALL)


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize(
    ("path", "n_bytes", "taken"),
    [
        (b"/", 64, True),
        (b"/", 65, False),
        (b"/big", 200, True),
        (b"/big", 201, False),
        (b"/%62ig?x", 200, True),
        (b"/big/", 200, True),
        (b"/big/", 201, False),
        (b"/small", 3, True),
        (b"/small", 4, False),
    ],
)
def test_a_path_may_have_its_own_size_of_bodies(path: bytes, n_bytes: int, taken: bool, chunked: bool) -> None:
    codec = HttpCodec(MAX_HEAD, MAX_BODY, {"/big": 200, "/small": 3})
    body = b"x" * n_bytes
    framed = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" if chunked else b"Content-Length: %d\r\n\r\n%b"
    requests, refused = decode([POST.replace(b"/", path, 1) + framed % (n_bytes, body)], codec)
    assert [request.body for request in requests] == ([body] if taken else [])
    assert (refused is None) if taken else (refused is not None and refused[0] == 413)


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("method", [b"OPTIONS", b"PUT", b"GET", b"post"])
def test_a_large_body_is_for_posts_only(method: bytes, chunked: bool) -> None:
    codec = HttpCodec(MAX_HEAD, MAX_BODY, {"/big": 200})
    framed = b"Transfer-Encoding: chunked\r\n\r\n41\r\n" if chunked else b"Content-Length: 65\r\n\r\n"
    requests, refused = decode([POST.replace(b"POST /", method + b" /big", 1) + framed], codec)
    assert (requests, refused is not None and refused[0]) == ([], 413)


@pytest.mark.parametrize(
    ("wire", "path"),
    [
        (POST + b"Content-Length: 65\r\n\r\n", "/"),
        (POST + b"Expect: a miracle\r\nContent-Length: 1\r\n\r\n", "/"),
        (POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "/"),
        (CHUNKED + b"41\r\n", "/"),
        (GET.replace(b"/", b"/a", 1) + CHUNKED + b"41\r\n", "/"),
        (POST + b"A b\r\n\r\n", None),
        (GET + b"nonsense\r\n\r\n", None),
    ],
)
def test_who_is_refused_is_known_if_its_head_was_good(wire: bytes, path: str | None) -> None:
    for chunks in ([wire], single_bytes(wire)):
        codec = new()
        assert decode(chunks, codec)[1] is not None
        assert (None if codec.refused is None else codec.refused.path) == path
        assert (codec.head, codec.phase, codec.answering) == (None, Phase.LAST_RESPONSE, True)


@pytest.mark.parametrize(
    ("fields", "got"),
    [
        ((b"Content-Encoding: gzip",), "gzip"),
        ((b"Content-Encoding: GZIP, identity",), "GZIP"),
        ((b"Content-Encoding: identity", b"content-encoding: br,zstd"), "br, zstd"),
        ((b"Content-Encoding: identity;q=1",), "identity;q=1"),
        ((b"Content-Encoding: gzip", b"Expect: 100-continue"), "gzip"),
    ],
)
@pytest.mark.parametrize("framing", [b"Content-Length: 5", b"Transfer-Encoding: chunked"])
def test_a_body_that_is_encoded_is_refused_before_it_comes(fields: tuple[bytes, ...], got: str, framing: bytes) -> None:
    codec = new()
    codec.receive_data(get(*fields, framing, line=b"POST / HTTP/1.1"))
    with pytest.raises(Refusal) as raised:
        codec.next_request()
    assert (raised.value.status, raised.value.message) == (
        415,
        f"Content-Encoding: expected none, got '{got}': send the body as it is",
    )
    assert raised.value.headers == [("Accept-Encoding", "identity")]
    assert codec.refused is not None


@pytest.mark.parametrize("value", [b"", b"identity", b"Identity, ,"])
def test_a_body_that_is_what_it_stands_for_may_say_so(value: bytes) -> None:
    wire = POST + b"Content-Encoding: " + value + b"\r\nContent-Length: 1\r\n\r\nx"
    assert only(wire).body == b"x"
    assert only(get(b"Content-Encoding: gzip")).body == b"", "there is none"


def test_a_body_that_is_too_large_is_refused_before_it_comes() -> None:
    codec = HttpCodec(MAX_HEAD, MAX_BODY, {"/big": 200})
    head = POST.replace(b"/", b"/big", 1) + b"Content-Length: 201\r\n\r\n"
    assert decode([head], codec) == ([], (413, "Content-Length: expected at most 200, got 201"))


@pytest.mark.parametrize("wire", [b"", GET, b"\r\n", GET + b"\r\n"])
def test_the_end_of_input_between_requests_says_nothing(wire: bytes) -> None:
    codec = new()
    codec.receive_data(wire)
    codec.receive_eof()
    assert take(codec)[1] is None
    assert (codec.phase, codec.keep_alive) == (Phase.CLOSED, False)


@pytest.mark.parametrize("wire", [b"G", GET[:-1], POST + b"Content-Length: 2\r\n\r\na", CHUNKED, CHUNKED + b"0\r\n"])
def test_the_end_of_input_within_a_request_is_refused(wire: bytes) -> None:
    codec = new()
    codec.receive_data(GET + wire)
    codec.receive_eof()
    requests, refusal = take(codec)
    assert (len(requests), refusal) == (1, (400, "request: the connection's input ended before it was whole"))


# What is refused.


@pytest.mark.parametrize(
    ("wire", "field"),
    [
        # request lines
        *[(get(line=b"GET / " + version), "version") for version in (b"HTTP/2.0", b"HTTP/1.2", b"http/1.1", b"HTTP/1")],
        *[
            (get(line=line), "request line")
            for line in (b"GET /", b"GET  / HTTP/1.1", b"GET / HTTP/1.1 ", b" GET / HTTP/1.1", b"GET / a HTTP/1.1")
        ],
        (b"\r\n\r\n" + GET, "request line"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "version"),
        (get(line=b"GET\t/ / HTTP/1.1"), "method"),
        (get(line=b"G(T / HTTP/1.1"), "method"),
        (get(line=b" / HTTP/1.1"), "method"),
        (get(line=b"A" * 33 + b" / HTTP/1.1"), "method"),
        # targets
        *[
            (get(line=b"GET " + target + b" HTTP/1.1"), "target")
            for target in (
                b"*", b"a", b"?a", b"h:80", b"/\xff", b"/\x00", b"/#a", b"/%", b"/%4", b"/%zz", b"/%ff", b"/%00",
                b"/%0a", b"/%c0%af", b"/?%f", b"/?a=%ff", b"ftp://h/", b"http://other/", b"http://u@h/", b"http:///",
            )
        ],
        (get(line=b"CONNECT h:80 HTTP/1.1"), "target"),
        (get(line=b"CONNECT / HTTP/1.1"), "target"),
        (b"GET http://h/ HTTP/1.0\r\n\r\n", "target"),
        (get(line=b"GET /?" + b"a&" * 64 + b" HTTP/1.1"), "query"),
        # Host
        (get(host=b""), "Host"),
        (get(HOST[:-2]), "Host"),
        (b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", "Host"),
        *[
            (get(host=b"Host:" + host), "Host")
            for host in (
                b"", b" ", b"a b", b"a,b", b"a/b", b"u@h", b"h:x", b"h:000080", b"h:65536", b"h:-1", b":80", b"h:80:80",
                b"::1", b"[::1", b"[]", b"[::g]", b"[1::2::3]", b"[::1%eth0]", b"[1.2.3.4]", b"h\xe9", b"http://h",
                b".", b"..", b".:80", b".h", b"a..b", b"127.0.0.1..", b"h..:80", b"a" * 256,
            )
        ],
        # framing
        *[
            (get(b"Content-Length: " + length), "Content-Length")
            for length in (b"", b"+1", b"-1", b"1, 1", b"1 1", b"0x1", b"1_0", b"1.0", b"\xb2", b"1" * 19)
        ],
        (get(b"Content-Length: 1", b"content-length: 1"), "Content-Length"),
        (get(b"Content-Length: 1", b"Content-Length: 2"), "Content-Length"),
        *[
            (get(b"Transfer-Encoding: " + coding), "Transfer-Encoding")
            for coding in (b"", b"gzip", b"gzip, chunked", b"chunked, chunked", b"chunked;q=1", b"identity")
        ],
        (get(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), "Transfer-Encoding"),
        (get(b"Transfer-Encoding: chunked", b"Transfer-Encoding:"), "Transfer-Encoding"),
        (get(b"Transfer-Encoding: chunked", b"Content-Length: 5"), "Transfer-Encoding"),
        (get(b"Content-Length: 5", b"Transfer-Encoding: chunked"), "Transfer-Encoding"),
        (get(b"Transfer-Encoding: chunked", line=b"POST / HTTP/1.0"), "Transfer-Encoding"),
        # lines and headers
        (GET.replace(b"\r\n", b"\n"), "head"),
        (get(b"A: b\nC: d"), "head"),
        (get(b"A: b\n"), "head"),
        *[
            (get(header), "header")
            for header in (
                b" folded", b"\tfolded", b"A : b", b"A\t: b", b": b", b"A", b"A b: c", b"(: b", b"\xe9: b", b"A\x00: b",
                b"A: b\rC: d", b"A: b\r", b"A: \x00", b"A: \x0b", b"A: \x1f", b"A: \x7f", b"A\x0b: b",
            )
        ],
        (b"GET / HTTP/1.1\r\n folded\r\nHost: h\r\n\r\n", "header"),
        # chunks
        *[
            (CHUNKED + chunk + b"\r\n", "chunk size")
            for chunk in (
                b"", b"x", b"-1", b"+1", b"0x1", b"1 ", b" 1", b"1_0", b"1\n", b"1;\r;", b"1;\0", b"1;a\nb", b"0" * 17,
            )
        ],
        (CHUNKED + b"1\r\nab\r\n", "chunk"),
        (CHUNKED + b"1\r\na\n\r", "chunk"),
        *[
            (CHUNKED + b"0\r\n" + trailer + b"\r\n\r\n", "trailer")
            for trailer in (b"\n", b"GET / HTTP/1.1", b"A : b", b" A: b", b"A: b\nC: d", b"A: b\r")
        ],
    ],
)  # fmt: skip
def test_what_readers_could_take_for_different_things_is_refused(wire: bytes, field: str) -> None:
    requests, refusal = decode([wire])
    assert requests == []
    assert refusal is not None
    assert (refusal[0], refusal[1].partition(":")[0]) == (400, field)
    assert ": expected " in refusal[1]
    assert refusal[1].isascii()
    assert refusal[1].isprintable()
    assert len(refusal[1]) < 400
    assert decode(single_bytes(wire)) == ([], refusal)


def test_errors_name_the_field_and_what_was_expected() -> None:
    assert refused(get(host=b"Host: a b"))[1] == "Host: expected host or host:port, got 'a b'"
    assert refused(get(b"A: \x00" + b"x" * 99))[1] == (
        f"header: expected name: value without control characters, got 'A: \\x00{'x' * 60}'..."
    )


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (get(b"Expect: 100-continue", b"Content-Length: 65"), 413),
        (get(b"Expect: more"), 417),
        (get(b"Expect: 100-continue, more"), 417),
        (get(b"Expect: 100-continue", b"Expect: more"), 417),
    ],
)
def test_a_refused_expectation_gets_no_100(wire: bytes, status: int) -> None:
    codec = new()
    assert refused(wire, codec)[0] == status
    assert codec.take_output() == b""


# The caps, at both sides.


def padded(length: int) -> bytes:
    """A head of ``length`` bytes."""
    return get(b"A: " + b"x" * (length - len(get(b"A: "))))


def target(length: int) -> bytes:
    return get(line=b"GET /" + b"x" * (length - 1) + b" HTTP/1.1")


def trailers(length: int) -> bytes:
    return CHUNKED + b"0;" + b"e" * 99 + b"\r\n" + b"T:" + b"x" * (length - 102) + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("good", "bad", "status"),
    [
        (padded(MAX_HEAD), padded(MAX_HEAD + 1), 431),
        (b"\r\n" + padded(MAX_HEAD), b"\r\n" + padded(MAX_HEAD + 1), 431),
        (get(*[b"A: b"] * 99), get(*[b"A: b"] * 100), 431),
        (target(http_head.MAX_TARGET_BYTES), target(http_head.MAX_TARGET_BYTES + 1), 414),
        (get(line=b"GET /?" + b"a&" * 63 + b" HTTP/1.1"), get(line=b"GET /?" + b"a&" * 64 + b" HTTP/1.1"), 400),
        (POST + b"Content-Length: 64\r\n\r\n" + b"x" * 64, POST + b"Content-Length: 65\r\n\r\n", 413),
        (CHUNKED + b"40\r\n" + b"x" * 64 + b"\r\n0\r\n\r\n", CHUNKED + b"41\r\n", 413),
        (CHUNKED + b"1\r\nx\r\n" * 64 + b"0\r\n\r\n", CHUNKED + b"1\r\nx\r\n" * 64 + b"1\r\n", 413),
        (CHUNKED + b"0" * 16 + b"\r\n\r\n", CHUNKED + b"f" * 16 + b"\r\n", 413),
        (trailers(http_body.MAX_CHUNK_EXTRAS), trailers(http_body.MAX_CHUNK_EXTRAS + 1), 431),
    ],
)
def test_what_is_at_its_cap_passes_and_one_more_is_refused(good: bytes, bad: bytes, status: int) -> None:
    only(good)
    assert len(decode(single_bytes(good))[0]) == 1
    assert refused(bad)[0] == status
    assert decode(single_bytes(bad)) == decode([bad])


@pytest.mark.parametrize(
    "start", [b"", b"GET / HTTP/1.1\r\nA: ", CHUNKED, CHUNKED + b"1;", CHUNKED + b"0\r\nA: "], ids=repr
)
def test_a_head_or_chunk_line_that_never_ends_is_refused_while_it_comes(start: bytes) -> None:
    codec = new()
    assert refused(start + b"1" * MAX_HEAD, codec)[0] == 431
    assert codec.buffered == 0


@pytest.mark.parametrize(
    ("start", "cap"),
    [
        (b"", MAX_HEAD),
        (CHUNKED, http_body.MAX_CHUNK_EXTRAS + 18),
        (CHUNKED + b"0\r\n", http_body.MAX_CHUNK_EXTRAS + 18),
    ],
)
def test_an_unended_line_waits_below_its_cap(start: bytes, cap: int) -> None:
    codec = new()
    codec.receive_data(start + b"x" * (cap - 1))
    assert codec.next_request() is None
    assert refused(b"x", codec)[0] == 431


def test_nothing_is_read_after_a_refusal() -> None:
    codec = new()
    refused(GET.replace(b"h", b"?") + GET, codec)
    codec.receive_data(GET)
    assert (codec.next_request(), codec.buffered, codec.phase) == (None, 0, Phase.LAST_RESPONSE)
    codec.respond(400, [], b"")
    codec.receive_data(GET)
    assert (codec.next_request(), codec.buffered, codec.phase, codec.keep_alive) == (None, 0, Phase.CLOSED, False)


# Responses, read by h11's client.


def client() -> h11.Connection:
    return h11.Connection(h11.CLIENT)


def ask(peer: h11.Connection, method: str = "GET", body: bytes = b"", **headers: str) -> bytes:
    framing = {"Content-Length": str(len(body))} if body else {}
    request = h11.Request(method=method, target="/", headers=list(({"Host": "h"} | framing | headers).items()))
    return peer.send(request) + (peer.send(h11.Data(body)) if body else b"") + peer.send(h11.EndOfMessage())


def read(peer: h11.Connection, wire: bytes, *, end: bool = False) -> tuple[h11.Response, bytes]:
    """The whole response in ``wire``; at its end nothing is left."""
    peer.receive_data(wire)
    if end:
        peer.receive_data(b"")
    response, body = peer.next_event(), b""
    assert isinstance(response, h11.Response)
    while not isinstance(event := peer.next_event(), h11.EndOfMessage):
        assert isinstance(event, h11.Data)
        body += event.data
    assert peer.trailing_data[0] == b""
    return response, body


def test_client_and_server_keep_a_connection_through_several_requests() -> None:
    peer, codec = client(), new()
    for i in range(3):
        codec.receive_data(ask(peer, "POST", b"body %d" % i))
        request = codec.next_request()
        assert request is not None
        if i % 2:
            wire = codec.begin(201, [("X-A", "é")]) + codec.chunk(request.body) + codec.chunk(b"") + codec.chunk(b"!")
            response, body = read(peer, wire + codec.end())
            assert (response.status_code, response.reason, body) == (201, b"Created", b"body %d!" % i)
            assert list(response.headers) == [(b"x-a", b"\xe9"), (b"transfer-encoding", b"chunked")]
        else:
            response, body = read(peer, codec.respond(200, [("X-A", "b")], request.body))
            assert list(response.headers) == [(b"x-a", b"b"), (b"content-length", b"6")]
            assert (response.reason, body) == (b"OK", b"body %d" % i)
        assert codec.keep_alive
        peer.start_next_cycle()


def test_head_gets_the_length_and_no_body() -> None:
    peer, codec = client(), new()
    codec.receive_data(ask(peer, "HEAD"))
    assert codec.next_request() is not None
    response, body = read(peer, codec.respond(200, [], b"four"))
    assert (list(response.headers), body, codec.keep_alive) == ([(b"content-length", b"4")], b"", True)
    peer.start_next_cycle()
    codec.receive_data(ask(peer, "HEAD") + GET)
    assert codec.next_request() is not None
    assert codec.begin(200, []).endswith(b"Transfer-Encoding: chunked\r\n\r\n")
    assert codec.chunk(b"x") + codec.end() == b""
    assert codec.next_request() is not None
    assert codec.respond(200, [], b"x").endswith(b"\r\n\r\nx")


STEPS = (
    lambda codec: codec.begin(200, []),
    lambda codec: codec.chunk(b"ab"),
    lambda codec: codec.chunk(b"ab"),
    lambda codec: codec.end(),
)


@pytest.mark.parametrize("probed_at", range(4))
@pytest.mark.parametrize("line", [b"GET / HTTP/1.1", b"HEAD / HTTP/1.1", b"GET / HTTP/1.0"])
def test_a_probe_is_a_part_of_the_response_sent_early(line: bytes, probed_at: int) -> None:
    codec, plain = given_out(get(line=line)), given_out(get(line=line))
    wire = b""
    for number, step in enumerate(STEPS):
        if number == probed_at:
            probe = codec.probe()
            assert probe == (b"HTTP/1.1 " if number == 0 else b"0" if line == b"GET / HTTP/1.1" else b"")
            assert codec.probe() == b""
            wire += probe
        wire += step(codec)
    assert codec.probe() == b""
    # A chunk's size may have zeros before it.
    assert re.sub(rb"\b0(?=[02]\r\n)", b"", wire) == b"".join(step(plain) for step in STEPS)


@pytest.mark.parametrize("probed_at", range(4))
def test_a_client_reads_a_response_that_was_probed_as_any_other(probed_at: int) -> None:
    peer, codec = client(), new()
    codec.receive_data(ask(peer))
    assert codec.probe() == b"", "nothing is owed yet"
    assert codec.next_request() is not None
    wire = b""
    for number, step in enumerate(STEPS):
        if number == probed_at:
            wire += codec.probe()
        wire += step(codec)
    assert read(peer, wire)[1] == b"abab"
    peer.start_next_cycle()
    codec.receive_data(ask(peer))
    assert codec.next_request() is not None
    assert read(peer, codec.probe() + codec.respond(200, [], b"next"))[1] == b"next"


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_a_body_have_no_length(status: int) -> None:
    assert b"Content-Length" not in given_out(GET).respond(status, [], b"")


def test_a_status_without_a_standard_reason_is_sent() -> None:
    assert given_out(GET).respond(529, [], b"").startswith(b"HTTP/1.1 529 \r\n")


@pytest.mark.parametrize(
    "wire", [b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", get(b"Connection: Close")]
)
def test_the_connection_ends_with_the_response_to_1_0_and_to_one_that_asks_for_it(wire: bytes) -> None:
    codec = given_out(wire + GET)
    assert b"\r\nConnection: close\r\n" in codec.respond(200, [], b"")
    assert (codec.keep_alive, codec.next_request()) == (False, None)
    assert (codec.phase, codec.buffered) == (Phase.CLOSED, 0), "nothing of a request that never will be"
    codec.receive_data(GET)
    assert (codec.phase, codec.buffered, codec.next_request()) == (Phase.CLOSED, 0, None)


def test_the_server_may_end_the_connection_with_a_response() -> None:
    codec = given_out(GET + GET)
    codec.respond(200, [("Connection", "close")], b"")
    assert (codec.keep_alive, codec.next_request()) == (False, None)


def test_a_stream_to_1_0_goes_on_until_the_close() -> None:
    codec = given_out(b"GET / HTTP/1.0\r\n\r\n")
    wire = codec.begin(200, []) + codec.chunk(b"ab") + codec.chunk(b"c") + codec.end()
    assert wire == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc"
    assert not codec.keep_alive


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"GE",
        b"\x16\x03\x01\n",
        GET[:-2] + b"A : b\r\n\r\n",
        get(b"Content-Length: 65"),
        CHUNKED,
        CHUNKED + b"z\r\n",
    ],
    ids=repr,
)
def test_a_response_where_no_whole_request_was_given_out_is_the_last(wire: bytes) -> None:
    peer, codec = client(), new()
    ask(peer)
    decode([wire], codec)
    response, body = read(peer, codec.respond(408, [("X-A", "b")], b"late"))
    assert (response.status_code, body) == (408, b"late")
    assert list(response.headers) == [(b"x-a", b"b"), (b"content-length", b"4"), (b"connection", b"close")]
    codec.receive_data(GET)
    assert (codec.keep_alive, codec.buffered, codec.next_request()) == (False, 0, None)


def test_a_refusal_can_follow_a_served_request() -> None:
    peer, codec = client(), new()
    codec.receive_data(ask(peer) + CHUNKED + b"41\r\n")
    requests, refusal = take(codec)
    assert (len(requests), refusal) == (1, (413, "body: expected at most 64 bytes, got more"))
    response, _ = read(peer, codec.respond(413, [], b"too large"))
    assert (b"connection", b"close") in list(response.headers)


def test_a_refused_head_request_gets_no_body() -> None:
    codec = new()
    assert refused(get(b"Content-Length: 65", line=b"HEAD / HTTP/1.1"), codec)[0] == 413
    assert codec.respond(413, [], b"body").endswith(b"Connection: close\r\n\r\n")


@pytest.mark.parametrize("headers", [[("A", "b\r\nC: d")], [("A\n", "b")], [("A:", "b")]])
def test_a_header_of_ours_cannot_split_a_response(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(h11.LocalProtocolError):
        given_out(GET).respond(200, headers, b"")


def test_only_one_response_is_given_to_a_request() -> None:
    codec = given_out(GET)
    codec.begin(200, [])
    with pytest.raises(h11.LocalProtocolError):
        codec.respond(200, [], b"")


# Expect: 100-continue.


@pytest.mark.parametrize("framing", [b"Content-Length: 5", b"Transfer-Encoding: chunked"])
def test_a_client_that_waits_gets_100_once_and_then_its_answer(framing: bytes) -> None:
    peer, codec = client(), new()
    ask(peer)
    codec.receive_data(get(framing, b"Expect: 100-Continue", line=b"POST / HTTP/1.1"))
    assert codec.take_output() == b""
    assert codec.next_request() is None
    wire = codec.take_output()
    assert wire == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert codec.next_request() is None
    assert codec.take_output() == b""
    codec.receive_data(b"hello" if b"Length" in framing else b"5\r\nhello\r\n0\r\n\r\n")
    request = codec.next_request()
    assert request is not None
    assert (request.body, codec.take_output()) == (b"hello", b"")
    peer.receive_data(wire)
    assert isinstance(peer.next_event(), h11.InformationalResponse)
    assert read(peer, codec.respond(200, [], b"x"))[1] == b"x"


@pytest.mark.parametrize(
    "wire",
    [
        get(b"Expect: 100-continue"),
        get(b"Expect: 100-continue", b"Content-Length: 0"),
        get(b"Expect: 100-continue", b"Content-Length: 5", line=b"POST / HTTP/1.0"),
        get(b"Expect: 100-continue", b"Content-Length: 5") + b"h",
        get(b"Content-Length: 5"),
    ],
)
def test_no_100_is_given_to_who_does_not_wait(wire: bytes) -> None:
    codec = new()
    codec.receive_data(wire)
    codec.next_request()
    assert codec.take_output() == b""


@pytest.mark.parametrize("then", ["data", "respond"])
def test_a_100_that_comes_too_late_is_not_given(then: str) -> None:
    codec = new()
    codec.receive_data(get(b"Expect: 100-continue", b"Content-Length: 5"))
    assert codec.next_request() is None
    if then == "data":
        codec.receive_data(b"h")
    else:
        codec.respond(408, [], b"")
    assert codec.take_output() == b""


# Upgrades.


@pytest.mark.parametrize("rest", [b"", b"\x81\x85\r\n\r\n"])
def test_an_upgrade_hands_over_what_came_after_the_request(rest: bytes) -> None:
    peer = client()
    codec = given_out(ask(peer, Upgrade="websocket", Connection="Upgrade") + rest)
    response, trailing = codec.upgrade([("Upgrade", "websocket"), ("Connection", "Upgrade")])
    assert response == b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    assert trailing == rest
    peer.receive_data(response)
    assert isinstance(peer.next_event(), h11.InformationalResponse)
    assert peer.their_state is h11.SWITCHED_PROTOCOL
    codec.receive_data(GET)
    assert (codec.next_request(), codec.buffered, codec.keep_alive) == (None, 0, False)


def test_an_offer_to_upgrade_may_be_left_unused() -> None:
    codec = given_out(get(b"Upgrade: h2c", b"Connection: Upgrade") + GET)
    codec.respond(200, [], b"")
    assert codec.keep_alive
    assert codec.next_request() is not None


def test_nobody_is_upgraded_unasked() -> None:
    with pytest.raises(h11.LocalProtocolError):
        given_out(GET).upgrade([("Upgrade", "websocket")])
