"""OpenAI's transcriptions: what a form may ask for, and how the text comes back in each format."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import jsonschema
import pytest
from openai.types.audio import (
    Transcription,
    TranscriptionTextDeltaEvent,
    TranscriptionTextDoneEvent,
    TranscriptionVerbose,
    TranslationVerbose,
)

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, FinishReason, Logprobs, Placed, Scored, Started, Token, Usage
from umaserve.core.requests import Attachment, Generate, Sound
from umaserve.daemon.http.pages import openapi
from umaserve.dialects.openai.transcriptions import TranscriptionBody
from umaserve.dialects.parameters import RequestLimits

LIMITS = RequestLimits(max_prompt_bytes=64, max_tokens=512)
WAV = b"RIFF\r\n--\0"
TOKENS = [
    Token(text, at, Logprobs(Scored(at, text.encode(), -0.5), ()))
    for at, text in enumerate((" It", " ra", "ins.", " \n"))
]
END = Finished(FinishReason.STOP, Usage(40, 4, sound_s=3725.5))
SCHEMAS = json.loads(openapi())["components"]

Fields = dict[str, Any]


def encoded(fields: Fields, files: list[bytes]) -> tuple[bytes, str]:
    """A form as clients send it, and its content type."""
    sent = [("unknown", ("u", b"")), *(("file", ("a.wav", file)) for file in files)]
    request = httpx.Request("POST", "http://x", data=fields, files=sent)
    return request.read(), request.headers["content-type"]


def asked(
    *, files: tuple[bytes, ...] = (WAV,), translates: bool = False, **fields: Any
) -> tuple[TranscriptionBody, Generate]:
    content, kind = encoded(fields, list(files))
    body = TranscriptionBody(LIMITS, lambda _name: None, "transcript-1", kind, translates=translates)
    (request,) = body.receive(content)
    return body, request


def refusal(**wanted: Any) -> str:
    with pytest.raises(RequestError) as refused:
        asked(**wanted)
    assert refused.value.fault is Fault.BAD_REQUEST
    return refused.value.message


def whole(**wanted: Any) -> bytes:
    body, _request = asked(**wanted)
    for output in (Started(), Placed(), *TOKENS, END):
        assert body.send(0, output) == []
    assert body.done
    return body.result()


def events(**wanted: Any) -> list[Fields]:
    body, _request = asked(stream="true", **wanted)
    assert body.streaming
    return [json.loads(event) for output in (Started(), *TOKENS, END) for event in body.send(0, output)]


def check(value: object, schema: str) -> None:
    closed = {**SCHEMAS["schemas"][schema], "additionalProperties": False}
    jsonschema.Draft202012Validator({**closed, "components": SCHEMAS}).validate(value)


def test_a_form_becomes_a_request_for_what_is_said() -> None:
    body, request = asked(model="whisper-1", language="de", prompt="Umaserve", temperature="0.25")
    (turn,) = request.prompt
    (attached,) = turn.attachments
    assert attached == Attachment(0, Sound(memoryview(WAV), "file"))
    assert "de." in turn.content
    assert "Umaserve" in turn.content
    assert request.sampling.temperature == 0.25
    assert (request.id, request.logprobs, request.max_tokens) == ("transcript-1", None, 512)
    assert not body.streaming
    assert "English" in asked(translates=True)[1].prompt[0].content


def test_json_has_the_text_and_its_tokens() -> None:
    answer = json.loads(whole())
    assert answer["text"] == "It rains."
    assert answer["usage"] == {"type": "tokens", "input_tokens": 40, "output_tokens": 4, "total_tokens": 44}
    check(answer, "Transcript")
    Transcription.model_validate(answer)


def test_log_probabilities_come_where_they_are_included() -> None:
    _body, request = asked(**{"include[]": ["logprobs"]})
    assert request.logprobs == 0
    answer = json.loads(whole(**{"include[]": ["logprobs"]}))
    assert [one["token"] for one in answer["logprobs"]] == [" It", " ra", "ins.", " \n"]
    check(answer, "Transcript")
    *deltas, done = events(**{"include[]": ["logprobs"]})
    assert [len(one["logprobs"]) for one in deltas] == [1, 1, 1]
    assert len(done["logprobs"]) == 4
    check(done, "TranscriptDone")


@pytest.mark.parametrize(
    ("file_format", "kind", "text"),
    [
        ("text", "text/plain; charset=utf-8", "It rains.\n"),
        ("srt", "text/plain; charset=utf-8", "1\n00:00:00,000 --> 01:02:05,500\nIt rains.\n\n"),
        ("vtt", "text/vtt; charset=utf-8", "WEBVTT\n\n00:00:00.000 --> 01:02:05.500\nIt rains.\n\n"),
    ],
)
def test_formats_of_text(file_format: str, kind: str, text: str) -> None:
    assert whole(response_format=file_format).decode() == text
    assert asked(response_format=file_format)[0].whole_type == kind


def test_subtitles_stay_whole_whatever_is_said() -> None:
    said = {}
    for file_format in ("srt", "vtt"):
        body, _request = asked(response_format=file_format)
        body.send(0, Token("a\n\n1 --> 2 & <b>", 1))
        body.send(0, END)
        said[file_format] = body.result().decode()
    assert said["srt"].endswith("\na\n1 --> 2 & <b>\n\n")
    assert said["vtt"].endswith("\na\n1 --&gt; 2 &amp; &lt;b&gt;\n\n")


@pytest.mark.parametrize(("file_format", "empty"), [("srt", b""), ("vtt", b"WEBVTT\n\n"), ("text", b"\n")])
def test_silence_has_no_subtitles(file_format: str, empty: bytes) -> None:
    body, _request = asked(response_format=file_format)
    body.send(0, Token(" \n", 1))
    body.send(0, END)
    assert body.result() == empty


def test_verbose_json_has_one_segment() -> None:
    body, request = asked(response_format="verbose_json", **{"timestamp_granularities[]": "segment"})
    assert request.logprobs == 0
    assert body.whole_type == "application/json"
    answer = json.loads(whole(response_format="verbose_json", language="en", temperature="0.5"))
    check(answer, "VerboseTranscript")
    TranscriptionVerbose.model_validate({**answer, "segments": []})
    assert (answer["task"], answer["language"], answer["duration"]) == ("transcribe", "en", 3725.5)
    (segment,) = answer["segments"]
    assert (segment["start"], segment["end"], segment["text"]) == (0, 3725.5, "It rains.")
    assert (segment["tokens"], segment["avg_logprob"], segment["temperature"]) == ([0, 1, 2, 3], -0.5, 0.5)
    assert json.loads(whole(response_format="verbose_json"))["language"] == "unknown"
    translated = json.loads(whole(response_format="verbose_json", translates=True, language="de"))
    TranslationVerbose.model_validate({**translated, "segments": []})
    assert (translated["task"], translated["language"]) == ("translate", "english")


def test_a_stream_has_deltas_that_together_are_the_text() -> None:
    *deltas, done = events()
    assert [one["delta"] for one in deltas] == ["It", " ra", "ins."]
    assert done["text"] == "It rains."
    for one in deltas:
        check(one, "TranscriptDelta")
        TranscriptionTextDeltaEvent.model_validate(one)
    check(done, "TranscriptDone")
    TranscriptionTextDoneEvent.model_validate(done)
    assert events(response_format="text") == [*deltas, done]


@pytest.mark.parametrize("stream", ["false", "False", "0", ""])
def test_what_is_no_stream(stream: str) -> None:
    assert not asked(stream=stream)[0].streaming


def test_a_cut_transcript_is_an_error_and_not_a_short_one() -> None:
    for fields in ({}, {"stream": "true"}):
        body, _request = asked(**fields)
        body.send(0, TOKENS[0])
        with pytest.raises(RequestError, match="the recording took 40 tokens, and the transcript 512") as cut:
            body.send(0, Finished(FinishReason.LENGTH, Usage(40, 512, sound_s=60)))
        assert cut.value.fault is Fault.CONTEXT_EXCEEDED
        assert [json.loads(event)["error"]["code"] for event in body.fail(0, cut.value)] == (
            ["context_length_exceeded"] if fields else []
        )
    with pytest.raises(RequestError) as filtered:
        asked()[0].send(0, Finished(FinishReason.CONTENT_FILTER, Usage(40, 3)))
    assert filtered.value.fault is Fault.CONTENT_FILTERED


def test_a_transcript_longer_than_speech_can_be_is_answered_as_far_as_it_came() -> None:
    """A model that repeats itself: all that was said in the two seconds is there."""
    usage = Usage(40, 138, reasoning_tokens=10, sound_s=2)
    body, request = asked()
    assert request.sound_limit is not None
    assert request.sound_limit.tokens(usage.sound_s) == 128
    body.send(0, TOKENS[0])
    body.send(0, Finished(FinishReason.LENGTH, usage))
    assert json.loads(body.result())["text"] == "It"
    with pytest.raises(RequestError, match="is truncated"):
        body.send(0, Finished(FinishReason.LENGTH, replace(usage, reasoning_tokens=11)))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"files": ()}, "file: expected one sound file, got none"),
        ({"files": (WAV, WAV)}, "file: expected one sound file, got 2"),
        ({"files": (b"",)}, "file: expected one sound file, got an empty one"),
        ({"model": "m" * 257}, "model: expected a string of at most 256 bytes"),
        ({"model": ["a", "b"]}, "model: expected one value, got several"),
        ({"language": "e" * 33}, "language: expected a string of at most 32 bytes"),
        ({"temperature": "1.5"}, "temperature: expected a number from 0 to 1, got 1.5"),
        ({"temperature": "nan"}, "temperature: expected a number from 0 to 1, got nan"),
        ({"temperature": "hot"}, "temperature: expected a number from 0 to 1, got a string"),
        ({"response_format": "diarized_json"}, 'response_format: expected "json" or "text" or "verbose_json" or "srt"'),
        ({"stream": "maybe"}, "stream: expected true or false, got a string"),
        ({"stream": "true", "response_format": "srt"}, 'stream: expected false where response_format is "srt"'),
        ({"timestamp_granularities[]": ["segment", "word"]}, 'timestamp_granularities: expected "segment", since'),
        ({"include[]": "usage"}, 'include: expected "logprobs", since'),
        ({"known_speaker_names[]": "Eve"}, "known_speaker_names[]: expected to be absent"),
        ({"prompt": b"\xff"}, "prompt: expected text in UTF-8"),
    ],
)
def test_what_can_not_be_given_is_refused_by_name(wanted: Fields, message: str) -> None:
    assert refusal(**wanted).startswith(message)


def test_a_prompt_counts_against_the_longest() -> None:
    asked(prompt="x" * 64)
    with pytest.raises(RequestError) as refused:
        asked(prompt="x" * 65)
    assert refused.value.fault is Fault.PROMPT_TOO_LARGE
    assert refused.value.field == "prompt"


def test_fields_that_are_not_known_are_ignored_unread() -> None:
    _body, request = asked(chunking_strategy="auto", anything=b"\xff" * 1000)
    assert request == asked()[1]
