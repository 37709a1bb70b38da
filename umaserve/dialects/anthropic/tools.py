"""Parses the tools of a request to Anthropic's Messages API."""

from __future__ import annotations

import re

from umaserve.dialects.grammars import MAX_GRAMMAR_BYTES
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes
from umaserve.errors import Fault, RequestError
from umaserve.messages import Tool
from umaserve.wire.fields import Fields, array, bad_request, dump_capped, out_of_range, string

MAX_TOOLS = 256
_NAME = re.compile("[A-Za-z0-9_-]{1,128}")


def tools(fields: Fields, limits: RequestLimits) -> tuple[Tool, ...]:
    """The tools that the model may call; their names are unique. Raises ``RequestError``."""
    value, path = fields.values.get("tools"), fields.name("tools")
    if value is None:
        return ()
    items = array(value, path, 0, MAX_TOOLS, "tools")
    read = tuple(_tool(Fields.of(item, f"{path}[{i}]")) for i, item in enumerate(items))
    seen = set[str]()
    for i, tool in enumerate(read):
        if tool.name in seen:
            raise out_of_range(f"{path}[{i}].name", "a name that no other tool has", f'"{tool.name}"')
        seen.add(tool.name)
    # The schemas become a grammar, while the descriptions are only a part of the prompt.
    n_bytes = sum(len(tool.name.encode()) + len(tool.parameters.encode()) for tool in read)
    if n_bytes > MAX_GRAMMAR_BYTES:
        raise out_of_range(path, f"names and schemas of at most {MAX_GRAMMAR_BYTES} bytes in all", f"{n_bytes} bytes")
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


def _tool(fields: Fields) -> Tool:
    kind = fields.values.get("type")
    if kind is not None and kind != "custom":
        expected = '"custom": this server runs no tools of its own'
        if not isinstance(kind, str):
            raise bad_request(fields.name("type"), expected, kind)
        raise out_of_range(fields.name("type"), expected, f'"{kind}"')
    name = string(fields.values.get("name"), fields.name("name"))
    if not _NAME.fullmatch(name):
        raise out_of_range(fields.name("name"), "1 to 128 letters, digits, _ or -", f'"{name}"')
    value = fields.values.get("description")
    description = "" if value is None else string(value, fields.name("description"), empty=True)
    schema = Fields.of(fields.values.get("input_schema"), fields.name("input_schema"))
    return Tool(name, description, dump_capped(schema.values, fields.name("input_schema"), MAX_GRAMMAR_BYTES).decode())
