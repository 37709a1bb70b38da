"""Parses the tools of a request to OpenAI's Responses API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Grammar, Syntax, Tool
from umaserve.dialects.grammars import MAX_GRAMMAR_BYTES, MAX_SCHEMA_BYTES
from umaserve.dialects.openai.turns import NO_PARAMETERS
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes
from umaserve.dialects.responses.custom_input import CUSTOM_INPUT
from umaserve.dialects.skipped_tools import tell_skipped
from umaserve.wire.fields import Fields, array, bad_request, dump_capped, out_of_range, string

MAX_TOOLS = 256
_NAME = re.compile("[A-Za-z0-9_-]{1,128}")
_FREE, _NAMED, _SEVERAL = ("none", "auto", "required"), ("function", "custom"), "allowed_tools"
_SCHEMA = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string"}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}
_ONE_TEXT = orjson.dumps(_SCHEMA).decode()


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as the model sees it, and by what names its calls come to the client."""

    tool: Tool
    name: str
    namespace: str | None
    custom: bool
    """Whether its input is one text instead of JSON arguments."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tools that may be called, whether one must be, whether there may be several calls."""

    kept: tuple[OfferedTool, ...]
    must_call: bool
    several: bool
    shown: str | dict[str, Any]
    """The tool choice as the response repeats it."""


def name_for_model(name: str, namespace: str | None) -> str:
    """A tool's name for the model, which knows no namespaces."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def tools(fields: Fields, limits: RequestLimits) -> tuple[tuple[OfferedTool, ...], list[dict[str, Any]]]:
    """The functions and custom tools, whose names are unique, and the tools as the response repeats them.

    What OpenAI's service would run itself, such as web_search, is skipped with a line in the log. Raises
    ``RequestError``.
    """
    value, path = fields.values.get("tools"), fields.name("tools")
    if value is None:
        return (), []
    read, shown = list[tuple[OfferedTool, str]](), list[dict[str, Any]]()
    for i, item in enumerate(array(value, path, 0, MAX_TOOLS, "tools")):
        one = Fields.of(item, f"{path}[{i}]")
        match kind := string(one.values.get("type"), one.name("type"), max_bytes=64):
            case "function" | "custom":
                tool, as_shown = _tool(one, kind, None)
                read.append((tool, one.name("name")))
                shown.append(as_shown)
            case "namespace":
                inside, as_shown = _namespace(one)
                read += inside
                shown.append(as_shown)
            case _:
                tell_skipped(kind)
    offered = tuple(tool for tool, _where in read)
    seen = set[str]()
    for tool, where in read:
        if tool.tool.name in seen:
            raise out_of_range(where, "a name that no other tool has", f'"{tool.tool.name}"')
        seen.add(tool.tool.name)
    # The schemas become a grammar, while the descriptions are only a part of the prompt.
    bounds = [one.tool.bound.text for one in offered if one.tool.bound is not None]
    schemas = [part for one in offered for part in (one.tool.name, one.tool.parameters)]
    if (n_bytes := sum(len(text.encode()) for text in bounds)) > MAX_GRAMMAR_BYTES:
        raise out_of_range(path, f"grammars of at most {MAX_GRAMMAR_BYTES} bytes in all", f"{n_bytes} bytes")
    n_bytes += sum(len(text.encode()) for text in schemas)
    if n_bytes > MAX_SCHEMA_BYTES:
        expected = f"names, schemas and grammars of at most {MAX_SCHEMA_BYTES} bytes in all"
        raise out_of_range(path, expected, f"{n_bytes} bytes")
    check_prompt_bytes(n_bytes + sum(len(one.tool.description.encode()) for one in offered), limits, path)
    return offered, shown


def chosen_tools(fields: Fields, offered: tuple[OfferedTool, ...]) -> ToolChoice:
    """The choice that ``tool_choice`` and ``parallel_tool_calls`` make of the tools in ``offered``."""
    choice = fields.values.get("tool_choice")
    names: set[str] | None = None
    shown: str | dict[str, Any]
    if not isinstance(choice, dict):
        shown = fields.one_of("tool_choice", _FREE) or "auto"
        must_call, names = shown == "required", set() if shown == "none" else None
    else:
        named = Fields.of(choice, fields.name("tool_choice"))
        if named.required_one_of("type", (*_NAMED, _SEVERAL)) == _SEVERAL:
            mode = named.required_one_of("mode", ("auto", "required"))
            path = named.name("tools")
            items = array(named.values.get("tools"), path, 1, MAX_TOOLS, "tools")
            found = [_known(Fields.of(item, f"{path}[{i}]"), offered) for i, item in enumerate(items)]
            shown = {"type": _SEVERAL, "mode": mode, "tools": [_shown_choice(one) for one in found]}
            must_call, names = mode == "required", {one.tool.name for one in found}
        else:
            one = _known(named, offered)
            shown, must_call, names = _shown_choice(one), True, {one.tool.name}
    if must_call and not offered:
        problem = 'expected "auto", "none" or null where there are no tools, got another'
        raise RequestError(Fault.BAD_REQUEST, fields.name("tool_choice"), problem)
    kept = offered if names is None else tuple(one for one in offered if one.tool.name in names)
    # Small models that have to call go on calling: unless asked for more, one call is enough.
    return ToolChoice(kept, must_call, fields.boolean("parallel_tool_calls", not must_call), shown)


def _shown_choice(one: OfferedTool) -> dict[str, Any]:
    return {"type": "custom" if one.custom else "function", **shown_name(one)}


def shown_name(one: OfferedTool) -> dict[str, Any]:
    """A tool's names in a response."""
    return {"name": one.name} if one.namespace is None else {"name": one.name, "namespace": one.namespace}


def _known(named: Fields, offered: Sequence[OfferedTool]) -> OfferedTool:
    """The tool in ``offered`` that is named; without a namespace also one of any."""
    custom = named.required_one_of("type", _NAMED) == "custom"
    name, namespace = _name(named, "name"), named.string("namespace", max_bytes=128)
    for one in offered:
        if (one.name, one.custom) == (name, custom) and namespace in (None, one.namespace):
            return one
    raise out_of_range(named.name("name"), "the name of one of the tools", f'"{name}"')


def _namespace(fields: Fields) -> tuple[list[tuple[OfferedTool, str]], dict[str, Any]]:
    """The tools of a namespace, each with the path of its name; and what a response repeats of it."""
    namespace, path = _name(fields, "name"), fields.name("tools")
    read, shown = list[tuple[OfferedTool, str]](), list[dict[str, Any]]()
    for i, item in enumerate(array(fields.values.get("tools"), path, 0, MAX_TOOLS, "tools")):
        one = Fields.of(item, f"{path}[{i}]")
        tool, as_shown = _tool(one, one.required_one_of("type", _NAMED), namespace)
        read.append((tool, one.name("name")))
        shown.append(as_shown)
    return read, {"type": "namespace", "name": namespace, "description": _description(fields), "tools": shown}


def _tool(fields: Fields, kind: str, namespace: str | None) -> tuple[OfferedTool, dict[str, Any]]:
    """The tool, and what a response repeats of it."""
    name, description = _name(fields, "name"), _description(fields)
    shown: dict[str, Any] = {"type": kind, "name": name, "description": description}
    if kind == "custom":
        bound, shown["format"] = _format(fields)
        description = "\n\n".join(filter(None, (description, _told(bound))))
        tool = Tool(name_for_model(name, namespace), description, _ONE_TEXT, bound)
    else:
        given = fields.object("parameters")
        parameters = NO_PARAMETERS
        if given is not None:
            parameters = dump_capped(given.values, fields.name("parameters"), MAX_SCHEMA_BYTES).decode()
        shown |= {"parameters": orjson.Fragment(parameters), "strict": fields.boolean("strict", True)}
        # OpenAI's service takes what can't be strict as if that was false, unless it is asked for.
        tool = Tool(name_for_model(name, namespace), description, parameters, strict=fields.boolean("strict", False))
    return OfferedTool(tool, name, namespace, kind == "custom"), shown


def _format(fields: Fields) -> tuple[Grammar | None, dict[str, Any]]:
    """The grammar that a custom tool's input has to match by its ``format``, and what is repeated of that."""
    given = fields.object("format") or Fields({"type": "text"})
    kind = given.required_one_of("type", ("text", "grammar"))
    if kind == "text":
        return None, {"type": kind}
    syntax = given.required_one_of("syntax", ("lark", "regex"))
    path = given.name("definition")
    definition = string(given.values.get("definition"), path, max_bytes=MAX_GRAMMAR_BYTES)
    return Grammar(Syntax(syntax), definition, path), {"type": kind, "syntax": syntax, "definition": definition}


def _told(bound: Grammar | None) -> str:
    """The text that tells the model of the grammar."""
    if bound is None:
        return ""
    kind = "Lark grammar" if bound.syntax is Syntax.LARK else "regular expression"
    return f"Its {CUSTOM_INPUT} is a text that matches this {kind}:\n{bound.text}"


def _description(fields: Fields) -> str:
    value = fields.values.get("description")
    return "" if value is None else string(value, fields.name("description"), empty=True)


def _name(fields: Fields, key: str) -> str:
    value = fields.values.get(key)
    if not isinstance(value, str):
        raise bad_request(fields.name(key), "1 to 128 letters, digits, _ or -", value)
    if not _NAME.fullmatch(value):
        raise out_of_range(fields.name(key), "1 to 128 letters, digits, _ or -", f'"{value}"')
    return value
