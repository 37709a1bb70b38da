"""What tests of the Realtime API say by OpenAI's client, and what they hear."""

from __future__ import annotations

from typing import Any

from openai.resources.realtime.realtime import RealtimeConnection

TEXT = {"type": "realtime", "output_modalities": ["text"], "temperature": 0.0}
TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]},
}


def say(talk: RealtimeConnection, text: str, role: str = "user") -> None:
    kind = "output_text" if role == "assistant" else "input_text"
    item: Any = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
    talk.conversation.item.create(item=item)
    assert [talk.recv().type, talk.recv().type] == ["conversation.item.added", "conversation.item.done"]


def until_done(talk: RealtimeConnection) -> list[Any]:
    events = [talk.recv()]
    while events[-1].type not in ("response.done", "error"):
        events.append(talk.recv())
    return events


def said(response: Any) -> str:
    return "".join(part.text for item in response.output for part in item.content)
