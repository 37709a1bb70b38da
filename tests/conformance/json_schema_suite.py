"""The required tests of JSON-Schema-Test-Suite: the grammar of a schema lets valid values through, and no others.

``CONFORMANCE_SCHEMAS`` names the folder of the tests, such as ``tests/draft2020-12``. A schema that umaserve refuses as
``response_format`` is left out, with its error: it would not be followed by halves.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from grammars import allows

from umaserve.core.errors import RequestError
from umaserve.engine.grammar.grammar import of_schema


def cases() -> Iterator[Any]:
    for path in sorted(Path(os.environ["CONFORMANCE_SCHEMAS"]).glob("*.json")):
        for group in json.loads(path.read_text()):
            for test in group["tests"]:
                name = f"{path.stem}: {group['description']}: {test['description']}"
                value = json.dumps(test["data"], ensure_ascii=False)
                yield pytest.param(json.dumps(group["schema"]), value, test["valid"], id=name)


@functools.cache
def compiled(schema: str) -> Callable[[str], bool] | str:
    """Whether a text matches ``schema``; for one that is refused, the reason."""
    try:
        return allows(of_schema(schema), "json_schema")
    except RequestError as refusal:
        return refusal.message


@pytest.mark.parametrize(("schema", "value", "is_valid"), cases())
def test_schema(schema: str, value: str, is_valid: bool) -> None:
    matches = compiled(schema)
    if isinstance(matches, str):
        pytest.skip(matches)
    assert matches(value) is is_valid, value
