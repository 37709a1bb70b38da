"""Where a daemon is that a person starts without a word about it, and where clients look for it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from umaserve.client import AsyncClient, Client
from umaserve.commands.own_daemon import HTTP, ORIGIN, as_typed, with_own_places, with_own_socket
from umaserve.settings.daemon import SETTINGS, Config
from umaserve.system import unix_sockets

VARIABLES = ("NOTIFY_SOCKET", "LISTEN_FDS", "INVOCATION_ID")


@pytest.fixture(autouse=True)
def _as_an_ordinary_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(unix_sockets, "SYSTEM_PATH", str(tmp_path / "system.sock"))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def placed(tmp_path: Path, **flags: object) -> Config:
    return with_own_places(SETTINGS.load(flags, {}), {"XDG_RUNTIME_DIR": str(tmp_path)}).config


def test_a_user_has_a_socket_and_http_without_settings(tmp_path: Path) -> None:
    config = placed(tmp_path)
    assert (config.socket, config.http) == (str(tmp_path / "uma.sock"), HTTP)
    loaded = with_own_places(SETTINGS.load({}, {}), {"XDG_RUNTIME_DIR": str(tmp_path)})
    assert {key for key, origin in loaded.origins.items() if origin == ORIGIN} == {"socket", "http"}
    only = with_own_socket(SETTINGS.load({}, {}), {"XDG_RUNTIME_DIR": str(tmp_path)}).config
    assert (only.socket, only.http) == (str(tmp_path / "uma.sock"), "")


def test_settings_say_otherwise(tmp_path: Path) -> None:
    assert placed(tmp_path, socket="/run/uma.sock", http="") == Config(socket="/run/uma.sock")
    assert placed(tmp_path, http="127.0.0.1:1").http == "127.0.0.1:1"
    assert placed(tmp_path, http_socket="/run/http.sock").http == ""


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_service_is_where_it_was(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1")
    assert placed(tmp_path) == Config()


def test_root_has_the_systems_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(unix_sockets, "SYSTEM_PATH", Config().socket)
    assert placed(tmp_path) == Config(http=HTTP)


@pytest.mark.parametrize("folder", ["", "relative"])
def test_without_a_sessions_folder_the_socket_is_the_systems(folder: str) -> None:
    assert unix_sockets.own_path({"XDG_RUNTIME_DIR": folder}) == unix_sockets.SYSTEM_PATH
    assert unix_sockets.own_path({}) == unix_sockets.SYSTEM_PATH


def test_clients_look_for_the_users_daemon_and_then_for_the_systems(tmp_path: Path) -> None:
    own, systems = tmp_path / "uma.sock", tmp_path / "system.sock"
    assert Client().path == str(own)
    systems.touch()
    assert Client().path == str(systems)
    own.touch()
    assert Client().path == AsyncClient().path == str(own)
    assert Client("/elsewhere").path == "/elsewhere"


def test_the_program_is_named_as_any_terminal_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "umaserve"
    program.touch(0o755)
    monkeypatch.setattr("sys.argv", [str(program)])
    assert as_typed({}) == str(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert as_typed({}) == "umaserve"
    assert as_typed({"VIRTUAL_ENV": str(tmp_path)}) == str(program)
    monkeypatch.setattr("sys.argv", [str(tmp_path / "__main__.py")])
    assert as_typed({}) == f"{shlex.quote(sys.executable)} -m umaserve"
