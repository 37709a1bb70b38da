"""Clients' JSON: how much of it is parsed."""

from __future__ import annotations

import orjson
import pytest

from umaserve.core.errors import Fault, RequestError
from umaserve.wire.fields import MAX_KEYS, MAX_VALUES, parse_json


def body(n_keys: int, colon: str = ":") -> bytes:
    """An object with so many keys, larger than what is parsed without being counted."""
    keys = ",".join(f'"{i}"{colon}0' for i in range(n_keys - 1))
    return f'{{{keys},"rest"{colon}"{"." * MAX_VALUES}"}}'.encode()


@pytest.mark.parametrize("colon", [":", " \n\t\r :"])
def test_so_many_keys_are_parsed_and_no_more(colon: str) -> None:
    assert len(parse_json(body(MAX_KEYS, colon), MAX_VALUES)) == MAX_KEYS
    with pytest.raises(RequestError) as refused:
        parse_json(body(MAX_KEYS + 1, colon), MAX_VALUES)
    assert (refused.value.fault, refused.value.message) == (
        Fault.BAD_REQUEST,
        f"payload: expected at most {MAX_KEYS} keys, got more",
    )


def test_colons_in_texts_are_no_keys() -> None:
    text = "12:34:56 " * MAX_KEYS + "\n"
    assert parse_json(orjson.dumps({"prompt": text}), MAX_VALUES) == {"prompt": text}
