"""Operations of the Responses API of OpenAI."""

from __future__ import annotations

from collections.abc import Sequence

from umaserve.dialects.openai.reference import ERRORS
from umaserve.dialects.reference import (
    HANDSHAKE,
    MAX_TOKENS,
    Body,
    Described,
    Operation,
    Parameter,
    Reference,
    Reply,
    query_of,
    upgraded,
)
from umaserve.dialects.responses.conversations_reference import CONVERSATIONS
from umaserve.dialects.responses.kept_schemas import ItemsQuery
from umaserve.dialects.responses.reply_schemas import (
    CompactionReply,
    CountResponseTokensReply,
    DeleteResponseReply,
    ListItemsReply,
    Response,
    ResponseEvent,
)
from umaserve.dialects.responses.schemas import CompactionRequest, ResponseRequest
from umaserve.dialects.responses.websocket_schemas import ResponseCreate, ResponseServerMessage

_COLOURS = "Name three colours."
_EXAMPLES = {
    "plain": {"input": _COLOURS, "max_output_tokens": 16},
    "streamed": {
        "model": "any",
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello!"}]}],
        "max_output_tokens": 16,
        "temperature": 0.7,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "stream": True,
    },
    "json": {
        "input": "Is the sky blue?",
        "max_output_tokens": 32,
        "temperature": 0,
        "text": {
            "format": {
                "type": "json_schema",
                "name": "answer",
                "schema": {
                    "type": "object",
                    "properties": {"answer": {"enum": ["yes", "no"]}},
                    "required": ["answer"],
                    "additionalProperties": False,
                },
            }
        },
    },
    "tool": {
        "input": "What is the weather in Paris?",
        "max_output_tokens": 100,
        "temperature": 0,
        "tools": [
            {
                "type": "function",
                "name": "get_weather",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string", "maxLength": 20}},
                    "required": ["city"],
                    "additionalProperties": False,
                },
            }
        ],
        "tool_choice": "required",
    },
}


def _of_one(
    name: str, summary: str, about: str, reply: Described = Response, query: Sequence[Parameter] = ()
) -> Operation:
    """An operation with a response that is kept."""
    parameters = (Parameter("response_id", "path"), *query)
    return Operation(name, summary, about, {"200": Reply("OK", json=reply)}, parameters=parameters)


REFERENCE = Reference(
    "Responses",
    "OpenAI's Responses API.",
    ERRORS,
    {
        ("POST", "/v1/responses"): Operation(
            "createResponse",
            "Create the next response of a conversation",
            "Also at /responses, as in llama-server. Fields that are not listed are ignored. Images and recordings are "
            "for models that take them (--mmproj); a body with them may have up to --max-chat-bytes bytes. Tools that"
            " OpenAI's service would run itself are ignored, with a line in the log. A stream without other events"
            " has response.in_progress every 15 seconds.",
            body=Body(ResponseRequest, _EXAMPLES),
            replies={
                "200": Reply(
                    'The whole response, or with `"stream": true` its events.',
                    json=Response,
                    events=(
                        ResponseEvent,
                        "Each event has a name, which is the type of the JSON object in its data (x-event). Items"
                        " follow one another. The last event has the whole response: completed, incomplete or failed.",
                    ),
                    headers={"x-umaserve-max-tokens": MAX_TOKENS},
                )
            },
        ),
        ("GET", "/v1/responses"): Operation(
            "connectResponses",
            "WebSocket: responses one after another",
            "Also at /responses. OpenAI's WebSocket mode: text messages, each one JSON object. Each message of the "
            "client's (x-client-message) is a body of POST /v1/responses and asks for a response, whose events come as "
            "messages (x-server-message); one that comes meanwhile waits. previous_response_id may name a response of "
            "this connection that isn't stored, as long as those take up to 2 MiB, the latest last; where what follows "
            "fails, it is forgotten. Closing the connection cancels the response. A message may have up to "
            "--max-chat-bytes bytes. Not through relays.",
            parameters=HANDSHAKE,
            replies=upgraded(
                ERRORS.error, also={"x-client-message": ResponseCreate, "x-server-message": ResponseServerMessage}
            ),
        ),
        ("POST", "/v1/responses/input_tokens"): Operation(
            "countResponseTokens",
            "Count the tokens of a prompt",
            "Also at /responses/input_tokens, as in llama-server. Takes a body of /v1/responses, whose other fields are"
            " checked and have no effect.",
            body=Body(ResponseRequest, {"plain": {"input": _COLOURS}}),
            replies={"200": Reply("OK", json=CountResponseTokensReply)},
        ),
        ("POST", "/v1/responses/compact"): Operation(
            "compactConversation",
            "Compact a conversation",
            "The model writes a summary of the conversation, in at most 2048 tokens (a longer one is truncated). The"
            " output is the input of the next request, and new items follow it: the user's latest messages, up to 16"
            " KiB as JSON, and the summary. All else is left out: send the instructions anew. Nothing is stored. Fields"
            " that are not listed are ignored.",
            body=Body(
                CompactionRequest,
                {
                    "plain": {
                        "input": [
                            {"role": "user", "content": "Name a colour."},
                            {"role": "assistant", "content": "Blue."},
                        ]
                    }
                },
            ),
            replies={
                "200": Reply("OK", json=CompactionReply, headers={"x-umaserve-max-tokens": MAX_TOKENS}),
            },
        ),
        ("GET", "/v1/responses/{response_id}"): _of_one(
            "getResponse",
            "Get a stored response",
            "Responses are stored in memory for an hour, or in the folder --store for --store-age; up to an eighth of"
            " --store-bytes for a key or an address, of which the oldest are evicted first. Through a relay, the relay"
            " stores them, in memory.",
        ),
        ("DELETE", "/v1/responses/{response_id}"): _of_one(
            "deleteResponse",
            "Delete a stored response",
            "A response that still runs in the background is cancelled.",
            DeleteResponseReply,
        ),
        ("GET", "/v1/responses/{response_id}/input_items"): _of_one(
            "listInputItems",
            "List the input items of a response",
            "One page at a time, the latest first.",
            ListItemsReply,
            query_of(ItemsQuery),
        ),
        ("POST", "/v1/responses/{response_id}/cancel"): _of_one(
            "cancelResponse",
            "Cancel a background response",
            "The output so far is kept. A response that has ended is not changed. A body is ignored.",
        ),
        **CONVERSATIONS,
    },
)
