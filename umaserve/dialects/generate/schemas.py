"""Schemas of the protocol for streams that can be steered, over WebSocket and REST."""

from __future__ import annotations

from umaserve.dialects.openai.tool_schemas import CALL_ID, MAX_TOOLS, Tool, ToolCall
from umaserve.dialects.sampling_schemas import Sampling
from umaserve.dialects.schemas import (
    MAX_ID_BYTES,
    MAX_TURNS,
    REASONING,
    ROLES,
    AudioItem,
    Computation,
    FinishReason,
    Targets,
    TemplateKwargs,
    Thoughts,
    content_with,
)
from umaserve.wire.declared import (
    Declared,
    array,
    boolean,
    choice,
    const,
    named,
    nullable,
    number,
    omittable,
    one_of,
    optional,
    required,
    string,
    switch,
    whole,
)

MAX_LOGPROBS = 20
MAX_FEEDBACK_BYTES = 8 * 1024
MAX_POSITION = 2**53
ACTIONS = ("stop", "pause", "resume", "regenerate", "modify")
_THOUGHTS = 'Thoughts, with options.reasoning "separate".'


class Usage(Declared):
    prompt_tokens = required(whole())
    completion_tokens = required(whole())
    total_tokens = required(whole())
    prefix_reused_tokens = required(whole(), "Tokens of the prompt that a cached prefix had already.")
    reasoning_tokens = omittable(
        whole(0),
        'Tokens of the completion that are thoughts, or the marks around them; absent with options.reasoning "inline".',
    )


class Parameters(Sampling, Computation):
    max_tokens = optional(
        whole(1), "Limited by the context and the server's --max-tokens; that limit is also the default."
    )
    repetition_penalty = optional(number(0, 10, above_low=True), "Another name of repeat_penalty.", default=1)


class GenerateMessage(Declared):
    role = required(choice(*ROLES))
    content = required(content_with(AudioItem, " What a model takes is in /v1/models."))
    tool_calls = optional(array(ToolCall, high=MAX_TOOLS, of="calls"), "The calls of an assistant.")
    tool_call_id = optional(CALL_ID, "The call that a message of the role tool answers.")


class Options(Thoughts, TemplateKwargs):
    stream = optional(boolean())
    echo_prompt = switch(False, "Begin the text with the prompt.")
    include_token_ids = switch(False)
    include_logprobs = optional(
        one_of(boolean(), whole(0, MAX_LOGPROBS)),
        "true: each token's log-probability and those of 5 others; or how many others.",
        default=False,
    )
    include_timing = switch(False)
    include_generated_text = switch(True, "Repeat the text so far in every token message.")
    reasoning = optional(
        choice(*REASONING),
        "Where to put the model's thoughts: in the text with their marks, in a field of their own (reasoning) of each"
        " token message and of the completion, or nowhere.",
        default="inline",
    )


class _Asked(Targets):
    model = optional(
        string(max_bytes=MAX_ID_BYTES),
        'One that /v1/models lists, or an alias, or "default". An unknown name is refused.',
    )
    prompt = required(one_of(string(1), array(GenerateMessage, 1, MAX_TURNS)))
    tools = optional(
        array(Tool, high=MAX_TOOLS, of="tools"),
        "What the model may call, where prompt is an array of messages. Calls are in the text as the model writes them,"
        " and apart from it in the completion.",
    )
    parameters = optional(Parameters)
    options = optional(Options)


class GenerateRequest(Parameters, _Asked):
    """What is in parameters and options goes before what stands beside them."""

    stream = switch(False, "Answer with server-sent events.")


class _Item(Declared):
    token = required(string())
    token_id = omittable(whole())
    logprob = required(number())


ScoredTokens = named("ScoredTokens", array(_Item), "The chosen token first.")


class WholeTiming(Declared):
    first_token_ms = required(number())
    total_ms = required(number())


class _Ended(Declared):
    generated_text = required(string())
    reasoning = omittable(string(), _THOUGHTS)
    tool_calls = omittable(array(ToolCall, 1), "The whole calls in generated_text, where it has any.")
    text = omittable(string(), "What generated_text has beside tool_calls; absent without them.")
    finish_reason = required(FinishReason)
    usage = required(Usage)
    token_ids = omittable(array(whole()), "Without a stream.")
    logprobs = omittable(array(ScoredTokens))
    timing = omittable(WholeTiming)


class Generated(_Ended):
    id = required(string())
    model = required(string())


class Config(_Asked):
    type = required(const("config"))
    auth = optional(string(), "The API key, in the first message.")


class Control(Declared):
    type = required(const("control"))
    action = required(choice(*ACTIONS))
    parameters = optional(
        Parameters,
        "What modify changes; the fields that constrain the text (grammar, json_schema and so on), lora and"
        " cache_prompt can't change.",
    )


class FeedbackMessage(Declared):
    type = required(const("feedback"))
    rating = required(number(-1, 1))
    text = optional(string(max_bytes=MAX_FEEDBACK_BYTES))
    position = optional(whole(0, MAX_POSITION), "A token's number.")


class ResumeMessage(Declared):
    type = required(const("resume"))
    request_id = required(string(1, MAX_ID_BYTES))
    position = optional(whole(0, MAX_POSITION), "The number of tokens received so far.", default=0)


ClientMessage = named("ClientMessage", one_of(Config, Control, FeedbackMessage, ResumeMessage))


class _ModelInfo(Declared):
    version = required(string(), "The architecture.")
    max_tokens = required(whole(), "Tokens that prompt and answer may have together.")
    quantization = required(string())
    parameters = required(whole())


class InitMessage(Declared):
    type = required(const("init"))
    request_id = required(string())
    model = required(string())
    model_info = required(_ModelInfo)


class _Timing(Declared):
    token_ms = required(number())
    total_ms = required(number())


class TokenMessage(Declared):
    type = required(const("token"))
    token = required(string(), "Empty while a character or a stop string is incomplete, and in the last message.")
    position = omittable(whole(), "Counted from 0, for resume.")
    token_id = omittable(whole())
    generated_text = omittable(string(), "All so far.")
    reasoning = omittable(string(), _THOUGHTS)
    logprobs = omittable(ScoredTokens)
    timing = omittable(_Timing)
    finish_reason = nullable(FinishReason)
    finished = required(boolean())


class CompletionMessage(_Ended):
    type = required(const("completion"))
    request_id = required(string())


class StatusMessage(Declared):
    type = required(const("status"))
    operation = required(
        string(),
        "model_loading and queued while a request waits; or what is acknowledged: pause, resume, modify, feedback.",
    )
    progress = required(whole(), "Percent.")
    message = required(string())
    eta_seconds = omittable(number())
    position = omittable(whole())
    request_id = omittable(string())


class ErrorMessage(Declared):
    type = required(const("error"))
    error = required(
        choice(
            "invalid_request",
            "context_length_exceeded",
            "content_filter",
            "memory_pressure",
            "timeout",
            "internal_error",
            "model_loading_error",
            "rate_limited",
        )
    )
    message = required(string())
    recoverable = required(boolean())
    recovery_action = required(
        choice(
            "modify_request",
            "reduce_prompt",
            "retry",
            "wait",
            "reconnect",
            "authenticate",
            "restart",
            "ask_operator",
            "none",
        )
    )
    request_id = omittable(string())
    partial_text = omittable(string(), "The text generated so far.")
    retry_after_ms = omittable(whole())


ServerMessage = named(
    "ServerMessage", one_of(InitMessage, TokenMessage, CompletionMessage, StatusMessage, ErrorMessage)
)
