"""Which names a gate lets in, whose pages, and by which headers a key may come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from umaserve.access.gate import Gate, Names, check_json, parse_origin
from umaserve.access.keys import KeyFile
from umaserve.core.errors import RequestError
from umaserve.core.requests import Priority
from umaserve.sessions.caller import Caller
from umaserve.sessions.rates import RateLimits
from umaserve.wire.http11 import HttpCodec
from umaserve.wire.http_head import Refusal, Request

APP = "https://app.example"


def gate(*allow_origin: str, cors_origin: tuple[str, ...] = ()) -> Gate:
    return Gate(Names("192.0.2.1:80,[2001:db8::1]:80,0.0.0.0:81", ("box.example",), allow_origin, cors_origin), None)


def request(*headers: str, host: str = "127.0.0.1:8080") -> Request:
    codec = HttpCodec(16 * 1024, 0)
    codec.receive_data("\r\n".join(["GET / HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode("latin-1"))
    parsed = codec.next_request()
    assert parsed is not None
    return parsed


def status(asked: Request, at: Gate | None = None) -> int:
    try:
        (at or gate()).check_names(asked, by_file=False)
    except Refusal as refusal:
        return refusal.status
    return 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:", 200),
        ("127.0.0.1.", 200),
        ("LocalHost.:80", 200),
        ("[0:0:0:0:0:0:0:1]:", 200),
        ("192.0.2.1", 200),
        ("[2001:db8::1]", 200),
        ("0.0.0.0", 403),
        ("box.example.", 200),
        ("127.1", 403),
        ("0x7f000001", 403),
        ("box.example.evil.example", 403),
        ("[::2]", 403),
    ],
)
def test_names_that_a_gate_answers_to(host: str, expected: int) -> None:
    assert status(request(host=host)) == expected


@pytest.mark.parametrize(
    ("header", "peer", "warnings"),
    [
        ("X-Forwarded-For: 192.0.2.7", "ip:127.0.0.1", 1),
        ("Forwarded: for=192.0.2.7", "uid:1000", 1),
        ("X-Forwarded-For: 192.0.2.7", "ip:192.0.2.1", 0),
        ("X-Forwarded: 192.0.2.7", "ip:127.0.0.1", 0),
    ],
)
def test_without_keys_a_proxy_on_this_machine_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, header: str, peer: str, warnings: int
) -> None:
    open_gate = gate()
    for _ in range(2):
        open_gate.caller(request(header), "openai", peer)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warnings


def test_with_keys_a_proxy_is_none_to_warn_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = KeyFile(str(tmp_path / "keys.json"), missing_ok=True)
    keyed = Gate(Names("", (), (), ()), keys)
    headers = (f"Authorization: Bearer {keys.add('ann')}", "X-Forwarded-For: 192.0.2.7")
    assert not keyed.caller(request(*headers), "openai", "ip:127.0.0.1").operator
    assert caplog.records == []


def test_a_caller_has_what_its_key_grants_as_long_as_it_does(tmp_path: Path) -> None:
    keys = KeyFile(str(tmp_path / "keys.json"), missing_ok=True)
    keyed = Gate(Names("", (), (), ()), keys)
    ann = keys.add("ann", group="operator", tokens_per_minute=5, models=["small"])
    caller = keyed.caller(request(f"Authorization: Bearer {ann}"), "openai", "ip:192.0.2.1")
    limits = RateLimits(None, 5)
    assert caller == Caller("openai", "ip:192.0.2.1", "ann", limits=limits, models=("small",), operator=True)
    assert [caller.may_use(*names) for names in (("small",), ("large",), ("large", ["small"]))] == [True, False, True]
    traced = replace(caller, traceparent="00-1")
    assert keyed.renewed(traced) == traced
    assert keyed.is_still_operator(caller)
    keys.revoke("ann")
    assert keyed.renewed(caller) is None
    assert not keyed.is_still_operator(caller)
    keys.add("ann", group="background")
    renewed = Caller("openai", "ip:192.0.2.1", "ann", Priority.BACKGROUND, RateLimits(None, None), traceparent="00-1")
    assert keyed.renewed(traced) == renewed
    assert renewed.may_use("anything")
    assert not keyed.is_still_operator(caller)


def test_a_client_may_show_its_key_later(tmp_path: Path) -> None:
    keys = KeyFile(str(tmp_path / "keys.json"), missing_ok=True)
    keyed = Gate(Names("", (), (), ()), keys)
    ann = keys.add("ann", models=["small"])
    unproven = Caller("generate", "ip:192.0.2.1", traceparent="00-1")
    assert keyed.renewed(unproven) is None
    assert keyed.with_key(unproven, "wrong") is None
    proven = keyed.with_key(unproven, ann)
    assert proven == replace(unproven, key="ann", limits=RateLimits(None, None), models=("small",))
    assert gate().with_key(unproven, ann) is None
    assert gate().renewed(unproven) == unproven


def test_a_client_of_1_0_may_name_no_host() -> None:
    codec = HttpCodec(1024, 0)
    codec.receive_data(b"GET / HTTP/1.0\r\nOrigin: http://evil.example\r\n\r\n")
    asked = codec.next_request()
    assert asked is not None
    assert status(asked) == 403
    assert status(asked, gate("http://evil.example")) == 200


@pytest.mark.parametrize(
    ("origin", "host", "expected"),
    [
        ("http://127.0.0.1", "127.0.0.1", 200),
        ("http://localhost:3000", "127.0.0.1", 200),
        ("https://[::1]:5", "127.0.0.1", 200),
        ("tauri://localhost", "127.0.0.1", 200),
        ("HTTP://LOCALHOST", "127.0.0.1", 200),
        ("http://box.example", "box.example", 200),
        ("http://box.example", "box.example:80", 200),
        ("http://box.example", "box.example:", 200),
        ("https://box.example:8443", "BOX.example:8443", 200),
        (APP, "127.0.0.1", 200),
        ("http://box.example", "box.example:81", 403),
        ("https://box.example", "box.example:80", 403),
        ("http://evil.example", "127.0.0.1", 403),
        ("http://localhost.evil.example", "127.0.0.1", 403),
        ("http://evil.example\\@127.0.0.1", "127.0.0.1", 403),
        ("http://evil.example@127.0.0.1", "127.0.0.1", 403),
        ("http://evil.example#@127.0.0.1", "127.0.0.1", 403),
        ("http://evil.example?.localhost", "127.0.0.1", 403),
        ("http://[::1].evil.example", "127.0.0.1", 403),
        ("http://[::1]evil.example", "127.0.0.1", 403),
        ("http://127.0.0.1 http://evil.example", "127.0.0.1", 403),
        ("http://127.0.0.1, http://evil.example", "127.0.0.1", 403),
        ("http://127.0.0.1/", "127.0.0.1", 403),
        ("http://127.0.0.1:x", "127.0.0.1", 403),
        ("//127.0.0.1", "127.0.0.1", 403),
        ("127.0.0.1", "127.0.0.1", 403),
        ("127.0.0.1:8080", "127.0.0.1:8080", 403),
        ("http:127.0.0.1", "127.0.0.1", 403),
        ("http://", "127.0.0.1", 403),
        ("null", "127.0.0.1", 403),
        ("", "127.0.0.1", 403),
    ],
)
def test_pages_that_may_call(origin: str, host: str, expected: int) -> None:
    assert status(request(f"Origin: {origin}", host=host), gate(APP)) == expected


def test_what_is_listed_may_call_by_its_text_alone() -> None:
    assert status(request("Origin: null"), gate("null")) == 200
    assert status(request("Origin: file://"), gate("file://")) == 200
    assert status(request("Origin: anything"), gate("*")) == 200


@pytest.mark.parametrize("second", ["http://evil.example", "http://127.0.0.1", "null", ""])
@pytest.mark.parametrize("allowed", [APP, "*"])
def test_of_two_origins_none_is_judged(second: str, allowed: str) -> None:
    two = request("Origin: http://127.0.0.1", f"Origin: {second}")
    assert status(two, gate(allowed)) == 400
    assert gate(cors_origin=("*",)).cors_headers(two) == []
    assert gate(cors_origin=("*",)).preflight_headers(two) == []


STAINLESS = "x-stainless-lang,x-stainless-os,x-stainless-retry-count,x-stainless-runtime-version,x-stainless-timeout"


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize(
    "wanted",
    [
        "content-type",
        f"authorization,content-type,{STAINLESS}",
        f"anthropic-dangerous-direct-browser-access,anthropic-version,content-type,x-api-key,{STAINLESS}",
    ],
)
def test_clients_in_a_browser_may_send_their_headers_and_read_all_of_the_reply(method: str, wanted: str) -> None:
    preflight = request(
        f"Origin: {APP}", f"Access-Control-Request-Method: {method}", f"Access-Control-Request-Headers: {wanted}"
    )
    at = gate(cors_origin=(APP,))
    assert status(preflight, at) == 200
    answered = dict(at.preflight_headers(preflight))
    assert method in answered["Access-Control-Allow-Methods"].split(", ")
    assert answered["Access-Control-Allow-Headers"] == wanted
    assert dict(at.cors_headers(preflight)) == {
        "Access-Control-Allow-Origin": APP,
        "Access-Control-Expose-Headers": "*",
        "Vary": "Origin",
    }
    assert gate().preflight_headers(preflight) == []


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("http://h", ("http", "h", None)),
        ("chrome-extension://abcdef", ("chrome-extension", "abcdef", None)),
        ("https://[::FFFF:1.2.3.4]:443", ("https", "::ffff:102:304", 443)),
        ("http://h.:80", ("http", "h", 80)),
    ],
)
def test_the_parts_of_an_origin(text: str, parts: tuple[str, str, int | None]) -> None:
    assert parse_origin(text) == parts


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        (("Authorization: Bearer {ann}",), "ann"),
        (("X-API-Key: {ann}",), "ann"),
        (("Sec-WebSocket-Protocol: umaserve, bearer.{ann}",), "ann"),
        (("x-api-key: {bob}", "Authorization: Bearer {ann}"), "ann"),
        (("Sec-WebSocket-Protocol: bearer.{bob}", "x-api-key: {ann}"), "ann"),
        (("Authorization: Basic dTpw", "x-api-key: {ann}"), "ann"),
        (("x-api-key: ", "Sec-WebSocket-Protocol: bearer.{ann}"), "ann"),
        (("Authorization: Bearer wrong", "x-api-key: {ann}"), None),
        (("x-api-key: wrong", "Sec-WebSocket-Protocol: bearer.{ann}"), None),
        (("x-api-key: Bearer {ann}",), None),
        (("Authorization: {ann}",), None),
        ((), None),
    ],
)
def test_the_headers_that_a_key_may_come_in(tmp_path: Path, headers: tuple[str, ...], name: str | None) -> None:
    keys = KeyFile(str(tmp_path / "keys.json"), missing_ok=True)
    known = {owner: keys.add(owner) for owner in ("ann", "bob")}
    guarded = Gate(Names("", (), (), ()), keys)
    asked = request(*(header.format(**known) for header in headers))
    if name is not None:
        assert guarded.caller(asked, "openai", "ip:127.0.0.1").key == name
        return
    with pytest.raises(RequestError) as raised:
        guarded.caller(asked, "openai", "ip:127.0.0.1")
    assert raised.value.message.startswith(
        "Authorization: expected an API key (Authorization: Bearer …, or x-api-key: …)"
    )


BYTES = "Content-Type: application/octet-stream"
FORM = "Content-Type: application/x-www-form-urlencoded"


@pytest.mark.parametrize("headers", [("Content-Type: Application/JSON; charset=utf-8",), (BYTES,), (FORM,), ()])
def test_json_is_taken_also_by_the_types_of_clients_that_have_none(headers: tuple[str, ...]) -> None:
    check_json(request(*headers))


@pytest.mark.parametrize(
    "headers",
    [
        ("Content-Type: text/plain",),
        (FORM, f"Origin: {APP}"),
        (FORM, "Sec-Fetch-Site: cross-site"),
        (f"Origin: {APP}",),
        ("Sec-Fetch-Site: cross-site",),
    ],
)
def test_what_pages_send_without_asking_is_refused(headers: tuple[str, ...]) -> None:
    with pytest.raises(Refusal, match="Content-Type: expected application/json"):
        check_json(request(*headers))
