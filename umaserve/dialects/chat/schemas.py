"""Schemas of chat mode."""

from __future__ import annotations

from umaserve.dialects.schemas import MAX_ID_BYTES, MAX_SAMPLE_RATE, MAX_TURNS, MIN_SAMPLE_RATE, Base64, content_with
from umaserve.wire.declared import (
    Declared,
    array,
    choice,
    const,
    number,
    optional,
    required,
    string,
    switch,
    whole,
)

MODES = ("default", "audio_assistant", "omni", "audio_roleplay", "voice_cloning")
SAMPLE_RATE = 16_000
"""Samples per second of recordings that don't say theirs."""


class SamplesItem(Declared):
    type = required(const("audio"))
    data = required(Base64, "Mono samples in base64: 32-bit floats, little-endian.")
    sample_rate = optional(whole(MIN_SAMPLE_RATE, MAX_SAMPLE_RATE), default=SAMPLE_RATE)


class _Message(Declared):
    role = required(choice("system", "user", "assistant"))
    content = required(content_with(SamplesItem))


class Generation(Declared):
    max_new_tokens = optional(whole(1), default=512)
    temperature = optional(number(0, 2), default=0.7)
    top_p = optional(number(0, 1, above_low=True), default=0.8)
    length_penalty = optional(number(0.1, 10), "Above 1 answers get longer, below it shorter.", default=1)
    cache_prompt = switch(True, "Whether the request uses cached prefixes and leaves its own for later requests.")


class Tts(Declared):
    enabled = switch(True)
    mode = optional(choice(*MODES))
    ref_audio_path = optional(string())
    ref_audio_data = optional(
        string(),
        "A recording of the voice to speak with: mono samples at 16 kHz in base64, 32-bit "
        "floats, little-endian. A server whose voice can't clone another speaks with its own, and reports that in"
        " prefill_done, unless the mode is voice_cloning or audio_roleplay.",
    )
    language = optional(string(max_bytes=64))


class ImageOptions(Declared):
    max_slice_nums = optional(
        whole(1, 64), "Parts into which an image or a film's picture may be cut, by models that do so."
    )
    use_image_id = switch(
        True,
        "Whether each of several images is numbered: in the form that the model was trained with (MiniCPM-V's"
        " <image_id>0</image_id>), or else by the text 'Image 1: '.",
    )


class SpokenChatRequest(Declared):
    messages = required(array(_Message, 1, MAX_TURNS, of="messages"))
    streaming = switch(
        True,
        "false: all speech is sent in one message, of 128 kB for each second of speech. Clients with a smaller limit"
        " have to raise it, such as Python's websockets by max_size=None.",
    )
    generation = optional(Generation)
    tts = optional(Tts, "If present, the answer is spoken, by the server's voice.")
    image = optional(ImageOptions)
    omni_mode = switch(
        False, "Whether a film's pictures and its sound are interleaved by time; otherwise they follow each other."
    )
    enable_thinking = switch(False)
    auth = optional(
        string(),
        "The API key, if one is needed and the handshake had none. Such a message is limited to --max-frame-bytes.",
    )
    model = optional(
        string(max_bytes=MAX_ID_BYTES),
        "One that /v1/models lists, or an alias. Without one, or by an unknown name (refused with "
        "--strict-models): the default model.",
    )


class SpokenChatMessage(
    Declared,
    also={
        "oneOf": [
            {
                "properties": {
                    "type": {"enum": ["queued", "queue_update"]},
                    "position": {"type": "integer", "minimum": 1},
                    "estimated_wait_s": {"type": ["number", "null"]},
                    "queue_length": {"type": "integer", "minimum": 1},
                    "ticket_id": {"type": "string"},
                }
            },
            {"properties": {"type": {"const": "queue_done"}}},
            {
                "required": ["input_tokens"],
                "properties": {
                    "type": {"const": "prefill_done"},
                    "input_tokens": {"type": "integer"},
                    "voice": {
                        "const": "default",
                        "description": ("The server's own voice speaks, since it can't clone the one in the request."),
                    },
                },
            },
            {
                "required": ["text_delta", "audio_data"],
                "properties": {
                    "type": {"const": "chunk"},
                    "text_delta": {"type": "string"},
                    "audio_data": {"type": ["string", "null"]},
                },
            },
            {
                "required": ["text", "generated_tokens", "input_tokens", "audio_data", "recording_session_id"],
                "properties": {
                    "type": {"const": "done"},
                    "text": {"type": "string"},
                    "generated_tokens": {"type": "integer"},
                    "input_tokens": {"type": "integer"},
                    "audio_data": {
                        "type": ["string", "null"],
                        "description": "The whole text, where streaming is false.",
                    },
                    "recording_session_id": {"type": ["string", "null"], "description": "null: nothing was recorded."},
                },
            },
            {"required": ["error"], "properties": {"type": {"const": "error"}, "error": {"type": "string"}}},
        ],
        "required": ["type"],
    },
):
    pass
