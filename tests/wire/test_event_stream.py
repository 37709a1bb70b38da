"""Server-sent events in passing (HTML standard, section 9.2)."""

from __future__ import annotations

import itertools

import pytest

from umaserve.wire.event_stream import EventData, begins_event, end_of_events, has_only_comments, is_event_stream


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


@pytest.mark.parametrize("text", [":\n\n", "\n: ping\r\n\r\n:\r\n\r\n", ":\r\r"])
def test_comments_say_nothing(text: str) -> None:
    assert has_only_comments(text)


@pytest.mark.parametrize("text", ["", ":", ":\n", ":\n\n:", "data: 1\n\n", ":\n\ndata: 1\n\n", "event: ping\n\n"])
def test_all_else_says_something(text: str) -> None:
    assert not has_only_comments(text)


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


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_the_data_of_events_is_found_however_they_are_cut(end: str, size: int) -> None:
    lines = [
        "event: x",
        "data: a",
        "data:b\u2028",
        ": ping",
        "id: 1",
        "",
        "",
        "data:  c ",
        "",
        ": no data",
        "",
        "data: d",
    ]
    text = end.join(lines)
    events = EventData(100)
    found = [data for start in range(0, len(text), size) for data in events.feed(text[start : start + size])]
    assert found == ["a\nb\u2028", " c "], "the last one is not whole"


@pytest.mark.parametrize("line", ["data: " + "x" * 20, "x" * 30, "data: x\n" * 4])
def test_an_event_that_is_too_long_is_not_held(line: str) -> None:
    events = EventData(20)
    with pytest.raises(ValueError, match="at most 20 characters"):
        [events.feed(one) for one in line]


def test_many_events_are_not_one_long_one() -> None:
    events = EventData(20)
    assert sum(len(events.feed(one)) for _ in range(50) for one in "data: x\n\n: ping\n\n") == 50
