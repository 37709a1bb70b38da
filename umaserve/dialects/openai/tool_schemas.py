"""Schemas of tools and their calls in chats, which other APIs have too."""

from __future__ import annotations

import re
from typing import Any

from umaserve.dialects.grammars import MAX_SCHEMA_BYTES, SCHEMA
from umaserve.dialects.schemas import ABOUT_STRICT, ABOUT_TOOL_FORMAT, MAX_ID_BYTES, ToolGrammar, ToolText
from umaserve.wire import fields
from umaserve.wire.declared import (
    Declared,
    Kind,
    array,
    boolean,
    by_type,
    choice,
    const,
    named,
    omittable,
    one_of,
    optional,
    required,
    string,
)
from umaserve.wire.fields import Fields, dump_capped, out_of_range

MAX_TOOLS = 128
MAX_ARGUMENTS_BYTES = 256 * 1024
"""Bytes of arguments that are an object, as JSON."""


def _arguments(given: Any, path: str) -> str:
    """A call's arguments: JSON text, or whatever the model wrote in its place, also what was cut off. Some clients send
    an object, and an empty text where there are none."""
    if isinstance(given, dict):
        return dump_capped(given, path, MAX_ARGUMENTS_BYTES).decode()
    return fields.string(given, path, empty=True) or "{}"


ARGUMENTS = Kind({"type": ["string", "object"]}, _arguments)
CALL_ID = string(1, MAX_ID_BYTES)


def _of_type(function: type[Declared], **others: type[Declared]) -> Kind[Any]:
    """An object of one of several classes, which its ``type`` tells: some clients leave that of a function out."""
    classes = {"function": function, **others}

    def read(given: Any, path: str) -> Declared:
        of = Fields.of(given, path)
        return classes[of.one_of("type", classes) or "function"].view(of)

    return Kind(one_of(*classes.values()).schema, read)


class _CalledFunction(Declared):
    name_ = required(string(1))
    arguments = required(ARGUMENTS, "A JSON object as text, which may be empty where there are none; or the object.")


class ToolCall(Declared):
    id = required(CALL_ID)
    type = optional(choice("function"))
    function = required(_CalledFunction)


class _CalledCustom(Declared):
    name_ = required(string(1))
    input = required(string())


class CustomToolCall(Declared):
    id = required(CALL_ID)
    type = required(const("custom"))
    custom = required(_CalledCustom)


TOOL_CALL = _of_type(ToolCall, custom=CustomToolCall)


def _function_name(given: Any, path: str) -> str:
    name = fields.string(given, path)
    if not re.fullmatch("[A-Za-z0-9_-]{1,64}", name):
        raise out_of_range(path, "1 to 64 letters, digits, _ or -", f'"{name}"')
    return name


_FUNCTION_NAME = Kind(string(pattern="^[A-Za-z0-9_-]{1,64}$").schema, _function_name)


class _ToolFunction(Declared):
    name_ = required(_FUNCTION_NAME)
    description = optional(string(max_bytes=MAX_SCHEMA_BYTES))
    parameters = optional(SCHEMA, "The JSON schema of the arguments.")
    strict = optional(
        boolean(),
        ABOUT_STRICT,
    )


class Tool(Declared):
    type = optional(choice("function"))
    function = required(_ToolFunction)


class _GrammarFormat(Declared):
    type = required(const("grammar"))
    grammar = required(ToolGrammar)


class _CustomTool(Declared):
    name_ = required(_FUNCTION_NAME)
    description = optional(string(max_bytes=MAX_SCHEMA_BYTES))
    format = optional(by_type(ToolText, _GrammarFormat), ABOUT_TOOL_FORMAT)


class CustomTool(Declared):
    """A tool whose input is one text."""

    type = required(const("custom"))
    custom = required(_CustomTool)


class ServerTools(Declared):
    """The tools of an MCP server, which the daemon calls."""

    type = required(const("mcp"))
    server_label = required(string(1, 64), "The name of a server that the operator has named: as [tools.NAME].")
    allowed_tools = optional(
        array(string(1, 256), high=MAX_TOOLS, of="names"), "Those that the model gets; absent: all."
    )


TOOL = _of_type(Tool, custom=CustomTool, mcp=ServerTools)


class _ToolName(Declared):
    name_ = required(_FUNCTION_NAME)


class NamedTool(Declared, also={"anyOf": [{"required": ["function"]}, {"required": ["name"]}]}):
    """One tool. The name may also be beside the type, as in the Responses API."""

    type = optional(choice("function"))
    function = omittable(_ToolName)
    name_ = omittable(_FUNCTION_NAME)


class NamedCustomTool(Declared):
    """One custom tool."""

    type = required(const("custom"))
    custom = required(_ToolName)


class _NamedTools(Declared):
    mode = required(choice("auto", "required"))
    tools = required(array(_of_type(NamedTool, custom=NamedCustomTool), 1, MAX_TOOLS, of="tools"))


class AllowedTools(Declared):
    """Only these tools."""

    type = required(const("allowed_tools"))
    allowed_tools = required(_NamedTools)


_WAYS = choice("none", "auto", "required")


_CHOICES: dict[str, type[NamedTool | NamedCustomTool | AllowedTools]] = {
    "function": NamedTool,
    "custom": NamedCustomTool,
    "allowed_tools": AllowedTools,
}


def _tool_choice(given: Any, path: str) -> str | NamedTool | NamedCustomTool | AllowedTools:
    if not isinstance(given, dict):
        return str(_WAYS.read(given, path))
    of = Fields.of(given, path)
    return of.choice("type", _CHOICES, NamedTool).view(of)


ToolChoice = named(
    "ToolChoice",
    Kind({"oneOf": [_WAYS.schema, *_CHOICES.values(), {"type": "null"}], "default": "auto"}, _tool_choice),
)
