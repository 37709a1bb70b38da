"""Parses the tools of a request to OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Tool
from umaserve.core.server_tools import ServerTool
from umaserve.dialects.custom_tools import custom_tool, grammar_bytes
from umaserve.dialects.grammars import MAX_SCHEMA_BYTES
from umaserve.dialects.openai.turns import NO_PARAMETERS
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes
from umaserve.dialects.responses.mcp_schemas import (
    McpApprovalFilter,
    McpToolFilter,
    ResponseMcpTool,
    ResponseNamedServer,
)
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
from umaserve.dialects.server_tools import ServerToolsOf, check_wanted, in_namespace, server_tool_name
from umaserve.dialects.skipped_tools import log_ignored
from umaserve.wire.fields import out_of_range


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as the model sees it, and by what names its calls come to the client."""

    tool: Tool
    name: str
    namespace: str | None
    server: str | None = None
    """The MCP server whose tool it is, which the daemon calls."""
    asks: bool = False
    """Whether the daemon waits for the client's approval of each call."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tools that may be called, whether one must be, whether there may be several calls."""

    kept: tuple[OfferedTool, ...]
    must_call: bool
    several: bool
    shown: str | dict[str, Any]
    """The tool choice as the response repeats it."""


def tools(
    given: ResponseOptions, limits: RequestLimits, server_tools: ServerToolsOf | None = None
) -> tuple[tuple[OfferedTool, ...], list[dict[str, Any]]]:
    """The functions, custom tools and tools of MCP servers, whose names are unique, and the tools as the response
    repeats them. ``server_tools``: ``None`` where the daemon has no such servers.

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
            case ResponseMcpTool() if server_tools is None:
                log_ignored(one.type)
            case ResponseMcpTool():
                assert server_tools is not None
                inside, as_shown = _of_server(one, server_tools)
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
    schemas = [part for one in offered for part in (one.tool.name, one.tool.parameters)]
    n_bytes = grammar_bytes((one.tool for one in offered), path) + sum(len(text.encode()) for text in schemas)
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
        chosen = [_chosen(one, offered) for one in choice.tools]
        shown = {"type": "allowed_tools", "mode": choice.mode, "tools": [as_shown for _found, as_shown in chosen]}
        must_call, names = choice.mode == "required", {one.tool.name for found, _shown in chosen for one in found}
    else:
        found, shown = _chosen(choice, offered)
        must_call, names = True, {one.tool.name for one in found}
    if must_call and not offered:
        problem = 'expected "auto", "none" or null, since tools is empty, got a required call'
        raise RequestError(Fault.BAD_REQUEST, given.name("tool_choice"), problem)
    kept = offered if names is None else tuple(one for one in offered if one.tool.name in names)
    # Small models that have to call go on calling: unless asked for more, one call is enough.
    several = not must_call if given.parallel_tool_calls is None else given.parallel_tool_calls
    return ToolChoice(kept, must_call, several, shown)


def _chosen(
    named: ResponseNamedTool | ResponseNamedServer, offered: Sequence[OfferedTool]
) -> tuple[Sequence[OfferedTool], dict[str, Any]]:
    """The tools in ``offered`` that are named, and how a response repeats that."""
    if isinstance(named, ResponseNamedServer):
        of_server = [one for one in offered if one.server == named.server_label]
        found = [one for one in of_server if named.name_ in (None, one.name)]
        if not found:
            key, got = ("name", named.name_) if of_server else ("server_label", named.server_label)
            raise out_of_range(named.name(key), "what one of the tools has", f'"{got}"')
        return found, {"type": "mcp", "server_label": named.server_label, "name": named.name_}
    one = _known(named, offered)
    return [one], {"type": "custom" if one.tool.custom else "function", **shown_name(one)}


def shown_name(one: OfferedTool) -> dict[str, Any]:
    """A tool's names in a response."""
    return {"name": one.name} if one.namespace is None else {"name": one.name, "namespace": one.namespace}


def _known(named: ResponseNamedTool, offered: Sequence[OfferedTool]) -> OfferedTool:
    """The tool in ``offered`` that is named; without a namespace also one of any."""
    wanted, namespace = (named.name_, named.type == "custom"), named.namespace
    for one in offered:
        if (one.name, one.tool.custom) == wanted and namespace in (None, one.namespace) and one.server is None:
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
    in_all = in_namespace(name, namespace)
    shown: dict[str, Any] = {"type": given.type, "name": name, "description": description}
    if isinstance(given, ResponseCustomTool):
        wanted = given.format
        bound = wanted if isinstance(wanted, ResponseToolGrammar) else None
        shown["format"] = {"type": "text"}
        if bound is not None:
            shown["format"] = {"type": "grammar", "syntax": bound.syntax, "definition": bound.definition}
        tool = custom_tool(in_all, description, bound)
    else:
        parameters = given.parameters or NO_PARAMETERS
        shown |= {"parameters": orjson.Fragment(parameters), "strict": given.strict is not False}
        # OpenAI's service takes what can't be strict as if that was false, unless it is asked for.
        tool = Tool(in_all, description, parameters, strict=given.strict or False)
    return OfferedTool(tool, name, namespace), shown


def _of_server(
    given: ResponseMcpTool, server_tools: ServerToolsOf
) -> tuple[list[tuple[OfferedTool, str]], dict[str, Any]]:
    """The tools of an MCP server, each with the path of its label; and what a response repeats of it."""
    _ = given.server_description, given.server_url, given.connector_id, given.authorization, given.headers
    label, field = given.server_label, given.name("server_label")
    there = server_tools(label, field)
    wanted, approval = given.allowed_tools, given.require_approval or "always"
    if isinstance(wanted, list):
        check_wanted(wanted, there, label, given.name("allowed_tools"))
    offered = []
    for one in there:
        if _is_wanted(one, wanted):
            tool = Tool(server_tool_name(one.name, label), one.description, one.parameters)
            offered.append((OfferedTool(tool, one.name, None, label, _asks(one, approval)), field))
    repeated = {key: given.values.get(key) for key in ("server_description", "allowed_tools")}
    asked = given.values.get("require_approval") or "always"
    return offered, {"type": "mcp", "server_label": label, **repeated, "require_approval": asked, "headers": None}


def _is_wanted(tool: ServerTool, wanted: list[str] | McpToolFilter | None) -> bool:
    if wanted is None or isinstance(wanted, list):
        return wanted is None or tool.name in wanted
    return _matches(tool, wanted)


def _matches(tool: ServerTool, given: McpToolFilter) -> bool:
    named = given.tool_names is None or tool.name in given.tool_names
    return named and given.read_only in (None, tool.read_only)


def _asks(tool: ServerTool, approval: str | McpApprovalFilter) -> bool:
    """Whether each call of a tool waits for its approval; one that an object doesn't name does."""
    if isinstance(approval, str):
        return approval == "always"
    if approval.always is not None and _matches(tool, approval.always):
        return True
    return approval.never is None or not _matches(tool, approval.never)
