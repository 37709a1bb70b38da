"""Operations of the conversations of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence

from umaserve.dialects.reference import Body, Described, Operation, Parameter, Reply, query_of
from umaserve.dialects.responses.conversations import PATH
from umaserve.dialects.responses.kept_schemas import (
    ConversationItems,
    ConversationRequest,
    ConversationUpdate,
    ItemsQuery,
)
from umaserve.dialects.responses.reply_schemas import (
    ConversationReply,
    DeleteConversationReply,
    KeptItem,
    ListItemsReply,
)

_ONE = f"{PATH}/{{conversation_id}}"
_ITEMS = f"{_ONE}/items"
_ITEM = f"{_ITEMS}/{{item_id}}"
_MESSAGE = {"type": "message", "role": "user", "content": "Hello!"}


def _operation(
    path: str,
    name: str,
    summary: str,
    about: str = "",
    reply: Described = ConversationReply,
    body: Body | None = None,
    query: Sequence[Parameter] = (),
) -> Operation:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = (*(Parameter(each, "path") for each in names), *query)
    return Operation(name, summary, about, {"200": Reply("OK", json=reply)}, body=body, parameters=parameters)


CONVERSATIONS = {
    ("POST", PATH): _operation(
        PATH,
        "createConversation",
        "Begin a conversation",
        "Its items precede those of a request to /v1/responses that names it, and these and the answer's are added to"
        " it once the response is completed or incomplete. Conversations are stored as responses are, and for as long"
        " after their last change.",
        body=Body(
            ConversationRequest, {"empty": {}, "begun": {"items": [_MESSAGE], "metadata": {"topic": "greetings"}}}
        ),
    ),
    ("GET", _ONE): _operation(_ONE, "getConversation", "Get a conversation"),
    ("POST", _ONE): _operation(
        _ONE,
        "updateConversation",
        "Change a conversation's metadata",
        body=Body(ConversationUpdate, {"plain": {"metadata": {"topic": "farewells"}}}),
    ),
    ("DELETE", _ONE): _operation(
        _ONE,
        "deleteConversation",
        "Delete a conversation",
        "Its items are deleted too; responses that went on with it stay.",
        DeleteConversationReply,
    ),
    ("GET", _ITEMS): _operation(
        _ITEMS,
        "listConversationItems",
        "List the items of a conversation",
        "One page at a time, the latest first. Each item has all that is stored of it: include has no effect.",
        ListItemsReply,
        query=query_of(ItemsQuery),
    ),
    ("POST", _ITEMS): _operation(
        _ITEMS,
        "addConversationItems",
        "Add items to a conversation",
        "Up to 20 at a time, 4096 in all, and a quarter of what a key or an address may store. An item whose id is"
        " taken gets another.",
        ListItemsReply,
        Body(ConversationItems, {"plain": {"items": [_MESSAGE]}}),
    ),
    ("GET", _ITEM): _operation(_ITEM, "getConversationItem", "Get an item of a conversation", reply=KeptItem),
    ("DELETE", _ITEM): _operation(
        _ITEM, "deleteConversationItem", "Delete an item of a conversation", "The reply is the conversation."
    ),
}
