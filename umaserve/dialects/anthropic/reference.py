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
    "As its Messages API has them.",
    ERRORS,
    {
        ("POST", "/v1/messages"): Operation(
            "messages",
            "The next message of a conversation",
            "Fields that are not listed, such as cache_control, are ignored. Images are for models that take them "
            "(--mmproj), and come as base64; a body may have as many bytes as --max-chat-bytes says. A prompt that is "
            "too long for the context is refused in the words that agents look for. A stream in which nothing else "
            "comes has a ping every 15 seconds.\n\nAt all paths that make text, the headers x-umaserve-priority "
            "(interactive or background), x-umaserve-slo-ttft-ms and x-umaserve-slo-tbt-ms stand for priority and slo "
            "in the body.",
            body=Body(MessageRequest, _EXAMPLES),
            replies={
                "200": Reply(
                    'The whole message, or with `"stream": true` its events.',
                    json=AnthropicMessage,
                    events=(
                        AnthropicEvent,
                        "Each event has a name, which is the type of the JSON object in its data (x-event). Blocks "
                        "come one after another. An error that comes when the stream has begun is its last event.",
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
            "The tokens of a prompt",
            "Of a body of /v1/messages, of which the fields that make the prompt are read.",
            body=Body(AnthropicConversation, {"plain": {"model": "any", "system": "Be brief.", "messages": _COLOURS}}),
            replies={"200": Reply("OK", json=CountTokensReply)},
        ),
    },
)
