"""Parses the messages of an Ollama chat."""

from __future__ import annotations

from umaserve.chat_format.tool_calls import short_ids
from umaserve.core.requests import Attachment, ChatTurn, Image, ToolCall
from umaserve.dialects.content import MAX_MEDIA, check_media, turn_bytes
from umaserve.dialects.openai.turns import MAX_TOOLS
from umaserve.dialects.parameters import MAX_ID_BYTES, MAX_TURNS, ROLES, RequestLimits, check_prompt_bytes
from umaserve.wire.fields import Fields, array, bad_request, dump_capped, media_data, out_of_range, string
from umaserve.wire.long_texts import as_string

_DATA_URL = "data:"


def turns(fields: Fields, limits: RequestLimits) -> tuple[ChatTurn, ...]:
    """The messages, of which there may be none; raises ``RequestError``."""
    value = fields.values.get("messages")
    if value is None:
        return ()
    messages = array(value, fields.name("messages"), 0, MAX_TURNS, "messages")
    read: list[ChatTurn] = []
    unanswered: list[ToolCall] = []
    for i, message in enumerate(messages):
        turn = _turn(Fields.of(message, f"messages[{i}]"), i, limits, unanswered)
        if turn.role == "assistant":
            unanswered = list(turn.tool_calls)
        read.append(turn)
    check_prompt_bytes(sum(map(turn_bytes, read)), limits, fields.name("messages"))
    check_media(read, fields.name("messages"))
    return tuple(read)


def images(fields: Fields) -> tuple[Attachment, ...]:
    """``images``, which stand before the text; each is base64."""
    value = fields.values.get("images")
    if value is None:
        return ()
    path = fields.name("images")
    read = []
    for i, item in enumerate(array(value, path, 0, MAX_MEDIA, "images")):
        data = media_data(item, f"{path}[{i}]")
        head = data[: len(_DATA_URL)]
        if (head if isinstance(head, str) else as_string(head)) == _DATA_URL:
            raise out_of_range(f"{path}[{i}]", "the base64 of an image alone", f'one that begins with "{_DATA_URL}"')
        read.append(Attachment(0, Image(data, f"{path}[{i}]")))
    return tuple(read)


def _turn(fields: Fields, index: int, limits: RequestLimits, unanswered: list[ToolCall]) -> ChatTurn:
    """Message number ``index``. ``unanswered``: the calls that await a message of the role "tool"; one that this
    message answers is removed."""
    role = fields.required_one_of("role", ROLES)
    content = fields.values.get("content")
    text = "" if content is None else string(content, fields.name("content"), empty=True)
    thoughts = fields.values.get("thinking")
    if role == "assistant":
        said = "" if thoughts is None else string(thoughts, fields.name("thinking"), empty=True)
        return ChatTurn(role, text, tool_calls=_calls(fields, index, limits), thoughts=said)
    call_id = _answered(fields, unanswered) if role == "tool" else None
    return ChatTurn(role, text, attachments=images(fields), tool_call_id=call_id)


def _answered(fields: Fields, unanswered: list[ToolCall]) -> str | None:
    """The id of the call that a result is for: the one named, else the first to the tool of that name, else the
    first; ``None`` if there was no call."""
    call_id = fields.string("tool_call_id", max_bytes=MAX_ID_BYTES, empty=True)
    name = fields.string("tool_name", max_bytes=MAX_ID_BYTES, empty=True)
    named = [call for call in unanswered if call.id == call_id] or [call for call in unanswered if call.name == name]
    if not call_id and (calls := named or unanswered):
        call_id = calls[0].id
    unanswered[:] = [call for call in unanswered if call.id != call_id]
    return call_id or None


def _calls(fields: Fields, index: int, limits: RequestLimits) -> tuple[ToolCall, ...]:
    value = fields.values.get("tool_calls")
    if value is None:
        return ()
    path = fields.name("tool_calls")
    # Ids that are the same in each request, so that the next one finds this one's prompt in the cache.
    new_id = short_ids(str(index))
    items = array(value, path, 0, MAX_TOOLS, "calls")
    return tuple(_call(Fields.of(item, f"{path}[{i}]"), new_id(), limits) for i, item in enumerate(items))


def _call(fields: Fields, new_id: str, limits: RequestLimits) -> ToolCall:
    function = Fields.of(fields.values.get("function"), fields.name("function"))
    # Any name, not only a tool's: it is an earlier answer of the model, which may have invented one.
    name = string(function.values.get("name"), function.name("name"))
    arguments = function.values.get("arguments")
    if not isinstance(arguments, dict):
        raise bad_request(function.name("arguments"), "an object", arguments)
    text = dump_capped(arguments, function.name("arguments"), limits.max_prompt_bytes).decode()
    call_id = fields.string("id", max_bytes=MAX_ID_BYTES, empty=True)
    return ToolCall(call_id or new_id, name, text)
