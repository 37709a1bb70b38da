"""The required tests of JSON-Schema-Test-Suite, or values for schemas of JSONSchemaBench: the grammar of a schema lets
valid values through, and no others.

``CONFORMANCE_SCHEMAS`` names the folder of the tests, such as ``tests/draft2020-12`` or ``maskbench/data``. A schema
that umaserve refuses as ``response_format`` is left out, with its error: it would not be followed by halves.
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

SOURCES = (
    *("Github_trivial", "Github_easy", "Github_medium", "Github_hard", "Github_ultra"),
    *("Glaiveai2K", "JsonSchemaStore", "Kubernetes", "Snowplow", "WashingtonPost"),
)
"""Where the schemas of JSONSchemaBench come from, by the names of its files."""
EACH = 30
"""Schemas of each source, evenly chosen."""


def files() -> Iterator[tuple[str, list[Any]]]:
    """The groups of tests in each file, with the part that they belong to."""
    paths = sorted(Path(os.environ["CONFORMANCE_SCHEMAS"]).glob("*.json"))
    for source in SOURCES:
        of_source = [path for path in paths if path.stem.startswith(f"{source}---")]
        for path in of_source[:: max(1, len(of_source) // EACH)][:EACH]:
            group = json.loads(path.read_text())
            yield source, [{**group, "description": path.stem.partition("---")[2]}]
    if not any("---" in path.stem for path in paths):
        yield from ((path.stem, json.loads(path.read_text())) for path in paths)


def cases() -> Iterator[Any]:
    for part, groups in files():
        for group in groups:
            for number, test in enumerate(group["tests"], 1):
                name = f"{part}: {group['description']}: {test['description']}"
                value = json.dumps(test["data"], ensure_ascii=False)
                numbered = f"{name} {number}" if part in SOURCES else name
                yield pytest.param(json.dumps(group["schema"]), value, test["valid"], id=numbered)


@functools.cache
def compiled(schema: str) -> Callable[[str], bool] | str:
    """Whether a text matches ``schema``; for one that is refused, the reason."""
    try:
        return allows(of_schema(schema), "json_schema")
    except RequestError as refusal:
        return refusal.message


@pytest.mark.parametrize(("schema", "value", "is_valid"), list(cases()))
def test_schema(schema: str, value: str, is_valid: bool) -> None:
    matches = compiled(schema)
    if isinstance(matches, str):
        pytest.skip(matches)
    assert matches(value) is is_valid, value
