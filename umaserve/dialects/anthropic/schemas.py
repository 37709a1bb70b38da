"""Schemas of the Messages API of Anthropic."""

from __future__ import annotations

from umaserve.dialects.schemas import Computation, Sampling, Targets
from umaserve.wire.declared import (
    Declared,
    any_of,
    array,
    boolean,
    choice,
    const,
    named,
    nullable,
    omittable,
    optional,
    required,
    string,
    value,
    whole,
)


class AnthropicModel(Declared):
    type = required(const("model"))
    id = required(string())
    display_name = required(string())
    created_at = required(string(format="date-time"))
    lifecycle = omittable(const("active"))
    max_input_tokens = omittable(whole(), "Once the model has been loaded.")
    max_tokens = omittable(whole(), "Once the model has been loaded.")


class AnthropicModels(Declared):
    data = required(array(AnthropicModel))
    has_more = required(const(False))
    first_id = nullable(string())
    last_id = nullable(string())


class AnthropicText(Declared):
    type = required(const("text"))
    text = required(string())


class _Source(Declared):
    type = required(const("base64"))
    media_type = optional(string(max_bytes=64))
    data = required(string(1, contentEncoding="base64"))


class AnthropicImage(Declared):
    type = required(const("image"))
    source = required(_Source)


class _AnthropicDocumentSource(Declared):
    type = required(const("text"))
    media_type = omittable(string())
    data = required(string())


class AnthropicDocument(Declared):
    type = required(const("document"))
    title = optional(string())
    context = optional(string())
    source = required(_AnthropicDocumentSource)


class AnthropicToolResult(Declared):
    type = required(const("tool_result"))
    tool_use_id = required(string(1))
    is_error = optional(boolean())
    content = optional(any_of(string(), array(any_of(AnthropicText, AnthropicImage, AnthropicDocument))))


class AnthropicThinking(Declared):
    type = required(const("thinking"))
    thinking = required(string())
    signature = omittable(string())


class _RedactedThinkingContentItem(Declared):
    type = required(const("redacted_thinking"))
    data = omittable(string())


class AnthropicToolUse(Declared):
    type = required(const("tool_use"))
    id = required(string(1))
    name_ = required(string(1))
    input = required(value(type="object", additionalProperties=True))


class _Message(Declared):
    role = required(choice("user", "assistant", "system"))
    content = required(
        any_of(
            string(),
            array(
                any_of(
                    AnthropicText,
                    AnthropicImage,
                    AnthropicDocument,
                    AnthropicToolResult,
                    AnthropicThinking,
                    _RedactedThinkingContentItem,
                    AnthropicToolUse,
                ),
                high=1024,
            ),
        )
    )


class _Tool(Declared):
    type = optional(
        string(),
        (
            "custom or null: described by input_schema. bash_, text_editor_, computer_ or memory_ and a "
            "date: one of Anthropic's that the client runs. Any other, such as web_search_20250305: one "
            "that the service would run, which is skipped; the server's log tells once."
        ),
    )
    name_ = required(string(pattern="^[A-Za-z0-9_-]{1,128}$"))
    description = optional(string())
    input_schema = omittable(value(type="object", additionalProperties=True))
    display_width_px = optional(whole(1))
    display_height_px = optional(whole(1))
    strict = optional(
        boolean(),
        (
            "true: a schema with a keyword that no grammar can enforce is refused by its path. Otherwise "
            "such keywords are left out, which the server's log tells once."
        ),
    )


class _ToolChoice(Declared):
    type = required(choice("auto", "any", "tool", "none"))
    name_ = omittable(string(), "With tool.")
    disable_parallel_tool_use = optional(boolean(), "The default is true where a call is required.")


class _Thinking(Declared):
    type = required(choice("enabled", "adaptive", "disabled"))
    budget_tokens = optional(whole(1, 2147483647))


class _OutputConfig(Declared):
    effort = optional(choice("low", "medium", "high", "xhigh", "max"))


class AnthropicConversation(Declared):
    model = optional(
        string(max_bytes=256),
        (
            "One that /v1/models lists, or an alias. Without one, or by an unknown name (refused with "
            "--strict-models): the default model."
        ),
    )
    messages = required(array(_Message, 1, 1024))
    system = optional(
        any_of(string(), array(AnthropicText, high=1024)),
        ("A line that begins with x-anthropic-billing-header: is left out, since it is new in each turn."),
    )
    tools = optional(array(_Tool, high=256))
    tool_choice = optional(any_of(_ToolChoice))
    thinking = optional(
        any_of(_Thinking),
        (
            "Absent: disabled. budget_tokens: after how many the thoughts are closed. Thoughts that were "
            "not asked for are left out of the answer."
        ),
    )
    output_config = optional(_OutputConfig)


class _JsonSchema(Declared):
    type = required(const("json_schema"))
    schema_ = required(value(type="object", additionalProperties=True))


AnthropicFormat = named("AnthropicFormat", any_of(_JsonSchema, value(type="null")))


class _MessageOutputConfig(_OutputConfig):
    format = omittable(AnthropicFormat)


class _Metadata(Declared):
    user_id = optional(string(max_bytes=4096))


class AnthropicOptions(Declared):
    max_tokens = optional(
        whole(1),
        ("At most --max-tokens and what the context holds; the answer is cut, not refused. Absent: as many as that."),
    )
    stop_sequences = optional(array(string(1, 256), high=16))
    output_format = omittable(AnthropicFormat)
    stream = optional(boolean())
    metadata = optional(_Metadata)
    service_tier = optional(choice("auto", "standard_only"))


class MessageRequest(AnthropicConversation, AnthropicOptions, Sampling, Computation, Targets):
    output_config = optional(_MessageOutputConfig)


class AnthropicUsage(Declared):
    """input_tokens are those that were computed; the prompt has them and those that were read from the cache."""

    input_tokens = required(whole(0))
    cache_creation_input_tokens = required(whole(0))
    cache_read_input_tokens = required(whole(0))
    output_tokens = required(whole(0))


class AnthropicMessage(Declared):
    id = required(string())
    type = required(const("message"))
    role = required(const("assistant"))
    model = required(string(), "The model that is loaded.")
    content = required(array(any_of(AnthropicText, AnthropicThinking, AnthropicToolUse)))
    stop_reason = nullable(
        choice("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"),
        "refusal: the operator's content filter ended it.",
    )
    stop_sequence = nullable(string())
    usage = required(AnthropicUsage)


class _MessageStart(Declared):
    type = required(const("message_start"))
    message = required(AnthropicMessage)


class _ContentBlockStart(Declared):
    type = required(const("content_block_start"))
    index = required(whole(0))
    content_block = required(any_of(AnthropicText, AnthropicThinking, AnthropicToolUse))


class _TextDeltaDelta(Declared):
    type = required(const("text_delta"))
    text = required(string())


class _ThinkingDeltaDelta(Declared):
    type = required(const("thinking_delta"))
    thinking = required(string())


class _SignatureDeltaDelta(Declared):
    type = required(const("signature_delta"))
    signature = required(string())


class _InputJsonDeltaDelta(Declared):
    type = required(const("input_json_delta"))
    partial_json = required(string())


class _ContentBlockDelta(Declared):
    type = required(const("content_block_delta"))
    index = required(whole(0))
    delta = required(any_of(_TextDeltaDelta, _ThinkingDeltaDelta, _SignatureDeltaDelta, _InputJsonDeltaDelta))


class _ContentBlockStop(Declared):
    type = required(const("content_block_stop"))
    index = required(whole(0))


class _Delta(Declared):
    stop_reason = nullable(
        choice("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"),
        "refusal: the operator's content filter ended it.",
    )
    stop_sequence = nullable(string())


class _MessageDelta(Declared):
    type = required(const("message_delta"))
    delta = required(_Delta)
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
