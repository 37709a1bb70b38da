"""Schemas of the replies of the API of OpenAI, but for those of sounds."""

from __future__ import annotations

from umaserve.dialects.openai.schemas import CREATED
from umaserve.dialects.openai.tool_schemas import TOOL_CALL
from umaserve.dialects.schemas import Error, FinishReason
from umaserve.wire.declared import (
    Declared,
    array,
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
    value,
    whole,
)


class _ScoredToken(Declared):
    token = required(string())
    logprob = required(number(), "Natural logarithm of the probability; -9999 also means anything below.")
    bytes = required(array(whole(0, 255)), "The token may be a part of a character.")


class Scored(_ScoredToken):
    pass


class _ScoredChoice(_ScoredToken):
    top_logprobs = required(array(Scored), "The likeliest first.")


class ChatLogprobs(Declared):
    content = required(array(_ScoredChoice))
    refusal = required(value(type="null"))


ChatFinishReason = named(
    "ChatFinishReason",
    choice("stop", "length", "tool_calls", "content_filter"),
    "stop: the model or a stop string ended the text; length: max_tokens did; tool_calls: the model waits for the"
    " results of the tools.",
)


class _PromptTokensDetails(Declared):
    cached_tokens = required(whole(), "Tokens of the prompt that a cached prefix had already.")


class _CompletionTokensDetails(Declared):
    reasoning_tokens = required(whole(1), "Tokens of the completion that are thoughts, or the marks around them.")


class OpenAIUsage(Declared):
    prompt_tokens = required(whole(), "A prompt counts once, whatever its number of choices.")
    completion_tokens = required(whole())
    total_tokens = required(whole())
    prompt_tokens_details = required(_PromptTokensDetails)
    completion_tokens_details = omittable(_CompletionTokensDetails, "Present only if there are thoughts.")


class Timings(Declared):
    """Timings as llama.cpp's server gives them: tokens, milliseconds, tokens a second. Absent where there are several
    choices in one answer."""

    cache_n = required(whole(), "Tokens of the prompt that a cached prefix had already.")
    prompt_n = required(whole(), "The others.")
    prompt_ms = required(number())
    prompt_per_token_ms = required(number())
    prompt_per_second = required(number())
    predicted_n = required(whole())
    predicted_ms = required(number())
    predicted_per_token_ms = required(number())
    predicted_per_second = required(number(), "Of the tokens after the first one; 0 where there is none.")


class PromptProgress(Declared):
    """With return_progress: how much of the prompt is computed."""

    total = required(whole(), "Tokens of the prompt.")
    cache = required(whole(), "Those of them that were in the cache.")
    processed = required(whole(), "Tokens done, those in the cache included.")
    time_ms = required(whole())


class _Answer(Declared):
    id = required(string())
    created = required(whole(), CREATED)
    model = required(string())
    system_fingerprint = required(string(), "Changes with the model and its settings.")
    timings = omittable(Timings)


class _MessageAudio(Declared):
    id = required(string())
    expires_at = required(whole(), "The time of the reply: its audio is not stored.")
    data = required(string(), "In base64.")
    transcript = required(string())


class _AnswerMessage(Declared):
    role = required(const("assistant"))
    content = nullable(string())
    refusal = required(value(type="null"))
    reasoning_content = omittable(string(), "The model's thoughts.")
    audio = omittable(_MessageAudio, "The spoken answer; content is null then.")
    tool_calls = omittable(array(TOOL_CALL, 1))


class _ChatChoice(Declared):
    index = required(whole())
    message = required(_AnswerMessage)
    logprobs = nullable(ChatLogprobs)
    finish_reason = required(ChatFinishReason)


class ChatCompletion(_Answer):
    object_ = required(const("chat.completion"))
    choices = required(array(_ChatChoice))
    usage = required(OpenAIUsage)


class _DeltaAudio(Declared):
    id = omittable(string())
    expires_at = omittable(whole())
    transcript = omittable(string())
    data = omittable(string())


class _DeltaFunction(Declared):
    name_ = omittable(string())
    arguments = required(string())


class _DeltaCall(Declared):
    index = required(whole())
    id = omittable(string())
    type = omittable(const("function"))
    function = required(_DeltaFunction)


class _DeltaCustom(Declared):
    name_ = omittable(string())
    input = required(string())


class _DeltaCustomCall(Declared):
    index = required(whole())
    id = omittable(string())
    type = omittable(const("custom"))
    custom = required(_DeltaCustom)


class _Delta(Declared):
    role = omittable(const("assistant"))
    content = optional(string())
    reasoning_content = omittable(string(), "The model's thoughts.")
    audio = omittable(
        _DeltaAudio,
        "The first piece has the id. The pieces of transcript and data are to be concatenated; those of data can also"
        " be decoded one by one.",
    )
    tool_calls = omittable(
        array(one_of(_DeltaCall, _DeltaCustomCall)),
        "The first piece of a call has its id and its name. The arguments of all its pieces are to be concatenated, or"
        " the input of a custom tool's.",
    )


class _ChatChunkChoice(Declared):
    index = required(whole())
    delta = required(_Delta)
    logprobs = nullable(ChatLogprobs)
    finish_reason = nullable(ChatFinishReason)


class _ChatChunk(_Answer):
    object_ = required(const("chat.completion.chunk"))
    choices = required(array(_ChatChunkChoice), "Empty in the chunk that has the usage.")
    usage = optional(OpenAIUsage)
    prompt_progress = omittable(PromptProgress)


ChatCompletionChunk = named("ChatCompletionChunk", one_of(_ChatChunk, Error))


class TextLogprobs(Declared):
    """Arrays of one length, with an item for each token. Of a prompt's first token only its text is known, since
    nothing stands before it."""

    tokens = required(array(string()))
    token_logprobs = required(array(value(type=["number", "null"])))
    top_logprobs = required(array(value(type=["object", "null"], additionalProperties={"type": "number"})))
    text_offset = required(array(value(type="integer", description="In characters.")))


class _PromptToken(Declared):
    logprob = required(number())
    rank = required(whole(1), "The token's rank among all tokens, from 1.")
    decoded_token = required(string())


class _Text(Declared):
    text = required(string())
    index = required(whole(), "Counts the choices of the first prompt, then those of the next.")
    logprobs = nullable(TextLogprobs)


class _TextChoice(_Text):
    finish_reason = required(FinishReason)
    prompt_logprobs = omittable(
        array(value(type=["object", "null"], additionalProperties=_PromptToken)),
        "Only if requested: for each token of the prompt except the first, log-probabilities by token id, that of the"
        " token itself first.",
    )


class Completion(_Answer):
    object_ = required(const("text_completion"))
    choices = required(array(_TextChoice))
    usage = required(OpenAIUsage)


class _TextChunkChoice(_Text):
    finish_reason = nullable(FinishReason)


class _TextChunk(_Answer):
    object_ = required(const("text_completion"))
    choices = required(array(_TextChunkChoice))
    usage = optional(OpenAIUsage)
    prompt_progress = omittable(PromptProgress)


CompletionChunk = named("CompletionChunk", one_of(_TextChunk, Error))


class _Embedding(Declared):
    object_ = required(const("embedding"))
    index = required(whole())
    embedding = required(one_of(array(number()), string(contentEncoding="base64")))


class _EmbeddingsUsage(Declared):
    prompt_tokens = required(whole())
    total_tokens = required(whole())


class Embeddings(Declared):
    object_ = required(const("list"))
    data = required(array(_Embedding))
    model = required(string())
    usage = required(_EmbeddingsUsage)


# -- models ------------------------------------------------------------------------------------------------------


class _Meta(Declared):
    n_vocab = required(whole())
    n_ctx = required(whole(1), "As context_length.")
    n_ctx_train = required(whole(), "The context that the model was trained with, in tokens.")
    n_embd = required(whole())
    n_params = required(whole())
    size = required(whole(), "Bytes.")


class _Status(Declared):
    value = required(choice("loaded", "loading", "unloaded"))
    failed = omittable(const(True), "It could not be loaded, or has crashed.")
    progress = omittable(number(0, 1), "How much is loaded, while it loads; 0 where it waits for memory.")


class _Architecture(Declared):
    input_modalities = required(array(choice("text", "image", "audio", "video")))


class Model(Declared):
    id = required(string())
    aliases = required(array(string()), "The model's name and its aliases, for clients of llama-server.")
    tags = required(array(string()), "The operator's words for the model.")
    object_ = required(const("model"))
    created = required(whole(), "When the daemon started, in seconds since 1970.")
    owned_by = required(string())
    meta = omittable(_Meta, "Once the model has been loaded.")
    status = required(_Status)
    context_length = omittable(
        whole(1),
        "Tokens that prompt and answer may have together. For a model that was never loaded, the smaller of the"
        " setting and what the model was trained with, if memory has room for it; absent where neither is known.",
    )
    max_model_len = omittable(whole(1), "As context_length.")
    max_tokens = omittable(whole(1), "Tokens of the longest answer: --max-tokens, or as context_length.")
    description = omittable(string(), "The operator's, if there is one.")
    size = required(whole(0), "Bytes of its files; 0 where they can't be read.")
    needed = required(whole(0), "Bytes of memory that it takes or would take, as far as is known.")
    last_used = omittable(whole(), "When the model last had work, in seconds since 1970. Absent: not since the start.")
    architecture = omittable(
        _Architecture, "The inputs that the model takes. Absent until it has been loaded, where only that shows it."
    )
    available = omittable(
        whole(0),
        "Bytes of memory that would be available to the model if all other models that are not pinned were unloaded,"
        " as last measured. Absent while it is loaded. If it needs more, its requests are refused.",
    )


class _Limits(Declared):
    message_bytes = required(
        whole(1),
        "Of a message of /generate or /ws/chat, and of a body that may have media. On a WebSocket, a client that"
        " sends its key only in the first message has a lower limit.",
    )
    media = required(whole(1), "Images, recordings and films of one conversation.")


class CodexModel(Declared, also={"additionalProperties": True}):
    """What Codex wants to know of a model."""

    slug = required(string())
    context_window = nullable(whole(1), "As context_length.")
    base_instructions = required(string(), "They take the place of Codex's own.")


class Models(Declared):
    object_ = required(const("list"))
    data = required(array(Model))
    models = required(
        array(CodexModel), "For Codex, which asks with client_version, the names that requests may have. Else empty."
    )
    limits = required(_Limits, "What a request may have at most.")


class CountChatTokensReply(Declared):
    input_tokens = required(whole(0))
