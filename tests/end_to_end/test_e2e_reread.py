"""SIGHUP: keys, content filters, certificates and secrets are read again; what can't be used changes nothing."""

from __future__ import annotations

import http.server
import json
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import trustme
from daemon import READY_S, Daemon
from program import Program

from umaserve.access.keys import KeyFile


def until(condition: Callable[[], bool], logs: Callable[[], str]) -> None:
    deadline = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < deadline, logs()
        time.sleep(0.02)


def certify(folder: Path) -> ssl.SSLContext:
    """A certificate of an authority that was not there before; a client that trusts nobody else."""
    authority, trusting = trustme.CA(), ssl.create_default_context()
    authority.configure_trust(trusting)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "tls.pem")
    return trusting


def serves(address: str, trusting: ssl.SSLContext) -> bool:
    try:
        return httpx.get(f"https://{address}/health", verify=trusting).status_code == 200
    except httpx.ConnectError:
        return False


def test_a_daemon(own_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    old = certify(tmp_path)
    patterns, keys = tmp_path / "patterns", tmp_path / "keys.json"
    patterns.write_text("forbidden\n")
    presented = KeyFile(str(keys), missing_ok=True).add("alice")
    tls = str(tmp_path / "tls.pem")
    daemon = own_daemon(
        *("--http", "127.0.0.1:0", "--tls-cert", tls, "--tls-key", tls),
        *("--api-keys", str(keys), "--content-filter", str(patterns)),
    )

    def refuses(text: str) -> bool:
        return "does not allow" in daemon.ask(text, max_tokens=1)[-1].get("message", "")

    assert (refuses("forbidden"), refuses("unwanted")) == (True, False)
    assert serves(daemon.http, old)

    daemon.process.send_signal(signal.SIGUSR1)
    daemon.process.send_signal(signal.SIGUSR2)
    new = certify(tmp_path)
    patterns.write_text("unwanted\n")
    with daemon.connect() as wire:
        wire.send({"id": "s", "prompt": "Once", "max_tokens": 200, "ignore_eos": True})
        wire.receive_until("token")
        daemon.process.send_signal(signal.SIGHUP)
        assert wire.receive_all()[-1]["event"] == "eos", "what runs goes on"
    until(lambda: "content filter reloaded" in daemon.logs, lambda: daemon.logs)
    assert (refuses("forbidden"), refuses("unwanted")) == (False, True)
    assert (serves(daemon.http, old), serves(daemon.http, new)) == (False, True)

    (tmp_path / "tls.pem").write_text("no certificate")
    patterns.write_text("(")
    keys.write_text("no keys")
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: daemon.logs.count(" ERROR ") == 3, lambda: daemon.logs)
    assert daemon.logs.count("(what was loaded before") == 3
    assert (refuses("forbidden"), refuses("unwanted")) == (False, True)
    bearer = {"Authorization": f"Bearer {presented}"}
    assert httpx.get(f"https://{daemon.http}/v1/models", headers=bearer, verify=new).status_code == 200


def test_a_relay(tmp_path: Path) -> None:
    old = certify(tmp_path)
    token, secret = tmp_path / "token", tmp_path / "secret"
    token.write_text("first")
    secret.write_text("secret")
    tls = str(tmp_path / "tls.pem")
    relay = Program(
        tmp_path,
        *("relay", "--listen", "127.0.0.1:0", "--worker-secret-file", str(secret), "--admin-token-file", str(token)),
        *("--tls-cert", tls, "--tls-key", tls),
    )
    address = relay.wait_for_line(r"listening at=(\S+)")

    def admits(word: str, trusting: ssl.SSLContext) -> bool:
        headers = {"Authorization": f"Bearer {word}"}
        return httpx.get(f"https://{address}/admin/stats", headers=headers, verify=trusting).status_code == 200

    assert (admits("first", old), admits("second", old)) == (True, False)
    new = certify(tmp_path)
    token.write_text("second")
    relay.process.send_signal(signal.SIGHUP)
    until(lambda: serves(address, new), lambda: relay.logs)
    assert (admits("first", new), admits("second", new)) == (False, True)

    for name in ("tls.pem", "token", "secret"):
        (tmp_path / name).unlink()
    relay.process.send_signal(signal.SIGHUP)
    until(lambda: relay.logs.count(" ERROR ") == 3, lambda: relay.logs)
    assert admits("second", new)
    assert relay.stop() == 0
    assert "Traceback" not in relay.logs


@pytest.fixture
def backend() -> Iterator[tuple[str, list[str]]]:
    """The address of a server without models, and the keys that it is shown."""
    shown: list[str] = []

    class Backend(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers["Authorization"])
            body = json.dumps({"data": []}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """The test looks at what was asked."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Backend) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", shown
        server.shutdown()
        thread.join()


def test_a_worker(tmp_path: Path, backend: tuple[str, list[str]]) -> None:
    url, shown = backend
    key = tmp_path / "key"
    key.write_text("first")
    worker = Program(
        tmp_path,
        *("worker", "--relay", "http://127.0.0.1:1", "--worker-secret", "secret"),
        *("--backend", url, "--backend-key-file", str(key), "--refresh-interval", "0.05"),
    )
    until(lambda: "Bearer first" in shown, lambda: worker.logs)
    key.write_text("second")
    worker.process.send_signal(signal.SIGHUP)
    until(lambda: "Bearer second" in shown, lambda: worker.logs)
    key.unlink()
    worker.process.send_signal(signal.SIGHUP)
    until(lambda: " ERROR " in worker.logs, lambda: worker.logs)
    assert worker.stop() == 0
    assert "Traceback" not in worker.logs
