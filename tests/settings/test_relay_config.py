"""The settings of the relay and of its workers, their secrets, and that each program leaves the others' alone."""

from __future__ import annotations

import argparse
import contextlib
import logging
import stat
from collections.abc import Mapping
from dataclasses import asdict
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.core.errors import ConfigError
from umaserve.settings import daemon as config
from umaserve.settings import relay as relay_config
from umaserve.settings import worker as worker_config
from umaserve.settings.kinds import Kind, networks, secret, url, urls, word
from umaserve.settings.secret_file import read_secret
from umaserve.settings.sources import Settings

# A busy box makes no test fail.

RELAY, WORKER = relay_config.SETTINGS, worker_config.SETTINGS
PROGRAMS: dict[str, Settings[Any]] = {"daemon": config.SETTINGS, "relay": RELAY, "worker": WORKER}

# Without these a program does not start.
NEEDED: dict[str, dict[str, object]] = {
    "daemon": {},
    "relay": {"worker_secret": "s3cret"},
    "worker": {"worker_secret": "s3cret", "relay": "wss://relay.example.org"},
}

# The contract, written down a second time: value, least, most. A setting without numbers has its value only.
RELAY_VALUES: dict[str, tuple[Any, ...]] = {
    "listen": ("127.0.0.1:8090",),
    "tls_cert": ("",),
    "tls_key": ("",),
    "max_connections": (8192, 1, 1048576),
    "trusted_proxy": ((),),
    "idle_timeout": (300.0, 0.05, 86400.0),
    "drain_grace": (0.0, 0.0, 3600.0),
    "drain_timeout": (30.0, 0.0, 3600.0),
    "worker_secret": ("s3cret",),
    "worker_secret_file": ("",),
    "provider": ("local",),
    "heartbeat_interval": (15.0, 0.05, 3600.0),
    "heartbeat_timeout": (30.0, 0.05, 3600.0),
    "max_workers": (4096, 1, 65536),
    "max_message_bytes": (64 << 20, 64 << 10, 1 << 30),
    "redis": ("",),
    "redis_user": ("",),
    "redis_password_file": ("",),
    "max_queue_len": (100, 1, 1048576),
    "queue_timeout": (30.0, 0.05, 86400.0),
    "request_timeout": (300.0, 0.05, 86400.0),
    "default_model": ("",),
    "route_by": ("prefix",),
    "max_body_bytes": (32 << 20, 1 << 10, 1 << 30),
    "max_response_bytes": (64 << 20, 1 << 10, 1 << 30),
    "tx_high_water": (64 << 10, 1 << 10, 64 << 20),
    "client_keys": ("",),
    "insecure": (False,),
    "admin_token": ("",),
    "admin_token_file": ("",),
    "allow_host": ((),),
    "allow_origin": ((),),
    "cors_origin": ((),),
    "header_timeout": (10.0, 0.05, 3600.0),
    "body_timeout": (30.0, 0.05, 3600.0),
    "ping_interval": (20.0, 0.05, 3600.0),
    "log_level": ("info",),
    "log_format": ("text",),
    "access_log": (1.0, 0.0, 1.0),
    "otel_endpoint": ("",),
}
WORKER_VALUES: dict[str, tuple[Any, ...]] = {
    "relay": (("wss://relay.example.org",),),
    "worker_secret": ("s3cret",),
    "worker_secret_file": ("",),
    "name": ("",),
    "provider": ("local",),
    "ca_file": ("",),
    "drain_timeout": (30.0, 0.0, 3600.0),
    "backend": ("http://127.0.0.1:8080",),
    "backend_key": ("",),
    "backend_key_file": ("",),
    "models": ((),),
    "refresh_interval": (30.0, 0.05, 86400.0),
    "max_concurrent": (4, 1, 65536),
    "request_timeout": (300.0, 0.05, 86400.0),
    "max_response_bytes": (64 << 20, 1 << 10, 1 << 30),
    "log_level": ("info",),
    "log_format": ("text",),
    "access_log": (1.0, 0.0, 1.0),
}
RANGES = [
    (program, key, row)
    for program, table in (("relay", RELAY_VALUES), ("worker", WORKER_VALUES))
    for key, row in table.items()
    if len(row) == 3
]
PARTNERS = {
    ("heartbeat_interval", 3600.0): {"heartbeat_timeout": "3600", "heartbeat_interval": "3599"},
    ("heartbeat_timeout", 0.05): {"heartbeat_timeout": "1", "heartbeat_interval": "0.05"},
}
"""What is given in place of an end of a range that can't hold together with anything."""


def refusal(program: str, flags: Mapping[str, object], environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        PROGRAMS[program].load({**NEEDED[program], **flags}, environ or {})
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def takes(kind: Kind[Any], value: object) -> bool:
    try:
        kind.check(value)
    except ValueError:
        return False
    return True


def loaded(program: str, **flags: object) -> Any:
    return PROGRAMS[program].load({**NEEDED[program], **flags}, {}).config


# Values


@pytest.mark.parametrize(("program", "values"), [("relay", RELAY_VALUES), ("worker", WORKER_VALUES)])
def test_the_defaults_and_their_order(program: str, values: dict[str, tuple[Any, ...]]) -> None:
    found = asdict(loaded(program))
    assert list(found) == list(values)
    assert found == {key: row[0] for key, row in values.items()}


@pytest.mark.parametrize(("program", "key", "row"), RANGES)
def test_both_ends_of_every_range_and_nothing_beyond(program: str, key: str, row: tuple[Any, ...]) -> None:
    _, low, high = row
    for end in (low, high):
        values = PARTNERS.get((key, end), {key: str(end)})
        expected = type(row[0])(values[key])
        if key == "heartbeat_interval":
            values = {"heartbeat_timeout": "3600", **values}
        assert getattr(loaded(program, **values), key) == expected
    for outside in (low - 1, high + 1):
        assert refusal(program, {key: str(outside)}).startswith(f"flag --{key.replace('_', '-')}: expected ")


@pytest.mark.parametrize(
    ("variable", "text", "key", "value"),
    [
        ("LISTEN_ADDR", "localhost:0", "listen", "localhost:0"),
        ("MAX_QUEUE_LEN", "7", "max_queue_len", 7),
        ("QUEUE_TIMEOUT_SECS", "1.5", "queue_timeout", 1.5),
        ("REQUEST_TIMEOUT_SECS", "9", "request_timeout", 9.0),
        ("UMA_RELAY_PROVIDER", "gpu", "provider", "gpu"),
        ("UMA_RELAY_TRUSTED_PROXY", "10.0.0.0/8,::1", "trusted_proxy", (ip_network("10.0.0.0/8"), ip_network("::1"))),
    ],
)
def test_the_variables_of_the_relay(variable: str, text: str, key: str, value: object) -> None:
    found = RELAY.load({}, {"WORKER_SECRET": "s", variable: text})
    assert getattr(found.config, key) == value
    assert found.origins[key] == f"environment {variable}"


def test_each_program_has_a_file_variable_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('worker_secret = "of-the-file"')
    assert RELAY.load({}, {"UMA_RELAY_CONFIG": str(file)}).config.worker_secret == "of-the-file"
    relays = {"UMA_WORKER_CONFIG": str(file), "UMA_WORKER_RELAY": "ws://localhost"}
    assert WORKER.load({}, relays).config.worker_secret == "of-the-file"


def test_help_has_every_flag_in_its_group() -> None:
    for declared, groups in ((RELAY, "serving workers requests clients log"), (WORKER, "relay backend log")):
        parser = argparse.ArgumentParser()
        declared.add_arguments(parser)
        text = parser.format_help()
        assert all(f"  {one.flag}" in text for one in declared.by_key.values())
        assert list(dict.fromkeys(one.group for one in declared.by_key.values())) == groups.split()


@pytest.mark.parametrize("program", ["relay", "worker"])
@given(data=st.data())
def test_any_text_at_all_loads_or_is_refused_in_a_line(program: str, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(list(PROGRAMS[program].by_key)))
    text = data.draw(st.text() | st.text("htps:/[]@.?#%,10af"))
    with contextlib.suppress(ConfigError):
        loaded(program, **{key: text})
        return
    refusal(program, {key: text})


# Other programs' variables


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_ignores_the_settings_of_the_others(program: str) -> None:
    own = {one.env for one in PROGRAMS[program].by_key.values()}
    for other in PROGRAMS.values():
        foreign = {one.env: "\0 no value of anything" for one in other.by_key.values() if one.env not in own}
        assert PROGRAMS[program].load(NEEDED[program], foreign) == PROGRAMS[program].load(NEEDED[program], {})


def test_a_variable_that_two_programs_read_has_the_same_kind_in_both() -> None:
    kinds: dict[str, str] = {}
    for program in PROGRAMS.values():
        for one in program.by_key.values():
            assert kinds.setdefault(one.env, one.kind.metavar) == one.kind.metavar


@pytest.mark.parametrize("prefix", ["UMA_RELAY_", "UMA_WORKER_"])
def test_an_unknown_variable_is_the_mistake_of_the_program_that_its_prefix_names(prefix: str) -> None:
    program = prefix.split("_")[1].lower()
    found = refusal(program, {}, {f"{prefix}PROVIDR": "x"})
    assert found == f"environment {prefix}PROVIDR: no such setting, did you mean {prefix}PROVIDER?"
    for other in PROGRAMS.keys() - {program}:
        PROGRAMS[other].load(NEEDED[other], {f"{prefix}PROVIDR": "x"})


# Values that can't hold together


@pytest.mark.parametrize("program", ["relay", "worker"])
def test_exactly_one_worker_secret(program: str) -> None:
    assert "make a secret with openssl rand -hex 32" in refusal(program, {"worker_secret": ""})
    assert refusal(program, {"worker_secret_file": "f"}) == (
        "worker_secret and worker_secret_file are both set: set only one of them"
        " (worker_secret: flag, worker_secret_file: flag)"
    )
    assert loaded(program, worker_secret="", worker_secret_file="f").worker_secret_file == "f"


@pytest.mark.parametrize(("program", "key"), [("relay", "admin_token"), ("worker", "backend_key")])
def test_not_both_of_a_secret_and_its_file(program: str, key: str) -> None:
    assert refusal(program, {key: "t", f"{key}_file": "f"}).startswith(f"{key} and {key}_file are both set")
    assert getattr(loaded(program, **{key: "t"}), key) == "t"
    assert getattr(loaded(program, **{f"{key}_file": "f"}), key) == ""


@pytest.mark.parametrize("address", ["0.0.0.0:80", "[::]:80", "192.0.2.1:0", "box.example:80"])
def test_listening_beyond_loopback_needs_client_keys_or_the_word_insecure(address: str) -> None:
    assert refusal("relay", {"listen": address}) == (
        f"listen ({address}) is not a loopback address, and client_keys is not set:"
        " set client_keys to a file, or set insecure (listen: flag, client_keys: default)"
    )
    assert loaded("relay", listen=address, client_keys="k").listen == address
    assert loaded("relay", listen=address, insecure=True).listen == address


def test_tls_needs_both_files() -> None:
    assert refusal("relay", {"tls_cert": "c"}).startswith("tls_cert is set and tls_key is not: set both or neither")
    assert refusal("relay", {"tls_key": "k"}).startswith("tls_key is set and tls_cert is not: set both or neither")
    assert loaded("relay", tls_cert="c", tls_key="k").tls_key == "k"


def test_a_worker_must_have_the_time_to_answer_a_ping() -> None:
    assert refusal("relay", {"heartbeat_timeout": "15"}) == (
        "heartbeat_timeout (15.0) is not above heartbeat_interval (15.0): no worker could answer a ping in time:"
        " raise heartbeat_timeout or lower heartbeat_interval (heartbeat_timeout: flag, heartbeat_interval: default)"
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"redis": "redis://box:6379/names"}, "redis (redis://box:6379/names): expected the number of a database"),
        ({"redis_password_file": "f"}, "redis_password_file is set and redis is not: set redis to a URL"),
        (
            {"redis": "redis://box", "redis_user": "u"},
            "redis_user is set and redis_password_file is not",
        ),
    ],
)
def test_relays_meet_at_one_place(given: dict[str, object], problem: str) -> None:
    assert refusal("relay", given).startswith(problem)
    assert loaded("relay", redis="rediss://box:6380/15").redis == "rediss://box:6380/15"


def test_a_worker_works_for_a_relay() -> None:
    assert refusal("worker", {"relay": ""}) == (
        "relay is empty: name the relay to work for, such as wss://relay.example.org (relay: flag)"
    )
    assert loaded("worker", relay="ws://a,https://b:8443/x").relay == ("ws://a", "https://b:8443/x")


# Kinds


@pytest.mark.parametrize(
    "text", ["http://a", "https://a.example:8443", "http://[::1]", "https://[::1]:1/a/b", "HTTP://127.0.0.1:65535/"]
)
def test_a_url_is_kept_as_it_was_written(text: str) -> None:
    assert url("http", "https").check(text) == text
    assert urls("http", "https").check([text, text]) == (text, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.example",
        "a.example:80",
        "ftp://a",
        "http:a",
        "http://",
        "http:///a",
        "http://:80",
        "http://a:",
        "http://a:0",
        "http://a:65536",
        "http://a:8 0",
        "http://a b",
        "http://::1",
        "http://[::1",
        "http://[::1]x",
        "http://u@a",
        "http://u:p@a:80",
        "http://a?b",
        "http://a/?",
        "http://a#b",
        "http://é",
        "http://a\n",
        "\thttp://a",
        "http://a/" + "x" * 250,
        7,
        None,
    ],
)
def test_what_is_no_url_of_a_server(text: object) -> None:
    assert not takes(url("http", "https"), text)
    assert not takes(urls("http", "https"), [text])


def test_networks_say_who_is_in_them_and_print_as_they_are_read() -> None:
    kind = networks()
    found = kind.check(["10.0.0.0/8", "192.0.2.7", "fd00::/8", "::1"])
    assert [any(ip_address(peer) in network for network in found) for peer in ("10.1.2.3", "192.0.2.8", "::1")] == [
        True,
        False,
        True,
    ]
    assert kind.render(found) == '["10.0.0.0/8", "192.0.2.7/32", "fd00::/8", "::1/128"]'
    assert kind.check(["10.0.0.0/8", "192.0.2.7/32", "fd00::/8", "::1/128"]) == found


@pytest.mark.parametrize(
    "text", ["", "10.0.0.1/8", "10.0.0.0/33", "10.0.0", "a.example", "fe80::1%eth0", "::/129", "7"]
)
def test_what_is_no_network(text: str) -> None:
    assert not takes(networks(), [text])
    if text:
        ending = f'or a network such as 10.0.0.0/8 or fd00::/8, got the string "{text}"'
        assert refusal("relay", {"trusted_proxy": text}).endswith(ending)


def test_a_word_may_be_empty_only_where_that_means_something() -> None:
    assert word(or_empty=True).check("") == ""
    assert word().check("x" * 256) == "x" * 256
    for text in ("", "x" * 257, "a b", "a,b", "é", "a\n", 7):
        assert not takes(word(), text)


def test_what_stands_for_a_secret_is_none() -> None:
    assert secret().render("hunter2") == '"…"'
    assert not takes(secret(), "…")


# Secrets


@pytest.mark.parametrize(("program", "key"), [("relay", "admin_token"), ("worker", "backend_key")])
def test_no_secret_is_shown(program: str, key: str) -> None:
    found = PROGRAMS[program].load({**NEEDED[program], key: "hunter2"}, {})
    assert getattr(found.config, key) == "hunter2"
    shown = PROGRAMS[program].render(found) + repr(found)
    assert "hunter2" not in shown
    assert "s3cret" not in shown
    assert "hunter" not in refusal(program, {key: "hunter 2"})


def test_a_secret_comes_from_the_setting_or_its_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b" \n0123abcd\r\n\n")
    assert read_secret("given", "", "worker_secret_file") == "given"
    assert read_secret("", "", "worker_secret_file") == ""
    assert read_secret("", str(file), "worker_secret_file") == "0123abcd"
    file.write_bytes(b"x" * 4096)
    assert read_secret("", str(file), "worker_secret_file") == "x" * 4096


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"x" * 4096 + b"\n", "larger than 4096 bytes"),
        (b"hunter 2", "expected at most 4096 printable ASCII characters without spaces, got something else"),
        (b"hunter\n2", "expected at most 4096 printable ASCII characters without spaces, got something else"),
        (b"hunter\xff", "expected at most 4096 printable ASCII characters without spaces, got something else"),
        ("hunter…".encode(), "expected at most 4096 printable ASCII characters without spaces, got something else"),
    ],
)
def test_a_file_that_holds_no_secret(data: bytes, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_secret("", str(file), "admin_token_file")
    assert str(caught.value).startswith(f"admin_token_file {file}: {reason}")
    assert "hunter" not in str(caught.value)


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    with pytest.raises(ConfigError, match="can't be read: No such file or directory"):
        read_secret("", str(absent), "admin_token_file")
    with pytest.raises(ConfigError, match="can't be read: Is a directory"):
        read_secret("", str(tmp_path), "admin_token_file")


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o604, True), (0o602, True)])
def test_a_secret_that_all_may_read_is_warned_of(
    mode: int, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "secret"
    file.write_text("hunter2")
    file.chmod(mode | stat.S_IRUSR)
    with caplog.at_level(logging.WARNING):
        assert read_secret("", str(file), "worker_secret_file") == "hunter2"
    assert bool(caplog.messages) is warned
    assert "hunter2" not in caplog.text
