"""Taking long texts out of JSON never changes what it says, nor what is said to be wrong with it."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from umaserve.core.errors import RequestError
from umaserve.wire import fields, long_texts
from umaserve.wire.fields import parse_json

LONG = 8
_texts = st.one_of(
    st.text(max_size=4),
    st.text(min_size=LONG, max_size=40),
    st.text(alphabet='ab\\"\n\x00é,:', min_size=LONG, max_size=40),
)
_values = st.recursive(
    st.one_of(st.none(), st.integers(-9, 9), _texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_texts, inner, max_size=4)),
    max_leaves=20,
)


@pytest.fixture(autouse=True)
def all_is_large_and_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "LONG", LONG)
    monkeypatch.setattr(fields, "_check_values", lambda *_: None)


def outcome(payload: bytes, max_values: int | None) -> Any:
    try:
        return parse_json(payload, max_values)
    except RequestError as error:
        return error.message


def taken(payload: bytes) -> list[str]:
    return [long_texts.as_string(text) for text in long_texts.take_out(payload)[1].values()]


@given(value=_values, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_json_says_the_same_without_its_long_texts(value: Any, ascii_only: bool, indent: int | None) -> None:
    payload = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert parse_json(payload, max_values=0) == value


@given(
    value=_values,
    cut=st.floats(0, 1),
    put=st.sampled_from([b"", b'"', b"\\", b",", b"}", b"\x1f", b"\x7f", b"\xff", b"\xed\xa0\x80", b'" "']),
)
@example(value=["a" * 9, "b" * 9], cut=0.7, put=b"\xff")
@example(value=["a" * 9], cut=0.5, put=b"\x1f")
@example(value=["a" * 9], cut=1, put=b",")
def test_what_is_wrong_with_it_is_said_of_the_whole(value: Any, cut: float, put: bytes) -> None:
    payload = json.dumps(value, ensure_ascii=False).encode()
    at = round(cut * len(payload))
    broken = payload[:at] + put + payload[at:]
    assert outcome(broken, 0) == outcome(broken, None)


@given(st.lists(st.sampled_from([b'"', b"\\", b"a" * LONG, b":", b",", b"[", b"]", b"\n", b"\xc3"]), max_size=30))
def test_whatever_comes_is_taken_for_the_same(parts: list[bytes]) -> None:
    payload = b"".join(parts)
    assert outcome(payload, 0) == outcome(payload, None)


def test_all_long_texts_are_taken_out_but_names_and_those_with_escapes() -> None:
    payload = b'{"films": ["%b", "%b"], "name of some length" : "short", "said": "say \\"hello\\" to"}'
    assert taken(payload % (b"a" * LONG, "é".encode() * LONG)) == ["a" * LONG]
    assert taken(b'["short", "\\\\", "' + b"a" * LONG + b'"]') == ["a" * LONG]


@pytest.mark.parametrize(
    ("before", "behind"), [(b'"a",' * 5000, b""), (b"", b'"a",' * 5000), (b" " * 200_000, b""), (b"", b"[" * 200_000)]
)
def test_where_there_is_much_else_they_stay(before: bytes, behind: bytes) -> None:
    assert taken(before + b'"' + b"a" * LONG + b'"' + behind) == []


@pytest.mark.parametrize(
    "payload",
    [b'"' + b"\\" * 10**6, b'\\"' * 10**6, b'"\\""' * 10**6, b'"' * 10**6, b'"' + b"a" * 10**6],
    ids=lambda payload: repr(payload[:6]),
)
def test_nothing_is_taken_out_of_nonsense(payload: bytes) -> None:
    assert taken(payload) == []


def test_long_media_lie_where_they_came_and_other_texts_are_strings() -> None:
    text = "a" * LONG
    content = [{"data": text, "image_url": {"url": text}, "text": text}]
    read = parse_json(orjson.dumps({"messages": [{"content": content}], "data": text}), max_values=0)
    (part,) = read["messages"][0]["content"]
    kinds = [type(value) for value in (part["data"], part["image_url"]["url"], part["text"], read["data"])]
    assert kinds == [memoryview, memoryview, str, str]
    assert fields.string(part["data"], "data") == fields.media_data(part["text"], "text") == read["data"] == text
    assert fields.media_data(part["data"], "data") == text.encode()
    with pytest.raises(RequestError, match="data: expected an object, got a string"):
        fields.Fields.of(part["data"], "data")


def test_a_text_cannot_pass_for_another() -> None:
    """Not even one that has seen how the marks of an earlier message looked."""
    rest, texts = long_texts.take_out(b'["' + b"a" * LONG + b'"]')
    (mark,) = texts
    again, others = long_texts.take_out(b'["' + mark.encode() + b'", "short"]')
    assert long_texts.put_back(orjson.loads(again), others) == [mark, "short"]
    assert orjson.loads(rest) == [mark]
