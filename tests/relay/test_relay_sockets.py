"""The listening sockets that a service manager holds for the relay."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from relay_peers import SECRET, Relay

from umaserve.core.errors import ConfigError
from umaserve.relay import server
from umaserve.relay.server import RelayServer
from umaserve.settings.relay import RelayConfig


def test_who_comes_while_a_relay_ends_is_left_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as passed:
        monkeypatch.setattr(server.systemd, "listen_fds", lambda: [("http", passed.dup())])
        relay = Relay(drain_timeout=30.0)
        try:
            assert relay.address == f"127.0.0.1:{passed.getsockname()[1]}", "instead of the setting's"
            worker = relay.worker()
            client = relay.client().post()
            request = worker.request()
            relay.stop()
            assert worker.receive()["type"] == "graceful_shutdown"
            with socket.create_connection(passed.getsockname()) as late:
                late.sendall(b"GET /health")
                worker.complete(request)
                assert client.receive().status == 200
                relay.wait()
                taken, _address = passed.accept()
                assert taken.recv(64) == b"GET /health"
                taken.close()
        finally:
            relay.end()


def test_a_passed_socket_reaches_no_further_than_the_settings_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(passed: socket.socket) -> str:
        monkeypatch.setattr(server.systemd, "listen_fds", lambda: [("http", passed)])
        with passed, pytest.raises(ConfigError) as refused:
            RelayServer(RelayConfig(worker_secret=SECRET)).run()
        return str(refused.value)

    path = str(tmp_path / "relay.sock")
    assert refusal(socket.create_server(("0.0.0.0", 0))).endswith("expected loopback, or client_keys, or insecure")
    assert refusal(socket.create_server(path, family=socket.AF_UNIX)) == (
        f"{path} from the service manager: expected a TCP socket"
    )
