"""What the logs of a daemon and a relay tell of requests, and what they never do."""

from __future__ import annotations

from pathlib import Path

from http_wire import WEBSOCKET, Http, ask
from program import Program, run

PROMPT, WRONG = "words-of-a-client", "a-key-that-nobody-has"
WORKERS, OPERATORS = "secret-of-the-workers", "token-of-the-operators"
FIELDS = {"prompt": PROMPT, "max_tokens": 2}


class Relay(Program):
    def __init__(self, directory: Path) -> None:
        secrets = ("--worker-secret", WORKERS, "--admin-token", OPERATORS)
        keys = ("--client-keys", str(directory / "keys.json"))
        logging = ("--log-level", "debug", "--access-log", "0")
        super().__init__(directory, "relay", "--listen", "127.0.0.1:0", *secrets, *keys, *logging)
        self.http = self.wait_for_line(r"listening at=(\S+)")


def asked(address: str, key: str) -> list[int]:
    """The statuses of requests with this key, and of some that are refused."""
    malformed = b"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer %b\r\n%b\r\n\r\n"
    requests = [
        ("POST", "/v1/completions", FIELDS, {"Authorization": f"Bearer {key}"}),
        ("POST", "/v1/completions", FIELDS | {"temperature": PROMPT}, {"X-Api-Key": key}),
        ("POST", "/v1/completions", FIELDS, {"Authorization": f"Bearer {WRONG}"}),
        ("POST", "/v1/completions", FIELDS, {"Authorization": f"Basic {key}"}),
        ("GET", f"/v1/models?api_key={key}", None, {}),
        ("GET", "/v1/models", None, {"Cookie": f"key={key}"}),
    ]
    statuses = []
    for method, path, body, headers in requests:
        with Http(address) as http:
            statuses.append(http.ask(method, path, body, headers).status)
    with Http(address) as http:
        http.send(malformed % (key.encode(), PROMPT.encode()))
        statuses.append(http.receive().status)
    return statuses


def test_neither_keys_nor_prompts_are_ever_logged(own_daemon, tmp_path: Path):
    keys = tmp_path / "keys.json"
    key = run("keys", "add", "alice", "--api-keys", str(keys)).stdout.strip()
    relay = Relay(tmp_path)
    links = ("--relay", f"http://{relay.http}", "--worker-secret", WORKERS)
    daemon = own_daemon("--http", "127.0.0.1:0", "--api-keys", str(keys), "--log-level", "debug", *links)
    relay.wait_for_line("(worker registered)")
    with Http(relay.http) as http:
        made = http.ask("POST", "/admin/keys", {"name": "bob"}, {"Authorization": f"Bearer {OPERATORS}"}).json["key"]
        assert http.ask("GET", "/admin/keys", None, {"Authorization": f"Bearer {WRONG}"}).status == 401
    assert asked(daemon.http, key) == [200, 400, 401, 401, 401, 401, 400]
    assert asked(relay.http, made) == [200, 400, 401, 401, 401, 401, 400]
    with Http(relay.http) as http:
        http.ask("GET", f"/v1/worker/connect?worker_secret={WRONG}", None, WEBSOCKET)
    assert (
        ask(daemon, "GET", "/generate", None, WEBSOCKET | {"Sec-WebSocket-Protocol": f"bearer.{WRONG}"}).status == 401
    )
    assert daemon.ask(PROMPT, max_tokens=2)[-1]["event"] == "eos"
    assert daemon.ask(PROMPT, temperature=PROMPT)[-1]["event"] == "error"
    assert daemon.logs.count("request ended") == 3
    assert "key=alice" in daemon.logs
    assert "request refused" in daemon.logs
    assert "request refused" not in relay.logs, "with --access-log 0"
    assert daemon.stop() == relay.stop() == 0
    for secret in (key, made, PROMPT, WRONG, WORKERS, OPERATORS):
        assert secret not in daemon.logs
        assert secret not in relay.logs
