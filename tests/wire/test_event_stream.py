"""Server-sent events in passing (HTML standard, section 9.2)."""

from __future__ import annotations

import itertools

import pytest

from umaserve.wire.event_stream import begins_event, end_of_events, is_event_stream


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"content-type": "text/event-stream"}, True),
        ({"x": "y", "Content-Type": " Text/Event-Stream ; charset=utf-8"}, True),
        ({"content-type": "application/json"}, False),
        ({}, False),
    ],
)
def test_by_its_headers(headers: dict[str, str], expected: bool) -> None:
    assert is_event_stream(headers) is expected


@pytest.mark.parametrize(
    "text", ["data: {", "data:", "event: x", "id:7", "retry: 1", ": ping", "\n\ndata:", "\ufeff\r\n:"]
)
def test_what_begins_like_an_event(text: str) -> None:
    assert begins_event(text)


@pytest.mark.parametrize("text", ["", "\n", "da", "{", '{"data:": 1}', "database: down", " data: 1", "<html>"])
def test_what_does_not(text: str) -> None:
    assert not begins_event(text)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(["\n", "\r\n", "\r"], repeat=2)))
def test_an_event_ends_with_a_blank_line(first: str, second: str) -> None:
    if (first, second) == ("\r", "\n"):
        return  # One end of a line, not two.
    whole = f"data: 1{first}{second}data: 2{first}{second}"
    assert end_of_events(whole) == len(whole)
    assert end_of_events(f"{whole}data: 3{first}") == len(whole)


def test_what_has_no_blank_line_is_no_whole_event() -> None:
    assert end_of_events("") == 0
    assert end_of_events("data: 1\r\ndata: 2\r\n") == 0
