"""Parses the conversation and the tools of an OpenAI chat request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Audio, ChatTurn, Image, Media, Tool, ToolCall
from umaserve.dialects.content import check_media, in_order_of_calls, joined, turn_bytes
from umaserve.dialects.custom_tools import custom_arguments, custom_tool, grammar_bytes
from umaserve.dialects.grammars import MAX_SCHEMA_BYTES
from umaserve.dialects.openai import tool_schemas
from umaserve.dialects.openai.schemas import (
    CONTENT,
    TEXT,
    AudioPart,
    ChatRequest,
    ImagePart,
    InputAudio,
    Message,
    TextPart,
)
from umaserve.dialects.openai.tool_schemas import (
    CALL_ID,
    AllowedTools,
    CustomTool,
    CustomToolCall,
    NamedCustomTool,
    NamedTool,
    ServerTools,
)
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes
from umaserve.dialects.schemas import ToolText
from umaserve.wire.declared import Kind
from umaserve.wire.fields import Fields, bad_request, out_of_range

T = TypeVar("T")

BETWEEN = "\n"
"""Separator of two texts of a message, as llama-server and vLLM have it."""
NO_PARAMETERS = '{"type":"object","properties":{}}'


def turns(given: ChatRequest, limits: RequestLimits) -> tuple[ChatTurn, ...]:
    """The messages; raises ``RequestError`` if one is invalid or together they are too long."""
    read = tuple(in_order_of_calls(map(_turn, given.messages)))
    check_prompt_bytes(sum(map(turn_bytes, read)), limits, given.name("messages"))
    check_media(read, given.name("messages"))
    return read


def tools(
    given: Sequence[tool_schemas.Tool | CustomTool | ServerTools], path: str, of_servers: tuple[Tool, ...] = ()
) -> tuple[Tool, ...]:
    """The tools that the model may call, with those of MCP servers; their names are unique."""
    read = list(of_servers)
    names = {tool.name for tool in read}
    if len(names) < len(read):
        raise out_of_range(path, "tools of servers whose names differ", "two of one name")
    for i, one in enumerate(given):
        if isinstance(one, ServerTools):
            continue
        tool = _tool(one)
        if tool.name in names:
            kind = "custom" if tool.custom else "function"
            raise out_of_range(f"{path}[{i}].{kind}.name", "a name that no other tool has", f'"{tool.name}"')
        names.add(tool.name)
        read.append(tool)
    # A description tells of the tool's grammar, which so counts twice.
    n_bytes = grammar_bytes(read, path)
    n_bytes += sum(len(text.encode()) for tool in read for text in (tool.name, tool.description, tool.parameters))
    if n_bytes > MAX_SCHEMA_BYTES:
        raise out_of_range(path, f"at most {MAX_SCHEMA_BYTES} bytes in all", f"{n_bytes} bytes")
    return tuple(read)


def chosen_tools(fields: Fields, offered: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], bool, bool]:
    """The tools in ``offered`` that ``tool_choice`` allows, whether one of them must be called, and whether there may
    be several calls."""
    given = ChatRequest.view(fields)
    must_call, names = _choice(given.tool_choice or "auto", offered)
    kept = offered if names is None else tuple(tool for tool in offered if tool.name in names)
    if must_call and not offered:
        raise RequestError(
            Fault.BAD_REQUEST,
            "tool_choice",
            'expected "auto", "none" or null, since tools is empty, got a required call',
        )
    # Small models that have to call go on calling: unless asked for more, one call is enough.
    several = given.parallel_tool_calls
    return kept, must_call, not must_call if several is None else several


def _choice(
    choice: str | NamedTool | NamedCustomTool | AllowedTools, offered: tuple[Tool, ...]
) -> tuple[bool, set[str] | None]:
    """Whether a call is required, and the names of the tools that are allowed; ``None``: all."""
    match choice:
        case NamedTool() | NamedCustomTool():
            return True, {_known(choice, offered)}
        case AllowedTools():
            allowed = choice.allowed_tools
            return allowed.mode == "required", {_known(named, offered) for named in allowed.tools}
    return choice == "required", set() if choice == "none" else None


def _known(named: NamedTool | NamedCustomTool, offered: tuple[Tool, ...]) -> str:
    """The name of one of the tools in ``offered``. A function's may also stand flat, as in the Responses API: clients
    do so."""
    custom = isinstance(named, NamedCustomTool)
    place = named.custom if isinstance(named, NamedCustomTool) else named.function or named
    name = place.name_
    if name is None:
        raise bad_request(named.name("function"), "an object", None)
    if offered and all((tool.name, tool.custom) != (name, custom) for tool in offered):
        raise out_of_range(place.name("name"), "the name of one of the tools", f'"{name}"')
    return name


def _turn(given: Message) -> ChatTurn:
    role = "system" if given.role == "developer" else given.role
    if role == "assistant":
        calls = tuple(map(call, given.tool_calls or ()))
        thoughts = given.reasoning_content or given.reasoning or ""
        return ChatTurn(role, _said(given, optional=bool(calls)), calls, thoughts=thoughts)
    call_id = None
    if role == "tool":
        call_id = CALL_ID.read(given.values.get("tool_call_id"), given.name("tool_call_id"))
    parts = _parts(given, CONTENT)
    text, attachments = joined([part if isinstance(part, str) else _part(part) for part in parts], BETWEEN)
    return ChatTurn(role, text, attachments=attachments, tool_call_id=call_id)


def _said(given: Message, *, optional: bool) -> str:
    """The assistant's text; ``optional`` if the message has tool calls instead."""
    content = given.values.get("content")
    if content is None and optional:
        return ""
    if content is None and given.values.get("audio") is not None:
        message = "expected the audio's transcript, since this daemon keeps no audio, got null"
        raise RequestError(Fault.BAD_REQUEST, given.name("content"), message)
    return BETWEEN.join(part if isinstance(part, str) else part.text for part in _parts(given, TEXT))


def _parts(given: Message, kind: Kind[str | list[T]]) -> list[T] | list[str]:
    content = kind.read(given.values.get("content"), given.name("content"))
    return [content] if isinstance(content, str) else content


def _part(part: TextPart | ImagePart | AudioPart) -> str | Media:
    match part:
        case TextPart():
            return part.text
        case ImagePart():
            image = part.image_url
            _ = image.detail  # Not used: a projector has its own resolution.
            return Image(image.url, image.name("url"))
        case AudioPart():
            return recording(part.input_audio)


def recording(given: InputAudio) -> Audio:
    """The recording that ``input_audio`` holds."""
    _ = given.format  # Not used: the decoder detects the format.
    return Audio(given.data, given.name("data"))


def call(given: tool_schemas.ToolCall | CustomToolCall) -> ToolCall:
    """One call of an assistant's earlier turn."""
    # Any name, not only a tool's: it is an earlier answer of the model, which may have invented one.
    if isinstance(given, CustomToolCall):
        name, arguments = given.custom.name_, custom_arguments(given.custom.input)
    else:
        name, arguments = given.function.name_, given.function.arguments
    return ToolCall(given.id, name, arguments)


def _tool(given: tool_schemas.Tool | CustomTool) -> Tool:
    if isinstance(given, CustomTool):
        custom = given.custom
        wanted = custom.format
        grammar = None if wanted is None or isinstance(wanted, ToolText) else wanted.grammar
        return custom_tool(custom.name_, custom.description or "", grammar)
    _ = given.type  # Ollama's API has functions only.
    function = given.function
    strict, schema = function.strict, function.parameters
    if schema is None:
        return Tool(function.name_, function.description or "", NO_PARAMETERS)
    return Tool(function.name_, function.description or "", schema.text, strict=strict or False)
