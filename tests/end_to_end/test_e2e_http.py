"""HTTP on the real daemon: connections, framing, refusals, clients that leave or lag, and what operators see."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from daemon import ANSWER_S, Daemon
from http_wire import Http, Response, encode, events
from prometheus_client.parser import text_string_to_metric_families

from umaserve.settings.model_files import default_model

SHORT = {"prompt": "Once upon a time", "max_tokens": 4, "ignore_eos": True, "temperature": 0}
LONG = SHORT | {"max_tokens": 500}
JSON_HEAD = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def counted(daemon: Daemon) -> dict[str, float]:
    """Every sample of ``/metrics``, by its name and labels."""
    with Http(daemon.http) as http:
        text = http.ask("GET", "/metrics").body.decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {f"{sample.name}{sorted(sample.labels.items())}": sample.value for sample in samples}


def ended(daemon: Daemon) -> list[str]:
    """The lines of the log about requests that have ended."""
    return [line for line in daemon.logs.splitlines() if "request ended" in line]


# -- much at once ------------------------------------------------------------------------------------------------


LIMITS = ("--max-chat-bytes", "2MiB", "--max-frame-bytes", "64KiB", "--max-prompt-bytes", "32KiB")


def by_file(own_daemon: Callable[..., Daemon], folder: Path) -> tuple[Daemon, Callable[[], Http]]:
    path = str(folder / "http.sock")
    return own_daemon("--http-socket", path, *LIMITS), lambda: Http(path)


def by_tls(own_daemon: Callable[..., Daemon], folder: Path) -> tuple[Daemon, Callable[[], Http]]:
    authority, trusting = trustme.CA(), ssl.create_default_context()
    authority.configure_trust(trusting)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "tls.pem")
    pair = ("--tls-cert", str(folder / "tls.pem"), "--tls-key", str(folder / "tls.pem"))
    daemon = own_daemon("--http", "127.0.0.1:0", *pair, *LIMITS)

    def connect() -> Http:
        http = Http(daemon.http)
        http.sock = trusting.wrap_socket(http.sock, server_hostname="127.0.0.1")
        http.file = http.sock.makefile("rb")
        return http

    return daemon, connect


@pytest.mark.parametrize("way", [by_file, by_tls])
def test_what_all_send_at_once_is_bounded_and_small_requests_go_on(own_daemon, tmp_path: Path, way):
    daemon, connect = way(own_daemon, tmp_path)
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    # Images make bodies as large as the spaces do here.
    head, _, content = encode("POST", "/v1/chat/completions", chat, {"X": "x" * 999}).partition(b"\r\n\r\n")
    size = 1_900_000
    head = re.sub(rb"Content-Length: \d+", b"Content-Length: %d" % size, head)
    whole = head + b"\r\n\r\n" + content.ljust(size)
    go = threading.Event()
    clients = [connect() for _ in range(12)]
    statuses: list[int] = []

    def send(http: Http) -> None:
        http.send(whole[:-1])
        go.wait(ANSWER_S)
        http.send(whole[-1:])
        statuses.append(http.receive().status)

    threads = [threading.Thread(target=send, args=(http,)) for http in clients[1:]]
    clients[0].send(whole[:-1])
    for thread in threads:
        thread.start()
    # Two of the largest messages, one that may go on nevertheless, and what each may have without asking.
    total, each = 2 * 2**21, 2**16 + 2 * 65536
    most = total + 2**21 + len(clients) * each
    assert most < len(clients) * size
    daemon.wait_for(lambda values: values["large_input_bytes"] >= total)
    for _ in range(3):
        assert daemon.ask(max_tokens=2)[-1]["event"] == "eos"
        with connect() as http:
            assert http.ask("POST", "/v1/completions", SHORT).status == 200
        values = daemon.metrics()
        assert total <= values["large_input_bytes"] <= values["rx_bytes_total"] < most
    clients[0].close()
    go.set()
    for thread in threads:
        thread.join(ANSWER_S)
    assert statuses == [200] * len(threads)
    for http in clients[1:]:
        http.close()
    daemon.wait_for(lambda values: values["large_input_bytes"] == 0)


# -- connections -------------------------------------------------------------------------------------------------


def test_a_connection_serves_one_request_after_the_other_until_the_client_says_close(daemon: Daemon):
    with Http(daemon.http) as http:
        for _ in range(3):
            response = http.ask("GET", "/health")
            assert (response.status, response.json) == (200, {"status": "ok"})
            assert "connection" not in response.headers
        response = http.ask("GET", "/health", headers={"Connection": "close"})
        assert (response.status, response.headers["connection"]) == (200, "close")
        assert http.rest() == b""


def test_http_1_0_gets_one_answer_and_the_close_ends_a_stream(daemon: Daemon):
    with Http(daemon.http) as http:
        http.send(encode("GET", "/health").replace(b"HTTP/1.1", b"HTTP/1.0") * 2)
        assert http.receive().status == 200
        assert http.rest() == b""
    with Http(daemon.http) as http:
        http.send(encode("POST", "/v1/completions", SHORT | {"stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, _, body = http.rest().partition(b"\r\n\r\n")
    assert b"ransfer-" not in head
    assert events(body)[-1] == b"[DONE]"


def test_pipelined_requests_are_answered_in_order_with_a_slow_one_first(daemon: Daemon):
    with Http(daemon.http) as http:
        http.send(
            encode("POST", "/v1/completions", SHORT | {"max_tokens": 20})
            + encode("POST", "/tokenize", {"content": "Hello"})
            + encode("GET", "/health") * 30
            + encode("POST", "/v1/completions", SHORT | {"stream": True})
            + encode("GET", "/nowhere")
            + encode("GET", "/health", headers={"Connection": "close"})
        )
        assert http.receive().json["usage"]["completion_tokens"] == 20
        assert list(http.receive().json) == ["tokens"]
        assert [http.receive().body for _ in range(30)] == [b'{"status":"ok"}'] * 30
        assert events(http.receive().body)[-1] == b"[DONE]"
        assert [http.receive().status, http.receive().status] == [404, 200]
        assert http.rest() == b""


def test_any_split_of_the_bytes_is_the_same_request(daemon: Daemon):
    whole = encode("POST", "/tokenize", {"content": "Hello"})
    with Http(daemon.http) as http:
        http.send(whole)
        expected = http.receive().json
        for byte in whole:
            http.send(bytes([byte]))
        assert http.receive().json == expected


def test_a_client_that_expects_100_continue_is_told_to_go_on(daemon: Daemon):
    head, _, body = encode("POST", "/tokenize", {"content": "Hello"}, {"Expect": "100-continue"}).partition(b"\r\n\r\n")
    with Http(daemon.http) as http:
        for _ in range(2):
            http.send(head + b"\r\n\r\n")
            assert http.receive().status == 100
            http.send(body)
            assert http.receive().status == 200
        http.send(head + b"\r\n\r\n" + body)
        assert http.receive().status == 200


def test_a_body_in_chunks(daemon: Daemon):
    body = json.dumps({"content": "Hello, world"}).encode()
    chunks = b"".join(b"%x;note=1\r\n%c\r\n" % (1, byte) for byte in body)
    with Http(daemon.http) as http:
        expected = http.ask("POST", "/tokenize", json.loads(body)).json
        for framed in (b"%X\r\n%b\r\n0\r\n\r\n" % (len(body), body), chunks + b"0\r\nTrailer: x\r\n\r\n"):
            http.send(JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + framed)
            assert http.receive().json == expected


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        ("POST /nowhere", {}, 404),
        ("PUT /tokenize", {}, 405),
        ("POST /tokenize", {"Content-Type": "text/plain"}, 415),
        ("POST /tokenize", {"Host": "evil.example"}, 403),
        ("POST /tokenize", {"Origin": "http://evil.example"}, 403),
    ],
)
@pytest.mark.parametrize("expects", [True, False])
def test_who_is_refused_by_its_head_is_not_asked_for_a_body(
    daemon: Daemon, line: str, headers: dict[str, str], status: int, expects: bool
):
    fields = {"Content-Type": "application/json", "Content-Length": "1000000"} | headers
    method, path = line.split()
    with Http(daemon.http) as http:
        http.send(encode(method, path, headers=fields | ({"Expect": "100-continue"} if expects else {})))
        response = http.receive()
        assert http.rest() == b""
    assert (response.status, response.headers["connection"]) == (status, "close")


@pytest.mark.parametrize("path", ["/props", "/nowhere"])
def test_head_is_get_without_the_body(daemon: Daemon, path: str):
    with Http(daemon.http) as http:
        got, head = http.ask("GET", path), http.ask("HEAD", path)
        assert http.ask("GET", "/health").status == 200
    assert (head.status, head.headers | {"date": ""}) == (got.status, got.headers | {"date": ""})
    assert len(got.body) == int(head.headers["content-length"]) > 0


def test_options_names_the_methods_of_a_path(daemon: Daemon):
    with Http(daemon.http) as http:
        allowed = {path: http.ask("OPTIONS", path).headers["allow"] for path in ("/health", "/v1/completions")}
    assert allowed == {"/health": "GET, HEAD, OPTIONS", "/v1/completions": "POST, OPTIONS"}


# -- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "status", "words"),
    [
        (encode("GET", "/nowhere"), 404, "path: there is no /nowhere: see /openapi.json"),
        (encode("PUT", "/v1/completions", {}), 405, "method: expected POST, got PUT"),
        (encode("POST", "/health", {}), 405, "method: expected GET or HEAD, got POST"),
        (encode("HEAD", "/tokenize").replace(b"HEAD", b"GET"), 405, "method: expected POST, got GET"),
        (encode("POST", "/tokenize", {}, {"Content-Type": "text/plain"}), 415, "Content-Type: expected app"),
        (encode("POST", "/v1/completions", headers={"Origin": "http://localhost"}), 415, "Content-Type: expected app"),
    ],
)
def test_what_no_route_takes_is_refused_and_the_connection_goes_on(
    daemon: Daemon, wire: bytes, status: int, words: str
):
    with Http(daemon.http) as http:
        http.send(wire)
        response = http.receive()
        assert http.ask("GET", "/health").status == 200
    assert response.status == status
    assert response.error["message"].startswith(words)
    assert response.error["type"] == "invalid_request_error"
    assert ("allow" in response.headers) == (status == 405)
    path = wire.split()[1].decode()
    assert f"request refused peer=ip:127.0.0.1 path={path} status={status}" in daemon.logs.splitlines()[-1]


@pytest.mark.parametrize(
    ("wire", "status", "words"),
    [
        (JSON_HEAD + b"Content-Length: 1048577\r\n\r\n" + b"x" * 1048577, 413, "Content-Length: expected at most"),
        (JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n100001\r\n" + b"x" * 1048577, 413, "body: expected at most"),
        (encode("GET", "/" + "x" * 9000), 414, "target: expected at most 8192 bytes, got 9001"),
        (encode("POST", "/tokenize", {}, {"Expect": "200-ok"}), 417, "Expect: expected 100-continue"),
        (encode("GET", "/health", headers={"X": "x" * 17000}), 431, "head: expected at most 16384 bytes"),
        (encode("GET", "/health", headers={f"X{i}": "" for i in range(200)}), 431, "headers: expected at most 100"),
        (JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 9000 + b"\r\n", 431, "chunk extensions"),
    ],
)
def test_what_is_too_large_is_refused_though_the_client_still_sends(
    daemon: Daemon, wire: bytes, status: int, words: str
):
    with Http(daemon.http) as http:
        http.send(wire)
        response = http.receive()
        assert http.rest() == b""
    assert (response.status, response.headers["connection"]) == (status, "close")
    assert response.error["message"].startswith(words)


SMUGGLED = encode("POST", "/v1/completions", SHORT)
CHUNKED = JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def with_head(lines: bytes) -> bytes:
    return JSON_HEAD + lines + b"\r\n\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "wire",
    [
        with_head(b"Content-Length: 5\r\nTransfer-Encoding: chunked"),
        with_head(b"Transfer-Encoding: chunked\r\nContent-Length: 5"),
        with_head(b"Content-Length: 5\r\nContent-Length: 0"),
        with_head(b"Content-Length: 5\r\nContent-Length: 5"),
        with_head(b"Content-Length: 5, 5"),
        with_head(b"Content-Length: +5"),
        with_head(b"Content-Length : 5"),
        with_head(b"Content-Length: 0x5"),
        with_head(b"Transfer-Encoding: xchunked"),
        with_head(b"Transfer-Encoding: chunked, identity"),
        with_head(b"Transfer-Encoding: gzip, chunked"),
        with_head(b"Transfer-Encoding: \x0bchunked"),
        with_head(b"Transfer-Encoding : chunked"),
        with_head(b"Transfer-Encoding:\r\n chunked"),
        with_head(b"Transfer-Encoding: chunked").replace(b"HTTP/1.1", b"HTTP/1.0"),
        CHUNKED + b"0x0\r\n\r\n",
        CHUNKED + b"-0\r\n\r\n",
        CHUNKED + b"\r\n\r\n",
        CHUNKED + b"0\n\r\n",
        CHUNKED + b"00000000000000000\r\n\r\n",
        CHUNKED + b"2\r\n{}x\r\n0\r\n\r\n",
        CHUNKED + b"2\r\n{}\n0\r\n\r\n",
        CHUNKED + b"0\r\nbad trailer\r\n\r\n",
        with_head(b"Content-Length: 5").replace(b"\r\n", b"\n"),
        with_head(b"Content-Length: 5\nX: y"),
        with_head(b"X: y\r\n folded"),
        with_head(b"X: a\0b"),
        with_head(b"X: a\rb"),
        with_head(b"no colon"),
        encode("GET", "/health").replace(b"HTTP/1.1", b"HTTP/2.0"),
        encode("GET", "/health").replace(b"HTTP/1.1", b"HTTP/1.2"),
        encode("GET", "/health").replace(b"HTTP/1.1", b"http/1.1"),
        encode("GET", "/health").replace(b" HTTP/1.1", b""),
        encode("GET", "/health").replace(b" HTTP", b"  HTTP"),
        encode("GET", "/hea\tlth"),
        encode("GET", "http://other/health"),
        encode("GET", "/health").replace(b"Host: localhost\r\n", b""),
        *(encode("GET", "/health", headers={"Host": host}) for host in ("", "a b", "a,b", "a/b", "a@b", "a:99999")),
        encode("GET", "/health", headers={"X": "y\r\nHost: localhost"}),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_two_servers_could_read_differently_gets_one_400_and_serves_nothing_after(daemon: Daemon, wire: bytes):
    before = len(ended(daemon))
    with Http(daemon.http) as http:
        http.send(wire + SMUGGLED)
        response = http.receive()
        assert http.rest() == b""
    assert (response.status, response.headers["connection"]) == (400, "close")
    assert response.error["type"] == "invalid_request_error"
    daemon.wait_until_quiet()
    assert len(ended(daemon)) == before


def test_the_request_that_is_smuggled_above_would_be_served_by_itself(daemon: Daemon):
    before = len(ended(daemon))
    with Http(daemon.http) as http:
        http.send(SMUGGLED)
        assert http.receive().status == 200
    assert len(ended(daemon)) == before + 1


# -- clients that leave, and clients that lag --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", LONG | {"stream": True}),
        ("/v1/completions", LONG),
        ("/v1/completions", LONG | {"n": 3}),
        ("/v1/generate", LONG | {"stream": True}),
        ("/v1/generate", LONG | {"prompt": "one two three " * 1500}),
    ],
    ids=["stream", "whole", "three choices", "rest", "in prefill"],
)
def test_a_client_that_leaves_ends_its_request_within_a_tick(daemon: Daemon, path: str, body: dict):
    before = ended(daemon)
    dialect = "rest" if path == "/v1/generate" else "openai"
    model = Path(default_model()).stem
    name = f"umaserve_requests_total{[('dialect', dialect), ('end', 'abandoned'), ('model', model)]}"
    count = counted(daemon).get(name, 0)
    with Http(daemon.http) as http:
        http.send(encode("POST", path, body))
        daemon.wait_for(lambda values: values["active_sessions"] == body.get("n", 1) and values["kv_cells_used"] > 0)
        http.close()
        ticks = daemon.metrics()["batch_calls_total"]
        assert daemon.wait_until_quiet()["batch_calls_total"] - ticks <= 2
    lines = ended(daemon)[len(before) :]
    assert len(lines) == body.get("n", 1)
    assert all(f"dialect={dialect} " in line and "end=abandoned" in line for line in lines)
    assert counted(daemon)[name] == count + len(lines)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_finishes_sending_gets_its_answer(daemon: Daemon, stream: bool):
    with Http(daemon.http) as asking, Http(daemon.http) as finished:
        body = SHORT | {"max_tokens": 40, "stream": stream}
        expected = asking.ask("POST", "/v1/completions", body)
        finished.send(encode("POST", "/v1/completions", body))
        finished.sock.shutdown(socket.SHUT_WR)
        response = finished.receive()
        assert finished.rest() == b""

    def text(response: Response) -> str:
        answers = events(response.body)[:-1] if stream else [response.body]
        return "".join(json.loads(answer)["choices"][0]["text"] for answer in answers)

    assert response.status == 200
    assert text(response) == text(expected) != ""


def test_a_reader_that_lags_is_held_while_others_go_on_and_then_gets_all(daemon: Daemon):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 250, "ignore_eos": True, "stream": True}
    with Http(daemon.http, receive_buffer=4096) as slow, Http(daemon.http) as other:
        slow.send(encode("POST", "/v1/chat/completions", body | {"logprobs": True, "top_logprobs": 20}))
        daemon.wait_for(lambda values: values["tx_stalled_sessions"] == 1)
        made = []
        for _ in range(2):  # a tick may have been under way at first
            assert other.ask("POST", "/v1/completions", SHORT).json["usage"]["completion_tokens"] == 4
            made.append(daemon.metrics()["tokens_generated_total"])
        assert made[1] == made[0] + 4
        assert daemon.metrics()["tx_stalled_sessions"] == 1
        *chunks, done = events(slow.receive().body)
        assert slow.ask("GET", "/health").status == 200
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert sum(len((choice["logprobs"] or {}).get("content", [])) for choice in choices) == 250
    assert (choices[-1]["finish_reason"], done) == ("length", b"[DONE]")


# -- what a client and an operator may ask -----------------------------------------------------------------------


def test_the_model_is_described(daemon: Daemon):
    with Http(daemon.http) as http:
        models = http.ask("GET", "/v1/models").json
        (model,) = models["data"]
        assert (models["object"], model["object"]) == ("list", "model")
        assert model["id"].startswith("SmolLM2-135M")
        assert http.ask("GET", f"/v1/models/{model['id']}").json | {"last_used": 0} == model | {"last_used": 0}
        missing = http.ask("GET", "/v1/models/gpt-4")
        expected = 'model: the model "gpt-4" does not exist: /v1/models lists the models'
        assert missing.status == 404
        assert missing.error["message"].startswith(expected)
        props = http.ask("GET", "/props").json
        assert (props["model_alias"], props["total_slots"]) == (model["id"], 16)
        assert props["default_generation_settings"]["n_ctx"] > 0
        assert props["model_path"] == f"{model['id']}.gguf"


def test_while_the_model_loads_what_needs_it_says_when_to_come_back(own_daemon):
    daemon = own_daemon("--http", "127.0.0.1:0", wait=False)
    daemon.wait_for_socket()
    assert daemon.metrics()["state"] == "loading"
    pages = ["/props", "/lora-adapters"]
    with Http(daemon.http) as http:
        (model,) = http.ask("GET", "/v1/models").json["data"]
        assert model["status"]["value"] == "loading"
        assert http.ask("GET", "/v1/models/anything").status == 404
        http.send(b"".join(encode("GET", path) for path in (*pages, "/health")))
        for response in [http.receive() for _ in pages]:
            assert (response.status, response.headers["retry-after"]) == (503, "1")
            # Its number in llama-server's errors.
            assert response.error["code"] in ("model_not_loaded", 503)
        health = http.receive()
        assert (health.status, health.json["status"], health.json["error"]["code"]) == (503, "loading", 503)
    daemon.wait_until_ready()


def test_a_question_waits_until_the_model_is_loaded(own_daemon):
    daemon = own_daemon("--http", "127.0.0.1:0", wait=False)
    daemon.wait_for_socket()
    assert daemon.metrics()["state"] == "loading"
    with Http(daemon.http) as http:
        assert http.ask("POST", "/tokenize", {"content": "a"}).json["tokens"]
        assert daemon.metrics()["state"] == "ready"


def test_a_question_that_is_asked_is_answered_before_the_end(own_daemon):
    daemon = own_daemon("--http", "127.0.0.1:0", "--pooling", "mean")
    request = encode("POST", "/v1/embeddings", {"input": [f"{number} " * 25 for number in range(6)]})
    with Http(daemon.http) as http:
        assert http.ask("GET", "/health").status == 200
        before = daemon.metrics()["rx_bytes_total"]
        http.send(request)
        daemon.wait_for(lambda values: values["rx_bytes_total"] > before + len(request))
        daemon.process.send_signal(signal.SIGTERM)
        response = http.receive()
        assert response.status == 200
        assert len(response.json["data"]) == 6
    assert daemon.process.wait(ANSWER_S) == 0


def test_tokens_and_text_are_two_ways_to_say_the_same(daemon: Daemon):
    text = "Grüße, 🙂 world!\n"
    with Http(daemon.http) as http:
        tokens = http.ask("POST", "/tokenize", {"content": text}).json["tokens"]
        assert http.ask("POST", "/detokenize", {"tokens": tokens}).json == {"content": text}
        pieces = http.ask("POST", "/tokenize", {"content": text, "with_pieces": True}).json["tokens"]
        refused = http.ask("POST", "/detokenize", {"tokens": [10**6]})
    assert [piece["id"] for piece in pieces] == tokens
    raw = [piece["piece"].encode() if isinstance(piece["piece"], str) else bytes(piece["piece"]) for piece in pieces]
    assert b"".join(raw).decode() == text
    assert refused.status == 400
    assert refused.error["message"].startswith("tokens[0]: expected")


@pytest.mark.parametrize(("path", "dialect"), [("/v1/completions", "openai"), ("/v1/generate", "rest")])
def test_prometheus_counts_each_request_with_its_dialect_and_model(daemon: Daemon, path: str, dialect: str):
    of = {"dialect": dialect, "model": Path(default_model()).stem}

    def value(samples: dict[str, float], name: str, **labels: str) -> float:
        return samples.get(f"umaserve_{name}{sorted((of | labels).items())}", 0.0)

    before = counted(daemon)
    with Http(daemon.http) as http:
        assert http.ask("POST", path, SHORT).status == 200
    after = counted(daemon)
    expected = {
        "requests_total": {"end": "length"},
        "queue_seconds_count": {},
        "time_to_first_token_seconds_count": {},
        "time_to_first_token_seconds_bucket": {"le": "+Inf"},
    }
    for name, labels in expected.items():
        assert value(after, name, **labels) == value(before, name, **labels) + 1, name
    for name, more in {"time_between_tokens_seconds_count": 3, "request_completion_tokens_total": 4}.items():
        assert value(after, name) == value(before, name) + more, name
    ticks = "umaserve_tick_seconds_count[]"
    assert after[ticks] > before[ticks]


def test_one_line_of_the_log_for_each_request_and_nothing_of_what_it_says(daemon: Daemon):
    before = ended(daemon)
    with Http(daemon.http) as http:
        response: Response = http.ask("POST", "/v1/completions", SHORT | {"prompt": "The zebra-secret is out"})
    (line,) = ended(daemon)[len(before) :]
    fields = dict(re.findall(r"(\w+)=(\S+)", line))
    usage = response.json["usage"]
    assert fields["request"] == response.json["id"]
    assert (fields["dialect"], fields["peer"], fields["end"]) == ("openai", "ip:127.0.0.1", "length")
    assert fields["prompt_tokens"] == str(usage["prompt_tokens"])
    assert fields["completion_tokens"] == str(usage["completion_tokens"])
    assert 0 <= float(fields["queue_ms"]) <= float(fields["ttft_ms"]) <= float(fields["total_ms"])
    assert "zebra" not in daemon.logs
    assert response.json["choices"][0]["text"] not in daemon.logs
