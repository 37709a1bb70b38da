"""Lark for tool calls in the form in which the model writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Grammar, Tool
from umaserve.core.tool_call_format import CDATA_CLOSE, CDATA_OPEN, ParameterForm, Slot, ToolForm
from umaserve.engine.grammar import bound_text, json_schema
from umaserve.engine.grammar.rules import LarkRules
from umaserve.wire.schema_types import kinds, resolved

MAX_TOOLS_BYTES = 512 * 1024
"""Most characters of all tools' grammars together: compiling a megabyte takes some seconds."""

_TAG = re.compile(r"<[^<>]*>?|\[[A-Z_]+\]")
_TERMINALS = """
WS: /[ \\t\\n]{1,24}/
ID: /[A-Za-z0-9]{9}/
INDEX: /[0-9]{1,4}/
KEY: /[A-Za-z_][A-Za-z0-9_-]{0,63}/
ANY: /(?s:.*)/
"""
_ANY = '{"type": ["object", "array", "string", "number", "boolean", "null"]}'
_SLOTS = {Slot.ID: "ID", Slot.INDEX: "INDEX"}
_SCALARS = {"string", "integer", "number", "boolean", "null"}
_BARE = {
    "boolean": '("true" | "false")',
    "integer": "/-?[0-9]{1,18}/",
    "number": "/-?[0-9]{1,18}(\\.[0-9]{1,18})?/",
    "null": '"null"',
    "object": "bare_object",
    "array": "bare_array",
}


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """Lark for calls, which applies once the text has contained ``after``; ``nested`` as ``Constraint`` has it."""

    lark: str
    after: bytes
    nested: bool


def trigger(form: ToolForm) -> str:
    """The text after which a call has begun, where an answer may have other text before."""
    opens = _opening(form)
    tag = _TAG.match(opens)
    if tag:
        return tag[0]
    first = opens.split(maxsplit=1)[0]
    return first if "<" in first else opens


def of_tools(
    form: ToolForm, tools: Sequence[Tool], *, must_call: bool, several: bool = True, or_schema: Grammar | None = None
) -> CallGrammar:
    """Lark for calls of ``tools``; raises ``RequestError``.

    It applies from the first token on where the answer must be calls, or may be a JSON text of ``or_schema`` instead;
    and where calls are only recognized at the beginning. ``several``: the answer may have more than one call.
    """
    opening = _opening(form).removeprefix(form.opened)
    calls = " | ".join(f"tool_{index}" for index in range(len(tools)))
    more = f"({_literal((form.between or '') + _lead(form))} call)*" if several and form.between is not None else ""
    start, after = f"WS? {_literal(opening)} calls", ""
    if or_schema is not None and not must_call:
        start += f" | {_quoted(form.text_opens)} %json {json_schema.enforced(or_schema.text, or_schema.field)}"
    elif not must_call and form.opened:
        start += f" | {_quoted(form.text_opens)} ANY"
    elif not must_call and form.anywhere:
        after = trigger(form)
        start = f"WS? {_literal(opening.removeprefix(after))} calls"
    elif not must_call:
        start += f" | /[^{re.escape(opening[0])}\\s](?s:.*)/"
    rules = [
        f"start: {start}\n",
        f"calls: call {more} {_literal(form.closes)} {'' if must_call else 'WS?'}\n",
        f"call: {calls}\n",
    ]
    nested = False
    for index, tool in enumerate(tools):
        rules += _tool(form, tool, index)
        if tool.bound is not None:
            bound, recursive = _bound(form.parameters, tool, tool.bound, index)
            rules.append(bound)
            nested |= recursive
        if sum(map(len, rules)) > MAX_TOOLS_BYTES:
            problem = f"expected at most {MAX_TOOLS_BYTES} characters once made a grammar, got more"
            raise RequestError(Fault.BAD_REQUEST, "tools", problem)
    lark = "".join(rules) + _TERMINALS + (_texts(form.parameters) if form.parameters else "")
    return CallGrammar(lark, after.encode(), nested)


def _lead(form: ToolForm) -> str:
    return form.call[0] if isinstance(form.call[0], str) else ""


def _opening(form: ToolForm) -> str:
    return (form.opens + _lead(form)).strip()


def _tool(form: ToolForm, tool: Tool, index: int) -> Iterator[str]:
    field = f"tools[{index}].function.parameters"
    whole = json_schema.enforced(tool.parameters, field)
    parts = []
    for part in form.call[1:] if _lead(form) else form.call:
        match part:
            case Slot.NAME:
                parts.append(_quoted(tool.name))
            case Slot.ARGUMENTS if tool.bound is not None:
                parts.append(f"bound_{index}")
            case Slot.ARGUMENTS if form.parameters is None:
                parts.append(f"%json {whole}")
            case Slot.ARGUMENTS:
                parts.append(f"arguments_{index}_0")
            case Slot():
                parts.append(_SLOTS[part])
            case _:
                parts.append(_literal(part))
    yield f"tool_{index}: {' '.join(parts)}\n"
    if form.parameters is not None and tool.bound is None:
        yield from _arguments(form.parameters, json.loads(tool.parameters), index, field)


def _bound(form: ParameterForm | None, tool: Tool, bound: Grammar, index: int) -> tuple[str, bool]:
    """Rules for ``bound_{index}``, the only argument of ``tool``, and whether they contain themselves."""
    (key,) = json.loads(tool.parameters)["properties"]
    quote = '"' if form is None else form.quote
    if form is None:
        opens, closes = f'{_literal("{")} WS? {_quoted(_quoted(key))} WS? ":" WS?', 'WS? "}"'
    else:
        opens, closes = f"{_quoted(form.opens + key)} {_before(form, 'string')}", _trailing(form)
    if form is None or len(quote) == 1:
        text = bound_text.as_written(bound, quote, f"b{index}_")
        # A terminal with its quotes, since llguidance has no empty ones.
        value = f"value_{index}" if text.recursive else f"VALUE_{index}"
        rules = f"{value}: {_quoted(quote)} {text.root} {_quoted(quote)}\n"
    else:
        ends = (form.quote or form.closing(key))[0] + CDATA_CLOSE[0] * form.cdata
        text = bound_text.as_written(bound, "", f"b{index}_", ends)
        value, rules = f"value_{index}", _unescaped(form, key, text, index)
    return f"bound_{index}: {opens} {value} {closes}\n{rules}{text.lines}", text.recursive


def _unescaped(form: ParameterForm, key: str, text: LarkRules, index: int) -> str:
    """Rules for ``value_{index}``, a text that is written as it is, and what closes it, which is not in the text.

    Where rules contain themselves, Lark can't leave texts out that have the closing mark in them: readers take the
    first one as the end. And where the text may end, it can't go on with the mark's first two characters.
    """
    close = form.quote or form.closing(key)
    mark = close.strip()
    # Readers take away the white space around the mark where it stands around the text.
    margin = close[: len(close) - len(close.lstrip())]
    ways = {"plain": (form.quote + margin, margin, mark)}
    if form.cdata:
        ways["cdata"] = (margin + CDATA_OPEN, margin, CDATA_CLOSE + mark)
    rules = f"value_{index}: {' | '.join(f'{way}_{index}' for way in ways)}\n"
    for way, (opens, ends, closes) in ways.items():
        name, inner = f"{way}_{index}", f"{_quoted(opens)} {text.root} {_quoted(ends)}"
        if text.recursive:
            rules += f"{name}: {inner} {_quoted(closes)}\n"
            continue
        # So does one that begins as a section of CDATA does.
        other = f" & ~({_quoted(CDATA_OPEN)} ANY)" if form.cdata and way == "plain" else ""
        body = f"{text.root} {_quoted(ends)} & ~(ANY {_quoted(closes)} ANY){other}"
        rules += f"{name}[suffix={_quoted(closes)}]: {_quoted(opens)} ({body})\n"
    return rules


def _arguments(form: ParameterForm, schema: dict[str, Any], tool: int, field: str) -> Iterator[str]:
    """Rules for the arguments: those of the schema in its order, or any where it names none.

    ``arguments_{tool}_{n}`` are the arguments from number n on, and ``more_{tool}_{n}`` are they after others.
    """
    properties = schema.get("properties") or {}
    required = schema.get("required") or []
    between = _literal(form.between)
    names = list(properties)
    for number, key in enumerate(names):
        name = f"{tool}_{number}"
        following, skipped = f"more_{tool}_{number + 1}", "" if key in required else " | {}_" + f"{tool}_{number + 1}"
        yield f"arguments_{name}: argument_{name} {following}{skipped.format('arguments')}\n"
        yield f"more_{name}: {between} argument_{name} {following}{skipped.format('more')}\n"
        yield from _argument(form, key, properties[key], schema, name, f"{field}.properties.{key}")
    last = f"{tool}_{len(names)}"
    if schema.get("additionalProperties", not names) is not False:
        typed = len({before for _kind, before in form.before}) > 1
        kinds_of_any = [kind for kind, _before in form.before] if typed else [""]
        ways = [f"{_before(form, kind or 'string')} any_{kind}_{tool}" for kind in kinds_of_any]
        yield f"any_{tool}: {_literal(form.opens)} KEY ({' | '.join(ways)})\n"
        for kind in kinds_of_any:
            yield from _value(form, {"type": kind} if kind else {}, {}, f"any_{kind}_{tool}", field, None)
        yield f"arguments_{last}: (any_{tool} ({between} any_{tool})*)?\n"
        yield f"more_{last}: ({between} any_{tool})*\n"
    else:
        yield f"arguments_{last}:\nmore_{last}:\n"


def _argument(form: ParameterForm, key: str, schema: Any, root: dict[str, Any], name: str, field: str) -> Iterator[str]:
    types = kinds(schema, root)
    before = dict(form.before)
    kind = next((kind for kind in types if kind in before), "number" if "integer" in types else "object")
    yield f"argument_{name}: {_quoted(form.opens + key)} {_before(form, kind)} value_{name}\n"
    yield from _value(form, schema, root, f"value_{name}", field, key)


def _value(
    form: ParameterForm, schema: Any, root: dict[str, Any], rule: str, field: str, key: str | None
) -> Iterator[str]:
    """The rule for the value of the argument ``key``, or of any; without quotes, also for what closes it."""
    types = kinds(schema, root)
    chosen = _strings(schema, root)
    closed = _closed(form, key)
    closes = f"WS? {_quoted(form.closes.strip())} {closed}" if not form.quote else ""
    if form.values == "elements" and not (types and _SCALARS.issuperset(types)):
        yield f"{rule}: elements {closed}\n"
    elif chosen:
        texts = " | ".join(_quoted(f"{form.quote}{text}{form.quote}") for text in chosen)
        yield f"{rule}: {'' if form.quote else 'WS?'} ({texts}) {closes} {_trailing(form)}\n"
    elif form.quote and not types:
        any_value = "bare_value" if form.values == "bare" else f"quoted | %json {json_schema.enforced(_ANY)}"
        yield f"{rule}: {any_value}\n"
    elif "string" in types or not types:
        yield f"{rule}: {'quoted' if form.quote else f'text {closed}'} {_trailing(form)}\n"
    elif types == ["boolean"] and form.values != "bare":
        # Some templates write them in Python's way, though all other values in JSON.
        either = '("true" | "false" | "True" | "False")'
        yield f"{rule}: {'' if form.quote else 'WS?'} {either} {closes} {_trailing(form)}\n"
    elif form.values == "bare":
        yield f"{rule}: {' | '.join(_BARE[kind] for kind in types)}\n"
    else:
        defined = {key: root[key] for key in ("$defs", "definitions") if key in root}
        inner = json_schema.enforced(json.dumps({**schema, **defined}), field)
        yield f"{rule}: {'' if form.quote else 'WS?'} %json {inner} {closes} {_trailing(form)}\n"


def _closed(form: ParameterForm, key: str | None) -> str:
    """The rest of what closes the argument ``key``, or any, where its key stands there once more."""
    if not form.key_closes:
        return ""
    return f"KEY {_quoted(form.key_closes)}" if key is None else _quoted(key + form.key_closes)


def _texts(form: ParameterForm) -> str:
    """Rules for strings of any text, for values with bare keys, and for elements."""
    if not form.quote:
        text = f"text[suffix={_quoted(form.closes.strip())}]: ANY\n"
        if form.values != "elements":
            return text
        return (
            f"{text}until[suffix={_quoted(form.opens)}]: ANY\n"
            f"elements: until (element until)* {_quoted(form.closes.removeprefix(form.opens))}\n"
            f"element: KEY {_before(form, 'object')} elements {_closed(form, None)}\n"
        )
    if len(form.quote) == 1:
        return f"quoted: /{form.quote}([^{form.quote}\\\\\\n]|\\\\.)*{form.quote}/\n"
    return (
        f"quoted: {_quoted(form.quote)} until_quote\n"
        f"until_quote[suffix={_quoted(form.quote)}]: ANY\n"
        f"bare_value: quoted | {' | '.join(way for kind, way in _BARE.items() if kind != 'integer')}\n"
        'bare_object: "{" (KEY ":" bare_value ("," KEY ":" bare_value)*)? "}"\n'
        'bare_array: "[" (bare_value ("," bare_value)*)? "]"\n'
    )


def _trailing(form: ParameterForm) -> str:
    return "" if form.quote or form.closes == form.closes.rstrip() else "WS?"


def _before(form: ParameterForm, kind: str) -> str:
    text = dict(form.before)[kind]
    # Where a string begins, white space would be part of it.
    return _literal(text if form.quote else text.rstrip())


def _literal(text: str) -> str:
    """``text`` with any white space where it has some."""
    # The lexer never goes back: a brace has to be a lexeme of its own, as in the JSON that may follow instead.
    pieces = re.split(r"\s+", re.sub(r'^\{("\w+"):', r"{ \1 : ", text))
    return " WS? ".join(_quoted(piece) if piece else "" for piece in pieces).strip() or '""'


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _strings(schema: Any, root: dict[str, Any]) -> list[str]:
    """The strings that ``schema`` allows, if it names them and allows nothing else."""
    schema = resolved(schema, root)
    values = (schema.get("enum") or [schema.get("const")]) if isinstance(schema, dict) else []
    return list(values) if all(isinstance(value, str) for value in values) else []
