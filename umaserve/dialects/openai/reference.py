"""Operations of the API of OpenAI, but for its responses."""

from __future__ import annotations

from umaserve.dialects.anthropic.schemas import AnthropicModel, AnthropicModels
from umaserve.dialects.openai.reply_schemas import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    CountChatTokensReply,
    Embeddings,
    Model,
    Models,
)
from umaserve.dialects.openai.schemas import ChatRequest, CompletionRequest, EmbeddingsRequest
from umaserve.dialects.openai.sound_schemas import (
    SpeechDelta,
    SpeechDone,
    SpeechRequest,
    Transcript,
    TranscriptDelta,
    TranscriptDone,
    TranscriptionForm,
    TranslationForm,
    VerboseTranscript,
    Voices,
)
from umaserve.dialects.reference import (
    CACHE_MISS,
    MAX_TOKENS,
    Body,
    Described,
    Errors,
    Operation,
    Parameter,
    Reference,
    Reply,
    refused,
)
from umaserve.dialects.schemas import Error
from umaserve.wire.declared import Declared, any_of, one_of, string

ERRORS = Errors("", Error, refused(form=", or not a form where one is needed"))

_COLOURS = {"messages": [{"role": "user", "content": "Name three colours."}]}
_ANSWER = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}
_CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
_RECORDING = (
    "Only for models that take audio (--mmproj); the form may have up to --max-chat-bytes bytes, and the recording 30"
    " minutes. A recording that does not fit into the context, and a transcript that reaches the limit of an answer,"
    " are errors: nothing is truncated. Fields that are not listed are ignored."
)


def _answer(whole: type[Declared], chunk: Described, about: str) -> dict[str, Reply]:
    """The reply that is a whole answer or its events."""
    return {
        "200": Reply(
            'The whole answer, or with `"stream": true` its events.',
            json=whole,
            events=(chunk, about),
            headers={"x-umaserve-max-tokens": MAX_TOKENS, "x-umaserve-cache-miss": CACHE_MISS},
        )
    }


def _of_recording(name: str, summary: str, about: str, form: type[Declared]) -> Operation:
    """The operation that makes text of a recording."""
    return Operation(
        name,
        summary,
        f"{about} {_RECORDING}",
        body=Body(form, media="multipart/form-data"),
        replies={
            "200": Reply(
                "The text. With response_format verbose_json, srt and vtt it is one segment as long as the recording,"
                " since the models give no times.",
                json=one_of(Transcript, VerboseTranscript),
                events=(
                    one_of(TranscriptDelta, TranscriptDone),
                    "Server-sent events, transcript.text.delta and at the end transcript.text.done, or an error. The "
                    "deltas together are the text.",
                ),
                content={"text/plain": string(), "text/vtt": string()},
            )
        },
    )


REFERENCE = Reference(
    "OpenAI",
    "For OpenAI's client libraries, with base_url ending in /v1.",
    ERRORS,
    {
        ("POST", "/v1/chat/completions"): Operation(
            "chat",
            "Create the next message of a conversation",
            "Also at /chat/completions. Fields that are not listed are ignored. Where the model's chat template has"
            " no tools, the system message describes them; either way a grammar constrains the arguments of a call to"
            " their schema, as far as it can (strict). In response_format, a keyword of a JSON schema that no grammar"
            " can enforce (uniqueItems, if, contains, most uses of not, look-ahead in patterns and the like) is"
            " refused by "
            "its path, and oneOf counts as anyOf. A schema, or those of all tools, may have 256 KiB. Images and "
            "recordings are for models that take them (--mmproj); a body with them may have up to --max-chat-bytes"
            " bytes.\n\nWith the modalities text and audio the answer is spoken, by the daemon's only voice; its text"
            " is the transcript, without thoughts. This needs one choice, and no tools.\n\nA stream without other"
            " events has a comment every 15 seconds.",
            body=Body(
                ChatRequest,
                {
                    "plain": {**_COLOURS, "max_completion_tokens": 16},
                    "streamed": {
                        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}],
                        "max_completion_tokens": 16,
                        "temperature": 0.7,
                        "seed": 1,
                        "logprobs": True,
                        "top_logprobs": 2,
                        "n": 2,
                        "stream": True,
                        "stream_options": {"include_usage": True},
                    },
                    "json": {
                        "messages": [{"role": "user", "content": "Is the sky blue?"}],
                        "max_completion_tokens": 32,
                        "temperature": 0,
                        "response_format": {
                            "type": "json_schema",
                            "json_schema": {"name": "answer", "schema": _ANSWER},
                        },
                    },
                    "spoken": {
                        "messages": [{"role": "user", "content": "Say hello."}],
                        "max_completion_tokens": 16,
                        "modalities": ["text", "audio"],
                        "audio": {"voice": "default", "format": "wav"},
                    },
                    "tool": {
                        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
                        "max_completion_tokens": 100,
                        "temperature": 0,
                        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": _CITY}}],
                        "tool_choice": "required",
                    },
                },
            ),
            replies=_answer(
                ChatCompletion,
                ChatCompletionChunk,
                "Each event is `data:` and a JSON object (x-event). The last one is `data: [DONE]`. An error that"
                " occurs after the stream has begun is an event with an Error in place of a chunk.",
            ),
        ),
        ("POST", "/v1/chat/completions/input_tokens"): Operation(
            "countChatTokens",
            "Count the tokens of a prompt",
            "Also at /chat/completions/input_tokens, as in llama-server. Takes a body of /v1/chat/completions, whose"
            " other fields are checked and have no effect.",
            body=Body(ChatRequest, {"plain": _COLOURS}),
            replies={"200": Reply("OK", json=CountChatTokensReply)},
        ),
        ("POST", "/v1/completions"): Operation(
            "complete",
            "Continue a text",
            "Fields that are not listed are ignored. A stream without other events has a comment every 15 seconds.",
            body=Body(
                CompletionRequest,
                {
                    "plain": {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0},
                    "several": {"prompt": ["Once upon a time", [504, 2042]], "max_tokens": 8, "logprobs": 2},
                    "streamed": {
                        "prompt": "Once upon a time",
                        "echo": True,
                        "max_tokens": 8,
                        "stream": True,
                        "stream_options": {"include_usage": True},
                        "top_k": 20,
                        "min_p": 0.1,
                        "repeat_penalty": 1.1,
                    },
                    "scored": {
                        "prompt": "Once upon a time",
                        "echo": True,
                        "logprobs": 1,
                        "prompt_logprobs": 1,
                        "max_tokens": 0,
                    },
                },
            ),
            replies=_answer(Completion, CompletionChunk, "As for /v1/chat/completions, `data: [DONE]` included."),
        ),
        ("POST", "/v1/audio/speech"): Operation(
            "speak",
            "Turn a text into speech",
            "Spoken by the daemon's only voice; without one, 400. The sound is sent sentence by sentence: 24 kHz,"
            " mono; in wav and pcm 16 bit, little-endian. As in spoken chats, Markdown's marks, code blocks and emoji"
            " are left out, and so is the text between `<think>` and `</think>` "
            "at its beginning. If a later sentence can't be spoken, the connection is closed early, or the events end"
            " with an error.",
            body=Body(
                SpeechRequest,
                {
                    "plain": {"input": "It rains. It pours.", "voice": "default"},
                    "samples": {"input": "It rains.", "voice": "alloy", "response_format": "pcm"},
                },
            ),
            replies={
                "200": Reply(
                    "The sound, in chunks. A WAV file's header says 4294967295 for both of its sizes.",
                    events=(
                        one_of(SpeechDelta, SpeechDone),
                        "Server-sent events: speech.audio.delta with the next bytes of the file in base64, and at the "
                        "end speech.audio.done, or an error.",
                    ),
                    content=dict.fromkeys(f"audio/{kind}" for kind in ("mpeg", "ogg", "aac", "flac", "wav", "pcm")),
                )
            },
        ),
        ("GET", "/v1/audio/voices"): Operation(
            "listVoices",
            "List the voices that speak texts",
            "For Open WebUI and other clients. The daemon has one voice or none; any name in a request selects that"
            " voice.",
            replies={"200": Reply("OK", json=Voices)},
        ),
        ("POST", "/v1/audio/transcriptions"): _of_recording(
            "transcribe",
            "Transcribe a recording",
            "Also at /audio/transcriptions. A form with a sound file in any format that ffmpeg reads.",
            TranscriptionForm,
        ),
        ("POST", "/v1/audio/translations"): _of_recording(
            "translate", "Translate a recording into English", "As /v1/audio/transcriptions.", TranslationForm
        ),
        ("POST", "/v1/embeddings"): Operation(
            "embed",
            "Create an embedding of unit length for each text",
            "400 for a model that is not made for embeddings, unless the daemon runs with --pooling.",
            body=Body(
                EmbeddingsRequest,
                {
                    "plain": {"input": "A cat sat on the mat."},
                    "several": {"input": ["A cat sat on the mat.", "Stock markets fell."], "encoding_format": "base64"},
                },
            ),
            replies={"200": Reply("OK", json=Embeddings)},
        ),
        ("GET", "/v1/models"): Operation(
            "listModels",
            "List the models, the default one first",
            "With the header anthropic-version, the reply has the form of Anthropic's API, a page at"
            " a time (limit, before_id, after_id).",
            replies={"200": Reply("OK", json=any_of(Models, AnthropicModels))},
        ),
        ("GET", "/v1/models/{model}"): Operation(
            "getModel",
            "Get a model by its name or an alias",
            "With the header anthropic-version, the reply has the form of Anthropic's API, and any name that begins"
            " with claude means the default model.",
            parameters=(Parameter("model", "path", string()),),
            replies={"200": Reply("OK", json=any_of(Model, AnthropicModel))},
        ),
    },
)
