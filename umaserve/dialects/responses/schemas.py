"""Schemas of the Responses API of OpenAI."""

from __future__ import annotations

import re
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.grammars import MAX_SCHEMA_BYTES, SCHEMA
from umaserve.dialects.openai.schemas import (
    DETAIL,
    IMAGE_URL,
    MAX_TOP_LOGPROBS,
    REASONING_EFFORTS,
    InputAudio,
)
from umaserve.dialects.openai.tool_schemas import ARGUMENTS, CALL_ID
from umaserve.dialects.responses.mcp_schemas import MCP_ITEMS, ResponseMcpTool, ResponseNamedServer
from umaserve.dialects.sampling_schemas import Sampling
from umaserve.dialects.schemas import (
    ABOUT_MODEL,
    ABOUT_STRICT,
    ABOUT_TOOL_FORMAT,
    MAX_ID_BYTES,
    Computation,
    Targets,
    Thoughts,
    ToolGrammar,
    ToolText,
    object_text,
)
from umaserve.wire import fields
from umaserve.wire.declared import (
    Declared,
    Kind,
    any_of,
    array,
    boolean,
    by_type,
    choice,
    const,
    mapping,
    named,
    omittable,
    optional,
    required,
    string,
    strings,
    switch,
    text_or,
    value,
    whole,
)
from umaserve.wire.fields import Fields, bad_request, out_of_range

MAX_ITEMS, MAX_PARTS, MAX_TOOLS, MAX_METADATA = 4096, 256, 256, 16
STATUS = choice("in_progress", "completed", "incomplete")
_NAME = string(1, 256)


# -- items -------------------------------------------------------------------------------------------------------


class ResponseInputText(Declared):
    type = required(choice("input_text", "output_text", "text"))
    text = required(string())
    annotations = omittable(value())
    logprobs = omittable(value())


class ResponseInputImage(Declared):
    type = required(const("input_image"))
    image_url = required(IMAGE_URL, "A data: URL with the image itself; the server fetches nothing.")
    detail = optional(DETAIL)


class ResponseInputAudio(Declared):
    type = required(const("input_audio"))
    input_audio = required(InputAudio)


class ResponseRefusal(Declared):
    type = required(const("refusal"))
    refusal = required(string())


_PART = by_type(ResponseInputText, ResponseInputImage, ResponseInputAudio)


class ResponseUserMessage(Declared):
    type = optional(choice("message"))
    role = required(choice("system", "developer", "user"))
    content = required(text_or(_PART, 1, MAX_PARTS, of="parts"))


class ResponseAssistantMessage(Declared):
    type = optional(choice("message"))
    role = required(const("assistant"))
    content = required(text_or(by_type(ResponseInputText, ResponseRefusal), high=MAX_PARTS, of="parts"))


class ResponseFunctionCall(Declared):
    type = required(const("function_call"))
    call_id = required(CALL_ID)
    # Any name, not only a tool's: it is an earlier answer of the model, which may have invented one.
    name_ = required(_NAME)
    namespace = optional(string(max_bytes=256))
    arguments = required(ARGUMENTS, "A JSON object, as text or itself.")
    status = optional(STATUS)


class ResponseCustomToolCall(Declared):
    type = required(const("custom_tool_call"))
    call_id = required(CALL_ID)
    name_ = required(_NAME)
    namespace = optional(string(max_bytes=256))
    input = required(string())
    status = optional(STATUS)


class ResponseCallOutput(Declared):
    type = required(choice("function_call_output", "custom_tool_call_output"))
    call_id = required(CALL_ID)
    output = required(text_or(_PART, high=MAX_PARTS, of="parts"))


class _SummaryText(Declared):
    type = required(const("summary_text"))
    text = required(string())


class _ReasoningText(Declared):
    type = required(choice("reasoning_text", "text"))
    text = required(string())


class ResponseReasoning(Declared):
    type = required(const("reasoning"))
    summary = optional(array(by_type(_SummaryText), high=MAX_PARTS, of="parts"))
    content = optional(array(by_type(_ReasoningText), high=MAX_PARTS, of="parts"))
    encrypted_content = optional(string(), "Content that another service has encrypted is ignored.")


class ResponseCompaction(Declared):
    type = required(const("compaction"))
    encrypted_content = required(string(), "As umaserve's /v1/responses/compact returns it.")


_TYPED_ITEM = by_type(
    ResponseUserMessage,
    ResponseReasoning,
    ResponseFunctionCall,
    ResponseCallOutput,
    ResponseCustomToolCall,
    ResponseCompaction,
    *MCP_ITEMS,
)
# Read later: a relay passes on items of any kind.
ResponseInputItem = named(
    "ResponseInputItem",
    Kind({"oneOf": [*_TYPED_ITEM.schema["oneOf"], ResponseAssistantMessage]}, Fields.of),
    "One item of a conversation. Consecutive items of the assistant are one turn for the model.",
)


def read_item(given: Fields) -> Declared:
    """An item, by the class for its type and role."""
    if given.values.get("type") is not None:
        typed: Declared = _TYPED_ITEM.read(given.values, given.name("").removesuffix("."))
        if not isinstance(typed, ResponseUserMessage):
            return typed
    role = given.required_one_of("role", ("system", "developer", "user", "assistant"))
    return ResponseAssistantMessage.view(given) if role == "assistant" else ResponseUserMessage.view(given)


# -- tools -------------------------------------------------------------------------------------------------------

_TOOL_NAME = "[A-Za-z0-9_-]{1,128}"


def _tool_name(given: Any, path: str) -> str:
    expected = "1 to 128 letters, digits, _ or -"
    if not isinstance(given, str):
        raise bad_request(path, expected, given)
    if not re.fullmatch(_TOOL_NAME, given):
        raise out_of_range(path, expected, f'"{given}"')
    return given


TOOL_NAME = Kind(string(pattern=f"^{_TOOL_NAME}$").schema, _tool_name)


class ResponseFunctionTool(Declared):
    type = required(const("function"))
    name_ = required(TOOL_NAME)
    description = optional(string())
    parameters = optional(object_text(MAX_SCHEMA_BYTES), "The JSON schema of the arguments.")
    strict = optional(boolean(), ABOUT_STRICT)


class ResponseToolGrammar(ToolGrammar):
    type = required(const("grammar"))


class ResponseCustomTool(Declared):
    type = required(const("custom"))
    name_ = required(TOOL_NAME)
    description = optional(string())
    format = optional(by_type(ToolText, ResponseToolGrammar), ABOUT_TOOL_FORMAT)


class ResponseNamespace(Declared):
    type = required(const("namespace"))
    name_ = required(TOOL_NAME)
    description = optional(string())
    tools = required(array(by_type(ResponseFunctionTool, ResponseCustomTool), high=MAX_TOOLS, of="tools"))


_TOOLS = {
    "function": ResponseFunctionTool,
    "custom": ResponseCustomTool,
    "namespace": ResponseNamespace,
    "mcp": ResponseMcpTool,
}


class ResponseServiceTool(Declared):
    type = required(
        Kind({"type": "string", "not": {"enum": [*_TOOLS]}, "maxLength": 64}, string(1, 64).read),
        "Tools of OpenAI's service are ignored.",
    )


def _tool(given: Any, path: str) -> Declared:
    tool = ResponseServiceTool.of(given, path)
    return _TOOLS[tool.type].view(tool) if tool.type in _TOOLS else tool


class ResponseNamedTool(Declared):
    type = required(choice("function", "custom"))
    name_ = required(TOOL_NAME)
    namespace = optional(string(1, 128))


class ResponseAllowedTools(Declared):
    type = required(const("allowed_tools"))
    mode = required(choice("auto", "required"))
    tools = required(array(by_type(ResponseNamedTool, ResponseNamedServer), 1, MAX_TOOLS, of="tools"))


_WAYS = choice("none", "auto", "required", None)
_NAMED_TOOLS = by_type(ResponseNamedTool, ResponseNamedServer, ResponseAllowedTools)
_Choice = str | ResponseNamedTool | ResponseNamedServer | ResponseAllowedTools


def _tool_choice(given: Any, path: str) -> _Choice:
    read: _Choice
    read = (_NAMED_TOOLS if isinstance(given, dict) else _WAYS).read(given, path)
    return read


# -- requests ----------------------------------------------------------------------------------------------------


class ResponseReasoningOptions(Declared):
    effort = optional(
        choice(*REASONING_EFFORTS),
        "none: the model doesn't think; the effect of the others depends on its chat template.",
    )
    summary = optional(choice("auto", "concise", "detailed"), "Checked only: the thoughts themselves are returned.")
    generate_summary = optional(choice("auto", "concise", "detailed"), "An older name of summary.")


class ResponsePlainFormat(Declared):
    type = required(choice("text", "json_object"))


class ResponseSchemaFormat(Declared):
    type = required(const("json_schema"))
    name_ = optional(string(1, 64))
    schema_ = required(SCHEMA)
    strict = switch(True)  # Not used further: all answers follow their schema.
    description = optional(string())


class ResponseTextOptions(Declared):
    format = optional(by_type(ResponsePlainFormat, ResponseSchemaFormat))
    verbosity = optional(choice("low", "medium", "high"), "Checked only.")


def _metadata(given: Any, path: str) -> dict[str, str]:
    pairs = Fields.of(given, path)
    if len(pairs.values) > MAX_METADATA:
        raise out_of_range(path, f"at most {MAX_METADATA} pairs", len(pairs.values))
    for key, text in pairs.values.items():
        fields.string(key, path, max_bytes=64)
        _LABEL.read(text, pairs.name(key))
    return dict(pairs.values)


_LABEL = string(max_bytes=512)
METADATA = Kind(mapping(_LABEL, maxProperties=MAX_METADATA, properties={}).schema, _metadata)


def _no_prompt(_given: Any, path: str) -> None:
    problem = "expected to be absent: this server keeps no prompts: use instructions and input"
    raise RequestError(Fault.BAD_REQUEST, path, problem)


_MODEL = optional(string(max_bytes=MAX_ID_BYTES), ABOUT_MODEL)
_INPUT = text_or(ResponseInputItem, 1, MAX_ITEMS, of="items")
_PREVIOUS = optional(string(1, MAX_ID_BYTES), "The id of a stored response: its items precede these.")


class _ConversationObject(Declared):
    id = required(string(1, MAX_ID_BYTES))


def _conversation(given: Any, path: str) -> str:
    if isinstance(given, str):
        return string(1, MAX_ID_BYTES).read(given, path)
    if not isinstance(given, dict):
        raise bad_request(path, "the id of a conversation, as text or in an object", given)
    return _ConversationObject.of(given, path).id


_CONVERSATION = Kind(any_of(string(1, MAX_ID_BYTES), _ConversationObject).schema, _conversation)


class ResponseOptions(Declared):
    model = _MODEL
    input = required(_INPUT)
    instructions = optional(string(), "Placed before all items. They don't apply to the next response.")
    max_output_tokens = optional(
        whole(1), "Limited by --max-tokens and the context: the answer is truncated, not refused."
    )
    reasoning = optional(ResponseReasoningOptions)
    text = optional(ResponseTextOptions)
    tools = optional(
        array(Kind(any_of(*_TOOLS.values(), ResponseServiceTool).schema, _tool), high=MAX_TOOLS, of="tools")
    )
    tool_choice = omittable(
        Kind(any_of(_WAYS, ResponseNamedTool, ResponseNamedServer, ResponseAllowedTools).schema, _tool_choice)
    )
    parallel_tool_calls = optional(boolean())
    include = optional(
        strings(16, 256),
        "reasoning.encrypted_content: thoughts in a form that programs send back. message.output_text.logprobs: the "
        "tokens' log-probabilities.",
    )
    top_logprobs = optional(whole(0, MAX_TOP_LOGPROBS))
    truncation = optional(
        choice("auto", "disabled"), "Checked only: a prompt that is too long is refused, never truncated."
    )
    metadata = optional(METADATA)
    max_tool_calls = optional(whole(1), "The most calls of MCP servers' tools that the daemon makes.")
    service_tier = optional(choice("auto", "default", "flex", "priority", "scale"), "Checked only.")
    prompt_cache_key = optional(_LABEL)
    safety_identifier = optional(_LABEL)
    user = optional(_LABEL)
    conversation = optional(
        _CONVERSATION,
        "The id of a conversation, as text or as id of an object: its items precede these, and these and the answer's"
        " are added to it. Not with previous_response_id.",
    )
    prompt = omittable(Kind({"type": "null"}, _no_prompt), "Not supported.")
    stream = switch(False)
    previous_response_id = _PREVIOUS
    store = switch(
        True,
        "Store the response, for clients with the same key: for an hour, or where the server has a folder for it"
        " (--store), as long as that keeps it. The default is true. Through a relay, the relay stores it.",
    )
    background = switch(
        False,
        "Reply at once, and continue without the client, at a lower priority than interactive requests. Not with"
        " stream.",
    )


class ResponseRequest(ResponseOptions, Sampling, Computation, Targets, Thoughts):
    timings_per_token = switch(False, "In a stream, return the timings so far with each part of the output.")
    return_progress = switch(
        False, "In a stream, report the progress of prefill, in events response.in_progress with prompt_progress."
    )


class CompactionRequest(Declared):
    model = _MODEL
    input = optional(_INPUT, "May be absent where previous_response_id is given.")
    instructions = optional(string(), "Placed before all items. They aren't part of the output.")
    previous_response_id = _PREVIOUS
