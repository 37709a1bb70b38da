"""Operations of the responses and conversations of OpenAI's API."""

from __future__ import annotations

from umaserve.dialects.examples import CITY, COLOURS, SKY, WEATHER, YES_OR_NO
from umaserve.dialects.openai.reference import ERRORS
from umaserve.dialects.reference import CAPPED, Operation, Reference, Reply, streamed, takes, websocket
from umaserve.dialects.responses import kept_schemas, reply_schemas, schemas, websocket_schemas

_PLAIN = {"input": COLOURS, "max_output_tokens": 16}
_INPUT = [{"role": "user", "content": [{"type": "input_text", "text": "Hello!"}]}]
_LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
_FORMAT = {"type": "json_schema", "name": "answer", "schema": YES_OR_NO}
_FUNCTION = {"type": "function", "name": "get_weather", "parameters": CITY}
_MESSAGE = {"type": "message", "role": "user", "content": "Hello!"}
_EVENTS = "Items follow one another. The last event has the whole response: completed, incomplete or failed."

RESPONSES = {
    ("createResponse", "POST /v1/responses"): Operation(
        "Create the next response of a conversation. Tools that OpenAI's service would run itself are ignored, with a"
        " line in the log. A stream without other events has response.in_progress every 15 seconds.",
        streamed(reply_schemas.Response, reply_schemas.ResponseEvent, _EVENTS, CAPPED),
        takes(
            schemas.ResponseRequest,
            plain=_PLAIN,
            streamed={**_PLAIN, "instructions": "Be brief.", "input": _INPUT, **_LOGPROBS, "stream": True},
            json={"input": SKY, "max_output_tokens": 32, "temperature": 0, "text": {"format": _FORMAT}},
            tool={"input": WEATHER, "temperature": 0, "tools": [_FUNCTION], "tool_choice": "required"},
        ),
    ),
    ("connectResponses", "GET /v1/responses"): websocket(
        "WebSocket: responses one after another. OpenAI's WebSocket mode. A client's message is a body of POST"
        " /v1/responses and asks for a response, whose events come as messages; one that comes meanwhile waits."
        " previous_response_id may name a response of this connection that isn't stored, as long as those take up to 2"
        " MiB, the latest last; where what follows fails, it is forgotten. Closing the connection cancels the response."
        " A message may have up to --max-chat-bytes bytes. Not through relays.",
        (websocket_schemas.ResponseCreate, websocket_schemas.ResponseServerMessage),
        ERRORS.error,
    ),
    ("countResponseTokens", "POST /v1/responses/input_tokens"): Operation(
        "Count the tokens of a prompt. Takes a body of /v1/responses, whose other fields are only checked.",
        reply_schemas.CountResponseTokensReply,
        takes(schemas.ResponseRequest, plain={"input": COLOURS}),
    ),
    ("compactConversation", "POST /v1/responses/compact"): Operation(
        "Compact a conversation. The model writes a summary of the conversation, in at most 2048 tokens (more are"
        " truncated). The output is the input of the next request, and new items follow it: the user's latest messages,"
        " up to 16 KiB as JSON, and the summary. All else is left out: send the instructions anew. Nothing is stored.",
        Reply("OK", reply_schemas.CompactionReply, headers=CAPPED),
        takes(schemas.CompactionRequest, plain={"input": _INPUT}),
    ),
    ("getResponse", "GET /v1/responses/{response_id}"): Operation(
        "Get a stored response. Stored in memory for an hour, or in the folder --store for --store-age; up to an eighth"
        " of --store-bytes for a key or an address, the oldest evicted first. A relay stores them itself, in memory.",
        reply_schemas.Response,
    ),
    ("deleteResponse", "DELETE /v1/responses/{response_id}"): Operation(
        "Delete a stored response. One that still runs is cancelled.", reply_schemas.DeleteResponseReply
    ),
    ("listInputItems", "GET /v1/responses/{response_id}/input_items"): Operation(
        "List a response's input, a page at a time", reply_schemas.ListItemsReply, parameters=kept_schemas.ItemsQuery
    ),
    ("cancelResponse", "POST /v1/responses/{response_id}/cancel"): Operation(
        "Cancel a background response. Its output so far is kept. One that has ended stays. A body is ignored.",
        reply_schemas.Response,
    ),
}

CONVERSATIONS = {
    ("createConversation", "POST /v1/conversations"): Operation(
        "Begin a conversation. Its items precede those of a request to /v1/responses that names it, and with the"
        " answer's are added to it once that is completed or incomplete. Stored as responses are, from its last change"
        " on.",
        reply_schemas.ConversationReply,
        takes(kept_schemas.ConversationRequest, empty={}, begun={"items": [_MESSAGE], "metadata": {"topic": "thanks"}}),
    ),
    ("listConversations", "GET /v1/conversations"): Operation(
        "List conversations. An extension: OpenAI's API lists none. Those of the caller's key or address, one page at a"
        " time, the one that has changed last first.",
        reply_schemas.ListConversationsReply,
        parameters=kept_schemas.ItemsQuery,
    ),
    ("getConversation", "GET /v1/conversations/{conversation_id}"): Operation(
        "Get a conversation", reply_schemas.ConversationReply
    ),
    ("updateConversation", "POST /v1/conversations/{conversation_id}"): Operation(
        "Change a conversation's metadata",
        reply_schemas.ConversationReply,
        takes(kept_schemas.ConversationUpdate, plain={"metadata": {"topic": "farewells"}}),
    ),
    ("deleteConversation", "DELETE /v1/conversations/{conversation_id}"): Operation(
        "Delete a conversation and its items. Its responses stay.", reply_schemas.DeleteConversationReply
    ),
    ("listConversationItems", "GET /v1/conversations/{conversation_id}/items"): Operation(
        "List the items of a conversation, a page at a time. Each has all that is stored of it.",
        reply_schemas.ListItemsReply,
        parameters=kept_schemas.ItemsQuery,
    ),
    ("addConversationItems", "POST /v1/conversations/{conversation_id}/items"): Operation(
        "Add items to a conversation. Up to 4096, and a quarter of what a key may store. An item whose id is taken gets"
        " another.",
        reply_schemas.ListItemsReply,
        takes(kept_schemas.ConversationItems, plain={"items": [_MESSAGE]}),
    ),
    ("getConversationItem", "GET /v1/conversations/{conversation_id}/items/{item_id}"): Operation(
        "Get an item of a conversation", reply_schemas.KeptItem
    ),
    ("deleteConversationItem", "DELETE /v1/conversations/{conversation_id}/items/{item_id}"): Operation(
        "Delete an item of a conversation. The reply is the conversation.", reply_schemas.ConversationReply
    ),
}

REFERENCE = Reference("Responses", "OpenAI's Responses API.", ERRORS, RESPONSES | CONVERSATIONS)
