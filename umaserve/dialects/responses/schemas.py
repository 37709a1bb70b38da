"""Schemas of the Responses API of OpenAI."""

from __future__ import annotations

from umaserve.dialects.openai.schemas import Scored
from umaserve.dialects.schemas import Computation, Sampling, Targets
from umaserve.wire.declared import (
    Declared,
    any_of,
    array,
    boolean,
    choice,
    const,
    mapping,
    named,
    nullable,
    number,
    omittable,
    one_of,
    optional,
    required,
    string,
    value,
    whole,
)


class _ContentItem(Declared):
    type = required(choice("input_text", "output_text", "text"))
    text = required(string())
    annotations = omittable(value())
    logprobs = omittable(value())


class _InputImageContentItem(Declared):
    type = required(const("input_image"))
    image_url = required(
        string(pattern="^[Dd][Aa][Tt][Aa]:[Ii][Mm][Aa][Gg][Ee]/[^,]+;[Bb][Aa][Ss][Ee]64,."),
        "A data: URL with the image itself; nothing is ever fetched.",
    )
    detail = optional(choice("auto", "high", "low", "original"))


class _InputAudio(Declared):
    data = required(string(1))
    format = required(choice("wav", "mp3"))


class _InputAudioContentItem(Declared):
    type = required(const("input_audio"))
    input_audio = required(_InputAudio)


class _RefusalContentItem(Declared):
    type = required(const("refusal"))
    refusal = required(string())


class _Item(Declared):
    type = optional(choice("message"))
    role = required(choice("user", "system", "developer", "assistant"))
    content = required(
        one_of(
            string(),
            array(
                any_of(one_of(_ContentItem, _InputImageContentItem, _InputAudioContentItem), _RefusalContentItem),
                high=256,
            ),
        )
    )


class _FunctionCall(Declared):
    type = required(const("function_call"))
    call_id = required(string(max_bytes=256))
    name_ = required(string(max_bytes=256))
    namespace = optional(string())
    arguments = required(string(), "A JSON object.")
    status = omittable(choice("in_progress", "completed", "incomplete"))


class _CustomToolCall(Declared):
    type = required(const("custom_tool_call"))
    call_id = required(string(max_bytes=256))
    name_ = required(string(max_bytes=256))
    namespace = optional(string())
    input = required(string())
    status = omittable(choice("in_progress", "completed", "incomplete"))


class _ResponseInputItemItem(Declared):
    type = required(choice("function_call_output", "custom_tool_call_output"))
    call_id = required(string(max_bytes=256))
    output = required(
        one_of(string(), array(one_of(_ContentItem, _InputImageContentItem, _InputAudioContentItem), high=256))
    )


class _SummaryItem(Declared):
    type = required(const("summary_text"))
    text = required(string())


class _ReasoningContentItem(Declared):
    type = required(choice("reasoning_text", "text"))
    text = required(string())


class _Reasoning(Declared):
    type = required(const("reasoning"))
    summary = optional(array(_SummaryItem))
    content = optional(array(_ReasoningContentItem))
    encrypted_content = optional(string(), "That of another service is ignored.")


ResponseInputItem = named(
    "ResponseInputItem",
    any_of(_Item, _FunctionCall, _CustomToolCall, _ResponseInputItemItem, _Reasoning),
    ("One item of a conversation. Consecutive items of the assistant are one turn for the model."),
)


class _ResponseOptionsReasoning(Declared):
    effort = optional(
        choice("none", "minimal", "low", "medium", "high", "xhigh", "max"),
        "none: the model doesn't think; what the others do is up to its chat template.",
    )
    summary = optional(choice("auto", "concise", "detailed"), "Checked only: the thoughts themselves are told.")


class _Format(Declared):
    type = required(choice("text", "json_object"))


class _JsonSchemaFormat(Declared):
    type = required(const("json_schema"))
    name_ = optional(string(max_bytes=64))
    schema_ = required(value(type="object", additionalProperties=True))
    strict = optional(boolean())
    description = optional(string())


class _Text(Declared):
    format = optional(any_of(_Format, _JsonSchemaFormat))
    verbosity = optional(choice("low", "medium", "high"), "Checked only.")


class _FunctionTool(Declared):
    type = required(const("function"))
    name_ = required(string(pattern="^[A-Za-z0-9_-]{1,128}$"))
    description = optional(string())
    parameters = optional(value(type="object"), "The JSON schema of the arguments.")
    strict = optional(
        boolean(),
        (
            "true: a schema with a keyword that no grammar can enforce is refused by its path. Otherwise "
            "such keywords are left out, which the server's log tells once."
        ),
    )


class _CustomToolFormat(Declared):
    type = required(choice("text", "grammar"))
    syntax = omittable(choice("lark", "regex"))
    definition = omittable(string())


class _CustomTool(Declared):
    type = required(const("custom"))
    name_ = required(string(pattern="^[A-Za-z0-9_-]{1,128}$"))
    description = optional(string())
    format = optional(
        _CustomToolFormat,
        (
            "The model is told the grammar, and the input matches it: a regular expression in the syntax "
            "of Rust's regex crate, without look-around, or Lark, without templates and imports other "
            "than those of common."
        ),
    )


class _NamespaceTool(Declared):
    type = required(const("namespace"))
    name_ = required(string(pattern="^[A-Za-z0-9_-]{1,128}$"))
    description = optional(string())
    tools = required(array(any_of(_FunctionTool, _CustomTool), high=256))


class _Tool(Declared):
    type = required(
        value(**{"type": "string", "not": {"enum": ["function", "custom", "namespace"]}}),
        "Tools of OpenAI's service are skipped.",
    )


class _ToolChoice(Declared):
    type = required(choice("function", "custom"))
    name_ = required(string(pattern="^[A-Za-z0-9_-]{1,128}$"))
    namespace = optional(string())


class _AllowedToolsToolChoice(Declared):
    type = required(const("allowed_tools"))
    mode = required(choice("auto", "required"))
    tools = required(array(_ToolChoice, 1))


class ResponseOptions(Declared):
    model = optional(
        string(max_bytes=256),
        (
            "One that /v1/models lists, or an alias. Without one, or by an unknown name (refused with "
            "--strict-models): the default model."
        ),
    )
    input = required(one_of(string(), array(ResponseInputItem, 1, 4096)))
    instructions = optional(string(), "Before all items. They aren't carried over to the next response.")
    max_output_tokens = optional(
        whole(1), "At most --max-tokens and what the context holds; the answer is cut, not refused."
    )
    reasoning = optional(_ResponseOptionsReasoning)
    text = optional(_Text)
    tools = optional(array(any_of(_FunctionTool, _CustomTool, _NamespaceTool, _Tool), high=256))
    tool_choice = omittable(any_of(choice("none", "auto", "required", None), _ToolChoice, _AllowedToolsToolChoice))
    parallel_tool_calls = optional(boolean())
    include = optional(
        array(string(1, 256), high=16),
        (
            "reasoning.encrypted_content: thoughts in a form that programs send back. "
            "message.output_text.logprobs: the tokens' log-probabilities."
        ),
    )
    top_logprobs = optional(whole(0, 20))
    truncation = optional(choice("auto", "disabled"), "Checked only: a prompt that is too long is refused, never cut.")
    metadata = optional(
        value(type="object", maxProperties=16, additionalProperties={"type": "string", "maxLength": 512}, properties={})
    )
    max_tool_calls = optional(whole(1), "Checked only: it limits tools of OpenAI's service.")
    service_tier = optional(choice("auto", "default", "flex", "priority", "scale"), "Checked only.")
    prompt_cache_key = optional(string(max_bytes=512))
    safety_identifier = optional(string(max_bytes=512))
    user = optional(string(max_bytes=512))
    conversation = omittable(value(type="null"), "Not supported.")
    prompt = omittable(value(type="null"), "Not supported.")
    stream = optional(boolean())
    previous_response_id = optional(string(max_bytes=256), "Of a response that is kept: its items come before these.")
    store = optional(
        boolean(),
        (
            "Keep the response in memory for an hour, for those with the same key. By default true. "
            "Through a relay, the relay keeps it."
        ),
    )
    background = optional(
        boolean(), ("Reply at once, and go on without the client, after interactive requests. Not with stream.")
    )


class ResponseRequest(ResponseOptions, Sampling, Computation, Targets):
    pass


class _IncompleteDetails(Declared):
    reason = required(choice("max_output_tokens", "content_filter"))


class _Error(Declared):
    code = required(choice("server_error", "rate_limit_exceeded", "invalid_prompt", "context_length_exceeded"))
    message = required(string())


class _ResponseLogprobsItem(Declared):
    token = required(string())
    logprob = required(number())
    bytes = required(array(whole(0, 255)))
    top_logprobs = required(array(Scored), "The likeliest first.")


ResponseLogprobs = named("ResponseLogprobs", array(_ResponseLogprobsItem))


class _OutputText(Declared):
    type = required(const("output_text"))
    text = required(string())
    annotations = required(value(type="array", maxItems=0))
    logprobs = required(ResponseLogprobs)


class _ReasoningText(Declared):
    type = required(const("reasoning_text"))
    text = required(string())


ResponsePart = named("ResponsePart", one_of(_OutputText, _ReasoningText))


class _Message(Declared):
    id = required(string())
    type = required(const("message"))
    role = required(const("assistant"))
    status = required(choice("in_progress", "completed", "incomplete"))
    content = required(array(ResponsePart))


class _ResponseItemReasoning(Declared):
    id = required(string())
    type = required(const("reasoning"))
    status = required(choice("in_progress", "completed", "incomplete"))
    summary = required(value(type="array", maxItems=0))
    content = required(array(ResponsePart))
    encrypted_content = omittable(string())


class _ResponseItemFunctionCall(Declared):
    id = required(string())
    type = required(const("function_call"))
    status = required(choice("in_progress", "completed", "incomplete"))
    call_id = required(string())
    name_ = required(string())
    namespace = omittable(string())
    arguments = required(string())


class _ResponseItemCustomToolCall(Declared):
    id = required(string())
    type = required(const("custom_tool_call"))
    status = required(choice("in_progress", "completed", "incomplete"))
    call_id = required(string())
    name_ = required(string())
    namespace = omittable(string())
    input = required(string())


ResponseItem = named(
    "ResponseItem",
    one_of(_Message, _ResponseItemReasoning, _ResponseItemFunctionCall, _ResponseItemCustomToolCall),
    "A message, thoughts, or a call.",
)


class _InputTokensDetails(Declared):
    cached_tokens = required(whole())
    cache_write_tokens = required(const(0))


class _OutputTokensDetails(Declared):
    reasoning_tokens = required(whole())


class _Usage(Declared):
    input_tokens = required(whole())
    input_tokens_details = required(_InputTokensDetails)
    output_tokens = required(whole())
    output_tokens_details = required(_OutputTokensDetails)
    total_tokens = required(whole())


class _ResponseReasoning(Declared):
    effort = nullable(string())
    summary = required(value(type="null"))


class Response(Declared):
    id = required(string())
    object_ = required(const("response"))
    created_at = required(whole(), "In seconds since 1970.")
    completed_at = optional(whole())
    model = required(string())
    status = required(choice("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"))
    incomplete_details = nullable(_IncompleteDetails)
    error = nullable(_Error)
    output = required(array(ResponseItem))
    usage = nullable(_Usage)
    background = required(boolean())
    store = required(boolean())
    previous_response_id = nullable(string())
    instructions = nullable(string())
    max_output_tokens = nullable(whole())
    max_tool_calls = nullable(whole())
    metadata = required(mapping(string()))
    parallel_tool_calls = required(boolean())
    prompt_cache_key = nullable(string())
    reasoning = required(_ResponseReasoning)
    safety_identifier = nullable(string())
    service_tier = required(const("default"))
    temperature = required(number())
    text = required(value(type="object", additionalProperties=True))
    tool_choice = required(value())
    tools = required(value(type="array"))
    top_logprobs = required(whole())
    top_p = required(number())
    truncation = required(const("disabled"))
    user = nullable(string())


class _ResponseEventItem(Declared):
    type = required(
        choice(
            "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
        )
    )
    sequence_number = required(whole(0))
    response = required(Response)


class _ResponseEventItem2(Declared):
    type = required(choice("response.output_item.added", "response.output_item.done"))
    sequence_number = required(whole(0))
    output_index = required(whole())
    item = required(ResponseItem)


class _ResponseEventItem3(Declared):
    type = required(choice("response.content_part.added", "response.content_part.done"))
    sequence_number = required(whole(0))
    item_id = required(string())
    output_index = required(whole())
    content_index = required(whole())
    part = required(ResponsePart)


class _ResponseEventItem4(Declared):
    type = required(choice("response.output_text.delta"))
    sequence_number = required(whole(0))
    item_id = required(string())
    output_index = required(whole())
    content_index = required(whole())
    delta = required(string())
    logprobs = required(ResponseLogprobs)


class _ResponseEventItem5(Declared):
    type = required(choice("response.output_text.done"))
    sequence_number = required(whole(0))
    item_id = required(string())
    output_index = required(whole())
    content_index = required(whole())
    text = required(string())
    logprobs = required(ResponseLogprobs)


class _ResponseEventItem6(Declared):
    type = required(choice("response.reasoning_text.delta"))
    sequence_number = required(whole(0))
    item_id = required(string())
    output_index = required(whole())
    content_index = required(whole())
    delta = required(string())


class _ResponseEventItem7(Declared):
    type = required(choice("response.reasoning_text.done"))
    sequence_number = required(whole(0))
    item_id = required(string())
    output_index = required(whole())
    content_index = required(whole())
    text = required(string())


class _ResponseEventItem8(Declared):
    type = required(choice("response.function_call_arguments.delta", "response.custom_tool_call_input.delta"))
    sequence_number = required(whole(0))
    item_id = required(string())
    output_index = required(whole())
    delta = required(string())


class _ResponseEventItem9(Declared):
    type = required(choice("response.function_call_arguments.done"))
    sequence_number = required(whole(0))
    item_id = required(string())
    output_index = required(whole())
    name_ = required(string())
    arguments = required(string())


class _ResponseEventItem10(Declared):
    type = required(choice("response.custom_tool_call_input.done"))
    sequence_number = required(whole(0))
    item_id = required(string())
    output_index = required(whole())
    input = required(string())


ResponseEvent = named(
    "ResponseEvent",
    one_of(
        _ResponseEventItem,
        _ResponseEventItem2,
        _ResponseEventItem3,
        _ResponseEventItem4,
        _ResponseEventItem5,
        _ResponseEventItem6,
        _ResponseEventItem7,
        _ResponseEventItem8,
        _ResponseEventItem9,
        _ResponseEventItem10,
    ),
    "Its number counts the stream's events from 0.",
)


class CountResponseTokensReply(Declared):
    object_ = required(const("response.input_tokens"))
    input_tokens = required(whole(0))


class DeleteResponseReply(Declared):
    id = required(string())
    object_ = required(const("response"))
    deleted = required(const(True))


class _DataItem(Declared, also={"additionalProperties": True}):
    id = required(string())
    type = required(string())


class ListInputItemsReply(Declared):
    object_ = required(const("list"))
    data = required(array(_DataItem))
    first_id = nullable(string())
    last_id = nullable(string())
    has_more = required(boolean())
