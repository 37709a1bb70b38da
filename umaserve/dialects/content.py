"""A turn's content that is given as a list of texts and media."""

from __future__ import annotations

from collections.abc import Sequence

from umaserve.messages import Attachment, ChatTurn, Media
from umaserve.wire.fields import out_of_range

MAX_MEDIA = 64
"""Images, recordings and videos of one conversation."""


def joined(parts: Sequence[str | Media], between: str) -> tuple[str, tuple[Attachment, ...]]:
    """A turn's content: one text, and the attachments with their places in it. ``between`` is inserted between two
    adjacent texts; nothing is inserted around media."""
    texts: list[str] = []
    attachments: list[Attachment] = []
    length, after_text = 0, False
    for part in parts:
        if isinstance(part, str):
            texts.append(between + part if after_text else part)
            length += len(texts[-1])
        else:
            attachments.append(Attachment(length, part))
        after_text = isinstance(part, str)
    return "".join(texts), tuple(attachments)


def turn_bytes(turn: ChatTurn) -> int:
    """The bytes of a turn's texts, which count against the longest prompt."""
    calls = sum(len(call.name.encode()) + len(call.arguments.encode()) for call in turn.tool_calls)
    return len(turn.content.encode()) + len(turn.thoughts.encode()) + calls


def check_media(turns: Sequence[ChatTurn], field: str) -> None:
    """Refuse a conversation with too many attachments."""
    n = sum(len(turn.attachments) for turn in turns)
    if n > MAX_MEDIA:
        raise out_of_range(field, f"at most {MAX_MEDIA} images, sounds and videos in all", n)
