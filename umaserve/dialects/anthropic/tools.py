"""Parses the tools of a request to Anthropic's Messages API."""

from __future__ import annotations

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Tool
from umaserve.dialects.anthropic.client_tools import client_tool
from umaserve.dialects.anthropic.schemas import AnthropicConversation, AnthropicNamedToolChoice, AnthropicTool
from umaserve.dialects.grammars import MAX_SCHEMA_BYTES
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes
from umaserve.dialects.skipped_tools import log_ignored
from umaserve.wire.fields import bad_request, out_of_range


def tools(given: AnthropicConversation, limits: RequestLimits) -> tuple[Tool, ...]:
    """The tools that the model may call; their names are unique. What Anthropic's service would run itself, such as
    web_search, is skipped with a line in the log. Raises ``RequestError``."""
    read, path = list[Tool](), given.name("tools")
    for one in given.tools or ():
        if (tool := _tool(one)) is None:
            continue
        if any(tool.name == other.name for other in read):
            raise out_of_range(one.name("name"), "a name that no other tool has", f'"{tool.name}"')
        read.append(tool)
    # The schemas become a grammar, while the descriptions are only a part of the prompt.
    n_bytes = sum(len(tool.name.encode()) + len(tool.parameters.encode()) for tool in read)
    if n_bytes > MAX_SCHEMA_BYTES:
        raise out_of_range(path, f"names and schemas of at most {MAX_SCHEMA_BYTES} bytes in all", f"{n_bytes} bytes")
    check_prompt_bytes(n_bytes + sum(len(tool.description.encode()) for tool in read), limits, path)
    return tuple(read)


def chosen_tools(given: AnthropicConversation, offered: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], bool, bool]:
    """The tools in ``offered`` that ``tool_choice`` allows, whether one of them must be called, and whether there may
    be several calls."""
    choice = given.tool_choice
    if choice is None:
        return offered, False, True
    kept, must_call = offered, choice.type in ("any", "tool")
    if must_call and not offered:
        problem = f'expected "auto" or "none", since tools is empty, got "{choice.type}"'
        raise RequestError(Fault.BAD_REQUEST, choice.name("type"), problem)
    if isinstance(choice, AnthropicNamedToolChoice):
        name = choice.name_
        kept = tuple(tool for tool in offered if tool.name == name)
        if not kept:
            raise out_of_range(choice.name("name"), "the name of one of the tools", f'"{name}"')
    elif choice.type == "none":
        kept = ()
    # Small models that have to call go on calling: unless asked for more, one call is enough.
    serial = must_call if choice.disable_parallel_tool_use is None else choice.disable_parallel_tool_use
    return kept, must_call, not serial


def _tool(given: AnthropicTool) -> Tool | None:
    """The tool; ``None`` for one of the service's own."""
    kind = given.type or "custom"
    own = client_tool(kind, given)
    if kind != "custom" and own is None:
        log_ignored(kind)
        return None
    name = given.name_
    if own is not None:
        return Tool(name, *own)
    description, schema = given.description or "", given.input_schema
    if schema is None:
        raise bad_request(given.name("input_schema"), "an object", None)
    return Tool(name, description, schema, strict=given.strict)
