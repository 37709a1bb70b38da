"""Schemas of the API of OpenAI, but for its responses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import SoundFormat
from umaserve.dialects.grammars import MAX_SCHEMA_BYTES, SCHEMA
from umaserve.dialects.schemas import (
    ABOUT_MODEL,
    ABOUT_STRICT,
    MAX_ID_BYTES,
    MAX_TURNS,
    Base64,
    Computation,
    Error,
    FinishReason,
    Sampling,
    Targets,
    TemplateKwargs,
    Thoughts,
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
    named,
    nullable,
    number,
    omittable,
    one_of,
    optional,
    required,
    string,
    switch,
    text_or,
    value,
    whole,
)
from umaserve.wire.fields import Fields, bad_request, dump_capped, kind_of, out_of_range
from umaserve.wire.long_texts import as_string

MAX_PARTS = 256
MAX_TOOLS = 128
MAX_ARGUMENTS_BYTES = 256 * 1024
"""Bytes of arguments that are an object, as JSON."""
MAX_CHOICES = 8
MAX_TOP_LOGPROBS = 20
DEFAULT_COMPLETION_TOKENS = 16
UNLIMITED = -1
"""A limit of tokens that some clients send: up to the context's end."""
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""``none``: the model doesn't think; what the others do is up to the chat template."""
COMPRESSED: Mapping[str, SoundFormat] = {"mp3": "mp3", "opus": "opus", "aac": "aac", "flac": "flac"}
TEXT_FORMATS: Mapping[str, SoundFormat | None] = {**COMPRESSED, "wav": None, "pcm": None}
CHAT_FORMATS: Mapping[str, SoundFormat | None] = {**COMPRESSED, "wav": None, "pcm16": None}
"""Formats by name, each with the encoder's format; ``None``: 16-bit samples, which need no encoder."""
_MAX_INPUT_CHARS = 4096
_DATA_URL = re.compile(r"data:image/[\w.+-]{1,64}(?:;[\w.+-]{1,64}=[^,;]{1,64}){0,8};base64,", re.ASCII | re.IGNORECASE)
"""The beginning of a data: URL (RFC 2397) of an image."""
_MAX_HEAD = 2048

_CREATED = "Seconds since 1970."


# -- messages ----------------------------------------------------------------------------------------------------


def _image_data(url: Any, path: str) -> str | memoryview:
    """The base64 in a data: URL; it is decoded and checked later, not on the loop's thread."""
    expected = '"data:image/TYPE;base64," and the image, since this daemon fetches nothing'
    if not isinstance(url, str | memoryview):
        raise bad_request(path, expected, url)
    head = url[:_MAX_HEAD] if isinstance(url, str) else as_string(url[:_MAX_HEAD])
    begin = _DATA_URL.match(head)
    if begin is None:
        raise out_of_range(path, expected, f'"{head[:32]}"')
    if begin.end() == len(url):
        raise out_of_range(path, expected, "no image")
    return url[begin.end() :]


def _arguments(given: Any, path: str) -> str:
    """A call's arguments: JSON text, or whatever the model wrote in its place, also what was cut off. Some clients send
    an object, and an empty text where there are none."""
    if isinstance(given, dict):
        return dump_capped(given, path, MAX_ARGUMENTS_BYTES).decode()
    return fields.string(given, path, empty=True) or "{}"


IMAGE_URL = Kind(
    string(pattern="^[Dd][Aa][Tt][Aa]:[Ii][Mm][Aa][Gg][Ee]/[^,]+;[Bb][Aa][Ss][Ee]64,.").schema, _image_data
)
DETAIL = choice("auto", "high", "low", "original")
ARGUMENTS = Kind({"type": ["string", "object"]}, _arguments)
CALL_ID = string(1, MAX_ID_BYTES)


class TextPart(Declared):
    type = required(const("text"))
    text = required(string())


class _ImageUrl(Declared):
    url = required(IMAGE_URL, "The image itself; nothing is ever fetched.")
    detail = optional(DETAIL, "Ignored: each model has its own way to look at an image.", default="auto")


class ImagePart(Declared):
    type = required(const("image_url"))
    image_url = required(_ImageUrl)


class InputAudio(Declared):
    data = required(Base64, "The file in base64.")
    format = required(choice("wav", "mp3"))


class AudioPart(Declared):
    type = required(const("input_audio"))
    input_audio = required(InputAudio)


CONTENT = text_or(by_type(TextPart, ImagePart, AudioPart), 1, MAX_PARTS, of="parts")
TEXT = text_or(by_type(TextPart), 1, MAX_PARTS, of="text parts")


class _CalledFunction(Declared):
    name_ = required(string(1))
    arguments = required(ARGUMENTS, "A JSON object as text, which may be empty where there are none; or the object.")


class ToolCall(Declared):
    id = required(CALL_ID)
    type = optional(choice("function"))
    function = required(_CalledFunction)


class Message(Declared):
    role = required(choice("system", "developer", "user", "assistant", "tool"))
    content = optional(
        CONTENT,
        "May be absent beside tool_calls. An assistant's is text only. All messages together have at most 64 images "
        "and recordings.",
    )
    tool_calls = optional(array(ToolCall, high=MAX_TOOLS, of="calls"), "The calls of an assistant.")
    reasoning_content = optional(
        string(),
        "What the assistant thought before this message. Models whose chat template has a place for it get it back.",
    )
    reasoning = optional(string(), "Another name of reasoning_content.")
    tool_call_id = optional(CALL_ID, "The call that a message of the role tool answers.")


# -- tools -------------------------------------------------------------------------------------------------------


def _function_name(given: Any, path: str) -> str:
    name = fields.string(given, path)
    if not re.fullmatch("[A-Za-z0-9_-]{1,64}", name):
        raise out_of_range(path, "1 to 64 letters, digits, _ or -", f'"{name}"')
    return name


_FUNCTION_NAME = Kind(string(pattern="^[A-Za-z0-9_-]{1,64}$").schema, _function_name)


class _ToolFunction(Declared):
    name_ = required(_FUNCTION_NAME)
    description = optional(string(max_bytes=MAX_SCHEMA_BYTES))
    parameters = optional(SCHEMA, "The JSON schema of the arguments.")
    strict = optional(
        boolean(),
        ABOUT_STRICT,
    )


class Tool(Declared):
    type = optional(choice("function"))
    function = required(_ToolFunction)


class _NamedFunction(Declared):
    name_ = required(_FUNCTION_NAME)


class NamedTool(Declared, also={"anyOf": [{"required": ["function"]}, {"required": ["name"]}]}):
    """One tool. The name may also be beside the type, as in the Responses API."""

    type = optional(choice("function"))
    function = omittable(_NamedFunction)
    name_ = omittable(_FUNCTION_NAME)


class _NamedTools(Declared):
    mode = required(choice("auto", "required"))
    tools = required(array(NamedTool, 1, MAX_TOOLS, of="tools"))


class AllowedTools(Declared):
    """Only these tools."""

    type = required(const("allowed_tools"))
    allowed_tools = required(_NamedTools)


_WAYS = choice("none", "auto", "required")


def _tool_choice(given: Any, path: str) -> str | NamedTool | AllowedTools:
    if not isinstance(given, dict):
        return str(_WAYS.read(given, path))
    kind = Fields.of(given, path).one_of("type", ("function", "allowed_tools"))
    return (AllowedTools if kind == "allowed_tools" else NamedTool).of(given, path)


ToolChoice = named(
    "ToolChoice",
    Kind({"oneOf": [_WAYS.schema, NamedTool, AllowedTools, {"type": "null"}], "default": "auto"}, _tool_choice),
)


# -- requests ----------------------------------------------------------------------------------------------------


def _limit(low: int) -> Kind[int]:
    """A number of tokens from ``low``, or ``UNLIMITED``."""

    def read(given: Any, path: str) -> int:
        return UNLIMITED if given == UNLIMITED else fields.integer(given, path, low)

    return Kind({"type": "integer", "anyOf": [{"minimum": low}, {"const": UNLIMITED}]}, read)


def _modalities(given: Any, path: str) -> list[str]:
    wanted = fields.array(given, path, 1, 2, "modalities")
    if wanted not in _MODALITIES.schema["enum"]:
        raise out_of_range(path, '["text"] or ["text", "audio"]', "others")
    return wanted


def _voice(given: Any, path: str) -> str:
    return _VoiceId.of(given, path).id if isinstance(given, dict) else _VOICE_ID.read(given, path)


def _no_suffix(given: Any, path: str) -> str:
    if given != "":
        raise RequestError(Fault.BAD_REQUEST, path, f"expected null or an empty string, got {kind_of(given)}")
    return ""


_MODALITIES = Kind(choice(["text"], ["text", "audio"], ["audio", "text"]).schema, _modalities)
_VOICE_ID = string(1, 64)


class _VoiceId(Declared):
    id = required(_VOICE_ID)


Voice = named(
    "Voice",
    Kind({"oneOf": [_VOICE_ID.schema, _VoiceId], "default": "default"}, _voice),
    "At most 64 bytes. Whichever it is, it is the one voice that the daemon has.",
)


class _SpokenAnswer(Declared):
    voice = optional(Voice)
    format = required(
        choice(*CHAT_FORMATS),
        "24 kHz, mono; wav and pcm16 have 16 bit, little-endian, as a file or as samples alone. A stream has pcm16. "
        "The compressed ones take umaserve[media]; opus is in Ogg.",
    )


class _StreamOptions(Declared):
    include_usage = switch(False, "Send the usage in a last chunk.")


class PlainFormat(Declared):
    type = required(choice("text", "json_object"))
    schema_ = optional(SCHEMA, "With json_object, as in llama-server: the schema that the text has to follow.")


class _JsonSchema(Declared):
    schema_ = required(SCHEMA)


class SchemaFormat(Declared):
    type = required(const("json_schema"))
    json_schema = required(_JsonSchema)


class _Request(Declared):
    model = optional(string(max_bytes=MAX_ID_BYTES), ABOUT_MODEL)
    n = optional(
        whole(1, MAX_CHOICES),
        "Choices for each prompt. With a seed, each choice has its own, counted up from it.",
        default=1,
    )
    stream = switch(False, "Answer with server-sent events.")
    stream_options = optional(_StreamOptions)
    return_progress = switch(False, "In a stream, tell how much of the prompt is computed, in chunks without choices.")
    verbose = switch(
        False,
        "Tell the prompt as the model got it, in __verbose.prompt of the answer or of its last chunk, as llama-server "
        "does.",
    )
    response_format = optional(by_type(PlainFormat, SchemaFormat))


class ChatRequest(_Request, Sampling, Computation, Targets, Thoughts, TemplateKwargs):
    messages = required(array(Message, 1, MAX_TURNS, of="messages"))
    continue_final_message = optional(
        boolean(),
        "Whether the answer goes on with the last message, which is then the assistant's. By default where it is.",
    )
    reasoning_effort = optional(
        choice(*REASONING_EFFORTS),
        "How much the model thinks, where its chat template knows such a thing; none: not at all.",
    )
    reasoning_format = optional(
        choice("auto", "deepseek", "none"),
        "Where the model's thoughts are: in reasoning_content, or with none in the content, with their marks.",
        default="auto",
    )
    add_generation_prompt = switch(True, "Whether the template opens an assistant's message where none is continued.")
    max_completion_tokens = optional(
        _limit(1), "Cut to what the context holds and to the server's --max-tokens, which are the default too."
    )
    max_tokens = optional(_limit(1), "The older name of max_completion_tokens.")
    n_predict = optional(_limit(1), "llama-server's name of max_tokens.")
    logprobs = switch(False, "Say the log-probability of each token.")
    top_logprobs = optional(
        whole(0, MAX_TOP_LOGPROBS), "Say it also of so many of the likeliest tokens; needs logprobs."
    )
    tools = optional(array(Tool, high=MAX_TOOLS, of="tools"))
    tool_choice = omittable(ToolChoice)
    parallel_tool_calls = optional(
        boolean(), "Whether there may be several calls; by default, unless a call is required."
    )
    modalities = optional(_MODALITIES, "Whether the answer is spoken too.", default=["text"])
    audio = optional(_SpokenAnswer, "How it is spoken; goes with the modality audio.")


_TOKENS = array(any_of(string(), whole(0)), 1)
Texts = named(
    "Texts",
    any_of(string(), _TOKENS, array(any_of(string(), _TOKENS), 1)),
    "A text, its token ids, an array of ids and texts that is one text, or an array of several of these.",
)


class CompletionRequest(_Request, Sampling, Computation, Targets):
    prompt = required(Texts)
    max_tokens = optional(
        _limit(0),
        "Cut to what the context holds and to the server's --max-tokens; 0: none, which is for an echo; -1: as many as "
        "fit.",
        default=DEFAULT_COMPLETION_TOKENS,
    )
    n_predict = optional(_limit(0), "llama-server's name of max_tokens.")
    best_of = optional(whole(1, MAX_CHOICES), "Accepted only where it is n.")
    logprobs = optional(
        whole(0, MAX_TOP_LOGPROBS), "Say the log-probability of each token, and of so many of the likeliest."
    )
    prompt_logprobs = optional(
        whole(0, MAX_TOP_LOGPROBS),
        "Say the log-probability of each token of the prompt, as vLLM does, and of so many of the likeliest; not in a "
        "stream. Here and with echo and logprobs all of the prompt is computed anew, and it may have 131072 tokens at "
        "most, divided by one more than this number.",
    )
    echo = switch(
        False,
        "Begin the text with the prompt, and the arrays of logprobs with its tokens; for a prompt of token ids only "
        "with logprobs.",
    )
    suffix = optional(Kind(choice("").schema, _no_suffix), "Not supported.")


# -- answers -----------------------------------------------------------------------------------------------------


class _ScoredToken(Declared):
    token = required(string())
    logprob = required(number(), "Natural logarithm of the probability; -9999 stands for anything below it.")
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
    "stop: the model or a stop string ended the text; length: max_tokens did; tool_calls: the server waits for what "
    "the tools say.",
)


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


class PromptProgress(Declared):
    """With return_progress: how much of the prompt is computed."""

    total = required(whole(), "Tokens of the prompt.")
    cache = required(whole(), "Those of them that were in the cache.")
    processed = required(whole(), "Tokens done, those in the cache included.")
    time_ms = required(whole())


class _Answer(Declared):
    id = required(string())
    created = required(whole(), _CREATED)
    model = required(string())
    system_fingerprint = required(string(), "Changes with the model and its settings.")
    timings = omittable(Timings)


class _MessageAudio(Declared):
    id = required(string())
    expires_at = required(whole(), "At once: nothing is kept of it.")
    data = required(string(), "In base64.")
    transcript = required(string())


class _AnswerMessage(Declared):
    role = required(const("assistant"))
    content = nullable(string())
    refusal = required(value(type="null"))
    reasoning_content = omittable(string(), "The model's thoughts.")
    audio = omittable(_MessageAudio, "The answer as it is heard; content is null then.")
    tool_calls = omittable(array(ToolCall, 1))


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


class _Delta(Declared):
    role = omittable(const("assistant"))
    content = optional(string())
    reasoning_content = omittable(string(), "The model's thoughts.")
    audio = omittable(
        _DeltaAudio,
        "The id comes first and once. Transcript and data come in pieces that are to be put end to end; those of data "
        "can be decoded one by one as well.",
    )
    tool_calls = omittable(
        array(_DeltaCall),
        "The first piece of a call has its id and its name. The arguments in all its pieces are to be put end to end.",
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
    rank = required(whole(1), "The token's place among all, from 1.")
    decoded_token = required(string())


class _Text(Declared):
    text = required(string())
    index = required(whole(), "Counts all choices of the first prompt, then those of the next.")
    logprobs = nullable(TextLogprobs)


class _TextChoice(_Text):
    finish_reason = required(FinishReason)
    prompt_logprobs = omittable(
        array(value(type=["object", "null"], additionalProperties=_PromptToken)),
        "Only where it is asked for: for each token of the prompt, but its first, log-probabilities by token ids, its "
        "own first.",
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


# -- speech ------------------------------------------------------------------------------------------------------


def _input(given: Any, path: str) -> str:
    text = fields.string(given, path)
    if len(text) > _MAX_INPUT_CHARS:
        raise out_of_range(path, f"at most {_MAX_INPUT_CHARS} characters", f"{len(text)} characters")
    return text


def _speed(given: Any, path: str) -> float:
    if isinstance(given, bool) or given != 1:
        raise bad_request(path, "1, the only speed of this daemon's voice", given)
    return 1.0


def _no_instructions(given: Any, path: str) -> str:
    if fields.string(given, path, max_bytes=16 * 1024, empty=True):
        problem = "expected to be absent, since this daemon's voice can't follow instructions"
        raise RequestError(Fault.BAD_REQUEST, path, problem)
    return ""


class SpeechRequest(Declared):
    model = optional(string(max_bytes=MAX_ID_BYTES), "Any name will do: one voice is there.")
    input = required(Kind(string(1, _MAX_INPUT_CHARS).schema, _input))
    voice = optional(Voice)
    response_format = optional(
        choice(*TEXT_FORMATS),
        "A file, or with pcm its samples alone. opus is in Ogg. A server without umaserve[media] has wav and pcm only, "
        "and wav is the default there.",
        default="mp3",
    )
    stream_format = optional(choice("audio", "sse"), "With sse the sound comes in server-sent events.", default="audio")
    speed = optional(Kind(choice(1).schema, _speed), "No other is supported.", default=1)
    instructions = optional(Kind(string(max_bytes=0).schema, _no_instructions), "Not supported.")


class SpeechDelta(Declared):
    type = required(const("speech.audio.delta"))
    audio = required(string(contentEncoding="base64"))


class SpeechDone(Declared):
    type = required(const("speech.audio.done"))


class _Voice(Declared):
    id = required(string())
    name_ = required(string())
    languages = required(array(string()), "ISO 639-1 codes.")


class Voices(Declared):
    voices = required(array(_Voice, high=1))


# -- transcriptions ----------------------------------------------------------------------------------------------


def _only(known: str, why: str) -> Kind[list[str]]:
    """An array of nothing but ``known``, whose name in a form may end with brackets."""

    def read(given: Any, path: str) -> list[str]:
        values: list[str] = given
        for one in values:
            if one != known:
                problem = f'expected "{known}", {why}, got "{one[:64]}"'
                raise RequestError(Fault.BAD_REQUEST, path.removesuffix("[]"), problem)
        return values

    return Kind(array(const(known)).schema, read)


class _RecordingForm(Declared):
    file = required(string(contentMediaType="application/octet-stream"), "A sound file.")
    model = omittable(string(max_bytes=MAX_ID_BYTES), ABOUT_MODEL)
    prompt = omittable(
        string(),
        "What came before the recording, or names and words that may occur in it. The model is told so; it counts "
        "against --max-prompt-bytes.",
    )
    temperature = omittable(number(0, 1), default=0)
    response_format = omittable(choice("json", "text", "verbose_json", "srt", "vtt"), default="json")


class TranscriptionForm(_RecordingForm):
    language = omittable(
        string(max_bytes=32),
        "The language of the speech: a code of ISO 639-1, or a name. Without it the model finds it out.",
    )
    stream = omittable(
        boolean(),
        "Send the text in server-sent events as it is found. With response_format json or text.",
        default=False,
    )
    include_ = omittable(
        _only("logprobs", "since there is nothing else to include"),
        "Adds logprobs, a log-probability for each token, to json and to the events.",
        key="include[]",
    )
    timestamp_granularities_ = omittable(
        _only("segment", "since the model tells no times of words"),
        "There are no times of words.",
        key="timestamp_granularities[]",
    )
    chunking_strategy = omittable(value(), "Ignored.")


class TranslationForm(_RecordingForm):
    pass


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


class _SoundUsage(Declared):
    type = required(const("duration"))
    seconds = required(number())


class VerboseTranscript(Declared):
    task = required(choice("transcribe", "translate"))
    language = required(string(), "That of the request, or unknown.")
    duration = required(number(), "Of the recording, in seconds.")
    text = required(string())
    segments = required(array(TranscriptSegment, high=1))
    usage = required(_SoundUsage)


class TranscriptDelta(Declared):
    type = required(const("transcript.text.delta"))
    delta = required(string(1))
    logprobs = omittable(array(Scored))


class TranscriptDone(Declared):
    type = required(const("transcript.text.done"))
    text = required(string())
    usage = required(TranscriptUsage)
    logprobs = omittable(array(Scored))


# -- embeddings --------------------------------------------------------------------------------------------------


class EmbeddingsRequest(Declared):
    model = optional(string(max_bytes=MAX_ID_BYTES), ABOUT_MODEL)
    input = required(
        Texts,
        "Strings may be empty. In place of one there may be an object, as in llama-server: "
        '{"prompt_string": TEXT}, or {"content": [{"type": "text", "text": TEXT}, ...]}.',
    )
    encoding_format = optional(choice("float", "base64"), "base64: of 32-bit floats, little-endian.", default="float")
    dimensions = optional(
        whole(1),
        "Only so many of each vector's numbers, of unit length again; at most the model's. For models that are trained "
        "for it (Matryoshka).",
    )


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
    n_ctx_train = required(whole(), "Tokens of the context that it was trained with.")
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
    context_length = required(
        whole(1), "Tokens that prompt and answer may have together. Of a model that was never loaded, by its settings."
    )
    max_model_len = required(whole(1), "As context_length.")
    max_tokens = required(whole(1), "Tokens of the longest answer: --max-tokens, or as context_length.")
    description = omittable(string(), "The operator's, if there is one.")
    size = required(whole(0), "Bytes of its files; 0 where they can't be read.")
    needed = required(whole(0), "Bytes of memory that it takes or would take, as far as is known.")
    last_used = omittable(whole(), "When it had work last, in seconds since 1970. Absent: not since the start.")
    architecture = omittable(_Architecture, "What it takes. Absent where that is known once it has been loaded.")
    available = omittable(
        whole(0),
        "Bytes of memory that it could have at the latest look, if all other models that are not pinned were unloaded. "
        "Absent where it is loaded. If it needs more, its requests are refused.",
    )


class _Limits(Declared):
    message_bytes = required(
        whole(1),
        "Of a message of /generate or /ws/chat, and of a body that may have media. On a WebSocket, who presents a key "
        "with the first message only has less.",
    )
    media = required(whole(1), "Images, recordings and films of one conversation.")


class Models(Declared):
    object_ = required(const("list"))
    data = required(array(Model))
    models = required(value(type="array", maxItems=0), "Empty: Codex wants it.")
    limits = required(_Limits, "What a request may have at most.")


class CountChatTokensReply(Declared):
    input_tokens = required(whole(0))
