"""Grammars from clients: JSON schemas turned into GBNF, and the limits that keep llama.cpp's parser safe."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from llama_cpp import llama_grammar

from umaserve.errors import Fault, RequestError

log = logging.getLogger(__name__)

MAX_REPEAT = 1000
MAX_NESTING = 64
MAX_GBNF_BYTES = 512 * 1024
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")
_REPEAT = re.compile(r"\{\s*([0-9]*)\s*(?:,\s*([0-9]*)\s*)?\}")


def check_gbnf(grammar: str, field: str = "grammar") -> str:
    """``grammar`` itself, if its nesting and repetitions are such that llama.cpp can expand it; or ``RequestError``.

    The parser recurses for each parenthesis and copies a repeated group for each repetition, nested ones for each of
    theirs: unchecked, a short text overflows the stack or fills the memory.
    """
    depth = deepest = 0
    for character in grammar:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    if deepest > MAX_NESTING:
        raise _refused(field, f"parentheses nested at most {MAX_NESTING} deep", f"{deepest}")
    product = 1
    for match in _REPEAT.finditer(grammar):
        # Whether groups nest is the parser's to know; the product over all bounds it.
        product *= max(1, *(int(count[:9]) for count in match.groups() if count))
        if product > MAX_REPEAT * MAX_REPEAT:
            raise _refused(field, f"repetitions that multiply to at most {MAX_REPEAT * MAX_REPEAT}", "more")
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
    if len(grammar) > MAX_GBNF_BYTES:
        raise _refused("json_schema", f"one whose grammar takes at most {MAX_GBNF_BYTES} bytes", f"{len(grammar)}")
    return grammar


def _check_schema(value: Any, path: str, depth: int) -> None:
    if depth > MAX_NESTING:
        raise _refused(path, f"at most {MAX_NESTING} levels", "more")
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_schema(item, f"{path}[{index}]", depth + 1)
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        here = f"{path}.{key[:64]}"
        if key == "$ref" and not (isinstance(item, str) and item.startswith("#")):
            raise _refused(here, 'a reference within the schema ("#/…")', str(item)[:64])
        if key in _COUNTS and not (isinstance(item, int) and 0 <= item <= MAX_REPEAT):
            raise _refused(here, f"a whole number from 0 to {MAX_REPEAT}", str(item)[:64])
        if key == "pattern" and isinstance(item, str):
            check_gbnf(item, here)
        _check_schema(item, here, depth + 1)


def _refused(field: str, expected: str, got: str) -> RequestError:
    return RequestError(Fault.BAD_REQUEST, f"{field}: expected {expected}, got {' '.join(got[:200].split())}")
