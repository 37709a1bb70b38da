"""A turn's content that is given as a list of texts and media."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from umaserve.core.requests import Attachment, Audio, ChatTurn, Image, Media, Video
from umaserve.dialects.schemas import MAX_ITEMS, AudioItem, ImageItem, TextItem, VideoItem
from umaserve.wire.declared import array, by_type
from umaserve.wire.fields import Fields, bad_request, out_of_range

MAX_MEDIA = 64
"""Images, recordings and videos of one conversation."""

_ITEMS = array(by_type(TextItem, ImageItem, AudioItem, VideoItem), 1, MAX_ITEMS, of="items")


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """Options for images and the frames of videos."""

    max_slices: int | None = None
    numbered: bool | None = None
    omni: bool = False


def turn_with_media(fields: Fields, role: str, look: ImageSettings, sample_rate: int | None) -> ChatTurn:
    """A turn whose ``content`` is a string or an array of texts and media, as ``/ws/chat`` and ``/generate`` have it.
    ``sample_rate`` is that of samples which don't say theirs; ``None``: those are files."""
    value, path = fields.values.get("content"), fields.name("content")
    if isinstance(value, str):
        return ChatTurn(role, value)
    if not isinstance(value, list):
        raise bad_request(path, "a string or an array of content", value)
    # Each text becomes a line of its own, since clients end none with white space.
    read = [_item(item, look, sample_rate) for item in _ITEMS.read(value, path)]
    content, attachments = joined(read, "\n")
    return ChatTurn(role, content, attachments=attachments)


def _item(
    item: TextItem | ImageItem | AudioItem | VideoItem, look: ImageSettings, sample_rate: int | None
) -> str | Media:
    """One item of a content list. ``data`` is decoded and checked later, not on the loop's thread."""
    field = item.name("data")
    match item:
        case TextItem():
            return item.text
        case ImageItem():
            return Image(item.data, field, look.max_slices, look.numbered)
        case AudioItem():
            return Audio(item.data, field, item.sample_rate or sample_rate)
        case VideoItem():
            return Video(item.data, field, look.omni, item.stack_frames or 1, look.max_slices)


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


def in_order_of_calls(turns: Iterable[ChatTurn]) -> list[ChatTurn]:
    """``turns`` with the results of calls in the order of their calls. Many chat templates write no ids, so that a
    model knows only by the order which result is whose; agents send them as they come."""
    ordered: list[ChatTurn] = []
    results: list[ChatTurn] = []
    places: dict[str | None, int] = {}
    for turn in turns:
        if turn.role == "tool":
            results.append(turn)
            continue
        ordered += _sorted(results, places)
        results = []
        places = {call.id: place for place, call in enumerate(turn.tool_calls)}
        ordered.append(turn)
    return ordered + _sorted(results, places)


def _sorted(results: Sequence[ChatTurn], places: Mapping[str | None, int]) -> list[ChatTurn]:
    return sorted(results, key=lambda result: places.get(result.tool_call_id, len(places)))
