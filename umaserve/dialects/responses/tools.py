"""Parses the tools of a request to OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Grammar, Syntax, Tool
from umaserve.dialects.custom_tools import CUSTOM_INPUT
from umaserve.dialects.grammars import MAX_GRAMMAR_BYTES, MAX_SCHEMA_BYTES
from umaserve.dialects.openai.turns import NO_PARAMETERS
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes
from umaserve.dialects.responses.schemas import (
    ResponseAllowedTools,
    ResponseCustomTool,
    ResponseFunctionTool,
    ResponseNamedTool,
    ResponseNamespace,
    ResponseOptions,
    ResponseServiceTool,
    ResponseToolGrammar,
)
from umaserve.dialects.skipped_tools import log_ignored
from umaserve.wire.fields import out_of_range

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


def tools(given: ResponseOptions, limits: RequestLimits) -> tuple[tuple[OfferedTool, ...], list[dict[str, Any]]]:
    """The functions and custom tools, whose names are unique, and the tools as the response repeats them.

    What OpenAI's service would run itself, such as web_search, is skipped with a line in the log. Raises
    ``RequestError``.
    """
    path = given.name("tools")
    read, shown = list[tuple[OfferedTool, str]](), list[dict[str, Any]]()
    for one in given.tools or ():
        match one:
            case ResponseFunctionTool() | ResponseCustomTool():
                tool, as_shown = _tool(one, None)
                read.append((tool, one.name("name")))
                shown.append(as_shown)
            case ResponseNamespace():
                inside, as_shown = _namespace(one)
                read += inside
                shown.append(as_shown)
            case ResponseServiceTool():
                log_ignored(one.type)
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


def chosen_tools(given: ResponseOptions, offered: tuple[OfferedTool, ...]) -> ToolChoice:
    """The choice that ``tool_choice`` and ``parallel_tool_calls`` make of the tools in ``offered``."""
    choice = given.tool_choice or "auto"
    names: set[str] | None = None
    shown: str | dict[str, Any]
    if isinstance(choice, str):
        shown, must_call = choice, choice == "required"
        names = set() if choice == "none" else None
    elif isinstance(choice, ResponseAllowedTools):
        mode, found = choice.mode, [_known(one, offered) for one in choice.tools]
        shown = {"type": "allowed_tools", "mode": mode, "tools": [_shown_choice(one) for one in found]}
        must_call, names = mode == "required", {one.tool.name for one in found}
    else:
        one = _known(choice, offered)
        shown, must_call, names = _shown_choice(one), True, {one.tool.name}
    if must_call and not offered:
        problem = 'expected "auto", "none" or null, since tools is empty, got a required call'
        raise RequestError(Fault.BAD_REQUEST, given.name("tool_choice"), problem)
    kept = offered if names is None else tuple(one for one in offered if one.tool.name in names)
    # Small models that have to call go on calling: unless asked for more, one call is enough.
    several = not must_call if given.parallel_tool_calls is None else given.parallel_tool_calls
    return ToolChoice(kept, must_call, several, shown)


def _shown_choice(one: OfferedTool) -> dict[str, Any]:
    return {"type": "custom" if one.custom else "function", **shown_name(one)}


def shown_name(one: OfferedTool) -> dict[str, Any]:
    """A tool's names in a response."""
    return {"name": one.name} if one.namespace is None else {"name": one.name, "namespace": one.namespace}


def _known(named: ResponseNamedTool, offered: Sequence[OfferedTool]) -> OfferedTool:
    """The tool in ``offered`` that is named; without a namespace also one of any."""
    wanted, namespace = (named.name_, named.type == "custom"), named.namespace
    for one in offered:
        if (one.name, one.custom) == wanted and namespace in (None, one.namespace):
            return one
    raise out_of_range(named.name("name"), "the name of one of the tools", f'"{wanted[0]}"')


def _namespace(given: ResponseNamespace) -> tuple[list[tuple[OfferedTool, str]], dict[str, Any]]:
    """The tools of a namespace, each with the path of its name; and what a response repeats of it."""
    namespace = given.name_
    read, shown = list[tuple[OfferedTool, str]](), list[dict[str, Any]]()
    for one in given.tools:
        tool, as_shown = _tool(one, namespace)
        read.append((tool, one.name("name")))
        shown.append(as_shown)
    return read, {"type": "namespace", "name": namespace, "description": given.description or "", "tools": shown}


def _tool(
    given: ResponseFunctionTool | ResponseCustomTool, namespace: str | None
) -> tuple[OfferedTool, dict[str, Any]]:
    """The tool, and what a response repeats of it."""
    name, description = given.name_, given.description or ""
    in_all, custom = name_for_model(name, namespace), isinstance(given, ResponseCustomTool)
    shown: dict[str, Any] = {"type": given.type, "name": name, "description": description}
    if isinstance(given, ResponseCustomTool):
        bound, shown["format"] = _format(given)
        description = "\n\n".join(filter(None, (description, _told(bound))))
        tool = Tool(in_all, description, _ONE_TEXT, bound)
    else:
        parameters = given.parameters or NO_PARAMETERS
        shown |= {"parameters": orjson.Fragment(parameters), "strict": given.strict is not False}
        # OpenAI's service takes what can't be strict as if that was false, unless it is asked for.
        tool = Tool(in_all, description, parameters, strict=given.strict or False)
    return OfferedTool(tool, name, namespace, custom), shown


def _format(given: ResponseCustomTool) -> tuple[Grammar | None, dict[str, Any]]:
    """The grammar that a custom tool's input has to match by its ``format``, and what is repeated of that."""
    wanted = given.format
    if not isinstance(wanted, ResponseToolGrammar):
        return None, {"type": "text"}
    bound = Grammar(Syntax(wanted.syntax), wanted.definition, wanted.name("definition"))
    return bound, {"type": "grammar", "syntax": wanted.syntax, "definition": bound.text}


def _told(bound: Grammar | None) -> str:
    """The text that tells the model of the grammar."""
    if bound is None:
        return ""
    kind = "Lark grammar" if bound.syntax is Syntax.LARK else "regular expression"
    return f"Its {CUSTOM_INPUT} is a text that matches this {kind}:\n{bound.text}"
