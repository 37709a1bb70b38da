"""What an intermediary passes on of a head (RFC 9110, section 7.6)."""

from __future__ import annotations

import pytest

from umaserve.wire.forwarding import end_to_end, joined, via


def test_fields_of_one_connection_stay_there() -> None:
    names = ("Connection", "Keep-Alive", "proxy-connection", "TE", "Trailer", "Transfer-Encoding", "Upgrade")
    headers = [("X-Kept", "1"), *((name, "x") for name in names), ("Content-Length", "3"), ("x-kept", "2")]
    assert end_to_end(headers) == [("X-Kept", "1"), ("x-kept", "2")]


@pytest.mark.parametrize(
    "connection",
    [
        [("connection", "close, X-Hop,x-other")],
        [("Connection", "x-hop"), ("x-a", "a"), ("CONNECTION", " ,\tX-OTHER , ")],
    ],
)
def test_what_connection_names_stays_there(connection: list[tuple[str, str]]) -> None:
    headers = [("X-Hop", "1"), ("x-a", "a"), *connection, ("x-other", "2"), ("x-hop-not", "3")]
    kept = end_to_end(headers)
    assert [header for header in kept if header != ("x-a", "a")] == [("x-hop-not", "3")]
    assert ("x-a", "a") in kept


def test_via_is_added_to() -> None:
    assert via("1.0", None) == "1.0 umaserve"
    assert via("1.1", "1.0 fred, 1.1 nowhere.com (Apache/1.1)") == (
        "1.0 fred, 1.1 nowhere.com (Apache/1.1), 1.1 umaserve"
    )


def test_repeated_fields_are_one_list_but_for_cookies() -> None:
    fields = [("a", "1"), ("set-cookie", "s=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT"), ("a", "2, 3"), ("b", "")]
    cookies = [("cookie", "x=1"), ("set-cookie", "t=2"), ("cookie", "y=2; z=3"), ("set-cookie", "u=3")]
    assert joined([*fields, *cookies]) == {
        "a": "1, 2, 3",
        "set-cookie": "s=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT",
        "b": "",
        "cookie": "x=1; y=2; z=3",
    }
