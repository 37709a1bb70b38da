"""The installed voice: what it says can be understood, by a speech recognizer too, over OpenAI's API as well."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import socket
import wave
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import openai
import pytest
from daemon import ANSWER_S, Daemon, serving
from http_wire import Http, ask, encode
from openapi_document import POSTS, check_answer

from umaserve.media import sound_decoder
from umaserve.speech.hibari_voice import HibariVoice
from umaserve.speech.voice import SAMPLE_RATE

pytest.importorskip("hibari", reason="hibari-tts is not installed")

TEXT = "The quick brown fox jumps over the lazy dog."
RECOGNIZED_RATE = 16_000


@pytest.fixture(scope="module")
def voice() -> HibariVoice:
    return HibariVoice()


def resampled(samples: npt.NDArray[np.float32], rate: int, own_rate: int) -> npt.NDArray[np.float32]:
    """At the lower ``rate``, without what it can't hold: cut off in the spectrum."""
    n = len(samples) * rate // own_rate
    return (np.fft.irfft(np.fft.rfft(samples)[: n // 2 + 1], n) * (n / len(samples))).astype(np.float32)


def likeness(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    """The normalized correlation of two sounds, however far one is behind the other: 1 for the same one."""
    n = len(one) + len(other)
    correlation = np.fft.irfft(np.fft.rfft(one, n) * np.fft.rfft(other, n).conj(), n)
    return float(correlation.max() / np.sqrt(np.sum(one**2) * np.sum(other**2)))


def recognized(samples: npt.NDArray[np.float32]) -> list[str]:
    pocketsphinx = pytest.importorskip("pocketsphinx", reason="pocketsphinx is not installed")
    decoder = pocketsphinx.Decoder(samprate=RECOGNIZED_RATE, loglevel="FATAL")
    decoder.start_utt()
    # Quiet before and behind it, as a recording has.
    quiet = np.zeros(RECOGNIZED_RATE // 4, np.float32)
    sound = np.concatenate([quiet, resampled(samples, RECOGNIZED_RATE, SAMPLE_RATE), quiet])
    decoder.process_raw((sound * 32767).astype("<i2").tobytes(), full_utt=True)
    decoder.end_utt()
    hypothesis = decoder.hyp()
    return hypothesis.hypstr.split() if hypothesis is not None else []


@pytest.mark.parametrize(
    "text", [TEXT, "She had your dark suit in greasy wash water all year.", "One, two, three, four, five, six, seven."]
)
def test_what_is_spoken_is_understood(voice: HibariVoice, text: str) -> None:
    words = text.lower().replace(",", "").rstrip(".").split()
    understood = recognized(voice.speak(text))
    # The small recognizer mistakes some, other ones on other processors; of anything else it understands hardly one.
    assert sum(word in understood for word in words) >= 0.4 * len(words), understood


def test_samples_have_the_length_and_the_level_of_speech(voice: HibariVoice) -> None:
    samples = voice.speak(TEXT)
    assert (samples.dtype, samples.ndim) == (np.float32, 1)
    assert 1.5 < len(samples) / SAMPLE_RATE < 4.5
    assert 0.01 < float(np.sqrt(np.mean(samples**2))) < 0.3
    assert 0.1 < float(np.abs(samples).max()) <= 1
    # Speech at another rate than it says would have its pitch elsewhere: this speaker's voice is at some 200 Hz.
    strength = np.abs(np.fft.rfft(samples))
    pitch = np.fft.rfftfreq(len(samples), 1 / SAMPLE_RATE)
    assert 140 < pitch[(pitch > 60) & (pitch < 350)][np.argmax(strength[(pitch > 60) & (pitch < 350)])] < 280


def test_a_sentence_begins_at_once_and_has_a_short_pause_behind_it(voice: HibariVoice) -> None:
    samples = voice.speak(TEXT)
    audible = np.flatnonzero(np.abs(samples) > 0.01)
    assert audible[0] / SAMPLE_RATE < 0.1
    assert 0.2 < (len(samples) - audible[-1]) / SAMPLE_RATE < 0.5


def test_the_same_text_gives_the_same_audio(voice: HibariVoice) -> None:
    first = voice.speak(TEXT)
    voice.speak("Something else.")
    assert np.array_equal(first, voice.speak(TEXT))
    assert np.array_equal(first, HibariVoice().speak(TEXT))


@pytest.mark.parametrize("text", ["", " ", "...", "?!", "你好。", "Привет, мир!", "مرحبا", "😀", "\x00", "\ud800", "$"])
def test_text_without_a_sound_in_english_gives_none(voice: HibariVoice, text: str) -> None:
    assert len(voice.speak(text)) == 0


def test_a_foreign_word_costs_nobody_the_rest(voice: HibariVoice) -> None:
    with_it, without = voice.speak("The word 你好 is a greeting."), voice.speak("The word is a greeting.")
    assert np.array_equal(with_it, without)


@pytest.mark.parametrize(
    "text",
    [
        "9" * 200,
        "1,000" * 40,
        "①⁴ ⅓ ²½ ٣ १",
        "%" * 200,
        "W" * 200,
        "1/2 " * 50,
        "[a](/zzz/)",
        "10:75 1e400 -",
        "Łódź naïve π",
    ],
    ids=lambda text: text[:6],
)
def test_odd_text_gives_samples_too(voice: HibariVoice, text: str) -> None:
    samples = voice.speak(text)
    assert np.isfinite(samples).all()
    assert 0 < np.abs(samples).max() <= 1


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection to elsewhere")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
def test_nothing_is_fetched() -> None:
    assert len(HibariVoice().speak("Xylophonist Zyxqtwv, by herself."))


# Over OpenAI's API.

LONG = " ".join([TEXT] * 8)
# A grammar leaves the model one answer: two runs' free texts may part where a guess was verified, since llama.cpp
# rounds otherwise in a larger batch.
STORY = "A crow sat in a tree. A fox came by and praised her song. She sang, and lost her cheese."
ALOUD = {
    "messages": [{"role": "user", "content": "Tell me a story of a fox and a crow."}],
    "max_completion_tokens": 64,
    "temperature": 0,
    "modalities": ["text", "audio"],
    "extra_body": {"grammar": f'root ::= "{STORY}"'},
}


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> Iterator[openai.OpenAI]:
    base_url = f"http://{daemon.http}/v1"
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=ANSWER_S) as client:
        yield client


def samples(sound: bytes) -> npt.NDArray[np.float32]:
    return np.frombuffer(sound, "<i2").astype(np.float32) / 32767


def samples_of_file(data: bytes) -> npt.NDArray[np.float32]:
    with wave.open(io.BytesIO(data)) as read:
        assert (read.getnchannels(), read.getsampwidth(), read.getframerate()) == (1, 2, SAMPLE_RATE)
        return samples(read.readframes((len(data) - 44) // 2))


def test_a_text_is_read_aloud_and_understood(client: openai.OpenAI, voice: HibariVoice) -> None:
    spoken = client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT, response_format="wav")
    assert spoken.response.headers["content-type"] == "audio/wav"
    assert spoken.content[4:8] == b"\xff" * 4
    heard = samples_of_file(spoken.content)
    assert np.abs(heard - voice.speak(TEXT)).max() <= 1 / 32767
    assert sum(word in recognized(heard) for word in ("quick", "brown", "fox", "jumps", "lazy", "dog")) >= 4


def test_a_text_comes_as_its_sentences_are_spoken(client: openai.OpenAI, daemon: Daemon) -> None:
    asked = {"model": "tts-1", "voice": "default", "input": f"It rains. {TEXT}", "response_format": "pcm"}
    with client.audio.speech.with_streaming_response.create(**asked) as response:
        assert response.headers["content-type"] == "audio/pcm"
        assert response.headers["transfer-encoding"] == "chunked"
        whole = b"".join(response.iter_bytes())
    with Http(daemon.http) as http:
        http.send(encode("POST", "/v1/audio/speech", asked))
        while (line := http.file.readline()) != b"\r\n":
            assert line, "the head ends with an empty line"
        first = http.file.read(int(http.file.readline(), 16))
    assert whole.startswith(first)
    assert 0 < len(first) < len(whole) / 2


def test_a_text_comes_in_events(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tts-1", "voice": "default", "input": f"It rains. {TEXT}"}
    asked["response_format"] = "wav"
    whole = client.audio.speech.create(**asked).content
    with client.audio.speech.with_streaming_response.create(**asked, stream_format="sse") as response:
        assert response.headers["content-type"] == "text/event-stream"
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    *deltas, done = map(json.loads, lines)
    assert len(deltas) > 1
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == whole
    assert done == {"type": "speech.audio.done"}
    for event in (*deltas, done):
        check_answer(event, POSTS["/v1/audio/speech"]["responses"]["200"]["content"]["text/event-stream"]["x-event"])


@pytest.mark.parametrize(
    ("asked", "content_type"),
    [
        ({}, "audio/mpeg"),
        ({"response_format": "opus"}, "audio/ogg; codecs=opus"),
        ({"response_format": "aac"}, "audio/aac"),
        ({"response_format": "flac"}, "audio/flac"),
    ],
)
def test_a_text_in_a_compressed_format_is_the_same_speech(
    client: openai.OpenAI, voice: HibariVoice, asked: dict[str, Any], content_type: str
) -> None:
    pytest.importorskip("av", reason="no media packages are installed (umaserve[media])")
    spoken = client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT, **asked)
    assert spoken.response.headers["content-type"] == content_type
    heard, rate = sound_decoder.decode(io.BytesIO(spoken.content))
    assert likeness(heard if rate == SAMPLE_RATE else resampled(heard, SAMPLE_RATE, rate), voice.speak(TEXT)) > 0.9


def test_an_answer_is_heard_in_a_compressed_format(client: openai.OpenAI) -> None:
    pytest.importorskip("av", reason="no media packages are installed (umaserve[media])")
    lengths = []
    for audio_format in ("wav", "opus", "mp3"):
        audio = {"voice": "verse", "format": audio_format}
        message = client.chat.completions.create(model="m", audio=audio, **ALOUD).choices[0].message
        heard, rate = sound_decoder.decode(io.BytesIO(base64.b64decode(message.audio.data)))
        lengths.append(len(heard) / rate)
    assert lengths[1:] == pytest.approx(lengths[:1] * 2, abs=0.1)


def test_a_request_that_its_voice_cannot_do(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT, response_format="midi")
    assert refused.value.param == "response_format"
    with pytest.raises(openai.BadRequestError) as refused:
        client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT, speed=2)
    assert refused.value.param == "speed"


def test_an_answer_is_heard(client: openai.OpenAI, voice: HibariVoice) -> None:
    answer = client.chat.completions.create(model="m", audio={"voice": "verse", "format": "wav"}, **ALOUD)
    message = answer.choices[0].message
    assert message.content is None
    assert message.audio is not None
    assert message.audio.transcript == STORY
    heard = samples_of_file(base64.b64decode(message.audio.data))
    assert len(heard) > SAMPLE_RATE
    assert 0.01 < np.abs(heard).max() <= 1


def test_an_answer_is_heard_while_it_is_written(client: openai.OpenAI) -> None:
    audio = {"voice": "alloy", "format": "pcm16"}
    whole = client.chat.completions.create(model="m", audio=audio, **ALOUD).choices[0].message.audio
    assert whole is not None
    chunks = list(client.chat.completions.create(model="m", audio=audio, stream=True, **ALOUD))
    deltas = [chunk.choices[0].delta.to_dict().get("audio", {}) for chunk in chunks]
    assert [delta["id"] for delta in deltas if "id" in delta] == [chunks[0].id.replace("chatcmpl-", "audio_")]
    assert "".join(delta.get("transcript", "") for delta in deltas) == whole.transcript == STORY
    assert "".join(delta.get("data", "") for delta in deltas) == whole.data
    assert sum("data" in delta for delta in deltas) > 1
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_streams_of_texts_and_answers_are_spoken_side_by_side(daemon: Daemon) -> None:
    async def all_of_them() -> list[int]:
        base_url = f"http://{daemon.http}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", timeout=ANSWER_S) as client:
            asked = {"model": "tts-1", "voice": "alloy", "input": "One. Two. Three.", "response_format": "pcm"}
            texts = [client.audio.speech.create(**asked) for _ in range(3)]
            chat = client.chat.completions.create(model="m", audio={"voice": "alloy", "format": "pcm16"}, **ALOUD)
            *spoken, answered = await asyncio.gather(*texts, chat)
            return [len(one.content) for one in spoken] + [len(answered.choices[0].message.audio.data)]

    *lengths, of_the_answer = asyncio.run(all_of_them())
    assert len(set(lengths)) == 1
    assert min(*lengths, of_the_answer) > 0


def test_who_leaves_is_read_no_more(own_daemon) -> None:
    daemon = own_daemon("--http", "127.0.0.1:0")
    with Http(daemon.http) as http:
        http.send(encode("POST", "/v1/audio/speech", {"input": LONG}))
        assert http.file.readline() == b"HTTP/1.1 200 OK\r\n"
    assert daemon.stop() == 0
    assert re.findall(r"text read aloud .* end=(\w+)", daemon.logs) == ["abandoned"]


def test_a_daemon_that_ends_reads_to_the_end_and_begins_nothing_new(own_daemon) -> None:
    daemon = own_daemon("--http", "127.0.0.1:0", "--drain-timeout", "60")
    with Http(daemon.http) as http, Http(daemon.http) as other:
        http.send(encode("POST", "/v1/audio/speech", {"input": LONG, "response_format": "pcm"}))
        assert http.file.readline() == b"HTTP/1.1 200 OK\r\n"
        daemon.process.terminate()
        while "draining" not in daemon.logs:
            assert daemon.process.poll() is None
        refused = other.ask("POST", "/v1/audio/speech", {"input": TEXT})
        assert (refused.status, refused.error["code"]) == (503, "shutting_down")
        rest = http.rest()
    assert rest.endswith(b"\r\n0\r\n\r\n")
    assert len(rest) > 2 * SAMPLE_RATE * 4
    assert daemon.process.wait(ANSWER_S) == 0


def test_the_operators_filter_is_asked_about_texts(tmp_path_factory: pytest.TempPathFactory) -> None:
    patterns = tmp_path_factory.mktemp("filter") / "patterns"
    patterns.write_text("forbidden\n")
    for daemon in serving(tmp_path_factory, "--content-filter", str(patterns)):
        asked = [
            ask(daemon, "POST", "/v1/audio/speech", {"input": f"This is {what}."}) for what in ("forbidden", "fine")
        ]
        assert [answer.status for answer in asked] == [400, 200]
        assert asked[0].error["message"] == "input: contains text that this server does not allow"


def test_a_reading_counts_as_a_request(tmp_path_factory: pytest.TempPathFactory) -> None:
    for daemon in serving(tmp_path_factory, "--rate-requests", "1"):
        statuses = [ask(daemon, "POST", "/v1/audio/speech", {"input": "Yes."}).status for _ in range(2)]
        assert statuses == [200, 429]
