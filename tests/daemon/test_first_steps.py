"""What a person is told to type once the daemon is ready."""

from __future__ import annotations

import pytest

from umaserve.daemon.first_steps import first_steps
from umaserve.daemon.listeners import Place
from umaserve.settings.daemon import Config

UNIX = Place("json", "/run/user/7/uma.sock", is_tcp=False, encrypted=False)
THERE = " --socket /run/user/7/uma.sock"


@pytest.mark.parametrize(
    ("config", "place", "expected"),
    [
        (Config(), Place("http", "127.0.0.1:8080", True, False), "curl http://127.0.0.1:8080/v1/models"),
        (Config(), Place("http", "0.0.0.0:81", True, False), "curl http://localhost:81/v1/models"),
        (Config(), Place("http", "[::]:81", True, False), "curl http://localhost:81/v1/models"),
        (Config(), Place("http", "[::1]:81", True, True), "curl https://[::1]:81/v1/models"),
        (
            Config(api_keys="keys.json"),
            Place("http", "127.0.0.1:81", True, False),
            'curl http://127.0.0.1:81/v1/models -H "Authorization: Bearer KEY"',
        ),
    ],
)
def test_the_lines_have_the_true_addresses(config: Config, place: Place, expected: str) -> None:
    lines = first_steps("uma", config, [UNIX, place], {}).splitlines()
    assert lines[1:3] == [f'  uma ask{THERE} "Why is the sky blue?"', f"  uma metrics{THERE}"]
    assert lines[3] == f"  {expected}"
    url = expected.split()[1].removesuffix("/v1/models")
    assert lines[4] == f"or open {url} in a browser. Ctrl-C ends the daemon."


def test_of_several_addresses_the_first_is_told() -> None:
    places = [Place("http", f"{host}:8080", True, False) for host in ("127.0.0.1", "192.0.2.1")]
    assert "curl http://127.0.0.1:8080/" in first_steps("uma", Config(), places, {})
    assert "192.0.2.1" not in first_steps("uma", Config(), places, {})


def test_what_is_not_served_is_not_told() -> None:
    assert "curl" not in first_steps("uma", Config(), [UNIX], {})
    assert "browser" not in first_steps("uma", Config(page=False), [Place("http", "127.0.0.1:1", True, False)], {})
    by_path = Place("http", "/run/http.sock", is_tcp=False, encrypted=False)
    assert first_steps("uma", Config(), [by_path, Place("newline", "/run/s", False, False)], {}) == ""


def test_a_socket_that_clients_find_by_themselves_needs_no_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 7)
    lines = first_steps("uma", Config(), [UNIX], {"XDG_RUNTIME_DIR": "/run/user/7"}).splitlines()
    assert lines[1:3] == ['  uma ask "Why is the sky blue?"', "  uma metrics"]
