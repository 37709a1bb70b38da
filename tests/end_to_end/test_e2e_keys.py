"""API keys on the real daemon: which routes need one, the ways to bring it, and what it grants."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import ANSWER_S, Daemon, serving
from http_wire import WEBSOCKET, Http, ask, encode
from program import run
from routes import routes
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from umaserve.dialects.routes import Conversation, FormReply

SHORT = {"prompt": "Once upon a time", "max_tokens": 4, "ignore_eos": True}
LONG = SHORT | {"max_tokens": 500}


class Keyed:
    """A daemon with keys, one sequence at a time, and the keys by name."""

    def __init__(self, daemon: Daemon, file: Path):
        self.daemon = daemon
        self.file = file
        self.keys: dict[str, str] = {}

    def command(self, *words: str) -> str:
        result = run("keys", *words, "--api-keys", str(self.file))
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    def wait_for_status(self, name: str, status: int) -> None:
        """The daemon looks at the file once a second."""
        deadline = time.monotonic() + ANSWER_S
        while ask(self.daemon, "GET", "/props", headers=self.bearer(name)).status != status:
            assert time.monotonic() < deadline, self.daemon.logs
            time.sleep(0.02)

    def bearer(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[name]}"}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    run("keys", "add", "first", "--api-keys", str(file))
    for daemon in serving(tmp_path_factory, "--api-keys", str(file), "--parallel", "1", "--debug-echo"):
        keyed = Keyed(daemon, file)
        keyed.keys["alice"] = keyed.command("add", "alice")
        keyed.keys["nightly"] = keyed.command("add", "nightly", "--class", "background")
        keyed.keys["slow"] = keyed.command("add", "slow", "--requests-per-minute", "1")
        keyed.keys["guest"] = keyed.command("add", "guest", "--model", "another")
        keyed.keys["wrong"] = keyed.keys["alice"][:-1]
        keyed.wait_for_status("slow", 200)
        yield keyed
        assert not any(key in daemon.logs for key in keyed.keys.values())


ROUTES = routes(debug_echo=True)
PUBLIC = ["/", "/health", "/health/live", "/health/ready", "/v1/health", "/docs", "/page/{file}"]


@pytest.mark.parametrize("path", ROUTES)
def test_every_route_but_the_public_ones_needs_a_key(keyed: Keyed, path: str):
    route = ROUTES[path]
    body = {} if route.method == "POST" else None
    upgrade = WEBSOCKET if path in ("/generate", "/ws/chat", "/debug/echo") else {}
    if isinstance(route.endpoint, FormReply):
        upgrade = {"Content-Type": "multipart/form-data; boundary=x"}

    def status(headers: dict[str, str]) -> int:
        response = ask(keyed.daemon, route.method, path, body, upgrade | headers)
        if response.status == 401:
            assert response.headers["www-authenticate"] == "Bearer"
            # Each dialect has an error object of its own.
            assert ':"Authorization: expected an API key' in response.body.decode()
        return response.status

    assert route.public == (path in PUBLIC)
    if route.public:
        # The page is made of files with other names.
        assert status({}) == status({"Authorization": "Bearer x"}) == (404 if path == "/page/{file}" else 200)
        return
    # A browser's page may open the conversation, and has to show its key there.
    assert status({}) == (101 if isinstance(route.endpoint, Conversation) else 401)
    wrong = [f"Bearer {keyed.keys['wrong']}", f"Bearer {keyed.keys['alice']}x", "Bearer " + "x" * 5000]
    assert [status({"Authorization": value}) for value in wrong] == [401] * 3
    if not isinstance(route.endpoint, Conversation):
        others = ["", "Bearer", f"Basic {keyed.keys['alice']}", keyed.keys["alice"]]
        assert [status({"Authorization": value}) for value in others] == [401] * 4
    assert status(keyed.bearer("alice")) != 401
    assert status({"X-Api-Key": keyed.keys["alice"]}) != 401
    assert status({"X-Api-Key": keyed.keys["wrong"]}) == 401
    assert status({"X-Api-Key": keyed.keys["alice"], "Authorization": f"Bearer {keyed.keys['wrong']}"}) == 401
    assert ask(keyed.daemon, "OPTIONS", path).status == 200


@pytest.mark.parametrize("path", ["/%76%31/models", "/v1/models?x=1", "http://localhost/v1/models", "/v1/models/x"])
def test_another_way_to_write_a_path_is_no_way_around(keyed: Keyed, path: str):
    assert ask(keyed.daemon, "GET", path).status == 401
    assert ask(keyed.daemon, "HEAD", path).status == 401
    assert ask(keyed.daemon, "GET", path, headers=keyed.bearer("alice")).status in (200, 404)


@pytest.mark.parametrize("way", ["header", "x-api-key", "subprotocol", "message"])
def test_the_ways_to_bring_a_key_to_a_websocket(keyed: Keyed, way: str):
    key = keyed.keys["alice"]
    options = {
        "header": {"additional_headers": keyed.bearer("alice")},
        "x-api-key": {"additional_headers": {"X-Api-Key": key}},
        "subprotocol": {"subprotocols": ["umaserve", f"bearer.{key}"]},
        "message": {},
    }[way]
    before = len(keyed.daemon.logs)
    with connect(f"ws://{keyed.daemon.http}/generate", proxy=None, **options) as websocket:
        assert websocket.subprotocol == ("umaserve" if way == "subprotocol" else None)
        config = {"type": "config", "prompt": "Once", "parameters": {"max_tokens": 2}}
        websocket.send(json.dumps(config | ({"auth": key} if way == "message" else {})))
        types = [json.loads(message)["type"] for message in (websocket.recv(), websocket.recv(), websocket.recv())]
        assert types == ["init", "token", "token"]
        while json.loads(websocket.recv())["type"] != "completion":
            continue
    (line,) = [line for line in keyed.daemon.logs[before:].splitlines() if "request ended" in line]
    assert "dialect=generate" in line
    assert "key=alice" in line


@pytest.mark.parametrize("auth", [{}, {"auth": "wrong"}, {"auth": ""}, {"auth": 5}, {"auth": None}])
def test_a_first_message_without_a_good_key_ends_the_conversation(keyed: Keyed, auth: dict):
    auth = {"auth": keyed.keys["wrong"]} if auth.get("auth") == "wrong" else auth
    with connect(f"ws://{keyed.daemon.http}/generate", proxy=None) as websocket:
        websocket.send(json.dumps({"type": "config", "prompt": "Once"} | auth))
        error = json.loads(websocket.recv())
        assert (error["type"], error["error"]) == ("error", "invalid_request")
        assert error["message"].startswith("auth: expected a valid key")
        with pytest.raises(ConnectionClosed) as closed:
            websocket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


def test_a_wrong_key_in_the_handshake_is_a_401(keyed: Keyed):
    for options in (
        {"additional_headers": keyed.bearer("wrong")},
        {"subprotocols": ["umaserve", f"bearer.{keyed.keys['wrong']}"]},
    ):
        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws://{keyed.daemon.http}/generate", proxy=None, **options)
        assert refused.value.response.status_code == 401


def test_a_key_has_a_rate_of_its_own(keyed: Keyed):
    # A body is one request, whatever the number of its choices.
    three = SHORT | {"n": 3}
    asked = [ask(keyed.daemon, "POST", "/v1/completions", three, keyed.bearer("slow")) for _ in range(2)]
    assert [response.status for response in asked] == [200, 429]
    assert len(asked[0].json["choices"]) == 3
    assert 1 <= int(asked[1].headers["retry-after"]) <= 60
    assert asked[1].error["message"].startswith("request: the limit of 1 requests a minute is used up")
    assert ask(keyed.daemon, "POST", "/v1/completions", SHORT, keyed.bearer("alice")).status == 200


def test_a_key_gets_only_its_models(keyed: Keyed):
    daemon, guest = keyed.daemon, keyed.bearer("guest")
    assert ask(daemon, "GET", "/v1/models", headers=guest).json["data"] == []
    name = ask(daemon, "GET", "/v1/models", headers=keyed.bearer("alice")).json["data"][0]["id"]
    assert ask(daemon, "GET", f"/v1/models/{name}", headers=guest).status == 404
    for path, body in (("/v1/completions", SHORT), ("/v1/completions", SHORT | {"model": name}), ("/tokenize", {})):
        refused = ask(daemon, "POST", path, {"content": "a", **body}, guest)
        assert (refused.status, "lists for this key" in refused.body.decode()) == (404, True), refused.body
    for headers, auth in ((guest, {}), ({}, {"auth": keyed.keys["guest"]})):
        with connect(f"ws://{daemon.http}/generate", proxy=None, additional_headers=headers) as websocket:
            websocket.send(json.dumps({"type": "config", "prompt": "Once", **auth}))
            while (got := json.loads(websocket.recv(ANSWER_S)))["type"] != "error":
                assert got["type"] != "token"
            assert "lists for this key" in got["message"]


def test_a_background_key_waits_for_the_others_whatever_it_asks_for(keyed: Keyed):
    daemon = keyed.daemon
    before = len(daemon.logs)
    with Http(daemon.http) as running, Http(daemon.http) as early, Http(daemon.http) as late:
        running.send(encode("POST", "/v1/completions", LONG | {"stream": True}, keyed.bearer("alice")))
        running.event()
        for number, (http, name) in enumerate(((early, "nightly"), (late, "alice")), 1):
            http.send(encode("POST", "/v1/completions", SHORT | {"class": "interactive"}, keyed.bearer(name)))
            daemon.wait_for(lambda values, number=number: values["waiting_sessions"] == number)
        running.close()
        assert early.receive().status == late.receive().status == 200
    assert re.findall(r"request ended .* key=(\w+) end=(\w+)", daemon.logs[before:]) == [
        ("alice", "abandoned"),
        ("alice", "length"),
        ("nightly", "length"),
    ]


def test_a_revoked_key_is_refused_without_a_restart(keyed: Keyed):
    keyed.keys["gone"] = keyed.command("add", "gone")
    keyed.wait_for_status("gone", 200)
    generate = json.dumps({"type": "config", "prompt": "Once", "parameters": {"max_tokens": 2}})
    with connect(f"ws://{keyed.daemon.http}/generate", proxy=None, additional_headers=keyed.bearer("gone")) as open_one:
        open_one.send(generate)
        while json.loads(open_one.recv(ANSWER_S))["type"] != "completion":
            continue
        keyed.command("revoke", "gone")
        keyed.wait_for_status("gone", 401)
        open_one.send(generate)
        error = json.loads(open_one.recv(ANSWER_S))
        assert (error["type"], error["error"]) == ("error", "invalid_request")
        assert error["message"] == "auth: the key was revoked"
        with pytest.raises(ConnectionClosed) as closed:
            open_one.recv(ANSWER_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
    assert ask(keyed.daemon, "GET", "/props", headers=keyed.bearer("alice")).status == 200
