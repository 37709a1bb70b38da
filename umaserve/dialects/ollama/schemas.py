"""Schemas of the API of Ollama."""

from __future__ import annotations

from umaserve.dialects.openai.schemas import Tool, ToolChoice
from umaserve.dialects.schemas import Targets
from umaserve.wire.declared import (
    Declared,
    array,
    boolean,
    choice,
    const,
    number,
    omittable,
    one_of,
    optional,
    required,
    string,
    switch,
    value,
    whole,
)


class OllamaError(Declared):
    error = required(string(), "Names the field, what came and what was expected.")


class OllamaDetails(Declared):
    parent_model = required(string())
    format = required(string())
    family = required(string())
    families = required(array(string()))
    parameter_size = required(string())
    quantization_level = required(string())


class _TopLogprob(Declared):
    token = required(string())
    logprob = required(number())
    bytes = required(array(whole()))


class OllamaLogprobs(Declared):
    token = required(string())
    logprob = required(number())
    bytes = required(array(whole()))
    top_logprobs = omittable(array(_TopLogprob))


class _Function(Declared):
    name_ = required(string(1))
    arguments = required(value(type="object"))


class _ToolCall(Declared):
    id = optional(string())
    function = required(_Function)


class _Message(Declared):
    role = required(choice("system", "user", "assistant", "tool"))
    content = optional(string())
    thinking = optional(string())
    images = optional(array(string(1, description="Base64, without a data: URL."), high=64))
    tool_calls = optional(array(_ToolCall))
    tool_name = optional(string())
    tool_call_id = optional(string())


class _Options(Declared):
    temperature = optional(number(0, 10), default=0.8)
    top_k = optional(whole(0, 1048576), default=40)
    top_p = optional(number(0, 1, above_low=True), default=0.9)
    min_p = optional(number(0, 1), default=0)
    repeat_penalty = optional(number(0, 10, above_low=True), default=1.1)
    repeat_last_n = optional(
        whole(-1, 2147483647),
        "How many of the last tokens count for the penalties; 0: no penalties; -1: all.",
        default=64,
    )
    presence_penalty = optional(number(-2, 2), default=0)
    frequency_penalty = optional(number(-2, 2), default=0)
    seed = optional(whole(high=4294967294), "Negative: any.")
    stop = optional(one_of(string(1), array(string(1), high=16)))
    num_predict = optional(
        whole(), "The most tokens of the answer; -1 and -2: as many as the context holds.", default=-1
    )
    num_ctx = optional(whole(1), "At most the daemon's context, which doesn't change; a longer one is refused.")


class OllamaChatRequest(Targets):
    model = required(
        string(1),
        (
            "One that /api/tags lists, or an alias, with or without :latest. An unknown name means the "
            "default model, or with --strict-models none."
        ),
    )
    messages = optional(array(_Message, high=1024), "None: the model is loaded.")
    tools = optional(array(Tool, high=128))
    tool_choice = omittable(ToolChoice)
    stream = switch(True)
    format = omittable(
        one_of(choice("json", "", None), value(type="object")),
        "json: any JSON object; an object: the JSON schema that the text has to follow.",
    )
    options = optional(
        _Options,
        (
            "Options for loading a model, such as num_gpu, are checked and not used. Grammars, "
            "logit_bias and ignore_eos may be given as to /v1/chat/completions."
        ),
    )
    keep_alive = optional(
        value(type=["number", "string"]),
        "Seconds, or a duration such as 5m. The model stays loaded whatever it says.",
    )
    think = optional(
        choice(True, False, "low", "medium", "high"),
        "Whether to think, and how much, for models whose chat template knows it.",
    )
    logprobs = switch(False)
    top_logprobs = optional(whole(0, 20), "Goes with logprobs.")


class OllamaGenerateRequest(Targets):
    model = required(
        string(1),
        (
            "One that /api/tags lists, or an alias, with or without :latest. An unknown name means the "
            "default model, or with --strict-models none."
        ),
    )
    prompt = optional(string(), "Empty: the model is loaded.")
    system = optional(string())
    images = optional(array(string(1, description="Base64, without a data: URL."), high=64))
    raw = switch(False, "Whether the prompt is used as it is, without the chat template.")
    template = optional(choice(""), "Refused: with raw, a prompt can have any form.")
    suffix = optional(choice(""), "Refused.")
    context = optional(array(whole()), "Not used.")
    stream = switch(True)
    format = omittable(
        one_of(choice("json", "", None), value(type="object")),
        "json: any JSON object; an object: the JSON schema that the text has to follow.",
    )
    options = optional(
        _Options,
        (
            "Options for loading a model, such as num_gpu, are checked and not used. Grammars, "
            "logit_bias and ignore_eos may be given as to /v1/chat/completions."
        ),
    )
    keep_alive = optional(
        value(type=["number", "string"]),
        "Seconds, or a duration such as 5m. The model stays loaded whatever it says.",
    )
    think = optional(
        choice(True, False, "low", "medium", "high"),
        "Whether to think, and how much, for models whose chat template knows it.",
    )
    logprobs = switch(False)
    top_logprobs = optional(whole(0, 20), "Goes with logprobs.")


class _OllamaChatAnswerMessageToolCallFunction(Declared):
    index = required(whole())
    name_ = required(string())
    arguments = required(value(type="object"))


class _OllamaChatAnswerMessageToolCall(Declared):
    id = required(string())
    function = required(_OllamaChatAnswerMessageToolCallFunction)


class _OllamaChatAnswerMessage(Declared):
    role = required(const("assistant"))
    content = required(string())
    thinking = omittable(string())
    tool_calls = omittable(array(_OllamaChatAnswerMessageToolCall))


class OllamaChatAnswer(Declared):
    message = required(_OllamaChatAnswerMessage)
    model = required(string())
    created_at = required(string(format="date-time"))
    done = required(boolean(), "True in the last line.")
    done_reason = omittable(choice("stop", "length", "content_filter", "load", "unload"))
    logprobs = omittable(array(OllamaLogprobs))
    total_duration = omittable(whole(), "Nanoseconds since the request.")
    load_duration = omittable(whole())
    prompt_eval_count = omittable(whole(), "Tokens of the prompt.")
    prompt_eval_duration = omittable(whole(), "Nanoseconds since the request.")
    eval_count = omittable(whole(), "Tokens of the answer.")
    eval_duration = omittable(whole(), "Nanoseconds since the request.")


class OllamaGenerateAnswer(Declared):
    response = required(string())
    thinking = omittable(string())
    model = required(string())
    created_at = required(string(format="date-time"))
    done = required(boolean(), "True in the last line.")
    done_reason = omittable(choice("stop", "length", "content_filter", "load", "unload"))
    logprobs = omittable(array(OllamaLogprobs))
    total_duration = omittable(whole(), "Nanoseconds since the request.")
    load_duration = omittable(whole())
    prompt_eval_count = omittable(whole(), "Tokens of the prompt.")
    prompt_eval_duration = omittable(whole(), "Nanoseconds since the request.")
    eval_count = omittable(whole(), "Tokens of the answer.")
    eval_duration = omittable(whole(), "Nanoseconds since the request.")


class OllamaVersionReply(Declared):
    version = required(string())


class _Model(Declared):
    name_ = required(string())
    model = required(string())
    size = required(whole(), "Bytes.")
    digest = required(string(), "Of the model's name, not of its file.")
    details = required(OllamaDetails)
    modified_at = required(string(format="date-time"))


class OllamaTagsReply(Declared):
    models = required(array(_Model))


class _OllamaPsReplyModel(Declared):
    name_ = required(string())
    model = required(string())
    size = required(whole(), "Bytes.")
    digest = required(string(), "Of the model's name, not of its file.")
    details = required(OllamaDetails)
    expires_at = required(string(format="date-time"))
    size_vram = required(whole(0), "About so much of size is in the memory of GPUs.")
    context_length = required(whole())


class OllamaPsReply(Declared):
    models = required(array(_OllamaPsReplyModel))


class OllamaShowBody(Declared, also={"anyOf": [{"required": ["model"]}, {"required": ["name"]}]}):
    model = optional(string(1), "One that /api/tags lists, or an alias, with or without :latest.")
    name_ = optional(string(1), "An older name of model.")
    verbose = switch(False, "Not used.")


class OllamaShowReply(Declared):
    modelfile = required(string())
    parameters = required(string())
    template = required(string(), "The chat template, in Jinja.")
    details = required(OllamaDetails)
    model_info = required(value(type="object"))
    capabilities = required(array(choice("completion", "tools", "vision", "thinking")))
    modified_at = required(string(format="date-time"))


class _OllamaEmbedBodyOptions(Declared):
    num_ctx = optional(whole(1))


class OllamaEmbedBody(Declared):
    model = required(
        string(1),
        (
            "One that /api/tags lists, or an alias, with or without :latest. An unknown name means the "
            "default model, or with --strict-models none."
        ),
    )
    input = required(one_of(string(1), array(string(1), 1, 256)))
    truncate = optional(boolean(), "Not used: a text that is too long is refused.")
    dimensions = optional(
        whole(1), ("Only so many of each vector's numbers, of unit length again; at most the model's.")
    )
    options = optional(_OllamaEmbedBodyOptions, "Checked and not used.")
    keep_alive = optional(
        value(type=["number", "string"]),
        "Seconds, or a duration such as 5m. The model stays loaded whatever it says.",
    )


class OllamaEmbedReply(Declared):
    model = required(string())
    embeddings = required(array(array(number())))
    total_duration = required(whole(), "Nanoseconds since the request.")
    load_duration = required(const(0))
    prompt_eval_count = required(whole())


class OllamaEmbeddingsBody(Declared):
    model = required(
        string(1),
        (
            "One that /api/tags lists, or an alias, with or without :latest. An unknown name means the "
            "default model, or with --strict-models none."
        ),
    )
    prompt = required(string(1))
    options = optional(_OllamaEmbedBodyOptions, "Checked and not used.")
    keep_alive = optional(
        value(type=["number", "string"]),
        "Seconds, or a duration such as 5m. The model stays loaded whatever it says.",
    )


class OllamaEmbeddingsReply(Declared):
    embedding = required(array(number()))


class OllamaPullBody(Declared, also={"anyOf": [{"required": ["model"]}, {"required": ["name"]}]}):
    model = optional(string(1), "One that /api/tags lists, or an alias, with or without :latest.")
    name_ = optional(string(1), "An older name of model.")
    insecure = switch(False, "Not used.")
    stream = switch(True)


class OllamaPullReply(Declared):
    status = required(string())
