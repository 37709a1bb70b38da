"""Images, recordings and speech in OpenAI's words: what may be asked for, and how the sound comes back."""

from __future__ import annotations

import base64
import gc
import io
import itertools
import json
import math
import struct
import uuid
import wave
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import (
    Finished,
    FinishReason,
    Logprobs,
    Output,
    Placed,
    Prefilled,
    Scored,
    Spoken,
    Started,
    Token,
    Usage,
    VoiceInfo,
)
from umaserve.core.requests import Attachment, Audio, ChatTurn, Generate, Image, Media, SoundFormat, Speaking
from umaserve.dialects.openai.completions import ChatBody
from umaserve.dialects.openai.speech import text_to_speech
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.routes import SpokenText
from umaserve.wire.fields import Fields
from umaserve.wire.pcm import UNKNOWN_SIZE, pcm16, wav, wav_header

# A busy machine is no fault of the code.

LIMITS = RequestLimits(max_prompt_bytes=64, max_tokens=512)
VOICE = VoiceInfo(("en",), clones=False)
ENCODED = replace(VOICE, formats=("mp3", "opus", "aac", "flac"))
"""A voice that can be heard in compressed formats too."""
AUDIO = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}
END = Finished(FinishReason.STOP, Usage(5, 3))
PNG = "data:image/png;base64,"

Wanted = dict[str, Any]


def chat(voice: VoiceInfo | None = VOICE) -> ChatBody:
    return ChatBody(LIMITS, voice, lambda _name: None, "chatcmpl-7", 1700000000)


def request(body: ChatBody | None = None, **wanted: Any) -> Generate:
    messages = [{"role": "user", "content": "hi"}]
    (one,) = (body or chat()).receive(json.dumps({"messages": messages, **wanted}).encode())
    return one


def refusal(voice: VoiceInfo | None = VOICE, **wanted: Any) -> str:
    with pytest.raises(RequestError) as raised:
        request(chat(voice), **wanted)
    assert raised.value.fault is Fault.BAD_REQUEST
    return raised.value.message


def told(body: ChatBody, *outputs: Output) -> list[Wanted]:
    return [json.loads(chunk) for output in outputs for chunk in body.send(0, output)]


def image(url: object = PNG + "QUJD", **more: Any) -> Wanted:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def recording(data: object = "QUJD", audio_format: object = "wav") -> Wanted:
    return {"type": "input_audio", "input_audio": {"data": data, "format": audio_format}}


def text(words: str) -> Wanted:
    return {"type": "text", "text": words}


# What a message may hold.

URL, DATA = "messages[0].content[0].image_url.url", "messages[0].content[0].input_audio.data"


@pytest.mark.parametrize(
    ("part", "media"),
    [
        (image(), Image("QUJD", URL)),
        (image(detail="auto"), Image("QUJD", URL)),
        (image(detail="high"), Image("QUJD", URL)),
        (image(detail="low"), Image("QUJD", URL)),
        (image(detail="original"), Image("QUJD", URL)),
        (image(detail=None), Image("QUJD", URL)),
        (image("DATA:Image/svg+xml;charset=utf-8;name=a.b;Base64,QUJD"), Image("QUJD", URL)),
        (image(PNG + "data:image/png;base64,x"), Image("data:image/png;base64,x", URL)),
        (recording(), Audio("QUJD", DATA)),
        (recording(audio_format="mp3"), Audio("QUJD", DATA)),
    ],
)
def test_images_and_recordings_are_taken_as_they_are(part: Wanted, media: Media) -> None:
    turns = request(messages=[{"role": "user", "content": [part]}]).prompt
    assert turns == (ChatTurn("user", "", attachments=(Attachment(0, media),)),)


@pytest.mark.parametrize(("role", "read_as"), [("user", "user"), ("system", "system"), ("developer", "system")])
def test_they_stand_where_their_parts_stood(role: str, read_as: str) -> None:
    parts = [text("a"), text("b"), image(), image(), text("c"), recording(), text("")]
    (turn,) = request(messages=[{"role": role, "content": parts}]).prompt
    path = "messages[0].content[%d].%s"
    assert turn == ChatTurn(
        read_as,
        "a\nbc",
        attachments=(
            Attachment(3, Image("QUJD", path % (2, "image_url.url"))),
            Attachment(3, Image("QUJD", path % (3, "image_url.url"))),
            Attachment(4, Audio("QUJD", path % (5, "input_audio.data"))),
        ),
    )


def test_what_a_tool_says_may_be_an_image() -> None:
    (turn,) = request(messages=[{"role": "tool", "tool_call_id": "c", "content": [image()]}]).prompt
    assert (turn.role, turn.tool_call_id, len(turn.attachments)) == ("tool", "c", 1)


FETCHES = f'{URL}: expected "data:image/TYPE;base64," and the image, since this daemon fetches nothing, got '


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "image_url"}, "messages[0].content[0].image_url: expected an object, got null"),
        ({"type": "image_url", "image_url": PNG}, "messages[0].content[0].image_url: expected an object, got a string"),
        (image(None), FETCHES + "null"),
        (image("https://a.example/image-of-a-secret.png"), FETCHES + '"https://a.example/image-of-a-sec"'),
        (image("http://a.example/"), FETCHES + '"http://a.example/"'),
        (image("file:///etc/passwd"), FETCHES + '"file:///etc/passwd"'),
        (image("QUJD"), FETCHES + '"QUJD"'),
        (image(""), FETCHES + '""'),
        (image(PNG), FETCHES + "no image"),
        (image("data:image/png,QUJD"), FETCHES + '"data:image/png,QUJD"'),
        (image("data:text/html;base64,QUJD"), FETCHES + '"data:text/html;base64,QUJD"'),
        (image("data:;base64,QUJD"), FETCHES + '"data:;base64,QUJD"'),
        (image(" " + PNG + "QUJD"), FETCHES + '" data:image/png;base64,QUJD"'),
        (
            image(detail="medium"),
            'messages[0].content[0].image_url.detail: expected "auto" or "high" or "low" or "original", got "medium"',
        ),
        ({"type": "input_audio"}, "messages[0].content[0].input_audio: expected an object, got null"),
        (recording(None), f"{DATA}: expected a non-empty string, got null"),
        (recording(""), f"{DATA}: expected a non-empty string, got an empty one"),
        (
            recording(audio_format=None),
            'messages[0].content[0].input_audio.format: expected "wav" or "mp3", got null',
        ),
        (
            recording(audio_format="flac"),
            'messages[0].content[0].input_audio.format: expected "wav" or "mp3", got "flac"',
        ),
    ],
)
def test_a_wrong_part_is_refused_by_its_path(part: Wanted, expected: str) -> None:
    assert refusal(messages=[{"role": "user", "content": [part]}]) == expected


@pytest.mark.parametrize("part", [image(), recording()])
def test_the_assistant_says_text_only(part: Wanted) -> None:
    message = refusal(messages=[{"role": "assistant", "content": [text("a"), part]}])
    assert message == f'messages[0].content[1].type: expected "text", got "{part["type"]}"'


def test_an_earlier_spoken_answer_is_wanted_as_its_transcript() -> None:
    spoken = {"role": "assistant", "content": None, "audio": {"id": "audio_7"}}
    message = refusal(messages=[spoken])
    assert message.startswith("messages[0].content: expected the audio's transcript, since this daemon keeps no audio")
    assert request(messages=[{**spoken, "content": "Hello."}]).prompt == (ChatTurn("assistant", "Hello."),)


def test_there_are_at_most_64_in_a_conversation() -> None:
    half = {"role": "user", "content": [image(), recording()] * 16}
    assert sum(len(turn.attachments) for turn in request(messages=[half, half]).prompt) == 64
    message = refusal(messages=[half, half, {"role": "user", "content": [image()]}])
    assert message == "messages: expected at most 64 images, sounds and videos in all, got 65"


def test_only_text_counts_as_the_prompts_bytes() -> None:
    large = image(PNG + "A" * 1000)
    request(messages=[{"role": "user", "content": [large, text("x" * 64)]}])
    with pytest.raises(RequestError) as raised:
        request(messages=[{"role": "user", "content": [large, text("x" * 65)]}])
    assert raised.value.fault is Fault.PROMPT_TOO_LARGE


def test_a_prompts_images_are_freed_while_its_answer_is_written() -> None:
    body, url = chat(), f"{PNG}{uuid.uuid4().hex}"
    content = [{"type": "image_url", "image_url": {"url": url}}]

    def held() -> int:
        data = url.removeprefix(PNG)
        # Not isinstance, which asks a weak reference's proxy for what may be gone.
        return sum(type(one) is Image and one.data == data for one in gc.get_objects())

    asked = body.receive(json.dumps({"messages": [{"role": "user", "content": content}]}).encode())
    assert held() == 1
    del asked
    assert held() == 0
    assert told(body, Token("x", 1), END) == []
    assert json.loads(body.result())["choices"][0]["message"]["content"] == "x"


# Who asks for speech in a chat.


@pytest.mark.parametrize("voice", ["alloy", "marin", "cedar", "é" * 32, {"id": "voice_1"}, None])
@pytest.mark.parametrize(
    ("modalities", "audio_format", "stream"),
    [(["text", "audio"], "wav", False), (["audio", "text"], "pcm16", False), (["text", "audio"], "pcm16", True)],
)
def test_an_answer_to_be_heard(voice: object, modalities: list[str], audio_format: str, stream: bool) -> None:
    wanted = {"modalities": modalities, "audio": {"voice": voice, "format": audio_format}, "stream": stream}
    one = request(**wanted, n=1, tools=[], parallel_tool_calls=True)
    assert one.spoken == Speaking()


@pytest.mark.parametrize("wanted", [{}, {"modalities": None, "audio": None}, {"modalities": ["text"]}])
def test_an_answer_to_be_read(wanted: Wanted) -> None:
    assert request(chat(None), **wanted).spoken is None


VOICE_NAME = "expected a non-empty string of at most 64 bytes"
WRONG_VOICES = [
    (5, f"voice: {VOICE_NAME}, got a whole number"),
    (["alloy"], f"voice: {VOICE_NAME}, got an array"),
    ("", f"voice: {VOICE_NAME}, got an empty one"),
    ("é" * 33, f"voice: {VOICE_NAME}, got 66 bytes"),
    ({}, f"voice.id: {VOICE_NAME}, got null"),
    ({"id": ""}, f"voice.id: {VOICE_NAME}, got an empty one"),
    ({"id": 5}, f"voice.id: {VOICE_NAME}, got a whole number"),
    ({"id": "x" * 65}, f"voice.id: {VOICE_NAME}, got 65 bytes"),
]


@pytest.mark.parametrize(("voice", "expected"), WRONG_VOICES)
def test_what_is_no_voice(voice: object, expected: str) -> None:
    assert refusal(**{**AUDIO, "audio": {"format": "wav", "voice": voice}}) == f"audio.{expected}"
    with pytest.raises(RequestError) as raised:
        text_to_speech(Fields({"input": "Hello.", "voice": voice}), VOICE)
    assert (raised.value.fault, raised.value.message) == (Fault.BAD_REQUEST, expected)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"modalities": "audio"}, "modalities: expected an array of 1 to 2 modalities, got a string"),
        ({"modalities": []}, "modalities: expected an array of 1 to 2 modalities, got 0"),
        ({"modalities": ["audio"]}, 'modalities: expected ["text"] or ["text", "audio"], got others'),
        ({"modalities": ["text", "text"]}, 'modalities: expected ["text"] or ["text", "audio"], got others'),
        ({"modalities": ["text", 5]}, 'modalities: expected ["text"] or ["text", "audio"], got others'),
        ({"audio": None}, "audio: expected an object with voice and format, got null"),
        ({"audio": []}, "audio: expected an object, got an array"),
        ({"modalities": None}, 'audio: expected to be absent where modalities lack "audio"'),
        ({"modalities": ["text"]}, 'audio: expected to be absent where modalities lack "audio"'),
        ({"audio": {"voice": "alloy"}}, 'audio.format: expected "wav" or "pcm16", got null'),
        ({"audio": {"format": "mp3"}}, 'audio.format: expected "wav" or "pcm16", got "mp3"'),
        (
            {"audio": {"format": "wav"}, "stream": True},
            'audio.format: expected "pcm16" where stream is true, got "wav"',
        ),
        ({"n": 2}, "n: expected 1 where audio is asked for, got 2"),
        (
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            "tools: expected none where audio is asked for",
        ),
    ],
)
def test_what_speech_a_chat_cannot_have(wanted: Wanted, expected: str) -> None:
    assert refusal(**{**AUDIO, **wanted}) == expected


def test_a_daemon_without_a_voice_says_what_to_install() -> None:
    install = "since this daemon has no voice: its operator can pip install 'umaserve[speech]'"
    assert refusal(None, **AUDIO) == f'modalities: expected ["text"], {install}'
    with pytest.raises(RequestError, match=r"pip install 'umaserve\[speech\]'$"):
        text_to_speech(Fields({"input": "Hello."}), None)


# How it is told.


def pcm(*samples: float) -> bytes:
    return struct.pack(f"<{len(samples)}f", *samples)


def test_the_whole_answer_has_its_sound_and_its_transcript() -> None:
    body = chat()
    request(body, **AUDIO)
    thought = Token("<think>Hm.</think>Hel", 1, thoughts="Hm.", answer="Hel")
    outputs = (Started(), Placed(), Prefilled(5), thought, Spoken(pcm(0, 1)), Token("lo", 2))
    assert told(body, *outputs, Spoken(pcm(-1)), END) == []
    whole = json.loads(body.result())
    (choice,) = whole["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "audio": {
            "id": "audio_7",
            "expires_at": 1700000000,
            "data": base64.b64encode(struct.pack("<3h", 0, 32767, -32767)).decode(),
            "transcript": "Hello",
        },
    }
    assert choice["finish_reason"] == "stop"
    assert ChatCompletion.model_validate(whole).choices[0].message.audio is not None


def test_the_sound_may_be_a_wav_file() -> None:
    body = chat()
    request(body, **AUDIO | {"audio": {"format": "wav"}})
    told(body, Token("Hi", 1), Spoken(pcm(0, 1)), Spoken(pcm(0.5)), END)
    data = base64.b64decode(json.loads(body.result())["choices"][0]["message"]["audio"]["data"])
    assert samples_of(data) == [0, 32767, 16384]


def test_the_stream_of_an_answer_that_is_heard() -> None:
    body = chat()
    request(body, **AUDIO, stream=True)
    outputs = (Started(), Token("Hel", 1), Spoken(pcm(0, 0, 1)), Token("", 2), Token("lo", 3), Spoken(pcm(-1)), END)
    chunks = told(body, *outputs)
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {
            "role": "assistant",
            "content": None,
            "audio": {"id": "audio_7", "expires_at": 1700000000, "transcript": ""},
        },
        {"audio": {"transcript": "Hel"}},
        {"audio": {"data": base64.b64encode(struct.pack("<3h", 0, 0, 32767)).decode()}},
        {"audio": {"transcript": "lo"}},
        {"audio": {"data": base64.b64encode(struct.pack("<h", -32767)).decode()}},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 5 + ["stop"]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)


def test_the_log_probabilities_of_what_is_heard() -> None:
    scored = Logprobs(Scored(1, b"Hi", -0.5), ())
    for stream in (False, True):
        body = chat()
        request(body, **AUDIO, stream=stream, logprobs=True)
        chunks = told(body, Token("", 1, scored), Spoken(pcm(0)), END)
        choices = [chunk["choices"][0] for chunk in chunks] or json.loads(body.result())["choices"]
        (content,) = [choice["logprobs"]["content"] for choice in choices if choice["logprobs"]]
        assert [one["token"] for one in content] == ["Hi"]


def test_an_answer_without_a_sound_has_an_empty_one() -> None:
    body = chat()
    request(body, **AUDIO)
    told(body, Token("…", 1), END)
    audio = json.loads(body.result())["choices"][0]["message"]["audio"]
    assert (audio["data"], audio["transcript"]) == ("", "…")


@given(
    words=st.text("ab <think/>", max_size=40),
    sounds=st.lists(st.integers(0, 7), max_size=12),
    cuts=st.lists(st.integers(0, 40), max_size=6),
)
def test_the_stream_adds_up_to_the_whole(words: str, sounds: list[int], cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(words)) for cut in cuts), len(words)]
    tokens = [Token(words[start:end], 1) for start, end in itertools.pairwise(edges)]
    numbers = iter(range(100))
    spoken = [Spoken(pcm(*(next(numbers) / 200 for _ in range(n)))) for n in sounds]
    outputs = [output for pair in itertools.zip_longest(tokens, spoken) for output in pair if output is not None]
    streamed, whole = chat(), chat()
    request(streamed, **AUDIO, stream=True)
    request(whole, **AUDIO)
    assert told(whole, *outputs, END) == []
    expected = json.loads(whole.result())["choices"][0]["message"]["audio"]
    deltas = [chunk["choices"][0]["delta"].get("audio", {}) for chunk in told(streamed, Started(), *outputs, END)]
    for key in ("id", "transcript", "data"):
        # As OpenAI's own client puts them together: strings end to end, base64 too.
        assert "".join(delta.get(key, "") for delta in deltas) == expected[key]
    assert all(len(base64.b64decode(delta["data"])) % 2 == 0 for delta in deltas if "data" in delta)


# A text to be read aloud.


@pytest.mark.parametrize(
    ("fields", "file_format"),
    [
        ({}, "wav"),
        (dict.fromkeys(["model", "voice", "response_format", "speed", "instructions", "stream_format"]), "wav"),
        ({"model": "tts-1", "voice": "nova", "response_format": "wav", "speed": 1, "stream_format": "audio"}, "wav"),
        ({"voice": {"id": "voice_1"}}, "wav"),
        ({"voice": "default", "response_format": "pcm", "speed": 1.0, "instructions": ""}, "pcm"),
    ],
)
def test_a_text_to_be_read_aloud(fields: Wanted, file_format: str) -> None:
    assert text_to_speech(Fields({"input": "Hello.", **fields}), VOICE) == SpokenText("Hello.", file_format, None)


def test_a_text_may_come_in_events() -> None:
    events = text_to_speech(Fields({"input": "Hello.", "stream_format": "sse"}), VOICE).events
    assert events is not None
    delta = json.loads(events.delta(b"\0\xff"))
    assert (delta["type"], base64.b64decode(delta["audio"])) == ("speech.audio.delta", b"\0\xff")
    assert json.loads(events.done) == {"type": "speech.audio.done"}
    assert events.frame(events.done) == b"data: " + events.done + b"\n\n"


@pytest.mark.parametrize(
    ("wanted", "file_format", "compressed"),
    [
        (None, "mp3", "mp3"),
        ("mp3", "mp3", "mp3"),
        ("opus", "opus", "opus"),
        ("aac", "aac", "aac"),
        ("flac", "flac", "flac"),
        ("wav", "wav", None),
        ("pcm", "pcm", None),
    ],
)
def test_a_text_in_a_compressed_format(wanted: str | None, file_format: str, compressed: SoundFormat | None) -> None:
    asked = text_to_speech(Fields({"input": "Hello.", "response_format": wanted}), ENCODED)
    assert asked == SpokenText("Hello.", file_format, compressed)


def test_what_formats_there_are_is_told() -> None:
    with pytest.raises(RequestError) as raised:
        text_to_speech(Fields({"input": "Hello.", "response_format": "ogg"}), ENCODED)
    every = '"mp3" or "opus" or "aac" or "flac" or "wav" or "pcm"'
    assert raised.value.message == f'response_format: expected {every}, got "ogg"'


@pytest.mark.parametrize(("wanted", "compressed"), [("mp3", "mp3"), ("opus", "opus"), ("wav", None), ("pcm16", None)])
def test_a_chat_in_a_compressed_format(wanted: str, compressed: SoundFormat | None) -> None:
    body = chat(ENCODED)
    generate = request(body, **AUDIO | {"audio": {"format": wanted}})
    assert generate.spoken == Speaking(sound_format=compressed)
    if compressed is not None:
        told(body, Token("Hi", 1), Spoken(b"ab"), Spoken(b"c"), END)
        audio = json.loads(body.result())["choices"][0]["message"]["audio"]
        assert base64.b64decode(audio["data"]) == b"abc"
        expected = 'audio.format: expected "pcm16" where stream is true, got '
        assert refusal(ENCODED, **AUDIO | {"audio": {"format": wanted}, "stream": True}).startswith(expected)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"input": None}, "input: expected a non-empty string, got null"),
        ({"input": ""}, "input: expected a non-empty string, got an empty one"),
        ({"input": "é" * 4097}, "input: expected at most 4096 characters, got 4097 characters"),
        ({"model": 5}, "model: expected a string of at most 256 bytes, got a whole number"),
        ({"response_format": "mp3"}, 'response_format: expected "wav" or "pcm", got "mp3"'),
        ({"stream_format": "raw"}, 'stream_format: expected "audio" or "sse", got "raw"'),
        ({"speed": 1.5}, "speed: expected 1, the only speed of this daemon's voice, got a number"),
        ({"speed": "1"}, "speed: expected 1, the only speed of this daemon's voice, got a string"),
        ({"speed": True}, "speed: expected 1, the only speed of this daemon's voice, got a boolean"),
        ({"instructions": 5}, "instructions: expected a string of at most 16384 bytes, got a whole number"),
    ],
)
def test_a_text_that_is_not_read_aloud(fields: Wanted, expected: str) -> None:
    with pytest.raises(RequestError) as raised:
        text_to_speech(Fields({"input": "Hello.", **fields}), VOICE)
    assert (raised.value.fault, raised.value.message) == (Fault.BAD_REQUEST, expected)


def test_the_longest_text() -> None:
    assert text_to_speech(Fields({"input": "é" * 4096}), VOICE).text == "é" * 4096


def test_the_voice_follows_no_instructions() -> None:
    plain, whispered = ({"input": "Hello.", **more} for more in ({}, {"instructions": "Whisper."}))
    assert text_to_speech(Fields(plain), VOICE) == text_to_speech(Fields(whispered), VOICE)


# The sound itself.


def samples_of(data: bytes) -> list[int]:
    with wave.open(io.BytesIO(data)) as read:
        assert read.getparams()[:3] == (1, 2, 24_000)
        assert read.getnframes() == (len(data) - 44) // 2
        return list(struct.unpack(f"<{read.getnframes()}h", read.readframes(read.getnframes())))


@given(st.lists(st.integers(-32768, 32767), max_size=20))
def test_a_wav_file_is_read_by_others(samples: list[int]) -> None:
    assert samples_of(wav(struct.pack(f"<{len(samples)}h", *samples))) == samples


def test_the_header_of_a_stream_leaves_the_sizes_open() -> None:
    header = wav_header(UNKNOWN_SIZE)
    assert header[4:8] == header[40:44] == b"\xff" * 4
    assert header[:4] + header[8:40] + header[44:] == (wav(b"")[:4] + wav(b"")[8:40])


@given(st.lists(st.floats(-2, 2, width=32), max_size=20))
def test_samples_are_the_nearest_numbers_and_never_wrap(samples: list[float]) -> None:
    numbers = struct.unpack(f"<{len(samples)}h", pcm16(pcm(*samples)))
    for number, sample in zip(numbers, samples, strict=True):
        assert math.isclose(number, np.clip(sample * 32767, -32768, 32767), abs_tol=0.51)
