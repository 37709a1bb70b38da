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
