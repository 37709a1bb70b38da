"""Schemas of OpenAI's Realtime API, general availability: sessions, items, and the events that clients send."""

from __future__ import annotations

from typing import Any

from umaserve.dialects.openai.schemas import MAX_PARTS, REASONING_EFFORTS
from umaserve.dialects.openai.tool_schemas import ARGUMENTS, CALL_ID
from umaserve.dialects.responses.schemas import STATUS, ResponseInputImage, ResponseOptions
from umaserve.dialects.schemas import ABOUT_MODEL, MAX_ID_BYTES, Base64
from umaserve.wire.declared import (
    Declared,
    Field,
    Kind,
    array,
    by_type,
    choice,
    const,
    number,
    optional,
    required,
    string,
    switch,
    whole,
)
from umaserve.wire.fields import Fields

DEFAULT_SECRET_S = 600
MAX_INPUT_ITEMS = 1024
_ID = string(1, MAX_ID_BYTES)


# -- sessions ----------------------------------------------------------------------------------------------------


class RealtimeFormat(Declared):
    type = required(choice("audio/pcm", "audio/pcmu", "audio/pcma"), "16-bit samples, or G.711's µ-law or A-law.")
    rate = optional(whole(24_000, 24_000), "Of audio/pcm; the others have 8000.")


class RealtimeTranscription(Declared):
    model = optional(
        string(max_bytes=MAX_ID_BYTES),
        "One that hears; any other name means the session's model if that hears, else one of the server's that does.",
    )
    language = optional(string(max_bytes=64))
    prompt = optional(string(max_bytes=16_384), "Words that may occur.")


class RealtimeTurnDetection(Declared):
    type = required(
        choice("server_vad", "semantic_vad", "none"),
        "server_vad: by a detector of speech, else by how loud the sound is. semantic_vad is taken for it.",
    )
    threshold = optional(number(0, 1), "The least probability of speech, or how loud it has to be.", default=0.5)
    prefix_padding_ms = optional(whole(0, 10_000), "Sound before the speech that belongs to it.", default=300)
    silence_duration_ms = optional(
        whole(20, 60_000), "Silence that ends a turn: without a value, by the eagerness, else 500."
    )
    eagerness = optional(
        choice("low", "medium", "high", "auto"), "How soon a turn ends: after 1000, 500 or 300 ms; auto is medium."
    )
    create_response = switch(True, "Whether the end of a turn begins a response.")
    interrupt_response = switch(True, "Whether speech cancels the response that is being given.")


class RealtimeAudioInput(Declared):
    format = optional(RealtimeFormat)
    transcription = optional(RealtimeTranscription)
    turn_detection = optional(RealtimeTurnDetection, "null: the client commits the sound, and asks for responses.")


class RealtimeVoice(Declared):
    id = required(string())


def _voice(given: Any, path: str) -> str:
    return RealtimeVoice.of(given, path).id if isinstance(given, dict) else string().read(given, path)


class RealtimeAudioOutput(Declared):
    format = optional(RealtimeFormat)
    voice = optional(
        Kind({"oneOf": [{"type": "string"}, {"$ref": RealtimeVoice}]}, _voice), "Not used: the server has one voice."
    )
    speed = optional(number(0.25, 1.5), "Not used: the server's voice has one speed.")


class RealtimeAudio(Declared):
    input = optional(RealtimeAudioInput)
    output = optional(RealtimeAudioOutput)


class RealtimeReasoning(Declared):
    effort = optional(choice(*REASONING_EFFORTS), "Without it the model doesn't think.")


def _max_tokens(given: Any, path: str) -> int | None:
    return None if given == "inf" else whole(1).read(given, path)


class RealtimeOptions(Declared):
    """Options of a response, which a session has for all."""

    instructions = optional(string(), "Placed before all items.")
    output_modalities = optional(
        array(choice("text", "audio"), 1, 1, of="modalities"),
        '["audio"] needs the server\'s voice, and has a transcript; the default where there is a voice.',
    )
    audio = optional(RealtimeAudio)
    tools = ResponseOptions.tools
    tool_choice = ResponseOptions.tool_choice
    parallel_tool_calls = ResponseOptions.parallel_tool_calls
    temperature = optional(number(0, 2), default=0.8)
    max_output_tokens = optional(
        Kind({"oneOf": [{"type": "integer", "minimum": 1}, {"const": "inf"}]}, _max_tokens), default="inf"
    )
    reasoning = optional(RealtimeReasoning)


class RealtimeSession(RealtimeOptions):
    """Settings of a session. An update changes what it names."""

    type = optional(choice("realtime"))
    model = optional(string(max_bytes=MAX_ID_BYTES), f"{ABOUT_MODEL} It can't be changed in a session.")


# -- items -------------------------------------------------------------------------------------------------------


class RealtimeInputText(Declared):
    type = required(const("input_text"))
    text = required(string())


class RealtimeInputAudio(Declared):
    type = required(const("input_audio"))
    audio = required(Base64, "Sound in the session's input format.")
    transcript = optional(string(), "What is said, for models that don't hear.")


class RealtimeOutputText(Declared):
    type = required(choice("output_text", "text"))
    text = required(string())


class RealtimeOutputAudio(Declared):
    type = required(choice("output_audio", "audio"))
    transcript = required(string(), "What was said: the sound itself is not kept.")


class _Item(Declared):
    id = optional(_ID, "Made by the server where it is absent.")
    status = optional(STATUS)


class RealtimeUserMessage(_Item):
    type = required(const("message"))
    role = required(const("user"))
    content = required(
        array(by_type(RealtimeInputText, RealtimeInputAudio, ResponseInputImage), 1, MAX_PARTS, of="parts")
    )


class RealtimeSystemMessage(_Item):
    type = required(const("message"))
    role = required(choice("system", "developer"))
    content = required(array(by_type(RealtimeInputText), 1, MAX_PARTS, of="parts"))


class RealtimeAssistantMessage(_Item):
    type = required(const("message"))
    role = required(const("assistant"))
    content = required(array(by_type(RealtimeOutputText, RealtimeOutputAudio), 0, MAX_PARTS, of="parts"))


class RealtimeCall(_Item):
    type = required(const("function_call"))
    call_id = optional(CALL_ID)
    # Any name, not only a tool's: it is an earlier answer of the model, which may have invented one.
    name_ = required(string(1, 256))
    arguments = required(ARGUMENTS, "A JSON object, as text or itself.")


class RealtimeCallOutput(_Item):
    type = required(const("function_call_output"))
    call_id = required(CALL_ID)
    output = required(string())


class RealtimeItemReference(Declared):
    type = required(const("item_reference"))
    id = required(_ID)


_MESSAGES = {
    "user": RealtimeUserMessage,
    "system": RealtimeSystemMessage,
    "developer": RealtimeSystemMessage,
    "assistant": RealtimeAssistantMessage,
}
_ITEMS = (*dict.fromkeys(_MESSAGES.values()), RealtimeCall, RealtimeCallOutput)
_KINDS = {"message": None, "function_call": RealtimeCall, "function_call_output": RealtimeCallOutput}


def _item(given: Any, path: str, others: dict[str, Any] | None = None) -> Declared:
    item = Fields.of(given, path)
    kind: type[Declared] | None = item.required_choice("type", _KINDS | (others or {}))
    return (kind or item.required_choice("role", _MESSAGES)).view(item)


def _item_or_reference(given: Any, path: str) -> Declared:
    return _item(given, path, {"item_reference": RealtimeItemReference})


_ITEM: Kind[Declared] = Kind({"oneOf": [{"$ref": each} for each in _ITEMS]}, _item)
_ITEM_OR_REFERENCE: Kind[Declared] = Kind(
    {"oneOf": [{"$ref": each} for each in (*_ITEMS, RealtimeItemReference)]}, _item_or_reference
)


class RealtimeResponseOptions(RealtimeOptions):
    """Options of one response; what is absent is the session's."""

    conversation = optional(
        choice("auto", "none"), "none: beside the conversation, which the response is not added to.", default="auto"
    )
    input = optional(
        array(_ITEM_OR_REFERENCE, 0, MAX_INPUT_ITEMS, of="items"), "The items to answer, instead of the conversation's."
    )
    metadata = ResponseOptions.metadata


# -- events ------------------------------------------------------------------------------------------------------


class _Event(Declared):
    event_id = optional(string(max_bytes=512), "Errors in the event name it.")


class RealtimeSessionUpdate(_Event):
    type = required(const("session.update"))
    session = required(RealtimeSession)


class RealtimeItemCreate(_Event):
    type = required(const("conversation.item.create"))
    previous_item_id = optional(_ID, 'The item that it follows; "root": none; absent: the last one.')
    item = required(_ITEM)


class RealtimeItemRetrieve(_Event):
    type = required(const("conversation.item.retrieve"))
    item_id = required(_ID)


class RealtimeItemDelete(_Event):
    type = required(const("conversation.item.delete"))
    item_id = required(_ID)


class RealtimeItemTruncate(_Event):
    type = required(const("conversation.item.truncate"))
    item_id = required(_ID)
    content_index = required(whole(0, 0))
    audio_end_ms = required(whole(0), "What was heard: the item's transcript ends there too.")


class RealtimeAudioAppend(_Event):
    type = required(const("input_audio_buffer.append"))
    audio = required(Base64, "Sound in the session's input format.")


class RealtimeAudioCommit(_Event):
    type = required(const("input_audio_buffer.commit"))


class RealtimeAudioClear(_Event):
    type = required(const("input_audio_buffer.clear"))


class RealtimeOutputClear(_Event):
    type = required(const("output_audio_buffer.clear"))


class RealtimeResponseCreate(_Event):
    type = required(const("response.create"))
    response = optional(RealtimeResponseOptions)


class RealtimeResponseCancel(_Event):
    type = required(const("response.cancel"))
    response_id = optional(_ID, "Absent: the response that is added to the conversation.")


_EVENTS: tuple[type[Declared], ...] = (
    RealtimeSessionUpdate,
    RealtimeItemCreate,
    RealtimeItemRetrieve,
    RealtimeItemDelete,
    RealtimeItemTruncate,
    RealtimeAudioAppend,
    RealtimeAudioCommit,
    RealtimeAudioClear,
    RealtimeOutputClear,
    RealtimeResponseCreate,
    RealtimeResponseCancel,
)
_BY_TYPE: dict[str, type[Declared]] = {each.declared["type"].kind.schema["const"]: each for each in _EVENTS}
RealtimeClientEvent = by_type(*_EVENTS)


def read_event(values: dict[str, Any]) -> Declared:
    """A client's event, by the class for its type; raises ``RequestError``."""
    given = Fields(values)
    return _BY_TYPE[given.required_one_of("type", _BY_TYPE)].view(given)


class RealtimeServerEvent(Declared, also={"additionalProperties": True}):
    """An event of the server, as OpenAI's service has it."""

    type = required(string())
    event_id = required(string())


# -- client secrets ----------------------------------------------------------------------------------------------


class _ExpiresAfter(Declared):
    anchor = optional(choice("created_at"))
    seconds = optional(whole(10, 7200), default=DEFAULT_SECRET_S)


class ClientSecretRequest(Declared):
    expires_after = optional(_ExpiresAfter)
    session = optional(RealtimeSession, "The settings with which its sessions begin.")


class ClientSecret(Declared):
    value = required(string(), "A key for GET /v1/realtime.")
    expires_at = required(whole(0), "Seconds since 1970.")
    session: Field[Any] = required(Kind({"type": "object"}), "The settings of a new session.")
