"""Parses the conversation and the tools of an OpenAI chat request."""

from __future__ import annotations

import re

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Audio, ChatTurn, Image, Media, Tool, ToolCall
from umaserve.dialects.content import check_media, joined, turn_bytes
from umaserve.dialects.grammars import MAX_SCHEMA_BYTES
from umaserve.dialects.parameters import MAX_ID_BYTES, MAX_TURNS, RequestLimits, check_prompt_bytes
from umaserve.wire.fields import Fields, array, bad_request, dump_capped, media_data, out_of_range, string
from umaserve.wire.long_texts import as_string

MAX_PARTS = 256
MAX_TOOLS = 128
MAX_ARGUMENTS_BYTES = 256 * 1024
"""Bytes of arguments that are an object, as JSON."""
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_NAME = re.compile("[A-Za-z0-9_-]{1,64}")
DETAILS = ("auto", "high", "low", "original")
"""Values of ``detail``, checked but not used: a projector has its own resolution."""
_RECORDINGS = ("wav", "mp3")
_DATA_URL = re.compile(r"data:image/[\w.+-]{1,64}(?:;[\w.+-]{1,64}=[^,;]{1,64}){0,8};base64,", re.ASCII | re.IGNORECASE)
"""The beginning of a data: URL (RFC 2397) of an image."""
_MAX_HEAD = 2048
BETWEEN = "\n"
"""Separator of two texts of a message, as llama-server and vLLM have it."""
NO_PARAMETERS = '{"type":"object","properties":{}}'


def turns(fields: Fields, limits: RequestLimits) -> tuple[ChatTurn, ...]:
    """The messages; raises ``RequestError`` if one is invalid or together they are too long."""
    messages = array(fields.values.get("messages"), fields.name("messages"), 1, MAX_TURNS, "messages")
    read = tuple(_turn(Fields.of(message, f"messages[{i}]")) for i, message in enumerate(messages))
    check_prompt_bytes(sum(map(turn_bytes, read)), limits, fields.name("messages"))
    check_media(read, fields.name("messages"))
    return read


def tools(fields: Fields) -> tuple[Tool, ...]:
    """The functions that the model may call; their names are unique."""
    value = fields.values.get("tools")
    if value is None:
        return ()
    items = array(value, fields.name("tools"), 0, MAX_TOOLS, "tools")
    read = tuple(_tool(Fields.of(item, f"tools[{i}]")) for i, item in enumerate(items))
    names = [tool.name for tool in read]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise out_of_range(f"tools[{i}].function.name", "a name that no other tool has", f'"{name}"')
    n_bytes = sum(len(text.encode()) for tool in read for text in (tool.name, tool.description, tool.parameters))
    if n_bytes > MAX_SCHEMA_BYTES:
        raise out_of_range(fields.name("tools"), f"at most {MAX_SCHEMA_BYTES} bytes in all", f"{n_bytes} bytes")
    return read


def chosen_tools(fields: Fields, offered: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], bool, bool]:
    """The tools in ``offered`` that ``tool_choice`` allows, whether one of them must be called, and whether there may
    be several calls."""
    choice = fields.values.get("tool_choice")
    names: set[str] | None = None
    if not isinstance(choice, dict):
        ways = {"none": (False, set[str]()), "auto": (False, None), "required": (True, None)}
        must_call, names = fields.choice("tool_choice", ways, (False, None))
    else:
        named = Fields.of(choice, fields.name("tool_choice"))
        if named.one_of("type", ("function", "allowed_tools")) == "allowed_tools":
            must_call, names = _allowed(named, offered)
        else:
            must_call, names = True, {_known(named, offered)}
    kept = offered if names is None else tuple(tool for tool in offered if tool.name in names)
    if must_call and not offered:
        raise RequestError(
            Fault.BAD_REQUEST, "tool_choice", 'expected "auto", "none" or null where there are no tools, got another'
        )
    # Small models that have to call go on calling: unless asked for more, one call is enough.
    several = fields.boolean("parallel_tool_calls", not must_call)
    return kept, must_call, several


def _allowed(named: Fields, offered: tuple[Tool, ...]) -> tuple[bool, set[str]]:
    """Whether a call is required, and the names of the tools that are allowed."""
    allowed = Fields.of(named.values.get("allowed_tools"), named.name("allowed_tools"))
    must_call = allowed.required_choice("mode", {"auto": False, "required": True})
    path = allowed.name("tools")
    items = array(allowed.values.get("tools"), path, 1, MAX_TOOLS, "tools")
    return must_call, {_known(Fields.of(item, f"{path}[{i}]"), offered) for i, item in enumerate(items)}


def _known(named: Fields, offered: tuple[Tool, ...]) -> str:
    """The name of one of the tools in ``offered``. It may also stand flat, as in the Responses API: clients do so."""
    _function_type(named)
    flat = "function" not in named.values and "name" in named.values
    function = named if flat else _function(named)
    name = _name(function)
    if offered and all(tool.name != name for tool in offered):
        raise out_of_range(function.name("name"), "the name of one of the tools", f'"{name}"')
    return name


def _turn(fields: Fields) -> ChatTurn:
    role = fields.required_choice("role", _ROLES)
    if role == "assistant":
        calls = _calls(fields)
        return ChatTurn(role, _said(fields, optional=bool(calls)), calls, thoughts=_thoughts(fields))
    call_id = None
    if role == "tool":
        call_id = string(fields.values.get("tool_call_id"), fields.name("tool_call_id"), max_bytes=MAX_ID_BYTES)
    value = fields.values.get("content")
    if isinstance(value, str):
        return ChatTurn(role, value, tool_call_id=call_id)
    content, attachments = joined([_part(part) for part in _parts(fields, value, "parts")], BETWEEN)
    return ChatTurn(role, content, attachments=attachments, tool_call_id=call_id)


def _thoughts(fields: Fields) -> str:
    """Thoughts of the assistant: ``reasoning_content``, which some servers call ``reasoning``."""
    given = (fields.values.get(key) for key in ("reasoning_content", "reasoning"))
    value = next((value for value in given if value is not None), "")
    return string(value, fields.name("reasoning_content"), empty=True)


def _said(fields: Fields, *, optional: bool) -> str:
    """The assistant's text; ``optional`` if the message has tool calls instead."""
    value = fields.values.get("content")
    if isinstance(value, str):
        return value
    if value is None and optional:
        return ""
    if value is None and fields.values.get("audio") is not None:
        message = "expected the audio's transcript, since this daemon keeps no audio, got null"
        raise RequestError(Fault.BAD_REQUEST, fields.name("content"), f"{message}")
    return BETWEEN.join(_text(part) for part in _parts(fields, value, "text parts"))


def _parts(fields: Fields, content: object, what: str) -> list[Fields]:
    path = fields.name("content")
    if not isinstance(content, list):
        raise bad_request(path, f"a string or an array of {what}", content)
    parts = array(content, path, 1, MAX_PARTS, what)
    return [Fields.of(part, f"{path}[{i}]") for i, part in enumerate(parts)]


def _part(fields: Fields) -> str | Media:
    kind = fields.required_one_of("type", ("text", "image_url", "input_audio"))
    if kind == "text":
        return _text(fields)
    inner = Fields.of(fields.values.get(kind), fields.name(kind))
    if kind == "image_url":
        inner.one_of("detail", DETAILS)
        return Image(image_data(inner, "url"), inner.name("url"))
    return recording(inner)


def recording(fields: Fields) -> Audio:
    """The recording that ``input_audio`` holds."""
    fields.required_one_of("format", _RECORDINGS)  # Not used further: the decoder detects the format.
    return Audio(media_data(fields.values.get("data"), fields.name("data")), fields.name("data"))


def _text(fields: Fields) -> str:
    fields.required_one_of("type", ("text",))
    return string(fields.values.get("text"), fields.name("text"), empty=True)


def image_data(image: Fields, key: str) -> str | memoryview:
    """The base64 in a data: URL; it is decoded and checked later, not on the loop's thread."""
    path, expected = image.name(key), '"data:image/TYPE;base64," and the image, since this daemon fetches nothing'
    url = image.values.get(key)
    if not isinstance(url, str | memoryview):
        raise bad_request(path, expected, url)
    head = url[:_MAX_HEAD] if isinstance(url, str) else as_string(url[:_MAX_HEAD])
    begin = _DATA_URL.match(head)
    if begin is None:
        raise out_of_range(path, expected, f'"{head[:32]}"')
    if begin.end() == len(url):
        raise out_of_range(path, expected, "no image")
    return url[begin.end() :]


def _calls(fields: Fields) -> tuple[ToolCall, ...]:
    value = fields.values.get("tool_calls")
    if value is None:
        return ()
    path = fields.name("tool_calls")
    items = array(value, path, 0, MAX_TOOLS, "calls")
    return tuple(_call(Fields.of(item, f"{path}[{i}]")) for i, item in enumerate(items))


def _call(fields: Fields) -> ToolCall:
    _function_type(fields)
    function = _function(fields)
    arguments = call_arguments(function)
    # Any name, not only a tool's: it is an earlier answer of the model, which may have invented one.
    name = string(function.values.get("name"), function.name("name"))
    return ToolCall(string(fields.values.get("id"), fields.name("id"), max_bytes=MAX_ID_BYTES), name, arguments)


def call_arguments(function: Fields) -> str:
    """A call's arguments: JSON text, or whatever the model wrote in its place, also what was cut off. Some clients send
    an object, and an empty text where there are none."""
    given, field = function.values.get("arguments"), function.name("arguments")
    if isinstance(given, dict):
        return dump_capped(given, field, MAX_ARGUMENTS_BYTES).decode()
    return string(given, field, empty=True) or "{}"


def _tool(fields: Fields) -> Tool:
    _function_type(fields)
    function = _function(fields)
    description = function.string("description", max_bytes=MAX_SCHEMA_BYTES, empty=True) or ""
    strict = function.boolean("strict", False)
    parameters = function.object("parameters")
    if parameters is None:
        return Tool(_name(function), description, NO_PARAMETERS)
    text = dump_capped(parameters.values, function.name("parameters"), MAX_SCHEMA_BYTES)
    return Tool(_name(function), description, text.decode(), strict=strict)


def _function_type(fields: Fields) -> None:
    fields.one_of("type", ("function",))


def _function(fields: Fields) -> Fields:
    return Fields.of(fields.values.get("function"), fields.name("function"))


def _name(function: Fields) -> str:
    name = string(function.values.get("name"), function.name("name"))
    if not _NAME.fullmatch(name):
        raise out_of_range(function.name("name"), "1 to 64 letters, digits, _ or -", f'"{name}"')
    return name
