"""Schemas of the speech and the transcriptions of the API of OpenAI."""

from __future__ import annotations

from typing import Any

from umaserve.core.errors import Fault, RequestError
from umaserve.dialects.openai.reply_schemas import Scored
from umaserve.dialects.openai.schemas import MAX_INPUT_CHARS, TEXT_FORMATS, Voice
from umaserve.dialects.schemas import ABOUT_MODEL, MAX_ID_BYTES
from umaserve.wire import fields
from umaserve.wire.declared import (
    Declared,
    Kind,
    array,
    boolean,
    choice,
    const,
    number,
    omittable,
    optional,
    required,
    string,
    value,
    whole,
)
from umaserve.wire.fields import bad_request, out_of_range

# -- speech ------------------------------------------------------------------------------------------------------


def _input(given: Any, path: str) -> str:
    text = fields.string(given, path)
    if len(text) > MAX_INPUT_CHARS:
        raise out_of_range(path, f"at most {MAX_INPUT_CHARS} characters", f"{len(text)} characters")
    return text


def _speed(given: Any, path: str) -> float:
    if isinstance(given, bool) or given != 1:
        raise bad_request(path, "1, the only speed of this daemon's voice", given)
    return 1.0


class SpeechRequest(Declared):
    model = optional(string(max_bytes=MAX_ID_BYTES), "Ignored: the server has a single voice.")
    input = required(Kind(string(1, MAX_INPUT_CHARS).schema, _input))
    voice = optional(Voice)
    response_format = optional(
        choice(*TEXT_FORMATS),
        "The format of the sound: a file, or with pcm only samples. opus is in Ogg. A server without umaserve[media]"
        " has only wav and pcm, and wav is its default.",
        default="mp3",
    )
    stream_format = optional(
        choice("audio", "sse"), "With sse the sound is sent in server-sent events.", default="audio"
    )
    speed = optional(Kind(choice(1).schema, _speed), "No other is supported.", default=1)
    instructions = optional(string(max_bytes=16 * 1024), "Not used: the server's voice follows none.")


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
        "The text that preceded the recording, or names and words that may occur in it. It becomes part of the"
        " prompt, and counts against --max-prompt-bytes.",
    )
    temperature = omittable(number(0, 1), default=0)
    response_format = omittable(choice("json", "text", "verbose_json", "srt", "vtt"), default="json")


class TranscriptionForm(_RecordingForm):
    language = omittable(
        string(max_bytes=32),
        "The language of the speech: a code of ISO 639-1, or a name. Without it the model detects the language.",
    )
    stream = omittable(
        boolean(),
        "Send the text in server-sent events as it is transcribed. With response_format json or text.",
        default=False,
    )
    include_ = omittable(
        _only("logprobs", "since nothing else can be included"),
        "Adds a log-probability for each token (logprobs) to json and to the events.",
        key="include[]",
    )
    timestamp_granularities_ = omittable(
        _only("segment", "since word timestamps are not supported"),
        "Word timestamps are not supported.",
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
    no_speech_prob = required(value(type="null"), "Not known: the models don't give it.")


class _SoundUsage(Declared):
    type = required(const("duration"))
    seconds = required(number())


class VerboseTranscript(Declared):
    task = required(choice("transcribe", "translate"))
    language = required(string(), "The language in the request, or unknown.")
    duration = required(number(), "Length of the recording in seconds.")
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
