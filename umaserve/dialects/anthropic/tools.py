"""Parses the tools of a request to Anthropic's Messages API."""

from __future__ import annotations

import re

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Tool
from umaserve.dialects.anthropic.client_tools import client_tool
from umaserve.dialects.grammars import MAX_SCHEMA_BYTES
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes
from umaserve.dialects.skipped_tools import tell_skipped
from umaserve.wire.fields import Fields, array, dump_capped, out_of_range, string

MAX_TOOLS = 256
_NAME = re.compile("[A-Za-z0-9_-]{1,128}")


def tools(fields: Fields, limits: RequestLimits) -> tuple[Tool, ...]:
    """The tools that the model may call; their names are unique. What Anthropic's service would run itself, such as
    web_search, is skipped with a line in the log. Raises ``RequestError``."""
    value, path = fields.values.get("tools"), fields.name("tools")
    if value is None:
        return ()
    items = array(value, path, 0, MAX_TOOLS, "tools")
    places = [(i, _tool(Fields.of(item, f"{path}[{i}]"))) for i, item in enumerate(items)]
    read = tuple(tool for _i, tool in places if tool is not None)
    seen = set[str]()
    for i, tool in places:
        if tool is None:
            continue
        if tool.name in seen:
            raise out_of_range(f"{path}[{i}].name", "a name that no other tool has", f'"{tool.name}"')
        seen.add(tool.name)
    # The schemas become a grammar, while the descriptions are only a part of the prompt.
    n_bytes = sum(len(tool.name.encode()) + len(tool.parameters.encode()) for tool in read)
    if n_bytes > MAX_SCHEMA_BYTES:
        raise out_of_range(path, f"names and schemas of at most {MAX_SCHEMA_BYTES} bytes in all", f"{n_bytes} bytes")
    check_prompt_bytes(n_bytes + sum(len(tool.description.encode()) for tool in read), limits, path)
    return read


def chosen_tools(fields: Fields, offered: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], bool, bool]:
    """The tools in ``offered`` that ``tool_choice`` allows, whether one of them must be called, and whether there may
    be several calls."""
    choice = fields.object("tool_choice")
    if choice is None:
        return offered, False, True
    kind = choice.required_one_of("type", ("auto", "any", "tool", "none"))
    kept, must_call = offered, kind in ("any", "tool")
    if must_call and not offered:
        problem = f'expected "auto" or "none" where there are no tools, got "{kind}"'
        raise RequestError(Fault.BAD_REQUEST, choice.name("type"), problem)
    if kind == "none":
        kept = ()
    elif kind == "tool":
        name = string(choice.values.get("name"), choice.name("name"))
        kept = tuple(tool for tool in offered if tool.name == name)
        if not kept:
            raise out_of_range(choice.name("name"), "the name of one of the tools", f'"{name}"')
    # Small models that have to call go on calling: unless asked for more, one call is enough.
    return kept, must_call, not choice.boolean("disable_parallel_tool_use", must_call)


def _tool(fields: Fields) -> Tool | None:
    """The tool; ``None`` for one of the service's own."""
    kind = fields.string("type", max_bytes=64) or "custom"
    own = client_tool(kind, fields)
    if kind != "custom" and own is None:
        tell_skipped(kind)
        return None
    name = string(fields.values.get("name"), fields.name("name"))
    if not _NAME.fullmatch(name):
        raise out_of_range(fields.name("name"), "1 to 128 letters, digits, _ or -", f'"{name}"')
    if own is not None:
        return Tool(name, *own)
    value = fields.values.get("description")
    description = "" if value is None else string(value, fields.name("description"), empty=True)
    schema = Fields.of(fields.values.get("input_schema"), fields.name("input_schema"))
    text = dump_capped(schema.values, fields.name("input_schema"), MAX_SCHEMA_BYTES).decode()
    return Tool(name, description, text, strict=fields.boolean("strict", False))
