"""The handshakes of both sides of a WebSocket."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import pytest

from umaserve.wire.http11 import HttpCodec
from umaserve.wire.http_head import Refusal, Request
from umaserve.wire.websocket_handshake import (
    MAX_ANSWER_BYTES,
    HandshakeFailed,
    check_accept,
    client_handshake,
    handshake,
    read_answer,
    wants_websocket,
)

# -- the handshake -----------------------------------------------------------------------------------------------------

KEY = "dGhlIHNhbXBsZSBub25jZQ=="  # RFC 6455 1.3, with its answer below
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
GOOD = {
    "host": "host",
    "upgrade": "websocket",
    "connection": "Upgrade",
    "sec-websocket-key": KEY,
    "sec-websocket-version": "13",
}


def asking(*more: tuple[str, str], method: str = "GET", **changes: str | None) -> Request:
    """A good handshake, but for ``changes`` (``None`` leaves a header out) and the headers in ``more``."""
    headers = GOOD | {name.replace("_", "-"): value for name, value in changes.items()}
    kept = [(name, value) for name, value in headers.items() if value is not None]
    return Request(method, "/generate", {}, (*kept, *more), b"")


def accepted(key: str = ACCEPT) -> list[tuple[str, str]]:
    return [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", key)]


@pytest.mark.parametrize(
    "request_",
    [
        asking(),
        asking(upgrade="WebSocket", connection="keep-alive, UPGRADE"),
        asking(("upgrade", "websocket"), ("connection", "upgrade"), upgrade="h2c", connection="close"),
        *(
            asking(sec_websocket_extensions=extensions)
            for extensions in [
                "permessage-deflate; client_max_window_bits",
                "permessage-deflate; client_max_window_bits=15, x-webkit-deflate-frame",
                'foo; a="1"; b = "\\a\\-b" ;c,bar',
                ", foo,,\tbar ,",
            ]
        ),
        asking(("sec-websocket-extensions", ""), sec_websocket_extensions="foo"),
        asking(sec_websocket_protocol="theirs, other"),
        asking(sec_websocket_protocol=""),
    ],
)
def test_a_good_handshake_gets_the_answer_of_the_rfc_and_no_extension(request_: Request) -> None:
    assert handshake(request_, ["ours"]) == accepted()


@pytest.mark.parametrize(
    ("offered", "ours", "chosen"),
    [
        (["a, b"], ["b", "a"], "a"),
        (["x ,b", "a"], ["a", "b"], "b"),
        (["x", "a"], ["a"], "a"),
        (["A"], ["a"], None),
        (["a"], [], None),
        ([], ["a"], None),
    ],
)
def test_the_first_of_the_clients_subprotocols_that_is_ours_is_chosen(
    offered: Sequence[str], ours: Sequence[str], chosen: str | None
) -> None:
    answer = handshake(asking(*[("sec-websocket-protocol", value) for value in offered]), ours)
    assert answer == accepted() + ([] if chosen is None else [("Sec-WebSocket-Protocol", chosen)])


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (asking(method="POST"), "method: expected GET for a WebSocket handshake, got POST"),
        (asking(upgrade=None), "Upgrade: expected websocket"),
        (asking(upgrade="h2c, websocket2"), "Upgrade: expected websocket"),
        (asking(connection=None), "Connection: expected upgrade"),
        (asking(connection="keep-alive"), "Connection: expected upgrade"),
        (asking(("sec-websocket-version", "13")), "Sec-WebSocket-Version: expected once, got 2 times"),
        (asking(("sec-websocket-key", KEY)), "Sec-WebSocket-Key: expected once, got 2 times"),
        *(
            (asking(sec_websocket_key=key), "Sec-WebSocket-Key: expected 16 bytes in base64")
            for key in [
                None,
                "",
                KEY[:-1],  # its padding is not whole
                KEY + "=",
                KEY + "\n",
                "\xe9" + KEY[1:],
                "-" + KEY[1:],  # base64 for URLs is another
                "AAAAAAAAAAAAAAAAAAAA",  # 15 bytes
                "AAAAAAAAAAAAAAAAAAAAAAA=",  # 17 bytes
                KEY + KEY,
            ]
        ),
        *(
            (
                asking(sec_websocket_extensions=extensions),
                "Sec-WebSocket-Extensions: expected a list of extensions, each a token with parameters, "
                f"got {extensions!r}",
            )
            for extensions in [
                ";;;,,",
                "",
                ",",
                "foo;",
                ";a",
                "foo;;a",
                "foo a",
                "foo; a b",
                "foo; a=",
                "foo; =b",
                "foo; a=b=c",
                'foo; a="',
                'foo; a=""',
                'foo; a="b c"',
                'foo; a="b\\"',
                'foo; a="b,c"',
                'foo; a="b"c',
                "foo/1",
                "(foo)",
            ]
        ),
        (
            asking(("sec-websocket-extensions", ";"), sec_websocket_extensions="foo"),
            "Sec-WebSocket-Extensions: expected a list of extensions, each a token with parameters, got 'foo, ;'",
        ),
    ],
)
def test_a_malformed_handshake_is_refused(request_: Request, message: str) -> None:
    with pytest.raises(Refusal) as raised:
        handshake(request_)
    assert (raised.value.status, raised.value.message) == (400, message)


@pytest.mark.parametrize("version", [None, "", "8", "14", "013", "13, 8"])
def test_another_version_is_told_ours(version: str | None) -> None:
    with pytest.raises(Refusal) as raised:
        handshake(asking(sec_websocket_version=version))
    assert (raised.value.status, raised.value.message) == (426, "Sec-WebSocket-Version: expected 13")
    assert ("Sec-WebSocket-Version", "13") in raised.value.headers


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        (asking(), True),
        (asking(upgrade="h2c, WebSocket", connection=None, method="POST"), True),
        (asking(upgrade=None), False),
        (asking(upgrade="websocket/13"), False),
        (asking(upgrade="h2c"), False),
    ],
)
def test_whether_a_request_asks_for_websocket_at_all_is_in_its_upgrade_header(request_: Request, wanted: bool) -> None:
    assert wants_websocket(request_) is wanted


# -- the client's handshake --------------------------------------------------------------------------------------------


def head_of(request: bytes) -> Request:
    """A server's reading of ``request``."""
    codec = HttpCodec(16384, 0)
    codec.receive_data(request)
    read = codec.next_request()
    assert read is not None
    return read


ANSWER = [("upgrade", "websocket"), ("connection", "Upgrade"), ("sec-websocket-accept", ACCEPT)]


def test_the_two_sides_handshakes_fit() -> None:
    request, key = client_handshake("box:8080", "/v1/worker/connect?provider=a", [("X-Worker-Secret", "où")])
    read = head_of(request)
    assert (read.path, read.query, read.header("host")) == ("/v1/worker/connect", {"provider": "a"}, "box:8080")
    assert read.header("x-worker-secret") == "où"
    assert read.header("sec-websocket-key") == key
    answer = "".join(["HTTP/1.1 101 \r\n", *(f"{name}: {value}\r\n" for name, value in handshake(read)), "\r\n"])
    whole = answer.encode() + b"frames"
    for size in range(len(answer)):
        assert read_answer(whole[:size]) is None
    found = read_answer(whole)
    assert found is not None
    status, headers, rest = found
    assert (status, rest) == (101, b"frames")
    check_accept(status, headers, key)


def test_each_handshake_has_a_key_of_its_own() -> None:
    keys = {client_handshake("host", "/")[1] for _ in range(9)}
    assert len(keys) == 9
    assert {len(base64.b64decode(key)) for key in keys} == {16}


@pytest.mark.parametrize(
    ("host", "path", "headers"),
    [
        ("ho\r\nst", "/", []),
        ("host", "/a b", []),
        ("host", "/\r\n", []),
        ("host", "/é", []),
        ("host", "/", [("x-worker-secret", "s3cret\n")]),
        ("host", "/", [("x-worker-secret", "s3cret\u0100")]),
        ("host", "/", [("x worker", "s3cret")]),
    ],
)
def test_what_a_handshake_cannot_hold_is_refused_without_being_told(
    host: str, path: str, headers: list[tuple[str, str]]
) -> None:
    with pytest.raises(HandshakeFailed, match="handshake: expected printable ASCII in host and path") as raised:
        client_handshake(host, path, headers)
    assert raised.value.status is None
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"HTTP/2 101", "answer: expected HTTP/1.1 and a status, got 'HTTP/2 101'"),
        (b"SSH-2.0-OpenSSH", "answer: expected HTTP/1.1 and a status, got 'SSH-2.0-OpenSSH'"),
        (b"HTTP/1.1 999 X", "answer: expected HTTP/1.1 and a status, got 'HTTP/1.1 999 X'"),
        (b"HTTP/1.1 101\r\nno colon", "answer: expected name: value without control characters, got 'no colon'"),
        (b"HTTP/1.1 101\r\na: b\r\n c", "answer: expected no folded line, got ' c'"),
    ],
)
def test_an_answer_that_is_no_http_is_refused(head: bytes, message: str) -> None:
    with pytest.raises(HandshakeFailed) as raised:
        read_answer(head + b"\r\n\r\n")
    assert (str(raised.value), raised.value.status) == (message, None)


def test_an_answer_that_does_not_end_is_refused_at_its_cap() -> None:
    assert read_answer(b"x" * (MAX_ANSWER_BYTES - 1)) is None
    with pytest.raises(
        HandshakeFailed, match=f"^answer: expected a head of at most {MAX_ANSWER_BYTES} bytes, got more$"
    ):
        read_answer(b"x" * MAX_ANSWER_BYTES)


def test_an_acceptance_is_read_leniently_in_its_lists_and_letters() -> None:
    check_accept(101, ANSWER, KEY)
    check_accept(
        101, [("upgrade", "WebSocket"), ("connection", "keep-alive, UPGRADE"), ANSWER[2], ("server", "x")], KEY
    )


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [
        (401, ANSWER, "status: expected 101 Switching Protocols, got 401"),
        (200, ANSWER, "status: expected 101 Switching Protocols, got 200"),
        (101, ANSWER[1:], "upgrade: expected websocket, got ''"),
        (101, [("upgrade", "h2c"), *ANSWER[1:]], "upgrade: expected websocket, got 'h2c'"),
        (101, [ANSWER[0], ANSWER[2]], "connection: expected upgrade, got ''"),
        (101, [("connection", "close"), ANSWER[0], ANSWER[2]], "connection: expected upgrade, got 'close'"),
        (101, ANSWER[:2], "sec-websocket-accept: expected our key's, got ''"),
        (101, [*ANSWER[:2], ("sec-websocket-accept", KEY)], f"sec-websocket-accept: expected our key's, got '{KEY}'"),
        (101, [*ANSWER, ANSWER[2]], f"sec-websocket-accept: expected our key's, got '{ACCEPT}, {ACCEPT}'"),
        (
            101,
            [*ANSWER, ("sec-websocket-protocol", "chat")],
            "sec-websocket-protocol: expected none, since none was offered, got 'chat'",
        ),
        (
            101,
            [*ANSWER, ("sec-websocket-extensions", "permessage-deflate")],
            "sec-websocket-extensions: expected none, since none was offered, got 'permessage-deflate'",
        ),
    ],
)
def test_an_answer_that_does_not_accept_is_refused(status: int, headers: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(HandshakeFailed) as raised:
        check_accept(status, headers, KEY)
    assert (str(raised.value), raised.value.status) == (message, status)
