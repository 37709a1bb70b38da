"""Random requests to all paths of a running daemon: each is answered as the OpenAPI document says, with no fault of the
server, and nobody beside them notices."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import re
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from daemon import ANSWER_S, Daemon, serving
from frames import ws_frame, ws_header
from http_wire import WEBSOCKET, Http, encode
from hypothesis import given, settings
from hypothesis import strategies as st
from openapi_document import EXAMPLES, FORMS, OPERATIONS, POSTS, check_answer, check_response, fields, request_schema

BESIDE = "yes, indeed"


@pytest.fixture(scope="module")
def wyoming(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("wyoming") / "socket")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, wyoming: str) -> Iterator[Daemon]:
    # Whatever length a request comes to ask for, it gets a short answer.
    few = ("--max-tokens", "8", "--n-ctx", "2048", "--resume-window", "0.5")
    yield from serving(tmp_path_factory, "--pooling", "mean", *few, "--wyoming", f"unix:{wyoming}")


@pytest.fixture(scope="module")
def http(daemon: Daemon) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{daemon.http}", timeout=ANSWER_S) as http:
        yield http


@pytest.fixture(scope="module", autouse=True)
def others(daemon: Daemon) -> Iterator[None]:
    """A client that has one answer after another all the time; in the end nothing is left of all requests."""
    ended, answers = threading.Event(), []

    def ask() -> None:
        while not ended.is_set():
            answers.append(daemon.ask(grammar=f'root ::= "{BESIDE}"'))

    thread = threading.Thread(target=ask)
    thread.start()
    yield
    ended.set()
    thread.join()
    assert answers
    for *tokens, last in answers:
        assert ("".join(token["text"] for token in tokens), last["event"]) == (BESIDE, "eos")
    left = daemon.wait_until_quiet()
    assert left["tx_stalled_sessions"] == 0
    daemon.wait_for(lambda values: values["connections"] <= 2)  # this one, and the other tests' HTTP client


# Bodies: an example of the document with a few changes, most of them wrong.

RAW = (
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 400, "-0.0", "01", "0x1", "tru", "", "'a'"),
    *('"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\x00"', '"\\x"', '"', "[" * 100 + "]" * 100, "[" * 2000),
    *('{"a":' * 150 + "1" + "}" * 150, '{"a":1,"a":[]}', "[" + "{}," * 5000 + "{}]", '"' + "a" * 5000 + '"'),
)
"""Texts in the place of a value: no JSON, or JSON at its limits."""


def raw(index: int) -> str:
    return f"raw value {index}"


WORDS = ("user", "tool", "auto", "function", "text", "json_schema", "base64", "data:image/png;base64,AA==", "http://a/")
LEAVES = (
    st.sampled_from([raw(index) for index in range(len(RAW))])
    | st.none()
    | st.booleans()
    | st.integers(-3, 100)
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(WORDS)
)
KEYS = st.sampled_from(["role", "content", "type", "text", "function", "name", "arguments", "input", "$ref", "id", ""])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4),
    max_leaves=6,
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in ``value`` with each of its keys or indices."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield value, key
        yield from places(item)


@st.composite
def bodies(draw: st.DrawFn, examples: Sequence[Any], known: Sequence[str]) -> bytes:
    """One of ``examples`` with a few changes; ``known``: the names of fields."""
    body = copy.deepcopy(draw(st.sampled_from(examples)))
    for _ in range(draw(st.integers(1, 3))):
        value = draw(VALUES)
        if known and draw(st.booleans()):
            body[draw(st.sampled_from(known))] = value
        elif there := list(places(body)):
            container, key = draw(st.sampled_from(there))
            if draw(st.integers(0, 3)):
                container[key] = value
            else:
                del container[key]
    if not draw(st.integers(0, 9)):
        body = draw(VALUES)
    text = json.dumps(body)
    if known and isinstance(body, dict) and body and not draw(st.integers(0, 5)):  # A field twice.
        text = f'{{"{draw(st.sampled_from(known))}": {json.dumps(draw(VALUES))}, {text[1:]}'
    return re.sub(r'"raw value (\d+)"', lambda found: RAW[int(found[1])], text).encode()


def check(response: httpx.Response, path: str) -> None:
    """501 is llama-server's status for what a model can't do."""
    assert response.status_code < 500 or response.status_code == 501, response.text
    check_response(response, POSTS[path])


@pytest.mark.parametrize("path", POSTS)
def test_any_body_is_answered_as_described(http: httpx.Client, path: str) -> None:
    examples = [value for where, _name, value in EXAMPLES if where == path]
    known = sorted({where[0] for where, _described in fields(request_schema(POSTS[path]))})

    @settings(max_examples=15)
    @given(bodies(examples, known))
    def send(body: bytes) -> None:
        check(http.post(path, content=body, headers={"Content-Type": "application/json"}), path)

    send()


# What is around bodies.

TYPES = (
    *("application/json", "application/json", "application/json; charset=latin-1", "APPLICATION/JSON;", "text/plain"),
    *("", "a/b;;", "multipart/form-data", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"),
)


def request(rng: random.Random) -> tuple[str, bytes]:
    """A request whose type, encoding or length may be wrong, and its path."""
    path, _name, value = rng.choice(EXAMPLES)
    body = json.dumps(value).encode()
    if rng.random() < 0.2:
        body = rng.randbytes(rng.randrange(40))
    length = len(body) + rng.choice([0] * 12 + [-1, 7])
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}"]
    lines += [f"Content-Type: {rng.choice(TYPES)}"] if rng.random() < 0.9 else []
    lines += [f"Content-Encoding: {rng.choice(['gzip', 'identity', 'x'])}"] if rng.random() < 0.1 else []
    lines += ["Expect: 100-continue"] if rng.random() < 0.1 else []
    return path, "\r\n".join([*lines, "", ""]).encode() + body


def responses(http: Http) -> Iterator[httpx.Response]:
    """All until the server closes the connection."""
    while http.file.peek(1):
        status, headers, body = http.receive()
        if status != 100:
            yield httpx.Response(status, headers=headers, content=body)


@pytest.mark.parametrize("seed", range(40))
def test_requests_one_after_another_cut_or_mislabelled(daemon: Daemon, seed: int) -> None:
    rng = random.Random(seed)
    asked = [request(rng) for _ in range(rng.randint(1, 4))]
    data = b"".join(each for _path, each in asked)
    whole = rng.random() < 0.5
    with Http(daemon.http) as http:
        http.send(data if whole else data[: rng.randrange(len(data))])
        http.sock.shutdown(socket.SHUT_WR)
        answers = list(responses(http))
    assert len(answers) <= len(asked) + 1  # What is left of a body may be taken for a request.
    for answer, (path, _each) in zip(answers, asked, strict=False):
        assert answer.status_code < 500 or answer.status_code == 501, answer.text
        if answer.status_code not in (400, 404, 405):  # A broken head has no path, and so no API's own form.
            check_response(answer, POSTS[path])


# Other codecs than JSON.


def spoilt(rng: random.Random, pieces: list[bytes]) -> bytes:
    """Some of ``pieces`` in any order, and now and then bytes between them that are none, or an end in the middle."""
    data = b"".join(
        rng.choice(pieces) if rng.random() < 0.95 else rng.randbytes(rng.randrange(9)) for _ in range(rng.randrange(12))
    )
    return data if rng.random() < 0.7 else data[: rng.randrange(len(data) + 1)]


FORM = [
    *(b"--b\r\n", b"--b--\r\n", b"\r\n--b", b"\r\n\r\n", b"\r\n", b"\x00\xff", b"RIFF" * 9, b"A" * 9000),
    *(b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n', b"Content-Disposition: x;;=\r\n\r\n"),
    *(
        b'Content-Disposition: form-data; name="%b"\r\n\r\n' % name
        for name in (b"model", b"stream", b"prompt", b"\xff")
    ),
    *(b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n1\r\n' % name for name in (b"file", b"temperature")),
]


@pytest.mark.parametrize("path", FORMS)
def test_any_form_is_refused_as_described(http: httpx.Client, path: str) -> None:
    rng = random.Random(path)
    for _ in range(150):
        kind = rng.choice(["multipart/form-data; boundary=b"] * 5 + ["multipart/form-data; boundary=" + "-" * 99])
        response = http.post(path, content=spoilt(rng, FORM), headers={"Content-Type": kind})
        assert 400 <= response.status_code < 500, response.text
        check_response(response, FORMS[path])


EVENTS = [
    *(
        b'{"type":"%b"}\n' % kind
        for kind in (b"describe", b"ping", b"transcribe", b"audio-stop", b"synthesize-stop", b"x")
    ),
    *(b'{"type":"%b","data":{"text":"A."}}\n' % kind for kind in (b"ping", b"synthesize-start", b"synthesize-chunk")),
    *(
        b'{"type":"audio-chunk","data":{"rate":16000,"width":2,"channels":1},"payload_length":2}\n',
        b"ab",
        b"\n",
        b"{}\n",
    ),
    *(b'{"type":"describe","data_length":%d}\n' % length for length in (2, -1, 10**9, 10**30)),
    *(b'{"type":"synthesize","data":[]}\n', b'{"type":5}\n', b"[" * 3000 + b"\n", b"A" * 70_000),
]


ANSWERS = {"info", "pong", "error", "audio-start", "audio-chunk", "audio-stop", "synthesize-stopped"}


def test_any_events_of_wyoming_are_answered_or_end_the_connection(wyoming: str, daemon: Daemon) -> None:
    rng = random.Random(1)
    kinds = set()
    for _ in range(150):
        # What comes behind an error isn't read, so the connection may end with a reset.
        with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(ConnectionError):
            sock.settimeout(ANSWER_S)
            sock.connect(wyoming)
            sock.sendall(spoilt(rng, EVENTS))
            sock.shutdown(socket.SHUT_WR)
            with sock.makefile("rb") as answers:
                while header := answers.readline():
                    event = json.loads(header)
                    kinds.add(event["type"])
                    answers.read(event.get("data_length") or 0)
                    answers.read(event.get("payload_length") or 0)
    assert {"info", "pong", "error"} <= kinds <= ANSWERS


# WebSockets.

MESSAGES: dict[str, list[dict[str, Any]]] = {
    "/generate": [
        {"type": "config", "prompt": "Once upon a time", "parameters": {"temperature": 0.5}, "options": {}},
        {"type": "config", "prompt": [{"role": "user", "content": "Hi"}], "slo": {"target_ttft_ms": 500}},
        *({"type": "control", "action": action} for action in ("stop", "pause", "resume", "regenerate")),
        {"type": "control", "action": "modify", "parameters": {"top_k": 3, "max_tokens": 4}},
        {"type": "feedback", "rating": 1, "text": "Good.", "position": 2},
        {"type": "resume", "request_id": "r", "position": 0},
    ],
    "/v1/responses": [
        {"type": "response.create", "input": "Hi", "max_output_tokens": 4, "store": False, "stream_id": "a"},
        {"type": "response.create", "input": [{"role": "user", "content": "Hi"}], "max_output_tokens": 4},
        {"type": "response.create", "input": [], "instructions": "Hi", "generate": False},
        {"type": "response.create", "input": "Hi", "previous_response_id": "resp_1", "background": False},
    ],
    "/ws/chat": [
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
            "streaming": True,
            "generation": {"max_new_tokens": 4, "length_penalty": 1.1},
            "tts": {"enabled": False},
            "image": {"max_slice_nums": 1},
        },
        {"messages": [{"role": "user", "content": [{"type": "image", "data": "AA=="}]}], "omni_mode": True},
    ],
}
CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FAULT = 1011
"""The code that ends a connection by a fault of the server; a client's own code is sent back."""
GOODBYE = ws_frame(CLOSE, (1000).to_bytes(2))


def payloads(path: str) -> st.SearchStrategy[bytes]:
    """Messages, more right ones than others."""
    known = sorted({name for message in MESSAGES[path] for name in message})
    good = st.sampled_from([json.dumps(message).encode() for message in MESSAGES[path]])
    return good | good | bodies(MESSAGES[path], known) | st.binary(max_size=30)


def frames(path: str) -> st.SearchStrategy[bytes]:
    message = payloads(path)
    data = st.builds(lambda payload: ws_frame(TEXT, payload, mask=b"mask"), message)
    parts = st.builds(lambda one: ws_frame(TEXT, one[:5], fin=False) + ws_frame(CONT, one[5:]), message)
    control = st.builds(ws_frame, st.sampled_from([PING, PONG, CLOSE]), st.binary(max_size=130))
    odd = st.builds(
        ws_frame,
        st.integers(0, 15),
        message,
        fin=st.booleans(),
        rsv=st.sampled_from([0, 0, 0, 1, 4]),
        masked=st.sampled_from([True, True, True, False]),
    )
    begun = st.builds(ws_header, st.sampled_from([CONT, TEXT, BINARY]), st.sampled_from([1, 126, 2**16, 2**40, 2**63]))
    ended = st.builds(lambda code: ws_frame(CLOSE, code.to_bytes(2)), st.sampled_from([999, 1000, 1005, 3000, 5000]))
    return st.one_of(data, data, data, parts, control, odd, begun, ended, st.binary(max_size=9))


def received(http: Http, path: str) -> Iterator[int]:
    """The opcodes of all frames until the server closes the connection; each is as the document describes."""
    (operation,) = (op for where, method, op in OPERATIONS if (where, method) == (path, "get"))
    described = operation["responses"]["101"]["x-server-message"]
    with contextlib.suppress(ConnectionError):
        while head := http.file.read(2):
            length = head[1] if head[1] < 126 else int.from_bytes(http.file.read(2 if head[1] == 126 else 8))
            payload = http.file.read(length)
            assert head[0] & 0xF0 == 0x80  # A whole frame, without extensions.
            opcode = head[0] & 0x0F
            if opcode == CLOSE:
                assert int.from_bytes(payload[:2]) != FAULT, payload
            elif opcode == TEXT:
                check_answer(json.loads(payload), described)
            else:
                assert opcode == PONG
            yield opcode


def upgrade(http: Http, path: str, then: bytes = b"") -> None:
    http.send(encode("GET", path, headers=WEBSOCKET) + then)
    assert http.receive().status == 101


@pytest.mark.parametrize("path", MESSAGES)
def test_any_frames_are_answered_or_end_the_connection(daemon: Daemon, path: str) -> None:
    @settings(max_examples=50)
    @given(st.lists(frames(path), max_size=6), st.sampled_from(["cut", "ended", "reset", "closed", "closed"]))
    def send(sent: list[bytes], end: str) -> None:
        data = b"".join(sent)
        if end == "cut":
            data = data[: len(data) * 2 // 3]
        elif end == "closed":
            data += GOODBYE
        with Http(daemon.http) as http:
            upgrade(http, path, data)
            if end == "reset":
                http.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            if end != "closed":
                http.sock.shutdown(socket.SHUT_WR)
            list(received(http, path))

    send()


@pytest.mark.parametrize("path", MESSAGES)
def test_any_messages_are_answered_one_after_another(daemon: Daemon, path: str) -> None:
    """Each has an answer, or belongs to a conversation that is about to end; meanwhile generations run."""

    @settings(max_examples=25)
    @given(st.lists(payloads(path), max_size=8))
    def converse(sent: list[bytes]) -> None:
        with Http(daemon.http) as http, contextlib.suppress(ConnectionError):
            upgrade(http, path)
            answers = received(http, path)
            for payload in sent:
                http.send(ws_frame(TEXT, payload))
                next(answers, None)
            http.send(GOODBYE)
            list(answers)

    converse()
