"""Parses the items of a conversation in OpenAI's Responses API."""

from __future__ import annotations

import base64
import binascii
import itertools
from collections.abc import Callable, Iterable, Sequence

from umaserve.core.requests import Attachment, ChatTurn, Image, Media, ToolCall
from umaserve.dialects.content import check_media, joined, turn_bytes
from umaserve.dialects.openai.schemas import ARGUMENTS, DETAIL, IMAGE_URL, InputAudio
from umaserve.dialects.openai.turns import BETWEEN, recording
from umaserve.dialects.parameters import MAX_ID_BYTES, RequestLimits, check_prompt_bytes
from umaserve.dialects.responses.custom_input import custom_arguments
from umaserve.dialects.responses.tools import name_for_model
from umaserve.wire.fields import Fields, array, bad_request, string

MAX_ITEMS = 4096
MAX_PARTS = 256
MAX_NAME_BYTES = 256
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_STATUS = ("in_progress", "completed", "incomplete")
_BETWEEN_ITEMS = "\n\n"
"""Separator of the texts of two items that are one turn for the model."""
_OWN = "umaserve:"
"""Beginning of thoughts that this server has put into ``encrypted_content``."""

Part = str | Media


def turns(instructions: str, items: Sequence[Fields], limits: RequestLimits) -> tuple[ChatTurn, ...]:
    """The conversation for the model; raises ``RequestError`` if an item is invalid or together they are too long."""
    read = [ChatTurn("system", instructions)] if instructions else []
    answer = _Answer()
    for item in items:
        turn = _turn(item, answer)
        if turn is not None:
            read += [*answer.take(), turn]
    read += answer.take()
    check_prompt_bytes(sum(map(turn_bytes, read)), limits, "input")
    check_media(read, "input")
    return tuple(_with_one_system(read))


def sealed(thoughts: str) -> str:
    """Thoughts as ``encrypted_content``, which programs send back where they send no thoughts. It is no secret: the
    program has had them in clear."""
    return base64.b64encode((_OWN + thoughts).encode()).decode()


class _Answer:
    """The assistant's part in the items since the last of another role: one turn for the model."""

    def __init__(self) -> None:
        self.texts, self.thoughts, self.calls = list[str](), list[str](), list[ToolCall]()

    def take(self) -> Iterable[ChatTurn]:
        if self.texts or self.thoughts or self.calls:
            text, thoughts = _BETWEEN_ITEMS.join(self.texts), _BETWEEN_ITEMS.join(self.thoughts)
            yield ChatTurn("assistant", text, tool_calls=tuple(self.calls), thoughts=thoughts)
            self.texts, self.thoughts, self.calls = [], [], []


def _turn(item: Fields, answer: _Answer) -> ChatTurn | None:
    """The turn of an item that isn't the assistant's; ``None`` for one that was added to ``answer``."""
    if item.values.get("type") is None:
        return _message(item, answer)
    read = _READERS[item.required_one_of("type", _READERS)]
    return read(item, answer)


def _message(item: Fields, answer: _Answer) -> ChatTurn | None:
    role = item.required_choice("role", _ROLES)
    if role == "assistant":
        answer.texts.append(_said(item))
        return None
    content, attachments = _content(item, "content")
    return ChatTurn(role, content, attachments=attachments)


def _reasoning(item: Fields, answer: _Answer) -> None:
    thoughts = "".join(_texts(item, "content", ("reasoning_text", "text")))
    thoughts = thoughts or _unsealed(item) or BETWEEN.join(_texts(item, "summary", ("summary_text",)))
    if thoughts:
        answer.thoughts.append(thoughts)


def _function_call(item: Fields, answer: _Answer) -> None:
    item.one_of("status", _STATUS)
    arguments = ARGUMENTS.read(item.values.get("arguments"), item.name("arguments"))
    answer.calls.append(ToolCall(_call_id(item), _called(item), arguments))


def _custom_call(item: Fields, answer: _Answer) -> None:
    item.one_of("status", _STATUS)
    text = string(item.values.get("input"), item.name("input"), empty=True)
    answer.calls.append(ToolCall(_call_id(item), _called(item), custom_arguments(text)))


def _call_output(item: Fields, _answer: _Answer) -> ChatTurn:
    content, attachments = _content(item, "output", low=0)
    return ChatTurn("tool", content, attachments=attachments, tool_call_id=_call_id(item))


_READERS: dict[str, Callable[[Fields, _Answer], ChatTurn | None]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _call_output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _call_output,
}


def _called(item: Fields) -> str:
    # Any name, not only a tool's: it is an earlier answer of the model, which may have invented one.
    name = string(item.values.get("name"), item.name("name"), max_bytes=MAX_NAME_BYTES)
    return name_for_model(name, item.string("namespace", max_bytes=MAX_NAME_BYTES, empty=True))


def _call_id(item: Fields) -> str:
    return string(item.values.get("call_id"), item.name("call_id"), max_bytes=MAX_ID_BYTES)


def _said(item: Fields) -> str:
    """The assistant's text; a refusal is one."""
    value = item.values.get("content")
    if isinstance(value, str):
        return value
    said = []
    for part in _parts(item, "content", 0):
        kind = part.required_one_of("type", ("output_text", "refusal", "input_text", "text"))
        key = "refusal" if kind == "refusal" else "text"
        said.append(string(part.values.get(key), part.name(key), empty=True))
    return BETWEEN.join(said)


def _content(item: Fields, key: str, low: int = 1) -> tuple[str, tuple[Attachment, ...]]:
    """A text, or parts."""
    value = item.values.get(key)
    if isinstance(value, str):
        return value, ()
    return joined([_part(part) for part in _parts(item, key, low)], BETWEEN)


def _parts(item: Fields, key: str, low: int) -> list[Fields]:
    path, value = item.name(key), item.values.get(key)
    if not isinstance(value, list):
        raise bad_request(path, "a string or an array of parts", value)
    parts = array(value, path, low, MAX_PARTS, "parts")
    return [Fields.of(part, f"{path}[{i}]") for i, part in enumerate(parts)]


def _part(part: Fields) -> Part:
    match part.required_one_of("type", ("input_text", "input_image", "input_audio", "output_text", "text")):
        case "input_image":
            if (detail := part.values.get("detail")) is not None:
                DETAIL.read(detail, part.name("detail"))
            path = part.name("image_url")
            return Image(IMAGE_URL.read(part.values.get("image_url"), path), path)
        case "input_audio":
            return recording(InputAudio.of(part.values.get("input_audio"), part.name("input_audio")))
    return string(part.values.get("text"), part.name("text"), empty=True)


def _texts(item: Fields, key: str, kinds: Sequence[str]) -> list[str]:
    if item.values.get(key) is None:
        return []
    texts = []
    for part in _parts(item, key, 0):
        part.required_one_of("type", kinds)
        texts.append(string(part.values.get("text"), part.name("text"), empty=True))
    return texts


def _unsealed(item: Fields) -> str:
    """The thoughts in ``encrypted_content``; none in that of another service, which only that can read."""
    value = item.values.get("encrypted_content")
    if value is None:
        return ""
    content = string(value, item.name("encrypted_content"), empty=True)
    try:
        text = base64.b64decode(content, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
    return text.removeprefix(_OWN) if text.startswith(_OWN) else ""


def _with_one_system(turns: Sequence[ChatTurn]) -> Iterable[ChatTurn]:
    """``turns`` with the system messages at the beginning as one: many chat templates take no second one."""
    leading = list(itertools.takewhile(lambda turn: turn.role == "system" and not turn.attachments, turns))
    if leading:
        yield ChatTurn("system", _BETWEEN_ITEMS.join(turn.content for turn in leading))
    yield from turns[len(leading) :]
