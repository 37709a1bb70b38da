"""Parses the items of a conversation in OpenAI's Responses API."""

from __future__ import annotations

import base64
import binascii
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import orjson

from umaserve.chat_format.tool_calls import short_ids
from umaserve.core.requests import Attachment, ChatTurn, Image, Media, ToolCall
from umaserve.dialects.content import check_media, in_order_of_calls, joined, turn_bytes
from umaserve.dialects.custom_tools import custom_arguments
from umaserve.dialects.openai.turns import BETWEEN, recording
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes
from umaserve.dialects.responses.mcp_schemas import (
    ResponseMcpApprovalRequest,
    ResponseMcpApprovalResponse,
    ResponseMcpCall,
)
from umaserve.dialects.responses.schemas import (
    ResponseAssistantMessage,
    ResponseCallOutput,
    ResponseCompaction,
    ResponseCustomToolCall,
    ResponseFunctionCall,
    ResponseInputAudio,
    ResponseInputImage,
    ResponseInputText,
    ResponseReasoning,
    ResponseRefusal,
    ResponseUserMessage,
    read_item,
)
from umaserve.dialects.server_tools import in_namespace, server_tool_name
from umaserve.wire.declared import Declared
from umaserve.wire.fields import Fields, out_of_range

_BETWEEN_ITEMS = "\n\n"
"""Separator of the texts of two items that are one turn for the model."""
_OWN = "umaserve:"
"""Beginning of what this server has put into ``encrypted_content``."""
_SUMMARY = "Summary of our conversation so far, whose other messages are left out:\n\n"
"""What the model reads before the summary in a compaction."""

Part = str | Media


def turns(instructions: str, items: Sequence[Fields], limits: RequestLimits) -> tuple[ChatTurn, ...]:
    """The conversation for the model; raises ``RequestError`` if an item is invalid or together they are too long."""
    read = [ChatTurn("system", instructions)] if instructions else []
    answer = _Answer()
    called: set[str] = set()
    compacted = False
    for item in map(read_item, items):
        compacted |= isinstance(item, ResponseCompaction)
        turn = _turn(item, answer)
        _check_call(item, called)
        if turn is not None:
            read += [*answer.take(), turn]
    read += answer.take()
    check_prompt_bytes(sum(map(turn_bytes, read)), limits, "input")
    check_media(read, "input")
    conversation = tuple(in_order_of_calls(with_one_system(read)))
    return with_joined_users(conversation) if compacted else conversation


def _check_call(item: Declared, called: set[str]) -> None:
    """Refuse the output of a call that was not made; ``called``: ids of the calls so far, to which the item's is
    added."""
    match item:
        case ResponseFunctionCall() | ResponseCustomToolCall():
            called.add(item.call_id)
        case ResponseCallOutput() if item.call_id not in called:
            raise out_of_range(item.name("call_id"), "the call_id of a call before it", f'"{item.call_id[:64]}"')


def check_items(items: Iterable[Fields]) -> None:
    """Raise ``RequestError`` for an item that no conversation can have."""
    answer = _Answer()
    for item in map(read_item, items):
        _turn(item, answer)


def with_joined_users(turns: Sequence[ChatTurn]) -> tuple[ChatTurn, ...]:
    """``turns`` with consecutive ones of the user's as one: many chat templates take no second one before an answer,
    and a compaction leaves several."""
    joined_turns: list[ChatTurn] = []
    for turn in turns:
        if joined_turns and joined_turns[-1].role == turn.role == "user":
            before = joined_turns.pop()
            content = before.content + _BETWEEN_ITEMS
            moved = (replace(one, at=len(content) + one.at) for one in turn.attachments)
            turn = ChatTurn("user", content + turn.content, attachments=(*before.attachments, *moved))
        joined_turns.append(turn)
    return tuple(joined_turns)


def sealed(text: str) -> str:
    """Thoughts or a summary as ``encrypted_content``, which programs send back. It is no secret: base64 of what
    the model has written for the program."""
    return base64.b64encode((_OWN + text).encode()).decode()


class _Answer:
    """The assistant's part in the items since the last of another role: one turn for the model."""

    def __init__(self) -> None:
        self.texts, self.thoughts, self.calls = list[str](), list[str](), list[ToolCall]()
        self.awaiting: dict[str, ResponseMcpApprovalRequest] = {}
        """Calls that wait for an approval, or had it."""

    def take(self) -> Iterable[ChatTurn]:
        if self.texts or self.thoughts or self.calls:
            text, thoughts = _BETWEEN_ITEMS.join(self.texts), _BETWEEN_ITEMS.join(self.thoughts)
            yield ChatTurn("assistant", text, tool_calls=tuple(self.calls), thoughts=thoughts)
            self.texts, self.thoughts, self.calls = [], [], []


def _turn(item: Declared, answer: _Answer) -> ChatTurn | None:
    """The turn of an item that isn't the assistant's; ``None`` for one that was added to ``answer``."""
    match item:
        case ResponseUserMessage():
            role = "user" if item.role == "user" else "system"
            content, attachments = _content(item.content)
            return ChatTurn(role, content, attachments=attachments)
        case ResponseCallOutput():
            content, attachments = _content(item.output)
            return ChatTurn("tool", content, attachments=attachments, tool_call_id=item.call_id)
        case ResponseCompaction():
            return ChatTurn("user", _SUMMARY + _summary(item))
        case ResponseAssistantMessage():
            answer.texts.append(_said(item.content))
        case ResponseReasoning():
            if thoughts := _thoughts(item):
                answer.thoughts.append(thoughts)
        case ResponseFunctionCall() | ResponseCustomToolCall():
            answer.calls.append(_call(item))
        case ResponseMcpCall():
            return _called(item, item.output or _error(item), answer)
        case ResponseMcpApprovalRequest():
            answer.awaiting[item.id] = item
        case ResponseMcpApprovalResponse():
            asked = answer.awaiting.get(item.approval_request_id)
            if asked is None:
                field, got = item.name("approval_request_id"), f'"{item.approval_request_id}"'
                raise out_of_range(field, "the id of a mcp_approval_request before it", got)
            if not item.approve:
                return _called(asked, f"The user has not allowed this call. {item.reason or ''}".strip(), answer)
    return None


def _called(item: ResponseMcpCall | ResponseMcpApprovalRequest, result: str, answer: _Answer) -> ChatTurn:
    """The result of a call that the daemon made, or did not; the call itself is the assistant's."""
    call_id = short_ids(item.id)()
    answer.calls.append(ToolCall(call_id, server_tool_name(item.name_, item.server_label), item.arguments))
    return ChatTurn("tool", result, tool_call_id=call_id)


def _error(item: ResponseMcpCall) -> str:
    """Why a call failed; other services tell it in an object."""
    error = item.error
    return error if isinstance(error, str) else "" if error is None else orjson.dumps(error).decode()


def _call(item: ResponseFunctionCall | ResponseCustomToolCall) -> ToolCall:
    _ = item.status  # Checked only.
    call_id, name = item.call_id, in_namespace(item.name_, item.namespace)
    arguments = item.arguments if isinstance(item, ResponseFunctionCall) else custom_arguments(item.input)
    return ToolCall(call_id, name, arguments)


def _said(content: str | Sequence[ResponseInputText | ResponseRefusal]) -> str:
    """The assistant's text; a refusal is one."""
    if isinstance(content, str):
        return content
    return BETWEEN.join(part.refusal if isinstance(part, ResponseRefusal) else part.text for part in content)


def _content(given: str | Sequence[Declared]) -> tuple[str, tuple[Attachment, ...]]:
    """A text, or parts."""
    return (given, ()) if isinstance(given, str) else joined([*map(_part, given)], BETWEEN)


def _part(part: Declared) -> Part:
    match part:
        case ResponseInputImage():
            _ = part.detail  # Checked only: a projector has its own resolution.
            return Image(part.image_url, part.name("image_url"))
        case ResponseInputAudio():
            return recording(part.input_audio)
    assert isinstance(part, ResponseInputText)
    return part.text


def _thoughts(item: ResponseReasoning) -> str:
    """Thoughts: in words, sealed, or at least a summary of them."""
    thoughts = "".join(part.text for part in item.content or ())
    return thoughts or _unsealed(item.encrypted_content or "") or BETWEEN.join(part.text for part in item.summary or ())


def _summary(item: ResponseCompaction) -> str:
    """The summary in a compaction. Without it the conversation would lack its beginning, so one of another service is
    refused."""
    if summary := _unsealed(item.encrypted_content):
        return summary
    expected = "what umaserve's /v1/responses/compact has returned"
    raise out_of_range(item.name("encrypted_content"), expected, "a text that only another service can read")


def _unsealed(content: str) -> str:
    """The text in ``encrypted_content``; none in that of another service, which only that can read."""
    try:
        text = base64.b64decode(content, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
    return text.removeprefix(_OWN) if text.startswith(_OWN) else ""


def with_one_system(turns: Sequence[ChatTurn]) -> Iterable[ChatTurn]:
    """``turns`` with the system messages at the beginning as one: many chat templates take no second one."""
    leading = list(itertools.takewhile(lambda turn: turn.role == "system" and not turn.attachments, turns))
    if leading:
        yield ChatTurn("system", _BETWEEN_ITEMS.join(turn.content for turn in leading))
    yield from turns[len(leading) :]
