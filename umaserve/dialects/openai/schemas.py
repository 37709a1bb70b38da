"""Schemas of the API of OpenAI, but for its responses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import SoundFormat
from umaserve.dialects.grammars import SCHEMA
from umaserve.dialects.openai.tool_schemas import CALL_ID, MAX_TOOLS, TOOL, TOOL_CALL, ToolChoice
from umaserve.dialects.sampling_schemas import Sampling
from umaserve.dialects.schemas import (
    ABOUT_MODEL,
    MAX_ID_BYTES,
    MAX_TURNS,
    Base64,
    Computation,
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
    omittable,
    optional,
    required,
    string,
    switch,
    text_or,
    whole,
)
from umaserve.wire.fields import bad_request, kind_of, out_of_range
from umaserve.wire.long_texts import as_string

MAX_PARTS = 256
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
MAX_INPUT_CHARS = 4096
_DATA_URL = re.compile(r"data:image/[\w.+-]{1,64}(?:;[\w.+-]{1,64}=[^,;]{1,64}){0,8};base64,", re.ASCII | re.IGNORECASE)
"""The beginning of a data: URL (RFC 2397) of an image."""
_MAX_HEAD = 2048

CREATED = "Seconds since 1970."


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


IMAGE_URL = Kind(
    string(pattern="^[Dd][Aa][Tt][Aa]:[Ii][Mm][Aa][Gg][Ee]/[^,]+;[Bb][Aa][Ss][Ee]64,.").schema, _image_data
)
DETAIL = choice("auto", "high", "low", "original")


class TextPart(Declared):
    type = required(const("text"))
    text = required(string())


class _ImageUrl(Declared):
    url = required(IMAGE_URL, "The image itself, as a data: URL; the server fetches nothing.")
    detail = optional(DETAIL, "Ignored: each model has its own resolution for images.", default="auto")


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


class Message(Declared):
    role = required(choice("system", "developer", "user", "assistant", "tool"))
    content = optional(
        CONTENT,
        "May be absent beside tool_calls. An assistant's is text only. All messages together have at most 64 images "
        "and recordings.",
    )
    tool_calls = optional(array(TOOL_CALL, high=MAX_TOOLS, of="calls"), "The calls of an assistant.")
    reasoning_content = optional(
        string(),
        "What the assistant thought before this message. Used if the model's chat template has a place for it.",
    )
    reasoning = optional(string(), "Another name of reasoning_content.")
    tool_call_id = optional(CALL_ID, "The call that a message of the role tool answers.")


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
    "At most 64 bytes. Any name selects the daemon's only voice.",
)


class _SpokenAnswer(Declared):
    voice = optional(Voice)
    format = required(
        choice(*CHAT_FORMATS),
        "24 kHz, mono; wav and pcm16 have 16 bit, little-endian, as a file or as samples alone. A stream has pcm16."
        " The compressed formats need umaserve[media]; opus is in Ogg.",
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
        "Choices for each prompt. With a seed, the choices have this seed, the next one, and so on.",
        default=1,
    )
    stream = switch(False, "Answer with server-sent events.")
    stream_options = optional(_StreamOptions)
    return_progress = switch(False, "In a stream, report the progress of prefill, in chunks without choices.")
    verbose = switch(
        False,
        "Return the prompt as the model got it, in __verbose.prompt of the answer or of its last chunk, as"
        " llama-server "
        "does.",
    )
    response_format = optional(
        by_type(PlainFormat, SchemaFormat),
        "A schema may have 256 KiB. A keyword that no grammar can enforce (uniqueItems, if, contains, most uses of not,"
        " look-ahead in patterns and the like) is refused by its path, and oneOf counts as anyOf.",
    )


class ChatRequest(_Request, Sampling, Computation, Targets, Thoughts, TemplateKwargs):
    messages = required(array(Message, 1, MAX_TURNS, of="messages"))
    continue_final_message = optional(
        boolean(),
        "Whether the answer continues the last message, which must be the assistant's. The default is true if it is.",
    )
    reasoning_effort = optional(
        choice(*REASONING_EFFORTS),
        "How much the model thinks, where its chat template supports that; none: not at all.",
    )
    reasoning_format = optional(
        choice("auto", "deepseek", "none"),
        "Where to put the model's thoughts: in reasoning_content, or with none in the content, with their marks.",
        default="auto",
    )
    add_generation_prompt = switch(True, "Whether the template opens an assistant's message where none is continued.")
    max_completion_tokens = optional(
        _limit(1), "Limited by the context and the server's --max-tokens; that limit is also the default."
    )
    max_tokens = optional(_limit(1), "The older name of max_completion_tokens.")
    n_predict = optional(_limit(1), "llama-server's name of max_tokens.")
    logprobs = switch(False, "Return the log-probability of each token.")
    top_logprobs = optional(
        whole(0, MAX_TOP_LOGPROBS), "Return also those of this many of the likeliest tokens; needs logprobs."
    )
    tools = optional(
        array(TOOL, high=MAX_TOOLS, of="tools"),
        "Where the model's chat template has no tools, the system message describes them; either way a grammar"
        " constrains the arguments of a call to their schema, as far as it can (strict). All schemas may have 256 KiB.",
    )
    tool_choice = omittable(ToolChoice)
    parallel_tool_calls = optional(
        boolean(), "Whether there may be several calls. The default is true, unless a call is required."
    )
    modalities = optional(
        _MODALITIES,
        "Whether the answer is spoken too, by the daemon's only voice; its text is then the transcript, without"
        " thoughts. This needs one choice, and no tools.",
        default=["text"],
    )
    audio = optional(_SpokenAnswer, "How the answer is spoken; needs the modality audio.")


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
        "Limited by the context and the server's --max-tokens; 0: none, for use with echo; -1: that limit.",
        default=DEFAULT_COMPLETION_TOKENS,
    )
    n_predict = optional(_limit(0), "llama-server's name of max_tokens.")
    best_of = optional(whole(1, MAX_CHOICES), "Accepted only if it equals n.")
    logprobs = optional(
        whole(0, MAX_TOP_LOGPROBS), "Return the log-probability of each token, and of this many of the likeliest."
    )
    prompt_logprobs = optional(
        whole(0, MAX_TOP_LOGPROBS),
        "Return the log-probability of each token of the prompt, as vLLM does, and of this many of the likeliest; not"
        " in a stream. With this field, or with echo and logprobs, no cached prefix is used, and the prompt may have"
        " at most 131072 tokens divided by one more than this number.",
    )
    echo = switch(
        False,
        "Begin the text with the prompt, and the arrays of logprobs with its tokens; for a prompt of token ids only "
        "with logprobs.",
    )
    suffix = optional(Kind(choice("").schema, _no_suffix), "Not supported.")


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
        "The number of dimensions of each vector, which is normalized again; at most the model's. For models that are"
        " trained for it (Matryoshka).",
    )
