"""Pages for the conversations of OpenAI's API: make one, and what it has; list, read, change and delete them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.http import JSON
from umaserve.dialects.parameters import json_body
from umaserve.dialects.responses.items import check_items
from umaserve.dialects.responses.keeping import check_room, kept_item
from umaserve.dialects.responses.kept import StoredConversation, TenantsKept
from umaserve.dialects.responses.kept_schemas import ConversationItems, ConversationRequest, ConversationUpdate
from umaserve.dialects.responses.pages import Reply, listed, page_of
from umaserve.wire.fields import Fields
from umaserve.wire.http_head import Request

PATH = "/v1/conversations"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a client's, and what it takes to answer it."""

    kept: TenantsKept
    request: Request
    unique: str
    """What the ids begin with, after their kind, of what it makes; nothing else has it."""
    now: int
    """Seconds since 1970."""

    @property
    def conversation(self) -> StoredConversation:
        """The conversation in the path; raises ``RequestError``."""
        return self.kept.conversations.get(self._tail.partition("/items")[0], "conversation_id")

    @property
    def item_id(self) -> str:
        """The id of the item in the path."""
        return self._tail.partition("/items/")[2]

    @property
    def _tail(self) -> str:
        return self.request.path.removeprefix(f"{PATH}/")


def create(asked: Asked) -> Reply:
    """``POST /v1/conversations``."""
    given = ConversationRequest.view(json_body(asked.request.body or b"{}"))
    made = StoredConversation(id=f"conv_{asked.unique}", created_at=asked.now, metadata=given.metadata or {})
    _add(asked, made, given.items or ())
    return 200, JSON, _told(made)


def list_all(asked: Asked) -> Reply:
    """``GET /v1/conversations``: a page of them, the one that has changed last first."""
    conversations = asked.kept.conversations
    told = [(one.id, _told(one)) for one in conversations.all()]
    max_age_s = None if math.isinf(conversations.max_age_s) else int(conversations.max_age_s)
    beside = {"on_disk": asked.kept.on_disk, "max_age_s": max_age_s}
    return 200, JSON, page_of(told, asked.request, kind="conversation", **beside)


def retrieve(asked: Asked) -> Reply:
    """``GET /v1/conversations/{id}``."""
    return 200, JSON, _told(asked.conversation)


def update(asked: Asked) -> Reply:
    """``POST /v1/conversations/{id}``."""
    conversation = asked.conversation
    conversation.metadata = ConversationUpdate.view(json_body(asked.request.body)).metadata
    asked.kept.conversations.keep(conversation)
    return 200, JSON, _told(conversation)


def delete(asked: Asked) -> Reply:
    """``DELETE /v1/conversations/{id}``."""
    conversation = asked.conversation
    asked.kept.conversations.drop(conversation.id)
    return 200, JSON, orjson.dumps({"id": conversation.id, "object": "conversation.deleted", "deleted": True})


def list_items(asked: Asked) -> Reply:
    """``GET /v1/conversations/{id}/items``: a page of them, the newest first."""
    return 200, JSON, page_of([*asked.conversation.items.items()], asked.request)


def add_items(asked: Asked) -> Reply:
    """``POST /v1/conversations/{id}/items``."""
    conversation = asked.conversation
    added = _add(asked, conversation, ConversationItems.view(json_body(asked.request.body)).items)
    return 200, JSON, listed([(orjson.loads(item)["id"], item) for item in added], more=False)


def retrieve_item(asked: Asked) -> Reply:
    """``GET /v1/conversations/{id}/items/{item_id}``."""
    return 200, JSON, _item(asked, asked.conversation)


def delete_item(asked: Asked) -> Reply:
    """``DELETE /v1/conversations/{id}/items/{item_id}``."""
    conversation = asked.conversation
    _item(asked, conversation)
    conversation.items = {key: item for key, item in conversation.items.items() if key != asked.item_id}
    asked.kept.conversations.keep(conversation)
    return 200, JSON, _told(conversation)


METHODS: dict[str, dict[str, Callable[[Asked], Reply]]] = {
    PATH: {"POST": create, "GET": list_all},
    f"{PATH}/{{conversation_id}}": {"GET": retrieve, "POST": update, "DELETE": delete},
    f"{PATH}/{{conversation_id}}/items": {"GET": list_items, "POST": add_items},
    f"{PATH}/{{conversation_id}}/items/{{item_id}}": {"GET": retrieve_item, "DELETE": delete_item},
}
"""What answers, by path and method."""


def _add(asked: Asked, conversation: StoredConversation, items: Sequence[Fields]) -> list[bytes]:
    check_items(items)
    kept = [kept_item(item, f"{asked.unique}i{i:02x}") for i, item in enumerate(items)]
    check_room(conversation, kept, asked.kept.conversations, "items")
    added = conversation.add(kept)
    asked.kept.conversations.keep(conversation)
    return added


def _item(asked: Asked, conversation: StoredConversation) -> bytes:
    item = conversation.items.get(asked.item_id)
    if item is None:
        problem = f"expected the id of an item of the conversation, got {asked.item_id[:64]}"
        raise RequestError(Fault.NOT_FOUND, "item_id", problem)
    return item


def _told(conversation: StoredConversation) -> bytes:
    told = {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created_at,
        "metadata": conversation.metadata,
    }
    return orjson.dumps(told)
