"""The listening sockets of a daemon: at which addresses, and with or without TLS."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from http_world import CONFIG, HttpWorld

from umaserve.daemon import entrances
from umaserve.daemon.entrances import Entrances


def test_ollamas_clients_find_the_daemon_where_they_look_even_with_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued = trustme.CA().issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    assert entrances.OLLAMA == ("127.0.0.1", 11434)
    monkeypatch.setattr(entrances, "OLLAMA", ("127.0.0.1", 0))
    caplog.set_level(logging.INFO, entrances.__name__)
    paths = {"socket": str(tmp_path / "sock"), "tls_cert": str(cert), "tls_key": str(key)}
    world = HttpWorld(config=replace(CONFIG, ollama=True, http="127.0.0.1:0", **paths))
    opened = Entrances(world.services, world.site)
    told = [record.fields for record in caplog.records if record.message == "listening"]
    plain, encrypted = [at["at"].rpartition(":") for at in told if at["protocol"] == "http"]
    answers = []
    for host, _, port in (plain, encrypted):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: ollama\r\nConnection: close\r\n\r\n")
            world.turn()
            client.setblocking(False)
            answers.append(client.recv(65536))
    opened.close()
    world.close()
    assert answers[0].endswith(b"\r\n\r\nOllama is running")
    assert b"HTTP/1.1" not in answers[1]


def answered(path: str | tuple[str, int], world: HttpWorld) -> bytes:
    """What a client of Wyoming gets for a ping."""
    family = socket.AF_UNIX if isinstance(path, str) else socket.AF_INET
    with socket.socket(family) as client:
        client.connect(path)
        client.sendall(b'{"type": "ping", "data": {"text": "x"}}\n')
        world.turn()
        client.setblocking(False)
        return client.recv(65536)


def test_wyoming_is_spoken_at_a_path_and_at_a_port_and_refuses_in_its_own_form(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, entrances.__name__)
    config = replace(CONFIG, socket=str(tmp_path / "sock"), max_sessions=1)
    path = str(tmp_path / "wyoming.sock")
    for place in (f"unix:{path}", "tcp:127.0.0.1:0"):
        world = HttpWorld(config=replace(config, wyoming=place))
        opened = Entrances(world.services, world.site)
        (told,) = (record.fields for record in caplog.records if record.fields.get("protocol") == "wyoming")
        host, _, port = told["at"].rpartition(":")
        at = (host, int(port)) if host else path
        assert told["at"] == path or host == "127.0.0.1"
        assert answered(at, world).startswith(b'{"type":"pong"')
        world.turn()
        assert not opened.clients
        with socket.socket(socket.AF_UNIX if at == path else socket.AF_INET) as other:
            other.connect(at)
            world.turn()
            refused = answered(at, world)
        assert refused.startswith(b'{"type":"error"')
        assert b'"code":"too_many_sessions"' in refused
        caplog.clear()
        opened.close()
        world.close()


def test_a_socket_that_the_service_manager_passes_may_be_wyomings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(entrances.systemd, "listen_fds", lambda: [("wyoming", passed)])
    paths = {"socket": str(tmp_path / "sock"), "wyoming": f"unix:{tmp_path / 'wyoming.sock'}"}
    world = HttpWorld(config=replace(CONFIG, **paths))
    opened = Entrances(world.services, world.site)
    assert answered(passed.getsockname(), world).startswith(b'{"type":"pong"')
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sock", "sock.lock"], "instead of the setting's"
    opened.close()
    world.close()
