"""Responses and conversations as they are written to a file, and read from one: JSON, checked where it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

import orjson

from umaserve.dialects.responses.kept import AllKept, E, KeptEntries, StoredConversation, StoredResponse

_GOING_ON = ("queued", "in_progress")
_LOST = {"code": "server_error", "message": "the server was restarted before the response had ended"}


@dataclass(frozen=True, slots=True)
class Rows(Generic[E]):
    """How entries of one kind are written to a file."""

    entries: KeptEntries[E]
    pack: Callable[[E], bytes]
    """Makes the content of a row, without the id."""
    unpack: Callable[[str, bytes], E]
    """Makes the entry of this id of a row's content; raises ``ValueError``."""


def rows_of(kept: AllKept) -> tuple[Rows[StoredResponse], Rows[StoredConversation]]:
    """How each kind is written."""
    return Rows(kept.responses, packed, response_of), Rows(kept.conversations, packed, conversation_of)


def packed(kept: StoredResponse | StoredConversation) -> bytes:
    """A response or a conversation as JSON, without its id."""
    if isinstance(kept, StoredResponse):
        values = {
            "response": orjson.Fragment(kept.response),
            "input": _fragments(kept.input),
            "output": _fragments(kept.output),
            "in_background": kept.in_background,
        }
    else:
        values = {
            "created_at": kept.created_at,
            "metadata": kept.metadata,
            "items": _fragments(kept.items.values()),
        }
    return orjson.dumps(values)


def response_of(response_id: str, content: bytes) -> StoredResponse:
    """The response that ``packed`` was given; raises ``ValueError``. One that went on when it was written has failed
    since."""
    values = orjson.loads(content)
    match values:
        case {"response": {"id": str(own_id)} as told, "in_background": bool(in_background)} if own_id == response_id:
            output = _items(values, "output")
            if told.get("status") in _GOING_ON:
                told = {**told, "status": "failed", "error": _LOST}
            return StoredResponse(
                id=response_id,
                input=_items(values, "input"),
                response=orjson.dumps(told),
                output=output,
                in_background=in_background,
            )
    raise ValueError("it is not a response with this id")


def conversation_of(conversation_id: str, content: bytes) -> StoredConversation:
    """The conversation that ``packed`` was given; raises ``ValueError``."""
    values = orjson.loads(content)
    match values:
        case {"created_at": int(created_at), "metadata": dict(metadata)}:
            if not all(isinstance(text, str) for text in metadata.values()):
                raise ValueError("its metadata are not strings")
            made = StoredConversation(id=conversation_id, created_at=created_at, metadata=metadata)
            made.add(_items(values, "items"))
            return made
    raise ValueError("it is not a conversation")


def _fragments(items: Any) -> list[orjson.Fragment]:
    return [*map(orjson.Fragment, items)]


def _items(values: dict[str, Any], name: str) -> tuple[bytes, ...]:
    items = values.get(name)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError(f"its {name} is not an array of objects")
    return tuple(map(orjson.dumps, items))
