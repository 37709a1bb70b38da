"""Grammars of requests, all as Lark for ``Constraint``: JSON schemas, GBNF, regular expressions, tools."""

from __future__ import annotations

import json
import re

from llguidance import regex_to_lark

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Grammar, Syntax
from umaserve.engine.grammar import gbnf, json_schema
from umaserve.engine.grammar.rules import GrammarError, check_alternatives

MAX_RULES = 300
"""Most lines of rules in a client's Lark: llguidance takes minutes for thousands of terminals one in another."""

NESTED = (Syntax.GBNF, Syntax.LARK)
"""Syntaxes in which rules may contain themselves with nothing around."""

_TEXTS = re.compile(r'"(?:[^"\\\n]|\\.)*"i?|/(?:[^/\\\n]|\\.)+/[imslux]*')
_ALTERNATIVE = re.compile(r"[:|(]\s*[a-z_%]")
"""Beginning of an alternative with a rule or a schema, once the texts are left out."""
_RULE = re.compile(r"^\s*[\w?!]", re.MULTILINE)
_EMBEDDED = re.compile(r"%json\s*")


def lark_of(grammar: Grammar) -> str:
    """Lark for the texts of ``grammar``; raises ``RequestError``."""
    return _WAYS[grammar.syntax](grammar.text, grammar.field)


def of_schema(schema: str, field: str = "json_schema") -> str:
    """Lark for the JSON texts that ``schema`` allows; raises ``RequestError``."""
    return f"start: %json {json_schema.enforced(schema, field)}\n"


def of_gbnf(grammar: str, field: str = "grammar") -> str:
    """Lark for the texts of a GBNF grammar; raises ``RequestError``."""
    try:
        return gbnf.to_lark(grammar)
    except GrammarError as error:
        raise RequestError(Fault.BAD_REQUEST, field, f"expected {error}") from None


def of_regex(pattern: str, field: str = "regex") -> str:
    """Lark for the texts that ``pattern`` matches as a whole: the syntax of Rust's regex crate, without look-around.
    Errors of the pattern are found by ``Constraint``."""
    return f"start: /{regex_to_lark(pattern, '')}/\n"


def of_lark(grammar: str, field: str = "grammar") -> str:
    """A client's Lark, made safe: the schemas in it are reduced. Raises ``RequestError``."""
    if "%llguidance" in grammar:
        raise RequestError(Fault.BAD_REQUEST, field, "expected Lark without %llguidance")
    parts, at = [], 0
    for begin in _EMBEDDED.finditer(grammar):
        if begin.start() < at:
            continue
        try:
            _schema, end = json.JSONDecoder().raw_decode(grammar, begin.end())
        except (ValueError, RecursionError) as error:
            raise RequestError(Fault.BAD_REQUEST, field, f"expected a JSON schema after %json, but: {error}") from None
        parts += [grammar[at : begin.end()], json_schema.enforced(grammar[begin.end() : end], f"{field}.%json")]
        at = end
    lark = "".join([*parts, grammar[at:]])
    if (rules := len(_RULE.findall(lark))) > MAX_RULES:
        raise RequestError(Fault.BAD_REQUEST, field, f"expected at most {MAX_RULES} lines of rules, got {rules}")
    rules_without_texts = re.split(r"\n(?!\s*\|)", _TEXTS.sub("", lark))
    try:
        check_alternatives(len(_ALTERNATIVE.findall(rule)) for rule in rules_without_texts)
    except GrammarError as error:
        raise RequestError(Fault.BAD_REQUEST, field, f"expected {error}") from None
    return lark


_WAYS = {Syntax.JSON_SCHEMA: of_schema, Syntax.GBNF: of_gbnf, Syntax.REGEX: of_regex, Syntax.LARK: of_lark}
