"""The load generator's side of each dialect: it must count every token, however the bytes come, and nothing else."""

from __future__ import annotations

import json

import pytest
from daemon import frame
from hypothesis import given
from hypothesis import strategies as st

from bench.conversations import CONVERSATIONS, SSE, UNIX_SOCKET, WEBSOCKET

N_TOKENS = 3
HEADS = {
    WEBSOCKET: b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
    SSE: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
}


def server_frame(payload: bytes, first: int = 0x81) -> bytes:
    n = len(payload)
    length = bytes([n]) if n < 126 else b"\x7e" + n.to_bytes(2) if n < 65536 else b"\x7f" + n.to_bytes(8)
    return bytes([first]) + length + payload


def message(**fields) -> bytes:
    return server_frame(json.dumps(fields).encode())


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(reason: str | None, text: str = " a") -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text, "finish_reason": reason}]}).encode() + b"\n\n"


ANSWERS = {
    UNIX_SOCKET: frame({"event": "token", "text": "a"}) * N_TOKENS + frame({"event": "eos", "reason": "length"}),
    WEBSOCKET: HEADS[WEBSOCKET]
    + message(type="init")
    + message(type="token", generated_text="a", finished=False)
    + server_frame(b"are you there?", first=0x89)
    + message(type="token", generated_text="a" * 200, finished=False)
    + message(type="token", generated_text="a" * 70_000, finished=False)
    + message(type="token", token="", finished=True)
    + message(type="completion", finish_reason="length"),
    # The second event lies in two chunks, the others share one.
    SSE: HEADS[SSE]
    + chunk(event(None) + event(None)[:9])
    + chunk(event(None)[9:])
    + chunk(b": still here\n\n" + event(None) + event("length", text="") + b"data: [DONE]\n\n")
    + chunk(b""),
}


@pytest.mark.parametrize("dialect", CONVERSATIONS)
@given(data=st.data())
def test_every_token_is_counted_however_the_bytes_are_split(dialect, data):
    answer = ANSWERS[dialect]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(answer) - 1), max_size=40)))
    conversation = CONVERSATIONS[dialect]("Hello", N_TOKENS)
    counts = [
        conversation.receive(answer[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)
    ]
    assert (sum(counts), conversation.ended) == (N_TOKENS, True)


@pytest.mark.parametrize("dialect", CONVERSATIONS)
def test_every_token_is_counted_byte_by_byte(dialect):
    conversation = CONVERSATIONS[dialect]("Hello", N_TOKENS)
    counts = [conversation.receive(bytes([byte])) for byte in ANSWERS[dialect]]
    assert (sum(counts), max(counts), conversation.ended) == (N_TOKENS, 1, True)


def test_a_websocket_asks_after_the_handshake_answers_pings_and_takes_its_leave():
    conversation = CONVERSATIONS[WEBSOCKET]("Hello", N_TOKENS)
    assert conversation.outbox.endswith(b"\r\n\r\n")
    conversation.outbox = b""
    conversation.receive(HEADS[WEBSOCKET])
    assert b'"prompt":"Hello"' in conversation.outbox
    conversation.outbox = b""
    conversation.receive(ANSWERS[WEBSOCKET].removeprefix(HEADS[WEBSOCKET]))
    assert conversation.outbox == b"\x8a\x8e" + bytes(4) + b"are you there?" + b"\x88\x80" + bytes(4)


@pytest.mark.parametrize(
    ("dialect", "answer"),
    [
        (UNIX_SOCKET, frame({"event": "error", "code": "E_BAD_REQUEST", "message": "no"})),
        (UNIX_SOCKET, frame({"event": "eos", "reason": "stop"})),
        (WEBSOCKET, b"HTTP/1.1 403 Forbidden\r\n\r\n"),
        (WEBSOCKET, HEADS[WEBSOCKET] + message(type="error", error="invalid_request")),
        (WEBSOCKET, HEADS[WEBSOCKET] + message(type="completion", finish_reason="stop")),
        (WEBSOCKET, HEADS[WEBSOCKET] + server_frame(b"\x03\xe8", first=0x88)),
        (SSE, b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        (SSE, HEADS[SSE] + chunk(b'data: {"error":{}}\n\n')),
        (SSE, HEADS[SSE] + chunk(event("stop") + b"data: [DONE]\n\n")),
    ],
)
def test_anything_but_a_whole_answer_is_an_error(dialect, answer):
    conversation = CONVERSATIONS[dialect]("Hello", N_TOKENS)
    with pytest.raises(ConnectionError, match=r"^(expected|not) "):
        conversation.receive(answer)
