"""The listening sockets of a daemon: at which addresses, and with or without TLS."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from http_world import CONFIG, HEALTH, HttpWorld

from umaserve.core.errors import ConfigError
from umaserve.daemon import listeners
from umaserve.daemon.listeners import Listeners


def test_ollamas_clients_find_the_daemon_where_they_look_even_with_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued = trustme.CA().issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    assert listeners.OLLAMA_ADDRESS == ("127.0.0.1", 11434)
    monkeypatch.setattr(listeners, "OLLAMA_ADDRESS", ("127.0.0.1", 0))
    caplog.set_level(logging.INFO, listeners.__name__)
    paths = {"socket": str(tmp_path / "sock"), "tls_cert": str(cert), "tls_key": str(key)}
    world = HttpWorld(config=replace(CONFIG, ollama=True, http="127.0.0.1:0", **paths))
    opened = Listeners(world.services, world.site)
    opened.open()
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


def test_http_may_have_several_addresses(tmp_path: Path) -> None:
    world = HttpWorld(config=replace(CONFIG, http="127.0.0.1:0,127.0.0.2:0", socket=str(tmp_path / "sock")))
    opened = Listeners(world.services, world.site)
    opened.open()
    for host, place in zip(("127.0.0.1", "127.0.0.2"), opened.places[1:], strict=True):
        at, _, port = place.at.rpartition(":")
        assert (place.protocol, at) == ("http", host)
        with socket.create_connection((host, int(port))) as client:
            client.sendall(HEALTH)
            world.turn()
            client.setblocking(False)
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
    opened.close()
    world.close()


def test_an_address_of_http_that_nobody_named_may_be_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        world = HttpWorld(config=replace(CONFIG, http=at, socket=str(tmp_path / "sock")))
        with pytest.raises(ConfigError, match="in use"):
            Listeners(world.services, world.site).open()
        opened = Listeners(world.services, world.site, http_is_optional=True)
        opened.open()
    assert [(place.protocol, place.at) for place in opened.places] == [("json", str(tmp_path / "sock"))]
    assert f"HTTP is off: address {at}: Address already in use" in caplog.text
    opened.close()
    world.close()


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
    caplog.set_level(logging.INFO, listeners.__name__)
    config = replace(CONFIG, socket=str(tmp_path / "sock"), max_sessions=1)
    path = str(tmp_path / "wyoming.sock")
    for place in (f"unix:{path}", "tcp:127.0.0.1:0"):
        world = HttpWorld(config=replace(config, wyoming=place))
        opened = Listeners(world.services, world.site)
        opened.open()
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
    monkeypatch.setattr(listeners.systemd, "listen_fds", lambda: [("wyoming", passed)])
    paths = {"socket": str(tmp_path / "sock"), "wyoming": f"unix:{tmp_path / 'wyoming.sock'}"}
    world = HttpWorld(config=replace(CONFIG, **paths))
    opened = Listeners(world.services, world.site)
    opened.open()
    assert answered(passed.getsockname(), world).startswith(b'{"type":"pong"')
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sock", "sock.lock"], "instead of the setting's"
    opened.close()
    world.close()


def connected(path: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    client.setblocking(False)
    return client


def test_who_comes_while_the_daemon_ends_is_left_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(tmp_path / "passed")
    passed = socket.create_server(address, family=socket.AF_UNIX)
    monkeypatch.setattr(listeners.systemd, "listen_fds", lambda: [("http", passed.dup())])
    world = HttpWorld(config=replace(CONFIG, socket=str(tmp_path / "sock")))
    opened = Listeners(world.services, world.site)
    opened.open()
    with connected(address) as known, connected(address) as silent:
        world.turn()
        assert opened.awaits_requests
        for client in (known, silent):
            client.sendall(HEALTH)
            world.turn()
        assert not opened.awaits_requests
        silent.sendall(b"GET ")
        world.turn()
        assert opened.awaits_requests
        assert opened.hand_over()
        with connected(address) as late:
            late.sendall(HEALTH)
            world.turn()
            known.sendall(HEALTH)
            world.turn()
            first, second = known.recv(65536).split(b"HTTP/1.1 200 ")[1:]
            assert b"Connection: close" not in first
            assert b"Connection: close" in second, "one more request, and then another connection"
            assert known.recv(65536) == b""
            silent.sendall(HEALTH.removeprefix(b"GET "))
            world.turn()
            assert silent.recv(65536).count(b"HTTP/1.1 200 ") == 2
            with pytest.raises(BlockingIOError):
                late.recv(1)
            opened.close()
            taken, _address = passed.accept()
            taken.setblocking(False)
            assert taken.recv(65536) == HEALTH
            taken.close()
    passed.close()
    world.close()


def test_connections_between_two_requests_are_closed_when_nothing_more_is_taken(tmp_path: Path) -> None:
    world = HttpWorld(config=replace(CONFIG, http_socket=str(tmp_path / "http"), socket=str(tmp_path / "sock")))
    opened = Listeners(world.services, world.site)
    opened.open()
    assert not opened.hand_over(), "no service manager holds them"
    with connected(str(tmp_path / "http")) as idle, connected(str(tmp_path / "http")) as busy:
        busy.sendall(b"GET ")
        world.turn()
        opened.close_idle()
        world.turn()
        assert idle.recv(1) == b""
        with pytest.raises(BlockingIOError):
            busy.recv(1)
    opened.close()
    world.close()


@pytest.mark.parametrize(
    ("name", "changes", "complaint"),
    [
        ("http", {}, "http: expected a loopback address, or the setting api_keys or insecure"),
        ("ollama", {}, "http: expected a loopback address, or the setting api_keys or insecure"),
        (
            "wyoming",
            {"api_keys": "keys.json"},
            "wyoming: expected a loopback address, or the setting insecure, since this protocol has no keys",
        ),
        (
            "json",
            {"api_keys": "keys.json"},
            "json: expected a loopback address, or the setting insecure, since this protocol has no keys",
        ),
        ("http", {"api_keys": "keys.json"}, ""),
        ("wyoming", {"insecure": True}, ""),
    ],
)
def test_a_passed_socket_reaches_no_further_than_the_settings_allow(
    name: str, changes: dict[str, object], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners.systemd, "listen_fds", lambda: [(name, socket.create_server(("0.0.0.0", 0)))])
    world = HttpWorld(config=replace(CONFIG, socket=str(tmp_path / "sock"), **changes))
    if complaint:
        with pytest.raises(ConfigError, match=complaint):
            Listeners(world.services, world.site).open()
    else:
        opened = Listeners(world.services, world.site)
        opened.open()
        opened.close()
    world.close()


def test_passed_sockets_stand_for_those_of_the_settings_of_their_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, listeners.__name__)
    paths = {name: str(tmp_path / name) for name in ("socket", "http_socket")}
    config = replace(CONFIG, http="127.0.0.1:0", ollama=True, **paths)
    for name in ("http", "ollama"):
        passed = socket.create_server(("127.0.0.1", 0))
        monkeypatch.setattr(listeners, "OLLAMA_ADDRESS", ("127.0.0.1", 0))
        monkeypatch.setattr(listeners.systemd, "listen_fds", lambda: [(name, passed)])  # noqa: B023
        world = HttpWorld(config=config)
        port = passed.getsockname()[1]
        opened = Listeners(world.services, world.site)
        opened.open()
        told = [record.fields["at"] for record in caplog.records if record.message == "listening"]
        assert told[0] == f"127.0.0.1:{port}"
        assert sum(at.startswith("127.0.0.1") for at in told) == 2
        assert set(paths.values()) <= set(told)
        caplog.clear()
        opened.close()
        world.close()


@pytest.mark.parametrize(
    ("setting", "value", "passed_at", "differs"),
    [
        ("http", "127.0.0.1:{port}", "port", False),
        ("http", "localhost:{port}", "port", False),
        ("http", "127.0.0.1:0", "port", False),
        ("http", "127.0.0.1:1", "port", True),
        ("http", "127.0.0.2:{port}", "port", True),
        ("http", "0.0.0.0:{port}", "port", True),
        ("http", "nowhere.invalid:{port}", "port", True),
        ("http", "[::1]:1,127.0.0.1:{port}", "port", False),
        ("http", "[::1]:{port},127.0.0.1:1", "port", True),
        ("http", "", "port", False),
        ("http_socket", "{path}", "path", False),
        ("http_socket", "{path}.other", "path", True),
        ("wyoming", "tcp://127.0.0.1:{port}", "port", False),
        ("wyoming", "tcp://127.0.0.1:1", "port", True),
        ("wyoming", "unix:{path}", "port", True),
        ("wyoming", "unix:{path}", "path", False),
        ("wyoming", "unix:{path}.other", "path", True),
        ("wyoming", "tcp://127.0.0.1:1", "path", True),
    ],
)
def test_a_passed_socket_elsewhere_than_the_setting_is_warned_about(
    setting: str,
    value: str,
    passed_at: str,
    differs: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, port = str(tmp_path / "passed"), 0
    if passed_at == "path":
        passed, place = socket.socket(socket.AF_UNIX), path
        passed.bind(path)
        passed.listen()
    else:
        passed = socket.create_server(("127.0.0.1", 0))
        port = passed.getsockname()[1]
        place = f"127.0.0.1:{port}"
    value = value.format(port=port, path=path)
    monkeypatch.setattr(listeners.systemd, "listen_fds", lambda: [(setting.removesuffix("_socket"), passed)])
    config = replace(CONFIG, socket=str(tmp_path / "sock"), http="", insecure=True)
    world = HttpWorld(config=replace(config, **{setting: value}))
    opened = Listeners(world.services, world.site)
    opened.open()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    expected = (
        f"{setting} is {value}, but the service manager has passed a socket at {place}, and the daemon listens only"
    )
    assert [message[: len(expected)] for message in warnings] == ([expected] if differs else [])
    opened.close()
    world.close()
