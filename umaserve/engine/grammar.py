"""Grammars for clients: JSON schemas and tools turned into GBNF, and the limits that keep llama.cpp's parser safe."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from typing import Any

from llama_cpp import llama_grammar

from umaserve.engine import gbnf
from umaserve.errors import Fault, RequestError
from umaserve.messages import TOOL_CALL_CLOSE, TOOL_CALL_OPEN, Tool

log = logging.getLogger(__name__)

MAX_REPEAT = 1000
MAX_SCHEMA_DEPTH = 64
MAX_TOOLS_GRAMMAR = 256 * 1024
"""Characters of all tools' grammars together: it takes some seconds to make a megabyte of it."""
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")
_PATTERN_REPEAT = re.compile(r"\{\s*([0-9]*)\s*(?:,\s*([0-9]*)\s*)?\}")


def check_gbnf(grammar: str, field: str = "grammar") -> str:
    """``grammar`` itself, if llama.cpp can take it safely; or ``RequestError``."""
    try:
        gbnf.check(grammar)
    except gbnf.GbnfError as error:
        raise RequestError(Fault.BAD_REQUEST, f"{field}: expected {error}") from None
    return grammar


def gbnf_of_schema(schema_text: str, field: str = "json_schema") -> str:
    """GBNF for a JSON schema; raises ``RequestError`` for one that is too large, remote or not understood."""
    try:
        schema = json.loads(schema_text)
    except (ValueError, RecursionError) as error:
        raise _refused(field, "a JSON schema", str(error)) from None
    _check_schema(schema, field, 0)
    try:
        grammar: str = llama_grammar.json_schema_to_gbnf(schema_text)
    except Exception as error:  # The converter raises whatever its code runs into on a schema it doesn't know.
        log.debug("a schema was refused", exc_info=error)
        raise _refused(field, "a schema that can be made a grammar", f"{type(error).__name__}: {error}") from None
    return check_gbnf(grammar, field)


def gbnf_of_tools(tools: Sequence[Tool], *, must_call: bool) -> str:
    """GBNF for calls of ``tools``; raises ``RequestError``.

    With ``must_call`` it is for a whole answer of exactly one call. Otherwise it is for what follows the first
    ``TOOL_CALL_OPEN``: the rest of that call, and any more calls.
    """
    rules, calls = [], []
    for index, tool in enumerate(tools):
        prefix = f"tool-{index}-"
        # A schema of its own for each, since references in it count from its own root.
        rules.append(gbnf.prefixed(gbnf_of_schema(tool.parameters, f"tools[{index}].parameters"), prefix))
        calls.append(f"{_literal(json.dumps(tool.name))} {prefix}rest")
        rules.append(f'{prefix}rest ::= space "," space "\\"arguments\\"" space ":" space {prefix}root\n')
        if sum(map(len, rules)) > MAX_TOOLS_GRAMMAR:
            raise _refused("tools", f"at most {MAX_TOOLS_GRAMMAR} characters once made a grammar", "more")
    tag, end = _literal(TOOL_CALL_OPEN), _literal(TOOL_CALL_CLOSE)
    root = f"{tag} call" if must_call else f"call (ws {tag} call)* ws"
    grammar = (
        f"root ::= {root}\n"
        f'call ::= ws "{{" space "\\"name\\"" space ":" space name space "}}" ws {end}\n'
        f"name ::= {' | '.join(calls)}\n"
        # Bounded, since a small model may go on with white space for ever.
        "ws ::= [ \\n]{0,2}\n"
        'space ::= " "?\n'
    )
    return check_gbnf(grammar + "".join(rules), "tools")


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


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
