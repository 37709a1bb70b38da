"""A response of OpenAI's Realtime API: outputs of its session in, events out."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from umaserve.chat_format.tool_calls import ToolCallParser
from umaserve.core.errors import RequestError
from umaserve.core.events import Finished, FinishReason, Usage
from umaserve.dialects.openai.errors import error_fields
from umaserve.dialects.realtime.items import Item, TextPart
from umaserve.dialects.realtime.settings import AnswerSettings
from umaserve.dialects.responses.output import OutputItems

Event = dict[str, Any]

_ENDS = {
    FinishReason.STOP: ("completed", None),
    FinishReason.LENGTH: ("incomplete", "max_output_tokens"),
    FinishReason.CANCELLED: ("cancelled", "client_cancelled"),
    FinishReason.CONTENT_FILTER: ("incomplete", "content_filter"),
}
"""``status``, and the reason in ``status_details``."""
_ARGUMENTS = "response.function_call_arguments"
_TEXT, _TRANSCRIPT, _SOUND = "response.output_text", "response.output_audio_transcript", "response.output_audio"


class Answer:
    """One response. Its items are made as for the Responses API, whose events become this API's here.

    ``add``: puts an item into the conversation, and returns
    the id of the one before it; ``None``: the response is beside the conversation.
    """

    def __init__(
        self,
        unique: str,
        settings: AnswerSettings,
        tool_calls: Callable[[], ToolCallParser] | None,
        shown: Mapping[str, Any],
        add: Callable[[Item], str | None] | None,
    ) -> None:
        """``shown``: fields that events about the response repeat."""
        self.id = f"resp_{unique}"
        self.settings = settings
        self.ended = False
        self._shown = shown
        self._add = add
        self._output = OutputItems(tool_calls, settings.tools, unique)
        self._items: list[Item] = []
        self._held: list[Event] = []
        """Events that end a message, until all of it is spoken."""
        self._place: dict[str, Any] = {}
        """Where the message's sound belongs."""
        self._speaking: TextPart | None = None
        """The part that it is the sound of."""
        self._to_speak: list[str] = []
        self._text_begun = self._text_ended = self._cut = False

    @property
    def in_conversation(self) -> bool:
        return self._add is not None

    def begin(self) -> Event:
        return {"type": "response.created", "response": self._response("in_progress")}

    def push(self, text: str) -> Iterator[Event]:
        """The events for the next text of the model's."""
        self._text_begun = True
        for event in self._output.push("", text):
            yield from self._told(event)

    def take_text(self) -> str:
        """The text to speak that has come since the last call."""
        text = "".join(self._to_speak)
        self._to_speak.clear()
        return text

    def hear(self, sound: bytes, sentence: str = "") -> Event:
        """The event for the next sound, in the format that the settings name; ``sentence``: the one that begins."""
        output = self.settings.output
        part, ms = self._speaking, 1000 * len(sound) / (output.width * output.rate)
        if part is not None:
            if not sentence and part.sentences:
                sentence, before = part.sentences.pop()
                ms += before
            part.sentences.append((sentence, ms))
        return self._in_response(f"{_SOUND}.delta", self._place, delta=base64.b64encode(sound).decode())

    def finish_text(self, *, whole: bool) -> Iterator[Event]:
        """The events for the rest of the text, unless it has ended before."""
        if self._text_ended:
            return
        self._text_ended = True
        for event in self._output.finish(whole=whole):
            yield from self._told(event)

    def finish(self, end: Finished) -> Iterator[Event]:
        """The events for the end, after ``finish_text`` and all sound."""
        status, why = _ENDS[end.reason]
        yield from self._end(status, end.usage, reason=why)

    def cancel(self, reason: str, usage: Usage) -> Iterator[Event]:
        """The events for the end of a response that is cut short."""
        yield from self._cut_short()
        yield from self._end("cancelled", usage, reason=reason)

    def fail(self, error: RequestError) -> Iterator[Event]:
        """The events for a response that failed."""
        yield from self._cut_short()
        fields = error_fields(error)
        details = {"type": fields["type"], "code": fields["code"], "message": fields["message"]}
        yield from self._end("failed", None, error=details)

    def _cut_short(self) -> Iterator[Event]:
        self._cut = True
        if self._text_begun:
            yield from self.finish_text(whole=False)

    def _end(
        self, status: str, usage: Usage | None, *, reason: str | None = None, error: dict[str, Any] | None = None
    ) -> Iterator[Event]:
        held, self._held = self._held, []
        for event in held:
            yield from self._ended(event)
        self.ended = True
        details: dict[str, Any] | None = {"type": status}
        if reason is not None:
            details = {"type": status, "reason": reason}
        elif error is not None:
            details = {"type": status, "error": error}
        elif status == "completed":
            details = None
        yield {"type": "response.done", "response": self._response(status, details, usage)}

    def _response(
        self, status: str, details: dict[str, Any] | None = None, usage: Usage | None = None
    ) -> dict[str, Any]:
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": details,
            "output": [item.shown() for item in self._items] if status != "in_progress" else [],
            "output_modalities": self.settings.modalities,
            "max_output_tokens": self.settings.max_tokens or "inf",
            **self._shown,
            "usage": None if usage is None else usage_fields(usage),
        }

    # -- the events of the Responses API -------------------------------------------------------------------------

    def _told(self, event: Event) -> Iterator[Event]:
        """The event in this API's words; the end of a message that is spoken waits for its sound."""
        if self.settings.spoken and _ends_message(event):
            self._held.append(event)
        elif event["type"].endswith(".done"):
            yield from self._ended(event)
        else:
            yield from self._begun(event)

    def _begun(self, event: Event) -> Iterator[Event]:
        match event["type"]:
            case "response.output_item.added":
                item = _begun_item(event["item"])
                before = None if self._add is None else self._add(item)
                self._items.append(item)
                yield self._in_response(event["type"], {"output_index": event["output_index"]}, item=item.shown())
                if self._add is not None:
                    yield {"type": "conversation.item.added", "previous_item_id": before, "item": item.shown()}
            case "response.content_part.added":
                self._place = _place(event)
                self._speaking = TextPart(self._part_kind, "")
                self._items[event["output_index"]].parts.append(self._speaking)
                yield self._in_response(event["type"], self._place, part=self._part(""))
            case "response.output_text.delta":
                delta = event["delta"]
                part = self._items[event["output_index"]].parts[0]
                assert isinstance(part, TextPart)
                part.text += delta
                if self.settings.spoken:
                    self._to_speak.append(delta)
                kind = _TRANSCRIPT if self.settings.spoken else _TEXT
                yield self._in_response(f"{kind}.delta", _place(event), delta=delta)
            case kind:
                call = self._items[event["output_index"]]
                call.text += event["delta"]
                yield self._in_response(kind, _place(event), call_id=call.call_id, delta=event["delta"])

    def _ended(self, event: Event) -> Iterator[Event]:
        item = self._items[event["output_index"]]
        match event["type"]:
            case "response.output_item.done":
                cut = self._cut and item.kind == "message"
                item.status = "incomplete" if cut else event["item"]["status"]
                yield self._in_response(event["type"], {"output_index": event["output_index"]}, item=item.shown())
                if self._add is not None:
                    yield {"type": "conversation.item.done", "item": item.shown()}
            case "response.content_part.done":
                yield self._in_response(event["type"], _place(event), part=self._part(event["part"]["text"]))
            case "response.output_text.done" if self.settings.spoken:
                yield self._in_response(f"{_SOUND}.done", _place(event))
                yield self._in_response(f"{_TRANSCRIPT}.done", _place(event), transcript=event["text"])
            case "response.output_text.done":
                yield self._in_response(event["type"], _place(event), text=event["text"])
            case kind:
                named = {"call_id": item.call_id, "name": item.name, "arguments": item.text}
                yield self._in_response(kind, _place(event), **named)

    @property
    def _part_kind(self) -> str:
        return "output_audio" if self.settings.spoken else "output_text"

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "audio", "transcript": text} if self.settings.spoken else {"type": "text", "text": text}

    def _in_response(self, kind: str, place: Mapping[str, Any], **fields: Any) -> Event:
        return {"type": kind, "response_id": self.id, **place, **fields}


def _ends_message(event: Event) -> bool:
    kind = event["type"]
    if kind == "response.output_item.done":
        return bool(event["item"]["type"] == "message")
    return kind in ("response.output_text.done", "response.content_part.done")


def _place(event: Event) -> dict[str, Any]:
    return {key: event[key] for key in ("item_id", "output_index", "content_index") if key in event}


def _begun_item(given: Event) -> Item:
    """The item of the conversation for a new one of the Responses API."""
    if given["type"] == "message":
        return Item(given["id"], "message", "assistant", status="in_progress")
    return Item(
        given["id"], "function_call", status="in_progress", call_id=given["call_id"], name=given["name"], text=""
    )


def usage_fields(usage: Usage) -> dict[str, Any]:
    """``usage`` in the form of this API; the sounds' tokens count as text."""
    cached = usage.prefix_reused_tokens
    return {
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "input_token_details": {
            "text_tokens": usage.prompt_tokens,
            "audio_tokens": 0,
            "image_tokens": 0,
            "cached_tokens": cached,
            "cached_tokens_details": {"text_tokens": cached, "audio_tokens": 0, "image_tokens": 0},
        },
        "output_token_details": {"text_tokens": usage.completion_tokens, "audio_tokens": 0},
    }
