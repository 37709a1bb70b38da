"""Schemas of the replies of the Responses API of OpenAI."""

from __future__ import annotations

from typing import Any

from umaserve.dialects.openai.reply_schemas import PromptProgress, Scored, Timings
from umaserve.dialects.responses.schemas import STATUS
from umaserve.dialects.schemas import list_of
from umaserve.wire.declared import (
    Declared,
    Kind,
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


class _IncompleteDetails(Declared):
    reason = required(choice("max_output_tokens", "content_filter"))


class _Error(Declared):
    code = required(choice("server_error", "rate_limit_exceeded", "invalid_prompt", "context_length_exceeded"))
    message = required(string())


class _Logprob(Declared):
    token = required(string())
    logprob = required(number())
    bytes = required(array(whole(0, 255)))
    top_logprobs = required(array(Scored), "The likeliest first.")


ResponseLogprobs = named("ResponseLogprobs", array(_Logprob))


class _OutputText(Declared):
    type = required(const("output_text"))
    text = required(string())
    annotations = required(value(type="array", maxItems=0))
    logprobs = required(ResponseLogprobs)


class _ToldThoughts(Declared):
    type = required(const("reasoning_text"))
    text = required(string())


ResponsePart = named("ResponsePart", one_of(_OutputText, _ToldThoughts))


class _Message(Declared):
    id = required(string())
    type = required(const("message"))
    role = required(const("assistant"))
    status = required(STATUS)
    content = required(array(ResponsePart))


class _Thoughts(Declared):
    id = required(string())
    type = required(const("reasoning"))
    status = required(STATUS)
    summary = required(value(type="array", maxItems=0))
    content = required(array(ResponsePart))
    encrypted_content = omittable(string())


class _FunctionCall(Declared):
    id = required(string())
    type = required(const("function_call"))
    status = required(STATUS)
    call_id = required(string())
    name_ = required(string())
    namespace = omittable(string())
    arguments = required(string())


class _CustomToolCall(Declared):
    id = required(string())
    type = required(const("custom_tool_call"))
    status = required(STATUS)
    call_id = required(string())
    name_ = required(string())
    namespace = omittable(string())
    input = required(string())


class _McpTool(Declared):
    name_ = required(string())
    description = required(string())
    input_schema = required(value(type="object"))
    annotations = required(value(type="null"))


class _McpListTools(Declared):
    id = required(string())
    type = required(const("mcp_list_tools"))
    server_label = required(string())
    tools = required(array(_McpTool))
    error = required(value(type="null"))


class _McpCall(Declared):
    id = required(string())
    type = required(const("mcp_call"))
    status = required(choice("in_progress", "calling", "completed", "incomplete", "failed"))
    server_label = required(string())
    name_ = required(string())
    arguments = required(string())
    output = nullable(string(), "What the model gets.")
    error = nullable(string(), "What the model gets of a call that failed.")
    approval_request_id = nullable(string())


class _McpApprovalRequest(Declared):
    id = required(string())
    type = required(const("mcp_approval_request"))
    server_label = required(string())
    name_ = required(string())
    arguments = required(string())


ResponseItem = named(
    "ResponseItem",
    one_of(_Message, _Thoughts, _FunctionCall, _CustomToolCall, _McpListTools, _McpCall, _McpApprovalRequest),
    "A message, thoughts, a call, or what an MCP server offers.",
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


class _ToldReasoning(Declared):
    effort = nullable(string())
    summary = required(value(type="null"))


class _InConversation(Declared):
    id = required(string())


class Response(Declared):
    id = required(string())
    object_ = required(const("response"))
    created_at = required(whole(), "In seconds since 1970.")
    completed_at = nullable(whole())
    model = required(string())
    status = required(choice("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"))
    incomplete_details = nullable(_IncompleteDetails)
    error = nullable(_Error)
    output = required(array(ResponseItem))
    usage = nullable(_Usage)
    background = required(boolean())
    store = required(boolean())
    previous_response_id = nullable(string())
    frequency_penalty = required(number())
    instructions = nullable(string())
    max_output_tokens = nullable(whole())
    max_tool_calls = nullable(whole())
    conversation = optional(_InConversation)
    metadata = required(mapping(string()))
    parallel_tool_calls = required(boolean())
    presence_penalty = required(number())
    prompt_cache_key = nullable(string())
    reasoning = required(_ToldReasoning)
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
    timings = omittable(Timings)


def _event(*types: str, **more: Kind[Any] | type[Declared]) -> type[Declared]:
    kinds = {"type": choice(*types), "sequence_number": whole(0), **more}
    named = {
        "stream_id": omittable(string(), "On the WebSocket: as the client's message has it."),
        "timings": omittable(Timings, "Of the answer, in the last event; with timings_per_token in deltas, so far."),
        "prompt_progress": omittable(PromptProgress),
    }
    return type("_Event", (Declared,), {name: required(kind) for name, kind in kinds.items()} | named)


_IN_ITEM: dict[str, Kind[Any]] = {"item_id": string(), "output_index": whole()}
_IN_PART = {**_IN_ITEM, "content_index": whole()}
_WRITTEN = ("function_call_arguments", "custom_tool_call_input", "mcp_call_arguments")
ResponseEvent = named(
    "ResponseEvent",
    one_of(
        _event(
            *(f"response.{state}" for state in ("created", "in_progress", "completed", "incomplete", "failed")),
            response=Response,
        ),
        _event("response.output_item.added", "response.output_item.done", output_index=whole(), item=ResponseItem),
        _event("response.content_part.added", "response.content_part.done", **_IN_PART, part=ResponsePart),
        _event("response.output_text.delta", **_IN_PART, delta=string(), logprobs=ResponseLogprobs),
        _event("response.output_text.done", **_IN_PART, text=string(), logprobs=ResponseLogprobs),
        _event("response.reasoning_text.delta", **_IN_PART, delta=string()),
        _event("response.reasoning_text.done", **_IN_PART, text=string()),
        _event(
            *(f"response.{what}.delta" for what in _WRITTEN),
            **_IN_ITEM,
            delta=string(),
        ),
        _event("response.function_call_arguments.done", **_IN_ITEM, name_=string(), arguments=string()),
        _event("response.custom_tool_call_input.done", **_IN_ITEM, input=string()),
        _event("response.mcp_call_arguments.done", **_IN_ITEM, arguments=string()),
        _event(
            *(f"response.mcp_list_tools.{state}" for state in ("in_progress", "completed")),
            *(f"response.mcp_call.{state}" for state in ("in_progress", "completed", "failed")),
            **_IN_ITEM,
        ),
    ),
    "sequence_number counts the stream's events from 0.",
)


class _KeptMessage(Declared, also={"additionalProperties": True}):
    id = required(string())
    type = required(const("message"))
    role = required(const("user"))
    content = required(value())


class _Compaction(Declared):
    id = required(string())
    type = required(const("compaction"))
    encrypted_content = required(string(), "The summary, for this server. It is not encrypted: base64 of a text.")


class CompactionReply(Declared):
    id = required(string())
    object_ = required(const("response.compaction"))
    created_at = required(whole(), "In seconds since 1970.")
    model = required(string())
    output = required(array(one_of(_KeptMessage, _Compaction)), "Messages of the user, then one compaction.")
    usage = required(_Usage)


class CountResponseTokensReply(Declared):
    object_ = required(const("response.input_tokens"))
    input_tokens = required(whole(0))


class DeleteResponseReply(Declared):
    id = required(string())
    object_ = required(const("response"))
    deleted = required(const(True))


class KeptItem(Declared, also={"additionalProperties": True}):
    id = required(string())
    type = required(string())


ListItemsReply = named("ListItemsReply", list_of(KeptItem))


class ConversationReply(Declared):
    id = required(string())
    object_ = required(const("conversation"))
    created_at = required(whole(), "In seconds since 1970.")
    metadata = required(mapping(string()))


class ListConversationsReply(Declared):
    object_ = required(const("list"))
    data = required(array(ConversationReply))
    first_id = nullable(string())
    last_id = nullable(string())
    has_more = required(boolean())
    on_disk = required(boolean(), "Whether conversations outlive the server's restarts (--store).")
    max_age_s = nullable(whole(), "Seconds after its last change that a conversation is deleted; null: never.")


class DeleteConversationReply(Declared):
    id = required(string())
    object_ = required(const("conversation.deleted"))
    deleted = required(const(True))
