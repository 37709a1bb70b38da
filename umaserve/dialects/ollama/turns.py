"""Reads the messages of an Ollama chat."""

from __future__ import annotations

from collections.abc import Iterable

from umaserve.chat_format.tool_calls import short_ids
from umaserve.core.requests import Attachment, ChatTurn, Image, ToolCall
from umaserve.dialects.content import check_media, turn_bytes
from umaserve.dialects.ollama.schemas import OllamaChatRequest, OllamaMessage, OllamaToolCall
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes
from umaserve.wire.fields import dump_capped


def turns(given: OllamaChatRequest, limits: RequestLimits) -> tuple[ChatTurn, ...]:
    """The messages, of which there may be none; raises ``RequestError``."""
    read: list[ChatTurn] = []
    unanswered: list[ToolCall] = []
    for i, message in enumerate(given.messages or ()):
        turn = _turn(message, i, limits, unanswered)
        if turn.role == "assistant":
            unanswered = list(turn.tool_calls)
        read.append(turn)
    check_prompt_bytes(sum(map(turn_bytes, read)), limits, given.name("messages"))
    check_media(read, given.name("messages"))
    return tuple(read)


def before_text(images: Iterable[Image] | None) -> tuple[Attachment, ...]:
    """``images``, which stand before the text."""
    return tuple(Attachment(0, image) for image in images or ())


def _turn(message: OllamaMessage, index: int, limits: RequestLimits, unanswered: list[ToolCall]) -> ChatTurn:
    """Message number ``index``. ``unanswered``: the calls that await a message of the role "tool"; one that this
    message answers is removed."""
    role, text = message.role, message.content or ""
    if role == "assistant":
        # Ids that are the same in each request, so that the next one finds this one's prompt in the cache.
        new_id = short_ids(str(index))
        calls = tuple(_call(call, new_id(), limits) for call in message.tool_calls or ())
        return ChatTurn(role, text, tool_calls=calls, thoughts=message.thinking or "")
    call_id = _answered(message, unanswered) if role == "tool" else None
    return ChatTurn(role, text, attachments=before_text(message.images), tool_call_id=call_id)


def _answered(result: OllamaMessage, unanswered: list[ToolCall]) -> str | None:
    """The id of the call that a result is for: the one named, else the first to the tool of that name, else the
    first; ``None`` if there was no call."""
    call_id, name = result.tool_call_id, result.tool_name
    named = [call for call in unanswered if call.id == call_id] or [call for call in unanswered if call.name == name]
    if not call_id and (calls := named or unanswered):
        call_id = calls[0].id
    unanswered[:] = [call for call in unanswered if call.id != call_id]
    return call_id or None


def _call(given: OllamaToolCall, new_id: str, limits: RequestLimits) -> ToolCall:
    function = given.function
    # Any name, not only a tool's: it is an earlier answer of the model, which may have invented one.
    name, arguments = function.name_, function.arguments.values
    text = dump_capped(arguments, function.name("arguments"), limits.max_prompt_bytes).decode()
    return ToolCall(given.id or new_id, name, text)
