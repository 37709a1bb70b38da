"""Operations of the Messages API of Anthropic."""

from __future__ import annotations

from umaserve.dialects.anthropic.schemas import (
    AnthropicConversation,
    AnthropicError,
    AnthropicEvent,
    AnthropicMessage,
    CountTokensReply,
    MessageRequest,
)
from umaserve.dialects.reference import CACHE_MISS, MAX_TOKENS, Body, Errors, Operation, Reference, Reply

ERRORS = Errors(
    "Anthropic",
    AnthropicError,
    headers={"request-id": {"description": "The request's id, where it was read.", "schema": {"type": "string"}}},
)

_COLOURS = [{"role": "user", "content": "Name three colours."}]
_EXAMPLES = {
    "plain": {"model": "any", "max_tokens": 16, "messages": _COLOURS},
    "streamed": {
        "model": "any",
        "max_tokens": 16,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}],
        "temperature": 0.7,
        "stop_sequences": ["\n\n"],
        "stream": True,
    },
    "tool": {
        "model": "any",
        "max_tokens": 100,
        "temperature": 0,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [
            {
                "name": "get_weather",
                "description": "The weather in a city.",
                "input_schema": {
                    "type": "object",
                    "properties": {"city": {"type": "string", "maxLength": 20}},
                    "required": ["city"],
                    "additionalProperties": False,
                },
            }
        ],
        "tool_choice": {"type": "any"},
    },
}

REFERENCE = Reference(
    "Anthropic",
    "Anthropic's Messages API.",
    ERRORS,
    {
        ("POST", "/v1/messages"): Operation(
            "messages",
            "Create the next message of a conversation",
            "Fields that are not listed, such as cache_control, are ignored. Images are for models that take them"
            " (--mmproj), and are sent as base64; a body may have up to --max-chat-bytes bytes. A prompt that is too"
            " long for the context is refused with Anthropic's own error message, which agents recognize. A stream"
            " without other events has a ping every 15 seconds.\n\nOn all paths that generate text, the headers"
            " x-umaserve-priority "
            "(interactive or background), x-umaserve-slo-ttft-ms and x-umaserve-slo-tbt-ms replace priority and slo"
            " in the body.",
            body=Body(MessageRequest, _EXAMPLES),
            replies={
                "200": Reply(
                    'The whole message, or with `"stream": true` its events.',
                    json=AnthropicMessage,
                    events=(
                        AnthropicEvent,
                        "Each event has a name, which is the type of the JSON object in its data (x-event). Blocks"
                        " follow one another. An error that occurs after the stream has begun is its last event.",
                    ),
                    headers={
                        "request-id": {"description": "The request's id.", "schema": {"type": "string"}},
                        "x-umaserve-max-tokens": MAX_TOKENS,
                        "x-umaserve-cache-miss": CACHE_MISS,
                    },
                )
            },
        ),
        ("POST", "/v1/messages/count_tokens"): Operation(
            "countTokens",
            "Count the tokens of a prompt",
            "Takes a body of /v1/messages, of which only the fields that form the prompt are read.",
            body=Body(AnthropicConversation, {"plain": {"model": "any", "system": "Be brief.", "messages": _COLOURS}}),
            replies={"200": Reply("OK", json=CountTokensReply)},
        ),
    },
)
