"""Operations of the API of OpenAI, but for its responses."""

from __future__ import annotations

from umaserve.dialects.anthropic.schemas import AnthropicModel, AnthropicModels
from umaserve.dialects.examples import CITY, COLOURS, ONCE, SKY, WEATHER, YES_OR_NO, said
from umaserve.dialects.openai import reply_schemas, schemas, sound_schemas
from umaserve.dialects.reference import Errors, Operation, Reference, Reply, form, refused, streamed, takes
from umaserve.dialects.schemas import Error
from umaserve.wire.declared import any_of, one_of, string

ERRORS = Errors("", Error, refused(form=", or not a form where one is needed"))

_CHAT = {"messages": said(COLOURS), "max_completion_tokens": 16}
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_CAT, _BASE64 = "A cat sat on the mat.", {"encoding_format": "base64"}
_FUNCTION = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": YES_OR_NO}}
_DONE = "The last event is `data: [DONE]`. An error is an event with an Error in place of a chunk."
_TRANSCRIPT = Reply(
    "The text. In verbose_json, srt and vtt it is one segment as long as the recording: models give no times.",
    one_of(sound_schemas.Transcript, sound_schemas.VerboseTranscript),
    (
        one_of(sound_schemas.TranscriptDelta, sound_schemas.TranscriptDone),
        "transcript.text.delta and at the end transcript.text.done, or an error. The deltas together are the text.",
    ),
    content={"text/plain": string(), "text/vtt": string()},
)

OPERATIONS = {
    ("chat", "POST /v1/chat/completions"): Operation(
        "Create the next message of a conversation",
        streamed(reply_schemas.ChatCompletion, reply_schemas.ChatCompletionChunk, _DONE),
        takes(
            schemas.ChatRequest,
            plain=_CHAT,
            streamed={**_CHAT, "n": 2, "logprobs": True, "top_logprobs": 2, **_STREAM},
            json={"messages": said(SKY), "max_completion_tokens": 32, "temperature": 0, "response_format": _FORMAT},
            spoken={**_CHAT, "modalities": ["text", "audio"], "audio": {"voice": "default", "format": "wav"}},
            tool={"messages": said(WEATHER), "temperature": 0, "tools": [_FUNCTION], "tool_choice": "required"},
        ),
    ),
    ("countChatTokens", "POST /v1/chat/completions/input_tokens"): Operation(
        "Count the tokens of a prompt. Takes a body of /v1/chat/completions, whose other fields are only checked.",
        reply_schemas.CountChatTokensReply,
        takes(schemas.ChatRequest, plain={"messages": said(COLOURS)}),
    ),
    ("complete", "POST /v1/completions"): Operation(
        "Continue a text",
        streamed(reply_schemas.Completion, reply_schemas.CompletionChunk, _DONE),
        takes(
            schemas.CompletionRequest,
            plain={"prompt": ONCE, "max_tokens": 8, "temperature": 0},
            several={"prompt": [ONCE, [504, 2042]], "max_tokens": 8, "logprobs": 2},
            streamed={"prompt": ONCE, "echo": True, "max_tokens": 8, "top_k": 20, "min_p": 0.1, **_STREAM},
            scored={"prompt": ONCE, "echo": True, "logprobs": 1, "prompt_logprobs": 1, "max_tokens": 0},
        ),
    ),
    ("speak", "POST /v1/audio/speech"): Operation(
        "Turn a text into speech. Spoken by the daemon's only voice; without one, 400. The sound is sent sentence by"
        " sentence: 24 kHz, mono; in wav and pcm 16 bit, little-endian. As in spoken chats, Markdown's marks, code"
        " blocks and emoji are left out, and so is the text between `<think>` and `</think>` at its beginning. If a"
        " later sentence can't be spoken, the connection is closed early, or the events end with an error.",
        Reply(
            "The sound, in chunks. A WAV file's header says 4294967295 for both of its sizes.",
            events=(
                one_of(sound_schemas.SpeechDelta, sound_schemas.SpeechDone),
                "speech.audio.delta with bytes of the file in base64, and at the end speech.audio.done, or an error.",
            ),
            content=dict.fromkeys(f"audio/{kind}" for kind in ("mpeg", "ogg", "aac", "flac", "wav", "pcm")),
        ),
        takes(
            sound_schemas.SpeechRequest,
            plain={"input": "It rains. It pours.", "voice": "default"},
            samples={"input": "It rains.", "voice": "alloy", "response_format": "pcm"},
        ),
    ),
    ("listVoices", "GET /v1/audio/voices"): Operation(
        "List the voices that speak texts. The daemon has one voice or none; any name in a request selects that voice.",
        sound_schemas.Voices,
    ),
    ("transcribe", "POST /v1/audio/transcriptions"): Operation(
        "Transcribe a recording. A form with a sound file in any format that ffmpeg reads, of up to 30 minutes. A"
        " recording too long for the context, or a transcript for an answer, is an error: nothing is truncated.",
        _TRANSCRIPT,
        form(sound_schemas.TranscriptionForm),
    ),
    ("translate", "POST /v1/audio/translations"): Operation(
        "Translate a recording into English. As /v1/audio/transcriptions, limits included.",
        _TRANSCRIPT,
        form(sound_schemas.TranslationForm),
    ),
    ("embed", "POST /v1/embeddings"): Operation(
        "Create an embedding of unit length for each text. 400 for a model of another kind, without --pooling.",
        reply_schemas.Embeddings,
        takes(schemas.EmbeddingsRequest, plain={"input": _CAT}, several={"input": [_CAT, ONCE], **_BASE64}),
    ),
    ("listModels", "GET /v1/models"): Operation(
        "List the models, the default one first. With the header anthropic-version, the reply has the form of"
        " Anthropic's API, a page at a time (limit, before_id, after_id).",
        any_of(reply_schemas.Models, AnthropicModels),
    ),
    ("getModel", "GET /v1/models/{model}"): Operation(
        "Get a model by its name or an alias. With the header anthropic-version, the reply has the form of Anthropic's"
        " API, and any name that begins with claude means the default model.",
        any_of(reply_schemas.Model, AnthropicModel),
    ),
}

REFERENCE = Reference("OpenAI", "For OpenAI's client libraries, with base_url ending in /v1.", ERRORS, OPERATIONS)
