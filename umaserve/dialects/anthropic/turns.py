"""Parses the conversation of a request to Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import ChatTurn, Image, Media, ToolCall
from umaserve.dialects.content import check_media, joined, turn_bytes
from umaserve.dialects.parameters import MAX_ID_BYTES, MAX_TURNS, RequestLimits, check_prompt_bytes
from umaserve.wire.fields import Fields, array, bad_request, dump_capped, media_data, string

MAX_BLOCKS = 1024
MAX_INPUT_BYTES = 2**30
"""Bytes of a call's input. All messages together are limited by ``max_prompt_bytes``."""
MAX_MEDIA_TYPE_BYTES = 64
MAX_TITLE_BYTES = 4096
BILLING_HEADER = "x-anthropic-billing-header:"
"""Beginning of a line of the system text that some agents send, with a value that is new in each turn."""
_BETWEEN = "\n\n"
"""Separator of two texts of a message, which are paragraphs of their own."""

Part = str | Media


def turns(fields: Fields, limits: RequestLimits) -> tuple[ChatTurn, ...]:
    """``system`` and ``messages``; raises ``RequestError`` if one is invalid or together they are too long."""
    path = fields.name("messages")
    messages = array(fields.values.get("messages"), path, 1, MAX_TURNS, "messages")
    read = [*_system(fields)]
    for i, message in enumerate(messages):
        read += _turns(Fields.of(message, f"{path}[{i}]"))
    check_prompt_bytes(sum(map(turn_bytes, read)), limits, path)
    check_media(read, path)
    return tuple(read)


def _system(fields: Fields) -> Iterable[ChatTurn]:
    value = fields.values.get("system")
    if value is None:
        return
    if not isinstance(value, str | list):
        raise bad_request(fields.name("system"), "a string or an array of text blocks", value)
    texts = [value] if isinstance(value, str) else _texts(fields)
    if text := _BETWEEN.join(filter(None, map(_without_billing, texts))):
        yield ChatTurn("system", text)


def _texts(fields: Fields) -> list[str]:
    return [_text(block) for block in _blocks(fields, "system", 0) if block.required_one_of("type", ("text",))]


def _without_billing(text: str) -> str:
    """``text`` without its billing header: with that, no turn could reuse what the turn before it computed."""
    return text.partition("\n")[2].lstrip("\n") if text.startswith(BILLING_HEADER) else text


def _turns(fields: Fields) -> Iterable[ChatTurn]:
    """The turns of one message: each result of a tool is one by itself."""
    role = fields.required_one_of("role", ("user", "assistant", "system"))
    value = fields.values.get("content")
    if isinstance(value, list):
        yield from _answer(fields) if role == "assistant" else _asked(fields, role)
    elif isinstance(value, str):
        yield ChatTurn(role, value)
    else:
        raise bad_request(fields.name("content"), "a string or an array of blocks", value)


def _answer(fields: Fields) -> Iterable[ChatTurn]:
    """An answer of the assistant. Redacted thoughts are left out: only the service that made them can read them."""
    texts, thoughts, calls = list[str](), list[str](), list[ToolCall]()
    for block in _blocks(fields, "content", 0):
        match block.required_one_of("type", ("text", "thinking", "redacted_thinking", "tool_use")):
            case "text":
                texts.append(_text(block))
            case "thinking":
                thoughts.append(string(block.values.get("thinking"), block.name("thinking"), empty=True))
            case "tool_use":
                calls.append(_call(block))
    yield ChatTurn("assistant", "".join(texts), tool_calls=tuple(calls), thoughts="".join(thoughts))


def _asked(fields: Fields, role: str) -> Iterable[ChatTurn]:
    parts: list[Part] = []
    for block in _blocks(fields, "content", 1):
        kind = block.required_one_of("type", ("text", "image", "document", "tool_result"))
        if kind == "tool_result":
            if parts:
                yield _turn(role, parts)
                parts = []
            yield _result(block)
        else:
            parts.append(_part(block, kind))
    if parts:
        yield _turn(role, parts)


def _turn(role: str, parts: Sequence[Part]) -> ChatTurn:
    content, attachments = joined(parts, _BETWEEN)
    return ChatTurn(role, content, attachments=attachments)


def _result(block: Fields) -> ChatTurn:
    """The turn of what a tool gave back; chat templates have no place for ``is_error``, so the text says it."""
    call_id = string(block.values.get("tool_use_id"), block.name("tool_use_id"), max_bytes=MAX_ID_BYTES)
    value = block.values.get("content")
    parts: list[Part] = ["Error:"] if block.boolean("is_error", False) else []
    if isinstance(value, list):
        for part in _blocks(block, "content", 0):
            parts.append(_part(part, part.required_one_of("type", ("text", "image", "document"))))
    elif value is not None:
        if not isinstance(value, str):
            raise bad_request(block.name("content"), "a string or an array of blocks", value)
        parts.append(value)
    content, attachments = joined(parts, _BETWEEN)
    return ChatTurn("tool", content, attachments=attachments, tool_call_id=call_id)


def _part(block: Fields, kind: str) -> Part:
    if kind == "text":
        return _text(block)
    return _image(block) if kind == "image" else _document(block)


def _text(block: Fields) -> str:
    return string(block.values.get("text"), block.name("text"), empty=True)


def _image(block: Fields) -> Image:
    source = Fields.of(block.values.get("source"), block.name("source"))
    _require(source, "base64", "this server fetches nothing and keeps no files")
    source.string("media_type", max_bytes=MAX_MEDIA_TYPE_BYTES)  # Not used: the decoder detects the format.
    return Image(media_data(source.values.get("data"), source.name("data")), source.name("data"))


def _document(block: Fields) -> str:
    """A document of text, below its title."""
    source = Fields.of(block.values.get("source"), block.name("source"))
    _require(source, "text", "this server reads no other documents")
    title = block.string("title", max_bytes=MAX_TITLE_BYTES, empty=True) or ""
    context = block.string("context", max_bytes=MAX_TITLE_BYTES, empty=True) or ""
    text = string(source.values.get("data"), source.name("data"), empty=True)
    return _BETWEEN.join(filter(None, (title, context, text)))


def _require(source: Fields, kind: str, why: str) -> None:
    value = source.values.get("type")
    if not isinstance(value, str):
        raise bad_request(source.name("type"), f'"{kind}"', value)
    if value != kind:
        problem = f'expected "{kind}", since {why}, got "{value[:64]}"'
        raise RequestError(Fault.BAD_REQUEST, source.name("type"), problem)


def _call(block: Fields) -> ToolCall:
    given = Fields.of(block.values.get("input"), block.name("input"))
    # Any name, not only a tool's: it is an earlier answer of the model, which may have invented one.
    name = string(block.values.get("name"), block.name("name"))
    call_id = string(block.values.get("id"), block.name("id"), max_bytes=MAX_ID_BYTES)
    return ToolCall(call_id, name, dump_capped(given.values, block.name("input"), MAX_INPUT_BYTES).decode())


def _blocks(fields: Fields, key: str, low: int) -> list[Fields]:
    path = fields.name(key)
    blocks = array(fields.values.get(key), path, low, MAX_BLOCKS, "blocks")
    return [Fields.of(block, f"{path}[{i}]") for i, block in enumerate(blocks)]
