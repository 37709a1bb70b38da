"""Grammars from clients: JSON schemas turned into GBNF, and the limits that keep llama.cpp's parser safe."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from llama_cpp import llama_grammar

from umaserve.engine import gbnf
from umaserve.errors import Fault, RequestError

log = logging.getLogger(__name__)

MAX_REPEAT = 1000
MAX_SCHEMA_DEPTH = 64
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")
_PATTERN_REPEAT = re.compile(r"\{\s*([0-9]*)\s*(?:,\s*([0-9]*)\s*)?\}")


def check_gbnf(grammar: str, field: str = "grammar") -> str:
    """``grammar`` itself, if llama.cpp can take it safely; or ``RequestError``."""
    try:
        gbnf.check(grammar)
    except gbnf.GbnfError as error:
        raise RequestError(Fault.BAD_REQUEST, f"{field}: expected {error}") from None
    return grammar


def gbnf_of_schema(schema_text: str) -> str:
    """GBNF for a JSON schema; raises ``RequestError`` for one that is too large, remote or not understood."""
    schema = json.loads(schema_text)
    _check_schema(schema, "json_schema", 0)
    try:
        grammar: str = llama_grammar.json_schema_to_gbnf(schema_text)
    except Exception as error:  # The converter raises whatever its code runs into on a schema it doesn't know.
        log.debug("a schema was refused", exc_info=error)
        raise _refused(
            "json_schema", "a schema that can be made a grammar", f"{type(error).__name__}: {error}"
        ) from None
    return check_gbnf(grammar, "json_schema")


def _check_schema(value: Any, path: str, depth: int) -> None:
    if depth > MAX_SCHEMA_DEPTH:
        raise _refused(path, f"at most {MAX_SCHEMA_DEPTH} levels", "more")
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_schema(item, f"{path}[{index}]", depth + 1)
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        here = f"{path}.{key[:64]}"
        # An object here is a property that is named as the keyword is.
        if key == "$ref" and not isinstance(item, dict) and not (isinstance(item, str) and item.startswith("#")):
            raise _refused(here, 'a reference within the schema ("#/…")', str(item)[:64])
        if key in _COUNTS and not isinstance(item, dict) and not (isinstance(item, int) and 0 <= item <= MAX_REPEAT):
            raise _refused(here, f"a whole number from 0 to {MAX_REPEAT}", str(item)[:64])
        if key == "pattern" and isinstance(item, str):
            _check_pattern(item, here)
        _check_schema(item, here, depth + 1)


def _check_pattern(pattern: str, path: str) -> None:
    """The converter writes repetitions out before their result can be measured."""
    written_out = len(pattern)
    for match in _PATTERN_REPEAT.finditer(pattern):
        written_out *= max([1, *(int(count) for count in match.groups() if count)])
        if written_out > gbnf.MAX_ELEMENTS:
            raise _refused(path, f"at most {gbnf.MAX_ELEMENTS} characters once repetitions are written out", "more")


def _refused(field: str, expected: str, got: str) -> RequestError:
    return RequestError(Fault.BAD_REQUEST, f"{field}: expected {expected}, got {' '.join(got[:200].split())}")
