"""Schemas of the Model Context Protocol: its messages, and the arguments of the tools."""

from __future__ import annotations

from umaserve.dialects.grammars import SCHEMA
from umaserve.dialects.openai.embeddings import MAX_INPUTS
from umaserve.dialects.openai.schemas import COMPRESSED
from umaserve.dialects.openai.sound_schemas import SpeechRequest
from umaserve.dialects.sampling_schemas import DEFAULTS
from umaserve.dialects.schemas import MAX_ID_BYTES, Base64
from umaserve.wire.declared import (
    Declared,
    array,
    choice,
    const,
    number,
    omittable,
    one_of,
    optional,
    required,
    string,
    value,
    whole,
)

_ABOUT_MODEL = "The name of a model, which the tool status lists. Absent: one of the server's choice."


class AskArguments(Declared, closed=True):
    prompt = required(string(1), "What to ask the model.")
    system = optional(string(), "Instructions that stand before the prompt.")
    model = optional(string(max_bytes=MAX_ID_BYTES), _ABOUT_MODEL)
    max_tokens = optional(whole(1), "The most tokens of the answer, the model's thoughts included.")
    temperature = optional(number(0, 10), "0: always the likeliest token.", default=DEFAULTS.temperature)
    json_schema = optional(SCHEMA, "A JSON schema that the answer has to follow; the answer is then JSON.")


class EmbedArguments(Declared, closed=True):
    input = required(
        one_of(string(1), array(string(1), 1, MAX_INPUTS)), "The text, or several texts, each of which gets a vector."
    )
    model = optional(string(max_bytes=MAX_ID_BYTES), _ABOUT_MODEL)
    dimensions = optional(whole(1), "Only so many numbers of each vector.")


class RerankArguments(Declared, closed=True):
    query = required(string(1), "The question.")
    documents = required(array(string(), 1, 256), "The texts to put in order.")
    model = optional(string(max_bytes=MAX_ID_BYTES), _ABOUT_MODEL)
    top_n = optional(whole(1), "Return only this many of the best.")


class TranscribeArguments(Declared, closed=True):
    audio = required(Base64, "The sound file in base64, in any usual format, such as WAV, MP3, FLAC or Ogg.")
    language = optional(string(max_bytes=64), "The language of the speech, as a code or a name.")
    prompt = optional(string(), "Text that comes before it, or names and words that may occur.")
    model = optional(string(max_bytes=MAX_ID_BYTES), _ABOUT_MODEL)


class SpeakArguments(Declared, closed=True):
    input = SpeechRequest.input
    response_format = optional(
        choice(*COMPRESSED, "wav"), "The format of the sound file. Absent: mp3 where the server can make it, else wav."
    )


class StatusArguments(Declared, closed=True):
    pass


# -- messages ----------------------------------------------------------------------------------------------------

_ID = one_of(string(max_bytes=MAX_ID_BYTES), whole())


class McpMessage(Declared):
    """A request, or without an id a notification."""

    jsonrpc = required(const("2.0"))
    id = omittable(_ID)
    method = required(string(), "initialize, ping, server/discover, tools/list, tools/call, or notifications/….")
    params = omittable(value(type="object"), "By the method. Of tools/call: name and arguments.")


class McpResult(Declared):
    jsonrpc = required(const("2.0"))
    id = required(_ID)
    result = required(value(type="object"), "By the method.")


class _Error(Declared):
    code = required(whole(), "-32700, -32600, -32601, -32602 or -32603 of JSON-RPC; -32020 or -32022 of the protocol.")
    message = required(string())
    data = omittable(value(type="object"))


class McpError(Declared):
    jsonrpc = required(const("2.0"))
    id = required(value(type=["string", "integer", "null"]), "That of the request; null where it could not be read.")
    error = required(_Error)


class McpProgress(Declared):
    """A notification about a request that is being answered."""

    jsonrpc = required(const("2.0"))
    method = required(const("notifications/progress"))
    params = required(value(type="object"), "progressToken, progress and message.")
