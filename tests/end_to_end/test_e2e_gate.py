"""What guards the way in over HTTP: names, origins, TLS, limits and timeouts."""

from __future__ import annotations

import json
import os
import re
import select
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme
from daemon import Daemon, serving
from http_wire import WEBSOCKET, Http, ask, encode, events
from program import run
from prometheus_client.parser import text_string_to_metric_families
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from umaserve.settings.model_files import default_model

SHORT = {"prompt": "Once upon a time", "max_tokens": 4, "ignore_eos": True}
LONG = SHORT | {"max_tokens": 500}


# -- names: Host, Origin, CORS -----------------------------------------------------------------------------------

APP, PAGE = "https://app.example", "https://page.example:8443"


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One with lists of names, with a Unix socket too, and with no memory to spare."""
    socket_path = str(tmp_path_factory.mktemp("http") / "http.sock")
    names = ("--allow-host", "box.example", "--allow-origin", PAGE, "--cors-origin", APP)
    yield from serving(tmp_path_factory, *names, "--http-socket", socket_path, "--memory-reserve", "1000GiB")


def socket_path(daemon: Daemon) -> str:
    return re.findall(r"listening at=(/\S+) protocol=http", daemon.logs)[0]


OURS = ["localhost", "LOCALHOST.:80", "127.0.0.1", "127.0.0.1:8080", "[::1]:9", "app.localhost"]
FOREIGN = ["evil.example", "localhost.evil.example", "192.168.1.1", "[2001:db8::1]:80", "127.0.0.1.evil.example"]


@pytest.mark.parametrize(("host", "status"), [*((host, 200) for host in OURS), *((host, 403) for host in FOREIGN)])
def test_without_a_list_only_loopback_names_are_answered_to(daemon: Daemon, host: str, status: int):
    response = ask(daemon, "GET", "/health", headers={"Host": host})
    assert response.status == status
    if status == 403:
        assert response.error["message"].startswith("Host: expected a name that this server answers to, got ")
    assert ask(daemon, "GET", "/generate", headers=WEBSOCKET | {"Host": host}).status == (
        101 if status == 200 else status
    )


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost", "http://localhost:3000", 200),
        ("localhost", "https://127.0.0.1", 200),
        ("localhost", "http://[::1]:5", 200),
        ("box.example", "https://box.example", 200),
        ("box.example:81", "http://box.example:81", 200),
        ("box.example", PAGE, 200),
        ("localhost", APP, 200),
        ("box.example", "http://box.example:81", 403),
        ("box.example", "https://page.example", 403),
        ("localhost", "http://evil.example", 403),
        ("localhost", "http://localhost.evil.example", 403),
        ("localhost", "http://localhost@evil.example", 403),
        ("localhost", "null", 403),
        ("localhost", "http://[", 403),
        ("evil.example", "http://evil.example", 403),
    ],
)
def test_pages_may_call_if_they_are_ours_or_listed(named: Daemon, host: str, origin: str, status: int):
    names = {"Host": host, "Origin": origin}
    response = ask(named, "GET", "/health", headers=names)
    assert response.status == status
    assert ("access-control-allow-origin" in response.headers) == (origin == APP)
    assert ask(named, "GET", "/generate", headers=WEBSOCKET | names).status == (101 if status == 200 else status)


def test_pages_of_a_cors_origin_may_read_every_reply_and_ask_before(named: Daemon):
    with Http(named.http) as http:
        for path, body, status in (("/health", None, 200), ("/nowhere", None, 404), ("/v1/completions", SHORT, 503)):
            response = http.ask("POST" if body else "GET", path, body, {"Origin": APP})
            assert (response.status, response.headers["access-control-allow-origin"]) == (status, APP)
            assert response.headers["vary"] == "Origin"
            assert response.headers["access-control-expose-headers"] == "*"
            assert ("retry-after" in response.headers) == (status == 503)
        asked = {"Origin": APP, "Access-Control-Request-Method": "POST"}
        preflight = http.ask("OPTIONS", "/v1/chat/completions", headers=asked)
        assert preflight.status == 200
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert preflight.headers["access-control-allow-headers"] == "Authorization, Content-Type, X-Api-Key"
        asked["Access-Control-Request-Headers"] = "authorization,x-stainless-lang, X-Title"
        preflight = http.ask("OPTIONS", "/v1/chat/completions", headers=asked)
        assert preflight.headers["access-control-allow-headers"] == "authorization,x-stainless-lang, X-Title"
        asked["Access-Control-Request-Headers"] = "authorization;x"
        preflight = http.ask("OPTIONS", "/v1/chat/completions", headers=asked)
        assert preflight.headers["access-control-allow-headers"] == "Authorization, Content-Type, X-Api-Key"
        assert not any(name.startswith("access-control") for name in http.ask("GET", "/health").headers)
        # What is said of a request that could not be read is no other page's reply.
        http.ask("GET", "/health", headers={"Origin": APP})
        http.send(b"nonsense\r\n\r\n")
        assert "access-control-allow-origin" not in http.receive().headers


def test_without_a_cors_origin_no_page_may_read_anything(daemon: Daemon):
    with Http(daemon.http) as http:
        for method in ("GET", "OPTIONS"):
            response = http.ask(method, "/health", headers={"Origin": "http://localhost:3000"})
            assert response.status in (200, 204)
            assert not any(name.startswith("access-control") for name in response.headers)


def test_the_same_endpoints_over_a_unix_socket(named: Daemon):
    path = socket_path(named)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
    with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://localhost") as client:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/v1/models").json() == json.loads(ask(named, "GET", "/v1/models").body)
        # No name leads a page to a file, but a page that may call it can be a foreign one.
        assert client.get("/health", headers={"Host": "evil.example"}).status_code == 200
        assert client.get("/health", headers={"Origin": "http://evil.example"}).status_code == 403


def test_memory_that_is_short_is_an_error_to_try_again_after(named: Daemon):
    response = ask(named, "POST", "/v1/completions", SHORT)
    assert (response.status, response.headers["retry-after"]) == (503, "5")
    assert (response.error["type"], response.error["code"]) == ("server_error", "memory_pressure")
    response = ask(named, "POST", "/v1/generate", SHORT)
    assert response.status == 503
    error = response.json
    assert (error["error"], error["recoverable"], error["recovery_action"]) == ("memory_pressure", True, "retry")


def test_another_address_needs_keys_or_the_word_insecure(tmp_path_factory: pytest.TempPathFactory):
    for address in ("0.0.0.0:0", "[::]:0", "192.0.2.1:80"):
        refused = run("--http", address)
        assert refused.returncode == 2
        expected = f"http ({address}) is not a loopback address, and api_keys is not set: make keys with umaserve keys"
        assert expected in refused.stderr
    anywhere = ("--http", "0.0.0.0:0", "--insecure", "--allow-origin", "*")
    for daemon in serving(tmp_path_factory, *anywhere):
        assert daemon.http.startswith("0.0.0.0:")
        page = {"Origin": "http://anywhere.example"}
        assert ask(daemon, "GET", "/health", headers=page).status == 200
        assert ask(daemon, "GET", "/generate", headers=page | WEBSOCKET).status == 101
        assert ask(daemon, "GET", "/health", headers=page | {"Host": "anywhere.example"}).status == 403


# -- how much: the queue, connections, rates ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    yield from serving(tmp_path_factory, "--parallel", "1", "--max-queue", "1", "--max-sessions", "8")


def test_a_full_queue_takes_no_more(small: Daemon):
    with Http(small.http) as running, Http(small.http) as waiting, Http(small.http) as refused:
        running.send(encode("POST", "/v1/completions", LONG | {"stream": True}))
        running.event()
        waiting.send(encode("POST", "/v1/completions", SHORT))
        small.wait_for(lambda values: values["waiting_sessions"] == 1)
        response = refused.ask("POST", "/v1/completions", SHORT)
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert response.error["code"] == "queue_full"
        assert refused.ask("POST", "/v1/generate", SHORT).json["error"] == "rate_limited"
        running.close()
        assert waiting.receive().json["usage"]["completion_tokens"] == 4
        assert refused.ask("POST", "/v1/completions", SHORT).status == 200


def test_past_the_most_connections_the_next_is_told_so(small: Daemon):
    small.wait_for(lambda values: values["connections"] == 1)
    inside = [Http(small.http) for _ in range(7)]
    for http in inside:
        assert http.ask("GET", "/health").status == 200
    for asks in (True, False):
        with Http(small.http) as http:
            response = http.ask("GET", "/health") if asks else http.receive()
            assert asks or http.rest() == b""
        assert (response.status, response.headers["connection"]) == (503, "close")
        assert response.error["code"] == "too_many_sessions"
        assert response.error["message"].startswith("connection: 7 connections are open, which is the limit")
    with small.connect() as last, small.connect() as too_late:
        last.send({"type": "metrics"})
        assert last.receive()["connections"] == 8, "one more is for the Unix sockets"
        assert too_late.receive()["message"].startswith("connection: 8 connections are open, which is the limit")
    assert inside[0].ask("GET", "/health").status == 200
    for http in inside:
        http.close()
    assert small.wait_for(lambda values: values.get("connections") == 1)["rejected_total"] >= 2
    assert ask(small, "GET", "/health").status == 200


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    yield from serving(tmp_path_factory, "--rate-requests", "3", "--request-timeout", "0.2")


def test_a_request_that_takes_too_long_fails_and_the_rate_counts_it(strict: Daemon):
    with Http(strict.http) as http:
        response = http.ask("POST", "/v1/completions", LONG)
        assert (response.status, response.error["code"]) == (504, "timeout")
        assert response.error["message"] == "request: it took more than 0.2 s (--request-timeout)"
        http.send(encode("POST", "/v1/completions", LONG | {"stream": True}))
        streamed = http.receive()
        assert streamed.status == 200
        *_, error, done = events(streamed.body)
        assert (json.loads(error)["error"]["code"], done) == ("timeout", b"[DONE]")
        response = http.ask("POST", "/v1/generate", LONG)
        assert (response.status, response.json["error"]) == (504, "timeout")
        assert response.json["partial_text"]
        for path, body in (("/v1/completions", SHORT), ("/v1/generate", SHORT), ("/tokenize", {"content": "a"})):
            response = http.ask("POST", path, body)
            assert response.status == 429
            assert 1 <= int(response.headers["retry-after"]) <= 20
        # In llama-server's form, as of all its paths.
        assert (response.error["type"], response.error["code"]) == ("rate_limit_error", 429)
        assert http.ask("GET", "/health").status == 200
    assert strict.wait_until_quiet()["kv_cells_used"] == 0
    assert re.findall(r"request ended .* end=(\w+)", strict.logs) == ["timed_out"] * 3 + ["rate_limited"] * 2
    model = Path(default_model()).stem
    name, refused = "umaserve_requests_total", {"dialect": "openai", "model": model, "end": "rate_limited"}
    samples = text_string_to_metric_families(ask(strict, "GET", "/metrics").body.decode())
    assert [s.value for family in samples for s in family.samples if (s.name, s.labels) == (name, refused)] == [1]


# -- how long: timeouts ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    assert run("keys", "add", "alice", "--api-keys", str(keys)).returncode == 0
    soon = [item for name in ("header", "body", "idle") for item in (f"--{name}-timeout", "0.3")]
    yield from serving(tmp_path_factory, *soon, "--api-keys", str(keys))


HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize("drip", [b"", b"x"], ids=["silence", "a byte now and then"])
@pytest.mark.parametrize(
    ("begun", "part"),
    [
        (b"P", "header"),
        (HEAD + b"X: ", "header"),
        (HEAD + b"Content-Length: 10000\r\n\r\n{", "body"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", "body"),
    ],
    ids=["request line", "header", "body", "chunk"],
)
def test_a_request_that_comes_too_slowly_is_refused(hasty: Daemon, begun: bytes, part: str, drip: bytes):
    if b"chunked" in begun and drip:
        drip = b"1\r\nx\r\n"
    with Http(hasty.http) as http:
        http.send(begun)
        while not select.select([http.sock], [], [], 0.02)[0]:
            http.send(drip)
        response = http.receive()
        assert http.rest() == b""
    assert (response.status, response.headers["connection"]) == (408, "close")
    assert response.error["message"] == f"request: its {part} did not arrive in time"


def test_who_has_no_key_is_refused_before_its_body(hasty: Daemon):
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"
    for expect in (b"", b"Expect: 100-continue\r\n"):
        with Http(hasty.http) as http:
            http.send(head + expect + b"\r\n")
            response = http.receive()
            assert (response.status, response.headers["connection"]) == (401, "close")
            assert http.rest() == b""


def test_deadlines_are_of_one_request_and_end_no_more_than_its_connection(own_daemon):
    daemon = own_daemon("--http", "127.0.0.1:0", "--header-timeout", "0.5")

    def at(seconds: float) -> float:
        return daemon.metrics()["uptime_s"] + seconds

    with Http(daemon.http) as kept, Http(daemon.http) as closing:
        closing.send(HEAD)
        assert kept.ask("GET", "/health").status == 200
        closing.send(b"Connection: close\r\n\r\nGET /")
        assert closing.receive().status == 200
        until = at(1.2)
        while daemon.metrics()["uptime_s"] < until:
            assert kept.ask("GET", "/health").status == 200
        assert closing.rest() == b""
    assert daemon.stop() == 0


def test_a_connection_without_a_request_is_closed_in_silence(hasty: Daemon):
    with Http(hasty.http) as http:
        assert http.rest() == b""
    with Http(hasty.http) as http:
        assert http.ask("GET", "/health").status == 200
        assert http.rest() == b""


def test_a_websocket_that_brings_no_key_in_time_is_closed(hasty: Daemon):
    with connect(f"ws://{hasty.http}/generate", proxy=None) as websocket:
        with pytest.raises(ConnectionClosed) as closed:
            websocket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


# -- TLS ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """A client's context, that trusts the authority."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture(scope="module")
def encrypted(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("tls")
    issued = authority.issue_cert("127.0.0.1")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    yield from serving(tmp_path_factory, "--tls-cert", cert, "--tls-key", key)


def test_https_and_wss(encrypted: Daemon, trusting: ssl.SSLContext):
    with httpx.Client(verify=trusting, base_url=f"https://{encrypted.http}") as client:
        assert client.get("/health").json() == {"status": "ok"}
        whole = client.post("/v1/completions", json=SHORT | {"temperature": 0}).json()["choices"][0]["text"]
        with client.stream("POST", "/v1/generate", json=SHORT | {"temperature": 0, "stream": True}) as response:
            messages = [json.loads(line[6:]) for line in response.iter_lines() if line]
        assert messages[-1]["generated_text"] == whole
        assert client.post("/tokenize", json={"content": "a " * 100_000}).status_code == 200
    with connect(f"wss://{encrypted.http}/generate", ssl=trusting, proxy=None) as websocket:
        websocket.send(json.dumps({"type": "config", "prompt": "Once", "parameters": {"max_tokens": 1}}))
        assert [json.loads(websocket.recv())["type"] for _ in range(2)] == ["init", "token"]
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        httpx.get(f"https://{encrypted.http}/health")


def test_plain_http_at_the_port_of_tls_gets_no_answer_and_harms_nobody(encrypted: Daemon, trusting: ssl.SSLContext):
    for data in (encode("GET", "/health"), b"\x16\x03\x01\x00\x05nonsense", b"\0" * 70000):
        with Http(encrypted.http) as http:
            http.send(data)
            answer = http.rest()
            assert b"HTTP" not in answer
    assert httpx.get(f"https://{encrypted.http}/health", verify=trusting).status_code == 200
