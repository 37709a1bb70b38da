"""Operations of the Messages API of Anthropic."""

from __future__ import annotations

from umaserve.dialects.anthropic import schemas
from umaserve.dialects.examples import CITY, COLOURS, WEATHER, said
from umaserve.dialects.reference import GENERATED, Errors, Operation, Reference, streamed, takes

_ID = {"request-id": {"description": "The request's id, where it was read.", "schema": {"type": "string"}}}
ERRORS = Errors("Anthropic", schemas.AnthropicError, headers=_ID)

_CHAT = {"model": "any", "max_tokens": 16, "messages": said(COLOURS)}
_SYSTEM = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
_ASKED = {"model": "any", "max_tokens": 100, "messages": said(WEATHER)}
_TOOL = {"name": "get_weather", "description": "The weather in a city.", "input_schema": CITY}

OPERATIONS = {
    ("messages", "POST /v1/messages"): Operation(
        "Create the next message of a conversation. cache_control is ignored. Images are sent as base64. A prompt that"
        " is too long for the context is refused with Anthropic's own error message, which agents recognize. A stream"
        " without other events has a ping every 15 seconds.",
        streamed(schemas.AnthropicMessage, schemas.AnthropicEvent, "Blocks follow one another.", _ID | GENERATED),
        takes(
            schemas.MessageRequest,
            plain=_CHAT,
            streamed={**_CHAT, "system": _SYSTEM, "temperature": 0.7, "stop_sequences": ["\n\n"], "stream": True},
            tool={**_ASKED, "temperature": 0, "tools": [_TOOL], "tool_choice": {"type": "any"}},
        ),
    ),
    ("countTokens", "POST /v1/messages/count_tokens"): Operation(
        "Count the tokens of a prompt. Takes a body of /v1/messages, of which only what forms the prompt is read.",
        schemas.CountTokensReply,
        takes(schemas.AnthropicConversation, plain={"model": "any", "system": "Be brief.", "messages": said(COLOURS)}),
    ),
}

REFERENCE = Reference("Anthropic", "Anthropic's Messages API.", ERRORS, OPERATIONS)
