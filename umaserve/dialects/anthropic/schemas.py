"""Schemas of the Messages API of Anthropic."""

from __future__ import annotations

import re
from typing import Any

from umaserve.dialects.grammars import MAX_SCHEMA_BYTES, SCHEMA
from umaserve.dialects.parameters import MAX_TOKEN_ID
from umaserve.dialects.sampling_schemas import MAX_STOP_BYTES, MAX_STOPS, Sampling
from umaserve.dialects.schemas import (
    ABOUT_MODEL,
    ABOUT_STRICT,
    MAX_ID_BYTES,
    MAX_TURNS,
    Base64,
    Computation,
    Targets,
    object_text,
)
from umaserve.wire.declared import (
    Declared,
    Kind,
    any_of,
    array,
    boolean,
    by_type,
    choice,
    const,
    named,
    nullable,
    omittable,
    one_of,
    optional,
    required,
    string,
    strings,
    switch,
    text_or,
    whole,
)
from umaserve.wire.fields import Fields, bad_request, out_of_range

MAX_BLOCKS = 1024
MAX_INPUT_BYTES = 2**30
"""Bytes of a call's input. All messages together are limited by ``max_prompt_bytes``."""
_TOOL_NAME = "[A-Za-z0-9_-]{1,128}"


class AnthropicModel(Declared):
    type = required(const("model"))
    id = required(string())
    display_name = required(string())
    created_at = required(string(format="date-time"))
    lifecycle = omittable(const("active"))
    max_input_tokens = omittable(whole(1), "Tokens that prompt and answer may have together, where that is known.")
    max_tokens = omittable(whole(1), "Tokens of the longest answer.")


class AnthropicModels(Declared):
    data = required(array(AnthropicModel))
    has_more = required(boolean())
    first_id = nullable(string())
    last_id = nullable(string())


class AnthropicText(Declared):
    type = required(const("text"))
    text = required(string())


def _only(name: str, why: str) -> Kind[str]:
    """One value, where others ask for what this server doesn't do."""

    def read(given: Any, path: str) -> str:
        if not isinstance(given, str):
            raise bad_request(path, f'"{name}"', given)
        if given != name:
            raise out_of_range(path, f'"{name}", since {why}', f'"{given}"')
        return given

    return Kind({"const": name}, read)


class _ImageSource(Declared):
    type = required(_only("base64", "this server fetches nothing and keeps no files"))
    media_type = optional(string(1, 64))
    data = required(Kind({**Base64.schema, "contentEncoding": "base64"}, Base64.read))


class AnthropicImage(Declared):
    type = required(const("image"))
    source = required(_ImageSource)


class _DocumentSource(Declared):
    type = required(_only("text", "this server reads no other documents"))
    media_type = omittable(string())
    data = required(string())


class AnthropicDocument(Declared):
    type = required(const("document"))
    title = optional(string(max_bytes=4096))
    context = optional(string(max_bytes=4096))
    source = required(_DocumentSource)


class AnthropicToolResult(Declared):
    type = required(const("tool_result"))
    tool_use_id = required(string(1, MAX_ID_BYTES))
    is_error = switch(False)
    content = optional(text_or(by_type(AnthropicText, AnthropicImage, AnthropicDocument), high=MAX_BLOCKS, of="blocks"))


class AnthropicThinking(Declared):
    type = required(const("thinking"))
    thinking = required(string())
    signature = omittable(string())


class AnthropicRedactedThinking(Declared):
    type = required(const("redacted_thinking"))
    data = omittable(string())


class AnthropicToolUse(Declared):
    type = required(const("tool_use"))
    id = required(string(1, MAX_ID_BYTES))
    # Any name, not only a tool's: it is an earlier answer of the model, which may have invented one.
    name_ = required(string(1))
    input = required(object_text(MAX_INPUT_BYTES))


class AnthropicUserMessage(Declared):
    role = required(choice("user", "system"))
    content = required(
        text_or(
            by_type(AnthropicText, AnthropicImage, AnthropicDocument, AnthropicToolResult), 1, MAX_BLOCKS, of="blocks"
        )
    )


class AnthropicAssistantMessage(Declared):
    role = required(const("assistant"))
    content = required(
        text_or(
            by_type(AnthropicText, AnthropicThinking, AnthropicRedactedThinking, AnthropicToolUse),
            high=MAX_BLOCKS,
            of="blocks",
        )
    )


def _message(given: Any, path: str) -> AnthropicUserMessage | AnthropicAssistantMessage:
    message = Fields.of(given, path)
    role = message.required_one_of("role", ("user", "assistant", "system"))
    return AnthropicAssistantMessage.view(message) if role == "assistant" else AnthropicUserMessage.view(message)


_MESSAGE = Kind(one_of(AnthropicUserMessage, AnthropicAssistantMessage).schema, _message)


def _tool_name(given: Any, path: str) -> str:
    name = string(1).read(given, path)
    if not re.fullmatch(_TOOL_NAME, name):
        raise out_of_range(path, "1 to 128 letters, digits, _ or -", f'"{name}"')
    return name


class AnthropicTool(Declared):
    type = optional(
        string(1, 64),
        "custom or null: described by input_schema. bash_, text_editor_, computer_ or memory_ and a date: one of "
        "Anthropic's that the client runs. Any other, such as web_search_20250305: one that the service would run,"
        " which is ignored, with one line in the server's log.",
    )
    name_ = required(Kind(string(pattern=f"^{_TOOL_NAME}$").schema, _tool_name))
    description = optional(string())
    input_schema = omittable(object_text(MAX_SCHEMA_BYTES))
    display_width_px = optional(whole(1))
    display_height_px = optional(whole(1))
    strict = switch(False, ABOUT_STRICT)


class _ToolChoice(Declared):
    disable_parallel_tool_use = optional(boolean(), "The default is true where a call is required.")


class AnthropicToolChoice(_ToolChoice):
    type = required(choice("auto", "any", "none"))


class AnthropicNamedToolChoice(_ToolChoice):
    type = required(const("tool"))
    name_ = required(string(1))


class AnthropicThinkingConfig(Declared):
    type = required(choice("enabled", "adaptive", "disabled"))
    budget_tokens = optional(whole(1, MAX_TOKEN_ID))


class _Effort(Declared):
    effort = optional(choice("low", "medium", "high", "xhigh", "max"))


class AnthropicConversation(Declared):
    model = optional(string(max_bytes=MAX_ID_BYTES), ABOUT_MODEL)
    messages = required(array(_MESSAGE, 1, MAX_TURNS, of="messages"))
    system = optional(
        text_or(by_type(AnthropicText), high=MAX_BLOCKS, of="text blocks"),
        "A line that begins with x-anthropic-billing-header: is left out, since it changes in each turn.",
    )
    tools = optional(array(AnthropicTool, high=256, of="tools"))
    tool_choice = optional(by_type(AnthropicToolChoice, AnthropicNamedToolChoice))
    thinking = optional(
        AnthropicThinkingConfig,
        "Absent: disabled. budget_tokens: the number of tokens after which the thoughts are closed. Thoughts that"
        " were not asked for are "
        "left out of the answer.",
    )
    output_config = optional(_Effort)


class AnthropicFormat(Declared):
    type = required(const("json_schema"))
    schema_ = required(SCHEMA)


class _OutputConfig(_Effort):
    format = optional(by_type(AnthropicFormat))


class _Metadata(Declared):
    user_id = optional(string(max_bytes=4096))


class AnthropicOptions(Declared):
    max_tokens = optional(
        whole(1),
        "Limited by --max-tokens and the context: the answer is truncated, not refused. Absent: that limit.",
    )
    stop_sequences = optional(strings(MAX_STOPS, MAX_STOP_BYTES))
    output_format = optional(by_type(AnthropicFormat))
    stream = switch(False)
    metadata = optional(_Metadata)
    service_tier = optional(choice("auto", "standard_only"))


class MessageRequest(AnthropicConversation, AnthropicOptions, Sampling, Computation, Targets):
    output_config = optional(_OutputConfig)


class AnthropicUsage(Declared):
    """input_tokens are those that were computed; the prompt has them and those that were read from the cache."""

    input_tokens = required(whole(0))
    cache_creation_input_tokens = required(whole(0))
    cache_read_input_tokens = required(whole(0))
    output_tokens = required(whole(0))


_ANSWER_BLOCK = any_of(AnthropicText, AnthropicThinking, AnthropicToolUse)
_STOP_REASON = nullable(
    choice("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"),
    "refusal: the operator's content filter ended it.",
)


class AnthropicMessage(Declared):
    id = required(string())
    type = required(const("message"))
    role = required(const("assistant"))
    model = required(string(), "The model that is loaded.")
    content = required(array(_ANSWER_BLOCK))
    stop_reason = _STOP_REASON
    stop_sequence = nullable(string())
    usage = required(AnthropicUsage)


class _MessageStart(Declared):
    type = required(const("message_start"))
    message = required(AnthropicMessage)


class _ContentBlockStart(Declared):
    type = required(const("content_block_start"))
    index = required(whole(0))
    content_block = required(_ANSWER_BLOCK)


class _TextDelta(Declared):
    type = required(const("text_delta"))
    text = required(string())


class _ThinkingDelta(Declared):
    type = required(const("thinking_delta"))
    thinking = required(string())


class _SignatureDelta(Declared):
    type = required(const("signature_delta"))
    signature = required(string())


class _InputJsonDelta(Declared):
    type = required(const("input_json_delta"))
    partial_json = required(string())


class _ContentBlockDelta(Declared):
    type = required(const("content_block_delta"))
    index = required(whole(0))
    delta = required(any_of(_TextDelta, _ThinkingDelta, _SignatureDelta, _InputJsonDelta))


class _ContentBlockStop(Declared):
    type = required(const("content_block_stop"))
    index = required(whole(0))


class _Stopped(Declared):
    stop_reason = _STOP_REASON
    stop_sequence = nullable(string())


class _MessageDelta(Declared):
    type = required(const("message_delta"))
    delta = required(_Stopped)
    usage = required(AnthropicUsage)


class _MessageStop(Declared):
    type = required(const("message_stop"))


class _Ping(Declared):
    type = required(const("ping"))


class _Error(Declared):
    type = required(string())
    message = required(string())


class AnthropicError(Declared):
    type = required(const("error"))
    error = required(_Error)
    request_id = nullable(string())


AnthropicEvent = named(
    "AnthropicEvent",
    any_of(
        _MessageStart,
        _ContentBlockStart,
        _ContentBlockDelta,
        _ContentBlockStop,
        _MessageDelta,
        _MessageStop,
        _Ping,
        AnthropicError,
    ),
)


class CountTokensReply(Declared):
    input_tokens = required(whole(0))
