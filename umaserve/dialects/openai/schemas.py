"""Schemas of the API of OpenAI, but for its responses."""

from __future__ import annotations

from umaserve.dialects.schemas import Computation, Error, FinishReason, Sampling, Targets
from umaserve.wire.declared import (
    Declared,
    any_of,
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
    value,
    whole,
)


class _TextContentItem(Declared):
    type = required(const("text"))
    text = required(string())


class _ImageUrl(Declared):
    url = required(
        string(pattern="^[Dd][Aa][Tt][Aa]:[Ii][Mm][Aa][Gg][Ee]/[^,]+;[Bb][Aa][Ss][Ee]64,."),
        "The image itself; nothing is ever fetched.",
    )
    detail = optional(
        choice("auto", "high", "low", "original"),
        "Ignored: each model has its own way to look at an image.",
        default="auto",
    )


class _ImageUrlContentItem(Declared):
    type = required(const("image_url"))
    image_url = required(_ImageUrl)


class _InputAudio(Declared):
    data = required(string(1), "The file in base64.")
    format = required(choice("wav", "mp3"))


class _InputAudioContentItem(Declared):
    type = required(const("input_audio"))
    input_audio = required(_InputAudio)


class _Function(Declared):
    name_ = required(string())
    arguments = required(
        value(type=["string", "object"]),
        "A JSON object as text, which may be empty where there are none; or the object.",
    )


class ToolCall(Declared):
    id = required(string())
    type = optional(choice("function"))
    function = required(_Function)


class Message(Declared):
    role = required(choice("system", "developer", "user", "assistant", "tool"))
    content = optional(
        one_of(string(), array(one_of(_TextContentItem, _ImageUrlContentItem, _InputAudioContentItem), 1, 256)),
        (
            "May be absent beside tool_calls. An assistant's is text only. All messages together have at "
            "most 64 images and recordings."
        ),
    )
    tool_calls = optional(array(ToolCall), "The calls of an assistant.")
    reasoning_content = optional(
        string(),
        ("What the assistant thought before this message. Models whose chat template has a place for it get it back."),
    )
    tool_call_id = optional(string(), "The call that a message of the role tool answers.")


class _ChatTemplateKwargs(Declared):
    enable_thinking = optional(boolean())


class _StreamOptions(Declared):
    include_usage = switch(False, "Send the usage in a last chunk.")


class _ResponseFormat(Declared):
    type = required(choice("text", "json_object"))
    schema_ = optional(
        value(type="object"), "With json_object, as in llama-server: the schema that the text has to follow."
    )


class _JsonSchema(Declared):
    schema_ = required(value(type="object"))


class _JsonSchemaResponseFormat(Declared):
    type = required(const("json_schema"))
    json_schema = required(_JsonSchema)


class _ToolFunction(Declared):
    name_ = required(string(pattern="^[A-Za-z0-9_-]{1,64}$"))
    description = optional(string())
    parameters = optional(value(type="object"), "The JSON schema of the arguments.")
    strict = optional(
        boolean(),
        (
            "true: a schema with a keyword that no grammar can enforce is refused by its path. Otherwise "
            "such keywords are left out, which the server's log tells once."
        ),
    )


class Tool(Declared):
    type = optional(choice("function"))
    function = required(_ToolFunction)


class _PartFunction(Declared):
    name_ = required(string())


class _Part(Declared, also={"anyOf": [{"required": ["function"]}, {"required": ["name"]}]}):
    """One tool. The name may also be beside the type, as in the Responses API."""

    type = optional(choice("function"))
    function = omittable(_PartFunction)
    name_ = omittable(string())


class _AllowedTools(Declared):
    mode = required(choice("auto", "required"))
    tools = required(array(Tool, 1, 128))


class _ToolChoicePart(Declared):
    """Only these tools."""

    type = required(const("allowed_tools"))
    allowed_tools = required(_AllowedTools)


ToolChoice = named(
    "ToolChoice",
    value(oneOf=[{"enum": ["none", "auto", "required"]}, _Part, _ToolChoicePart, {"type": "null"}], default="auto"),
)


class _VoicePart(Declared):
    id = required(string(1, 64))


Voice = named(
    "Voice",
    value(oneOf=[{"type": "string", "minLength": 1, "maxLength": 64}, _VoicePart], default="default"),
    "At most 64 bytes. Whichever it is, it is the one voice that the daemon has.",
)


class _Audio(Declared):
    voice = optional(Voice)
    format = required(
        choice("mp3", "opus", "aac", "flac", "wav", "pcm16"),
        (
            "24 kHz, mono; wav and pcm16 have 16 bit, little-endian, as a file or as samples alone. A "
            "stream has pcm16. The compressed ones take umaserve[media]; opus is in Ogg."
        ),
    )


class ChatRequest(Sampling, Computation, Targets):
    model = optional(
        string(),
        (
            "One that /v1/models lists, or an alias. Without one, or by an unknown name (refused with "
            "--strict-models): the default model."
        ),
    )
    messages = required(array(Message, 1, 1024))
    continue_final_message = optional(
        boolean(),
        ("Whether the answer goes on with the last message, which is then the assistant's. By default where it is."),
    )
    chat_template_kwargs = optional(
        _ChatTemplateKwargs,
        (
            "Variables of the model's chat template. enable_thinking: whether a model that can think "
            "does so, by default yes; preserve_reasoning: whether thoughts of earlier turns stay in the "
            "prompt, by default yes."
        ),
    )
    enable_thinking = optional(boolean(), "The same as enable_thinking in chat_template_kwargs, which comes first.")
    reasoning_effort = optional(
        choice("none", "minimal", "low", "medium", "high", "xhigh", "max"),
        ("How much the model thinks, where its chat template knows such a thing; none: not at all."),
    )
    reasoning_format = optional(
        string(enum=["auto", "deepseek", "none", None]),
        ("Where the model's thoughts are: in reasoning_content, or with none in the content, with their marks."),
        default="auto",
    )
    reasoning_budget = optional(
        whole(-1),
        (
            "After how many tokens a thought is closed by force: -1 never, 0 at once. Default: the "
            "server's --reasoning-budget."
        ),
    )
    thinking_budget_tokens = optional(whole(-1), "Another name of reasoning_budget.")
    stop_in_reasoning = switch(False, "Whether stop strings also end the answer inside thoughts.")
    add_generation_prompt = switch(True, "Whether the template opens an assistant's message where none is continued.")
    max_completion_tokens = optional(
        value(type="integer", anyOf=[{"minimum": 1}, {"const": -1}]),
        ("Cut to what the context holds and to the server's --max-tokens, which are the default too."),
    )
    max_tokens = optional(
        value(type="integer", anyOf=[{"minimum": 1}, {"const": -1}]), "The older name of max_completion_tokens."
    )
    n_predict = optional(
        value(type="integer", anyOf=[{"minimum": 1}, {"const": -1}, {"type": "null"}]),
        "llama-server's name of max_tokens.",
    )
    n = optional(
        whole(1, 8), ("Choices for each prompt. With a seed, each choice has its own, counted up from it."), default=1
    )
    stream = switch(False, "Answer with server-sent events.")
    stream_options = optional(_StreamOptions)
    return_progress = switch(False, "In a stream, tell how much of the prompt is computed, in chunks without choices.")
    verbose = switch(
        False,
        (
            "Tell the prompt as the model got it, in __verbose.prompt of the answer or of its last "
            "chunk, as llama-server does."
        ),
    )
    logprobs = switch(False, "Say the log-probability of each token.")
    top_logprobs = optional(whole(0, 20), "Say it also of so many of the likeliest tokens; needs logprobs.")
    response_format = optional(one_of(_ResponseFormat, _JsonSchemaResponseFormat))
    tools = optional(array(Tool, high=128))
    tool_choice = omittable(ToolChoice)
    parallel_tool_calls = optional(
        boolean(), "Whether there may be several calls; by default, unless a call is required."
    )
    modalities = optional(
        choice(["text"], ["text", "audio"], ["audio", "text"]), "Whether the answer is spoken too.", default=["text"]
    )
    audio = optional(_Audio, "How it is spoken; goes with the modality audio.")


class _MessageAudio(Declared):
    id = required(string())
    expires_at = required(whole(), "At once: nothing is kept of it.")
    data = required(string(), "In base64.")
    transcript = required(string())


class _Message(Declared):
    role = required(const("assistant"))
    content = nullable(string())
    refusal = required(value(type="null"))
    reasoning_content = omittable(string(), "The model's thoughts.")
    audio = omittable(_MessageAudio, "The answer as it is heard; content is null then.")
    tool_calls = omittable(array(ToolCall, 1))


class Scored(Declared):
    token = required(string())
    logprob = required(number(), "Natural logarithm of the probability; -9999 stands for anything below it.")
    bytes = required(array(whole(0, 255)), "The token may be a part of a character.")


class _ContentItem(Declared):
    token = required(string())
    logprob = required(number(), "Natural logarithm of the probability; -9999 stands for anything below it.")
    bytes = required(array(whole(0, 255)), "The token may be a part of a character.")
    top_logprobs = required(array(Scored), "The likeliest first.")


class ChatLogprobs(Declared):
    content = required(array(_ContentItem))
    refusal = required(value(type="null"))


ChatFinishReason = named(
    "ChatFinishReason",
    choice("stop", "length", "tool_calls", "content_filter"),
    (
        "stop: the model or a stop string ended the text; length: max_tokens did; tool_calls: the "
        "server waits for what the tools say."
    ),
)


class _Choice(Declared):
    index = required(whole())
    message = required(_Message)
    logprobs = nullable(ChatLogprobs)
    finish_reason = required(ChatFinishReason)


class _PromptTokensDetails(Declared):
    cached_tokens = required(whole(), "Those that had been computed before, for another request.")


class _CompletionTokensDetails(Declared):
    reasoning_tokens = required(whole(1), "Tokens of the completion that are thoughts, or marks around them.")


class OpenAIUsage(Declared):
    prompt_tokens = required(whole(), "A prompt counts once, however many choices it has.")
    completion_tokens = required(whole())
    total_tokens = required(whole())
    prompt_tokens_details = required(_PromptTokensDetails)
    completion_tokens_details = omittable(_CompletionTokensDetails, "Only where there are thoughts.")


class Timings(Declared):
    """Timings as llama.cpp's server gives them: tokens, milliseconds, tokens a second. Absent where there are several
    choices in one answer."""

    cache_n = required(whole(), "Tokens of the prompt that had been computed before.")
    prompt_n = required(whole(), "The others.")
    prompt_ms = required(number())
    prompt_per_token_ms = required(number())
    prompt_per_second = required(number())
    predicted_n = required(whole())
    predicted_ms = required(number())
    predicted_per_token_ms = required(number())
    predicted_per_second = required(number(), "Of the tokens after the first one; 0 where there is none.")


class ChatCompletion(Declared):
    id = required(string())
    object_ = required(const("chat.completion"))
    created = required(whole(), "Seconds since 1970.")
    model = required(string())
    system_fingerprint = required(string(), "Changes with the model and its settings.")
    choices = required(array(_Choice))
    usage = required(OpenAIUsage)
    timings = omittable(Timings)


class _DeltaAudio(Declared):
    id = omittable(string())
    expires_at = omittable(whole())
    transcript = omittable(string())
    data = omittable(string())


class _ToolCallFunction(Declared):
    name_ = required(string())
    arguments = required(string())


class _ToolCall(Declared):
    index = required(whole())
    id = required(string())
    type = required(const("function"))
    function = required(_ToolCallFunction)


class _Delta(Declared):
    role = omittable(const("assistant"))
    content = optional(string())
    reasoning_content = omittable(string(), "The model's thoughts.")
    audio = omittable(
        _DeltaAudio,
        (
            "The id comes first and once. Transcript and data come in pieces that are to be put end to "
            "end; those of data can be decoded one by one as well."
        ),
    )
    tool_calls = omittable(array(_ToolCall), "Each call comes whole, in one chunk.")


class _ChatCompletionChunkChoice(Declared):
    index = required(whole())
    delta = required(_Delta)
    logprobs = nullable(ChatLogprobs)
    finish_reason = nullable(ChatFinishReason)


class PromptProgress(Declared):
    """With return_progress: how much of the prompt is computed."""

    total = required(whole(), "Tokens of the prompt.")
    cache = required(whole(), "Those of them that were in the cache.")
    processed = required(whole(), "Tokens done, those in the cache included.")
    time_ms = required(whole())


class _ChatCompletionChunk(Declared):
    id = required(string())
    object_ = required(const("chat.completion.chunk"))
    created = required(whole(), "Seconds since 1970.")
    model = required(string())
    system_fingerprint = required(string(), "Changes with the model and its settings.")
    choices = required(array(_ChatCompletionChunkChoice), "Empty in the chunk that has the usage.")
    usage = optional(OpenAIUsage)
    timings = omittable(Timings)
    prompt_progress = omittable(PromptProgress)


ChatCompletionChunk = named("ChatCompletionChunk", one_of(_ChatCompletionChunk, Error))


Texts = named(
    "Texts",
    any_of(
        string(), array(any_of(string(), whole(0)), 1), array(any_of(string(), array(any_of(string(), whole(0)), 1)), 1)
    ),
    ("A text, its token ids, an array of ids and texts that is one text, or an array of several of these."),
)


class CompletionRequest(Sampling, Computation, Targets):
    model = optional(
        string(),
        (
            "One that /v1/models lists, or an alias. Without one, or by an unknown name (refused with "
            "--strict-models): the default model."
        ),
    )
    prompt = required(Texts)
    max_tokens = optional(
        value(type="integer", anyOf=[{"minimum": 0}, {"const": -1}]),
        (
            "Cut to what the context holds and to the server's --max-tokens; 0: none, which is for an "
            "echo; -1: as many as fit."
        ),
        default=16,
    )
    n_predict = optional(
        value(type="integer", anyOf=[{"minimum": 0}, {"const": -1}, {"type": "null"}]),
        "llama-server's name of max_tokens.",
    )
    n = optional(
        whole(1, 8), ("Choices for each prompt. With a seed, each choice has its own, counted up from it."), default=1
    )
    stream = switch(False, "Answer with server-sent events.")
    stream_options = optional(_StreamOptions)
    return_progress = switch(False, "In a stream, tell how much of the prompt is computed, in chunks without choices.")
    verbose = switch(
        False,
        (
            "Tell the prompt as the model got it, in __verbose.prompt of the answer or of its last "
            "chunk, as llama-server does."
        ),
    )
    best_of = optional(whole(1, 8), "Accepted only where it is n.")
    logprobs = optional(whole(0, 20), "Say the log-probability of each token, and of so many of the likeliest.")
    prompt_logprobs = optional(
        whole(0, 20),
        (
            "Say the log-probability of each token of the prompt, as vLLM does, and of so many of the "
            "likeliest; not in a stream. Here and with echo and logprobs all of the prompt is computed "
            "anew, and it may have 131072 tokens at most, divided by one more than this number."
        ),
    )
    echo = switch(
        False,
        (
            "Begin the text with the prompt, and the arrays of logprobs with its tokens; for a prompt of "
            "token ids only with logprobs."
        ),
    )
    suffix = optional(choice(""), "Not supported.")
    response_format = optional(one_of(_ResponseFormat, _JsonSchemaResponseFormat))


class TextLogprobs(Declared):
    """Arrays of one length, with an item for each token. Of a prompt's first token only its text is known, since
    nothing stands before it."""

    tokens = required(array(string()))
    token_logprobs = required(array(value(type=["number", "null"])))
    top_logprobs = required(array(value(type=["object", "null"], additionalProperties={"type": "number"})))
    text_offset = required(array(value(type="integer", description="In characters.")))


class _CompletionChoicePart(Declared):
    logprob = required(number())
    rank = required(whole(1), "The token's place among all, from 1.")
    decoded_token = required(string())


class _CompletionChoice(Declared):
    text = required(string())
    index = required(whole(), "Counts all choices of the first prompt, then those of the next.")
    logprobs = nullable(TextLogprobs)
    finish_reason = required(FinishReason)
    prompt_logprobs = omittable(
        array(value(type=["object", "null"], additionalProperties=_CompletionChoicePart)),
        (
            "Only where it is asked for: for each token of the prompt, but its first, log-probabilities "
            "by token ids, its own first."
        ),
    )


class Completion(Declared):
    id = required(string())
    object_ = required(const("text_completion"))
    created = required(whole(), "Seconds since 1970.")
    model = required(string())
    system_fingerprint = required(string(), "Changes with the model and its settings.")
    choices = required(array(_CompletionChoice))
    usage = required(OpenAIUsage)
    timings = omittable(Timings)


class _TextCompletionChoice(Declared):
    text = required(string())
    index = required(whole(), "Counts all choices of the first prompt, then those of the next.")
    logprobs = nullable(TextLogprobs)
    finish_reason = nullable(FinishReason)


class _TextCompletion(Declared):
    id = required(string())
    object_ = required(const("text_completion"))
    created = required(whole(), "Seconds since 1970.")
    model = required(string())
    system_fingerprint = required(string(), "Changes with the model and its settings.")
    choices = required(array(_TextCompletionChoice))
    usage = optional(OpenAIUsage)
    timings = omittable(Timings)
    prompt_progress = omittable(PromptProgress)


CompletionChunk = named("CompletionChunk", one_of(_TextCompletion, Error))


class SpeechRequest(Declared):
    model = optional(string(), "Any name will do: one voice is there.")
    input = required(string(1, 4096))
    voice = optional(Voice)
    response_format = optional(
        choice("mp3", "opus", "aac", "flac", "wav", "pcm"),
        (
            "A file, or with pcm its samples alone. opus is in Ogg. A server without umaserve[media] has "
            "wav and pcm only, and wav is the default there."
        ),
        default="mp3",
    )
    stream_format = optional(choice("audio", "sse"), "With sse the sound comes in server-sent events.", default="audio")
    speed = optional(choice(1), "No other is supported.", default=1)
    instructions = optional(string(max_bytes=0), "Not supported.")


class SpeechDelta(Declared):
    type = required(const("speech.audio.delta"))
    audio = required(string(contentEncoding="base64"))


class SpeechDone(Declared):
    type = required(const("speech.audio.done"))


class TranscriptionForm(Declared):
    file = required(string(contentMediaType="application/octet-stream"), "A sound file.")
    model = omittable(
        string(),
        (
            "One that /v1/models lists, or an alias. Without one, or by an unknown name (refused with "
            "--strict-models): the default model."
        ),
    )
    prompt = omittable(
        string(),
        (
            "What came before the recording, or names and words that may occur in it. The model is told "
            "so; it counts against --max-prompt-bytes."
        ),
    )
    temperature = omittable(number(0, 1), default=0)
    response_format = omittable(choice("json", "text", "verbose_json", "srt", "vtt"), default="json")
    language = omittable(
        string(max_bytes=32),
        ("The language of the speech: a code of ISO 639-1, or a name. Without it the model finds it out."),
    )
    stream = omittable(
        boolean(),
        ("Send the text in server-sent events as it is found. With response_format json or text."),
        default=False,
    )
    include_ = omittable(
        array(const("logprobs")),
        "Adds logprobs, a log-probability for each token, to json and to the events.",
        key="include[]",
    )
    timestamp_granularities_ = omittable(
        array(const("segment")), "There are no times of words.", key="timestamp_granularities[]"
    )
    chunking_strategy = omittable(value(), "Ignored.")


class TranslationForm(Declared):
    file = required(string(contentMediaType="application/octet-stream"), "A sound file.")
    model = omittable(
        string(),
        (
            "One that /v1/models lists, or an alias. Without one, or by an unknown name (refused with "
            "--strict-models): the default model."
        ),
    )
    prompt = omittable(
        string(),
        (
            "What came before the recording, or names and words that may occur in it. The model is told "
            "so; it counts against --max-prompt-bytes."
        ),
    )
    temperature = omittable(number(0, 1), default=0)
    response_format = omittable(choice("json", "text", "verbose_json", "srt", "vtt"), default="json")


class TranscriptUsage(Declared):
    type = required(const("tokens"))
    input_tokens = required(whole(0))
    output_tokens = required(whole(0))
    total_tokens = required(whole(0))


class Transcript(Declared):
    text = required(string())
    usage = required(TranscriptUsage)
    logprobs = omittable(array(Scored))


class TranscriptSegment(Declared):
    id = required(const(0))
    seek = required(const(0))
    start = required(const(0))
    end = required(number())
    text = required(string())
    tokens = required(array(whole()))
    temperature = required(number())
    avg_logprob = required(number(high=0))
    compression_ratio = required(number())
    no_speech_prob = required(value(type="null"), "The models don't tell it.")


class _Usage(Declared):
    type = required(const("duration"))
    seconds = required(number())


class VerboseTranscript(Declared):
    task = required(choice("transcribe", "translate"))
    language = required(string(), "That of the request, or unknown.")
    duration = required(number(), "Of the recording, in seconds.")
    text = required(string())
    segments = required(array(TranscriptSegment, high=1))
    usage = required(_Usage)


class TranscriptDelta(Declared):
    type = required(const("transcript.text.delta"))
    delta = required(string(1))
    logprobs = omittable(array(Scored))


class TranscriptDone(Declared):
    type = required(const("transcript.text.done"))
    text = required(string())
    usage = required(TranscriptUsage)
    logprobs = omittable(array(Scored))


class EmbeddingsRequest(Declared):
    model = optional(
        string(),
        (
            "One that /v1/models lists, or an alias. Without one, or by an unknown name (refused with "
            "--strict-models): the default model."
        ),
    )
    input = required(
        Texts,
        (
            "Strings may be empty. In place of one there may be an object, as in llama-server: "
            '{"prompt_string": TEXT}, or {"content": [{"type": "text", "text": TEXT}, ...]}.'
        ),
    )
    encoding_format = optional(choice("float", "base64"), "base64: of 32-bit floats, little-endian.", default="float")
    dimensions = optional(
        whole(1),
        (
            "Only so many of each vector's numbers, of unit length again; at most the model's. For "
            "models that are trained for it (Matryoshka)."
        ),
    )


class _DataItem(Declared):
    object_ = required(const("embedding"))
    index = required(whole())
    embedding = required(one_of(array(number()), string(contentEncoding="base64")))


class _EmbeddingsUsage(Declared):
    prompt_tokens = required(whole())
    total_tokens = required(whole())


class Embeddings(Declared):
    object_ = required(const("list"))
    data = required(array(_DataItem))
    model = required(string())
    usage = required(_EmbeddingsUsage)


class _Voice(Declared):
    id = required(string())
    name_ = required(string())
    languages = required(array(string()), "ISO 639-1 codes.")


class Voices(Declared):
    voices = required(array(_Voice, high=1))


class _Meta(Declared):
    n_vocab = required(whole())
    n_ctx_train = required(whole())
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
    aliases = required(array(string()), "Its names, as llama-server's clients expect: its own first.")
    tags = required(array(string()), "None.")
    object_ = required(const("model"))
    created = required(whole(), "When the daemon started, in seconds since 1970.")
    owned_by = required(string())
    meta = omittable(_Meta, "Once the model has been loaded.")
    status = required(_Status)
    description = omittable(string(), "The operator's, if there is one.")
    size = required(whole(0), "Bytes of its files; 0 where they can't be read.")
    needed = required(whole(0), "Bytes of memory that it takes or would take, as far as is known.")
    last_used = omittable(whole(), "When it had work last, in seconds since 1970. Absent: not since the start.")
    architecture = omittable(_Architecture, "What it takes. Absent where that is known once it has been loaded.")
    available = omittable(
        whole(0),
        (
            "Bytes of memory that it could have at the latest look, if all other models that are not "
            "pinned were unloaded. Absent where it is loaded. If it needs more, its requests are refused."
        ),
    )


class _Limits(Declared):
    message_bytes = required(
        whole(1),
        (
            "Of a message of /generate or /ws/chat, and of a body that may have media. On a WebSocket, "
            "who presents a key with the first message only has less."
        ),
    )
    media = required(whole(1), "Images, recordings and films of one conversation.")


class Models(Declared):
    object_ = required(const("list"))
    data = required(array(Model))
    models = required(value(type="array", maxItems=0), "Empty: Codex wants it.")
    limits = required(_Limits, "What a request may have at most.")


class CountChatTokensReply(Declared):
    input_tokens = required(whole(0))
