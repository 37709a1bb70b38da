"""Parses the conversation of a request to Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from umaserve.core.requests import ChatTurn, Image, Media, ToolCall
from umaserve.dialects.anthropic.schemas import (
    AnthropicConversation,
    AnthropicDocument,
    AnthropicImage,
    AnthropicText,
    AnthropicThinking,
    AnthropicToolResult,
    AnthropicToolUse,
    AnthropicUserMessage,
)
from umaserve.dialects.content import check_media, in_order_of_calls, joined, turn_bytes
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes
from umaserve.wire.declared import Declared

BILLING_HEADER = "x-anthropic-billing-header:"
"""Beginning of a line of the system text that some agents send, with a value that is new in each turn."""
_BETWEEN = "\n\n"
"""Separator of two texts of a message, which are paragraphs of their own."""

Part = str | Media


def turns(given: AnthropicConversation, limits: RequestLimits) -> tuple[ChatTurn, ...]:
    """``system`` and ``messages``; raises ``RequestError`` if one is invalid or together they are too long."""
    read = [*_system(given.system or "")]
    for message in given.messages:
        content = message.content
        if isinstance(content, str):
            read.append(ChatTurn(message.role, content))
        elif isinstance(message, AnthropicUserMessage):
            read += _asked(message.role, content)
        else:
            read.append(_answer(content))
    path = given.name("messages")
    check_prompt_bytes(sum(map(turn_bytes, read)), limits, path)
    check_media(read, path)
    return tuple(in_order_of_calls(read))


def _system(given: str | Sequence[AnthropicText]) -> Iterable[ChatTurn]:
    texts = [given] if isinstance(given, str) else [block.text for block in given]
    if text := _BETWEEN.join(filter(None, map(_without_billing, texts))):
        yield ChatTurn("system", text)


def _without_billing(text: str) -> str:
    """``text`` without its billing header: with that, no turn could reuse what the turn before it computed."""
    return text.partition("\n")[2].lstrip("\n") if text.startswith(BILLING_HEADER) else text


def _answer(blocks: Iterable[Declared]) -> ChatTurn:
    """An answer of the assistant. Redacted thoughts are left out: only the service that made them can read them."""
    texts, thoughts, calls = list[str](), list[str](), list[ToolCall]()
    for block in blocks:
        match block:
            case AnthropicText():
                texts.append(block.text)
            case AnthropicThinking():
                thoughts.append(block.thinking)
            case AnthropicToolUse():
                calls.append(ToolCall(block.id, block.name_, block.input))
    return ChatTurn("assistant", "".join(texts), tool_calls=tuple(calls), thoughts="".join(thoughts))


def _asked(role: str, blocks: Iterable[Declared]) -> Iterable[ChatTurn]:
    """The turns of one message: each result of a tool is one by itself."""
    parts: list[Part] = []
    for block in blocks:
        if isinstance(block, AnthropicToolResult):
            if parts:
                yield _turn(role, parts)
                parts = []
            yield _result(block)
        else:
            parts.append(_part(block))
    if parts:
        yield _turn(role, parts)


def _turn(role: str, parts: Sequence[Part]) -> ChatTurn:
    content, attachments = joined(parts, _BETWEEN)
    return ChatTurn(role, content, attachments=attachments)


def _result(block: AnthropicToolResult) -> ChatTurn:
    """The turn of what a tool gave back; chat templates have no place for ``is_error``, so the text says it."""
    call_id, given = block.tool_use_id, block.content
    parts: list[Part] = ["Error:"] if block.is_error else []
    if isinstance(given, str):
        parts.append(given)
    else:
        parts += map(_part, given or ())
    content, attachments = joined(parts, _BETWEEN)
    return ChatTurn("tool", content, attachments=attachments, tool_call_id=call_id)


def _part(block: Declared) -> Part:
    match block:
        case AnthropicImage():
            source = block.source
            _ = source.type, source.media_type  # Not used: the decoder detects the format.
            return Image(source.data, source.name("data"))
        case AnthropicDocument():
            document = block.source
            _ = document.type
            return _BETWEEN.join(filter(None, (block.title, block.context, document.data)))
    assert isinstance(block, AnthropicText)
    return block.text
