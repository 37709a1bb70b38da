"""The items of a conversation in OpenAI's Realtime API: as clients send and see them, and as turns for the model."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from umaserve.core.errors import RequestError
from umaserve.core.requests import ChatTurn, Image, Media, Sound, ToolCall
from umaserve.dialects.content import check_media, in_order_of_calls, joined, turn_bytes
from umaserve.dialects.openai.turns import BETWEEN
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes
from umaserve.dialects.realtime.schemas import (
    RealtimeAssistantMessage,
    RealtimeCall,
    RealtimeCallOutput,
    RealtimeInputAudio,
    RealtimeInputText,
    RealtimeOutputAudio,
    RealtimeOutputText,
    RealtimeSystemMessage,
    RealtimeUserMessage,
)
from umaserve.dialects.realtime.sound_formats import SoundFormat, sound_of
from umaserve.dialects.responses.items import with_joined_users, with_one_system
from umaserve.dialects.responses.schemas import ResponseInputImage
from umaserve.wire.declared import Declared

ITEM_BYTES = 256
"""What an item takes besides its texts and sounds."""


@dataclass(slots=True)
class TextPart:
    """A text, or the transcript of spoken text."""

    kind: str
    text: str
    sentences: list[tuple[str, float]] = field(default_factory=list)
    """What was spoken of it, with the milliseconds that each sentence takes."""

    @property
    def n_bytes(self) -> int:
        return len(self.text)

    @property
    def spoken_ms(self) -> int:
        """Rounded up, as clients do that have all of the sound."""
        return math.ceil(sum(ms for _sentence, ms in self.sentences))

    def cut(self, end_ms: int) -> None:
        """Leave what was heard until then: whole words, as far as sentences tell when they were spoken."""
        heard, left = list[tuple[str, float]](), float(end_ms)
        for sentence, ms in self.sentences:
            if left <= 0:
                break
            words = sentence.split(" ")
            n = len(words) if left >= ms else int(len(words) * left / ms)
            if n:
                heard.append((" ".join(words[:n]), min(ms, left)))
            left -= ms
        self.sentences = heard
        self.text = " ".join(sentence for sentence, _ms in heard)

    def shown(self, *, whole: bool) -> dict[str, Any]:
        return {"type": self.kind, "transcript" if self.kind == "output_audio" else "text": self.text}


@dataclass(slots=True)
class SoundPart:
    """Sound of the user's, of which a model that doesn't hear gets the transcript."""

    sound: bytes
    format: SoundFormat
    field: str
    transcript: str | None = None
    heard: bool = True
    """Whether the model gets the sound itself."""
    until: int | None = None
    """Bytes of it that the model gets: not the silence that tells that a turn has ended. ``None``: all."""

    @property
    def n_bytes(self) -> int:
        return len(self.sound) + len(self.transcript or "")

    def shown(self, *, whole: bool) -> dict[str, Any]:
        sound = {"audio": base64.b64encode(self.sound).decode()} if whole else {}
        return {"type": "input_audio", "transcript": self.transcript, **sound}

    @property
    def media(self) -> Sound:
        samples = self.format.samples(self.sound[: self.until]).astype("<f4", copy=False).tobytes()
        return Sound(memoryview(samples), self.field, self.format.rate)


@dataclass(slots=True)
class ImagePart:
    """An image of the user's."""

    image: Image

    @property
    def n_bytes(self) -> int:
        return len(self.image.data)

    def shown(self, *, whole: bool) -> dict[str, Any]:
        return {"type": "input_image"}


Part = TextPart | SoundPart | ImagePart
AnyItem = RealtimeUserMessage | RealtimeSystemMessage | RealtimeAssistantMessage | RealtimeCall | RealtimeCallOutput


@dataclass(slots=True)
class Item:
    """One item: a message with parts, a call, or what a call returned."""

    id: str
    kind: str
    role: str = ""
    parts: list[Part] = field(default_factory=list)
    status: str = "completed"
    call_id: str = ""
    name: str = ""
    text: str = ""
    """A call's arguments, or what it returned."""
    problem: RequestError | None = None
    """Why a sound has no transcript."""

    @property
    def n_bytes(self) -> int:
        """About the memory that it takes."""
        return ITEM_BYTES + len(self.text) + sum(part.n_bytes for part in self.parts)

    @property
    def unread(self) -> bool:
        """Whether a sound has no transcript, for a model that doesn't hear."""
        return any(isinstance(part, SoundPart) and not part.heard and part.transcript is None for part in self.parts)

    def shown(self, *, whole: bool = False) -> dict[str, Any]:
        """The item for clients; ``whole``: with its sounds."""
        about = {"id": self.id, "object": "realtime.item", "type": self.kind, "status": self.status}
        match self.kind:
            case "message":
                return {**about, "role": self.role, "content": [part.shown(whole=whole) for part in self.parts]}
            case "function_call":
                return {**about, "call_id": self.call_id, "name": self.name, "arguments": self.text}
        return {**about, "call_id": self.call_id, "output": self.text}

    @property
    def turn(self) -> ChatTurn:
        """The item for the model."""
        match self.kind:
            case "function_call":
                return ChatTurn("assistant", "", (ToolCall(self.call_id, self.name, self.text or "{}"),))
            case "function_call_output":
                return ChatTurn("tool", self.text, tool_call_id=self.call_id)
        content, attachments = joined([_for_model(part) for part in self.parts], BETWEEN)
        return ChatTurn(self.role, content, attachments=attachments)


def _for_model(part: Part) -> str | Media:
    match part:
        case TextPart():
            return part.text
        case ImagePart():
            return part.image
    return part.media if part.heard else part.transcript or ""


def read_item(given: Declared, new_id: Callable[[str], str], of: SoundFormat) -> Item:
    """The item that a client sends; raises ``RequestError``. ``of``: the format of its sounds."""
    assert isinstance(given, AnyItem)
    _ = given.status  # Checked only.
    id_ = given.id or new_id("item_")
    match given:
        case RealtimeCall():
            call_id = given.call_id or new_id("call_")
            return Item(id_, "function_call", call_id=call_id, name=given.name_, text=given.arguments)
        case RealtimeCallOutput():
            return Item(id_, "function_call_output", call_id=given.call_id, text=given.output)
    role = "system" if given.role == "developer" else given.role
    return Item(id_, "message", role, [_part(part, of) for part in given.content])


def _part(given: Declared, of: SoundFormat) -> Part:
    match given:
        case RealtimeInputAudio():
            path = given.name("audio")
            return SoundPart(sound_of(given.audio, path, of), of, path, given.transcript)
        case ResponseInputImage():
            _ = given.detail
            return ImagePart(Image(given.image_url, given.name("image_url")))
        case RealtimeInputText():
            return TextPart("input_text", given.text)
        case RealtimeOutputText():
            return TextPart("output_text", given.text)
    assert isinstance(given, RealtimeOutputAudio)
    return TextPart("output_audio", given.transcript)


def conversation_turns(instructions: str, items: Iterable[Item], limits: RequestLimits) -> tuple[ChatTurn, ...]:
    """The conversation for the model; raises ``RequestError`` if it is too long."""
    read = [ChatTurn("system", instructions)] if instructions else []
    read += [item.turn for item in items]
    check_prompt_bytes(sum(map(turn_bytes, read)), limits, "conversation")
    check_media(read, "conversation")
    return with_joined_users(list(in_order_of_calls(_with_one_answer([*with_one_system(read)]))))


def _with_one_answer(turns: Sequence[ChatTurn]) -> Iterable[ChatTurn]:
    """``turns`` with the assistant's next to each other as one, as they were when the model wrote them."""
    answer: ChatTurn | None = None
    for turn in turns:
        if turn.role != "assistant":
            if answer is not None:
                yield answer
            answer = None
            yield turn
        elif answer is None:
            answer = turn
        else:
            content = "\n\n".join(filter(None, (answer.content, turn.content)))
            answer = replace(answer, content=content, tool_calls=(*answer.tool_calls, *turn.tool_calls))
    if answer is not None:
        yield answer
