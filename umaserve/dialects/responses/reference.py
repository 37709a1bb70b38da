"""Operations of the Responses API of OpenAI."""

from __future__ import annotations

from umaserve.dialects.openai.reference import ERRORS
from umaserve.dialects.reference import Body, Operation, Parameter, Reference, Reply
from umaserve.dialects.responses.schemas import (
    CountResponseTokensReply,
    DeleteResponseReply,
    ListInputItemsReply,
    Response,
    ResponseEvent,
    ResponseRequest,
)
from umaserve.wire.declared import string, value

REFERENCE = Reference(
    "Responses",
    "OpenAI's Responses API.",
    ERRORS,
    {
        ("POST", "/v1/responses"): Operation(
            "createResponse",
            "The next response of a conversation",
            (
                "Also at /responses, as in llama-server. Fields that are not listed are ignored. Images and "
                "recordings are for models that take them (--mmproj); a body with them may have as many "
                "bytes as --max-chat-bytes says. Tools that OpenAI's service would run itself are skipped, "
                "with a line in the log. A stream in which nothing else comes has response.in_progress every "
                "15 seconds."
            ),
            body=Body(
                ResponseRequest,
                {
                    "plain": {"input": "Name three colours.", "max_output_tokens": 16},
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
                },
            ),
            replies={
                "200": Reply(
                    'The whole response, or with `"stream": true` its events.',
                    json=Response,
                    events=(
                        ResponseEvent,
                        (
                            "Each event has a name, which is the type of the JSON object in its data (x-event). Items "
                            "come one after another. The last event has the whole response: completed, incomplete or "
                            "failed."
                        ),
                    ),
                    headers={
                        "x-umaserve-max-tokens": {
                            "description": "The server's --max-tokens, where the operator set it.",
                            "schema": {"type": "integer", "minimum": 1},
                        }
                    },
                )
            },
        ),
        ("POST", "/v1/responses/input_tokens"): Operation(
            "countResponseTokens",
            "The tokens of a prompt",
            ("Of a body of /v1/responses, whose other fields are checked and make no difference."),
            body=Body(ResponseRequest, {"plain": {"input": "Name three colours."}}),
            replies={"200": Reply("OK", json=CountResponseTokensReply)},
        ),
        ("GET", "/v1/responses/{response_id}"): Operation(
            "getResponse",
            "A kept response as it is now",
            (
                "Responses are kept in memory for an hour, up to 256 and 16 MiB for a key or an address; the "
                "oldest go first. Through a relay, the relay keeps them."
            ),
            parameters=(Parameter("response_id", "path", string()),),
            replies={"200": Reply("OK", json=Response)},
        ),
        ("DELETE", "/v1/responses/{response_id}"): Operation(
            "deleteResponse",
            "Forget a response",
            "One that goes on in the background ends.",
            parameters=(Parameter("response_id", "path", string()),),
            replies={"200": Reply("OK", json=DeleteResponseReply)},
        ),
        ("GET", "/v1/responses/{response_id}/input_items"): Operation(
            "listInputItems",
            "The items before a response",
            "A page at a time, the latest first.",
            parameters=(
                Parameter("response_id", "path", string()),
                Parameter(
                    "limit", "query", value(type="integer", minimum=1, maximum=100, default=20), "Items of a page."
                ),
                Parameter("order", "query", value(enum=["asc", "desc"], default="desc"), "By time."),
                Parameter("after", "query", string(), "The id of the item that the page follows."),
            ),
            replies={"200": Reply("OK", json=ListInputItemsReply)},
        ),
        ("POST", "/v1/responses/{response_id}/cancel"): Operation(
            "cancelResponse",
            "End a response in the background",
            ("What it has said so far is kept. One that has ended stays as it is. A body is ignored."),
            parameters=(Parameter("response_id", "path", string()),),
            replies={"200": Reply("OK", json=Response)},
        ),
    },
)
