"""Grammars of requests: JSON schemas and tools converted to GBNF, and the checks that keep llama.cpp safe."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Collection, Mapping, Sequence

from llama_cpp import llama_grammar

from umaserve.engine import gbnf, gbnf_ways, json_schema
from umaserve.engine.literals import literal, one_of
from umaserve.engine.schema_keywords import Schema, refused
from umaserve.errors import Fault, RequestError
from umaserve.messages import TOOL_CALL_CLOSE, TOOL_CALL_OPEN, Tool

log = logging.getLogger(__name__)

MAX_TOOLS_GRAMMAR = 256 * 1024
"""Characters of all tools' grammars together: making a megabyte takes some seconds."""
_CHARACTER = r'[^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})'
"""A character of a JSON string (RFC 8259 section 7)."""

_WHOLE_NUMBER = '"0" | [1-9] [0-9]{0,15}'
"""Unambiguous; llama-cpp-python's own rule reads a single digit in two ways."""

REMEMBERED = 32
"""Cached conversions: programs send the same schema again and again, and converting a large one takes a second."""


def check_gbnf(grammar: str, field: str = "grammar") -> str:
    """Returns ``grammar`` if it is safe for llama.cpp; raises ``RequestError`` otherwise."""
    try:
        gbnf_ways.check(gbnf.check(grammar))
    except gbnf.GbnfError as error:
        raise RequestError(Fault.BAD_REQUEST, field, f"expected {error}") from None
    return grammar


@functools.lru_cache(maxsize=REMEMBERED)
def gbnf_of_schema(schema_text: str, field: str = "json_schema") -> str:
    """GBNF for a JSON schema. Raises ``RequestError``, which names ``field``, for one that can't be enforced."""
    try:
        schema = json.loads(schema_text)
    except (ValueError, RecursionError) as error:
        raise refused(field, "a JSON schema", str(error)) from None
    root, references = json_schema.reduce(schema, field)
    try:
        grammar = _Converter(references).grammar(root)
    except Exception as error:  # On patterns that it doesn't support, the converter raises arbitrary errors.
        log.debug("a schema was refused", exc_info=error)
        expected = "a schema that can be made a grammar, with patterns of groups, classes and repetitions alone"
        raise RequestError(Fault.BAD_REQUEST, field, f"expected {expected}") from None
    return check_gbnf(grammar, field)


def gbnf_of_tools(tools: Sequence[Tool], *, must_call: bool) -> str:
    """GBNF for calls of ``tools``; raises ``RequestError``.

    With ``must_call``, for a whole answer of exactly one call. Otherwise, for the text after the first
    ``TOOL_CALL_OPEN``: the rest of that call, and any further calls.
    """
    rules, calls = [], []
    for index, tool in enumerate(tools):
        prefix = f"tool-{index}-"
        # Each schema is converted by itself, since its references are relative to its root.
        rules.append(gbnf.prefixed(gbnf_of_schema(tool.parameters, f"tools[{index}].function.parameters"), prefix))
        calls.append(f"{literal(json.dumps(tool.name))} call-{index}")
        rules.append(f'call-{index} ::= space "," space "\\"arguments\\"" space ":" space {prefix}root\n')
        if sum(map(len, rules)) > MAX_TOOLS_GRAMMAR:
            raise refused("tools", f"at most {MAX_TOOLS_GRAMMAR} characters once made a grammar", "more")
    tag, end = literal(TOOL_CALL_OPEN), literal(TOOL_CALL_CLOSE)
    root = f"{tag} call" if must_call else f"call (ws {tag} call)* ws"
    grammar = (
        f"root ::= {root}\n"
        f'call ::= ws "{{" space "\\"name\\"" space ":" space name space "}}" ws {end}\n'
        f"name ::= {' | '.join(calls)}\n"
        # Bounded, since a small model may generate white space without end.
        "ws ::= [ \\n]{0,2}\n"
        'space ::= " "?\n'
    )
    return check_gbnf(grammar + "".join(rules), "tools")


# mypy doesn't read llama_cpp, so it doesn't know the base class.
class _Converter(llama_grammar.SchemaConverter):  # type: ignore[misc]
    """llama-cpp-python's converter, for schemas reduced by ``json_schema``. The overridden methods confuse names of
    rules, or allow text that isn't JSON."""

    def __init__(self, references: Mapping[str, Schema]) -> None:
        super().__init__(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
        self._refs = references
        self._named: dict[str, str] = {}

    def grammar(self, root: Schema) -> str:
        self.visit(root, "")
        better = {"char": _CHARACTER, "dot": _CHARACTER, "integral-part": _WHOLE_NUMBER}
        self._rules |= {name: better[name] for name in better.keys() & self._rules.keys()}
        text: str = self.format_grammar()
        return text

    def visit(self, schema: Schema, name: str) -> str:
        # The base class renames rules like this later, when a new name could replace another rule.
        name = llama_grammar.INVALID_RULE_CHARS_RE.sub("-", name)
        if name in llama_grammar.RESERVED_NAMES:
            name += "-"
        rule: str
        match schema:
            case {"gbnf": text}:
                rule = self._add_rule(name or "root", f"({text}) space")
            case {"enum": values}:
                rule = self._add_rule(name or "root", one_of(map(_json, values)))
            case {"type": "array", "items": items, "minItems": low}:
                item = self.visit(items, f"{name and name + '-'}item")
                inner = _separated(item, low, schema.get("maxItems"))
                rule = self._add_rule(name or "root", f'"[" space {inner} "]" space')
            case {"type": "string", "minLength": _} | {"type": "string", "maxLength": _}:
                character = self._add_primitive("char", llama_grammar.PRIMITIVE_RULES["char"])
                times = f"{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}"
                rule = self._add_rule(name or "root", f'"\\"" {character}{times} "\\"" space')
            case _:
                rule = super().visit(schema, name)
        return rule

    def _resolve_ref(self, ref: str) -> str:
        if ref not in self._named:
            # A placeholder reserves the name of the rule, since the schema may refer to itself.
            name = self._named[ref] = self._add_rule("ref", ref)
            self._rules[name] = self.visit(self._refs[ref], f"{name}-is")
        return self._named[ref]

    def _build_object_rule(
        self, properties: Sequence[tuple[str, Schema]], required: Collection[str], name: str, additional: Schema | None
    ) -> str:
        """Required properties first, then optional ones, in order, then additional ones."""
        prefix = name and f"{name}-"
        pairs: dict[str, str] = {}
        for key, schema in properties:
            value = self.visit(schema, f"{prefix}{key}" or "-")
            pairs[key] = self._add_rule(f"{prefix}{key}-kv", f'{literal(_json(key))} space ":" space {value}')
        beginnings: list[str] = []
        rest = ""
        if additional is not None:
            key_rule = self._add_primitive("string", llama_grammar.PRIMITIVE_RULES["string"])
            value = self.visit(additional, f"{prefix}additional-value")
            pair = self._add_rule(f"{prefix}additional-kv", f'{key_rule} ":" space {value}')
            rest = self._add_rule(f"{prefix}additional-rest", f'("," space {pair})*')
            beginnings.append(f"{pair} {rest}")
        for key in reversed([key for key in pairs if key not in required]):
            beginnings.insert(0, f"{pairs[key]} {rest}")
            rest = self._add_rule(f"{prefix}{key}-rest", f'("," space {pairs[key]})? {rest}')
        inner = f"({' | '.join(beginnings)})?" if beginnings else ""
        if required:
            inner = ' "," space '.join(pairs[key] for key in pairs if key in required) + f" {rest}"
        return f'"{{" space {inner} "}}" space'


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _separated(item: str, low: int, high: int | None) -> str:
    """``item`` from ``low`` to ``high`` times (``None``: any number), separated by commas."""
    if high == 0:
        return ""
    more = "" if high is None else high - 1
    some = f'{item} ("," space {item}){{{max(0, low - 1)},{more}}}'
    return some if low else f"({some})?"
