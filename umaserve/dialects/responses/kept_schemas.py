"""Schemas of what clients of OpenAI's API ask of conversations, and of pages of items."""

from __future__ import annotations

from umaserve.dialects.responses.schemas import METADATA, ResponseInputItem
from umaserve.wire.declared import Declared, Kind, array, choice, omittable, optional, required, string, whole

MAX_ADDED = 20
"""Items that are added to a conversation at a time."""
DEFAULT_PAGE = 20
_PAGE = whole(1, 100)


class ConversationRequest(Declared):
    items = optional(array(ResponseInputItem, high=MAX_ADDED, of="items"))
    metadata = optional(METADATA)


class ConversationUpdate(Declared):
    metadata = required(METADATA, "It replaces all of the one before.")


class ConversationItems(Declared):
    items = required(array(ResponseInputItem, 1, MAX_ADDED, of="items"), "They are added at the conversation's end.")


def _page(given: str, path: str) -> int:
    return _PAGE.read(int(given) if given.isdecimal() and len(given) < 10 else given, path)


class ItemsQuery(Declared):
    limit = omittable(Kind(_PAGE.schema, _page), "The most that a page has.", default=DEFAULT_PAGE)
    order = omittable(choice("asc", "desc"), "By time.", default="desc")
    after = omittable(string(), "The id of what the page follows.")
