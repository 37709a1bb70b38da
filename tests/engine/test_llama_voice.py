"""Pocket TTS and Qwen3-TTS in llama.cpp, whole but for the size and the sense of their weights: see ``tiny_voices`` and
``tiny_qwen3_voices``. Real weights are tried by hand."""

from __future__ import annotations

import base64
import logging
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_qwen3_voices import write_qwen3_voice
from tiny_voices import FRAME, TEXT, config, no_pause, tone, write_voice

from umaserve.core.errors import Fault, ModelError, RequestError
from umaserve.core.events import Finished, FinishReason, Output, Spoken, Token, Usage
from umaserve.core.requests import Audio, Speaking
from umaserve.engine.llama.model import find
from umaserve.engine.media import graph_pauses
from umaserve.engine.tts import llama_voice
from umaserve.engine.tts.llama_voice import FRAMES_A_SECOND, MAX_HEARD_S, MAX_S, MAX_S_A_CHARACTER, LlamaVoice
from umaserve.speech.sentences import LIMIT
from umaserve.speech.voice import SAMPLE_RATE, Samples
from umaserve.stages.spoken import Speech
from umaserve.system.threads import JobThread

TAIL_FRAMES = 3
"""Behind the one that ends a text of some tokens; llama.cpp drops that one."""


Write = Callable[..., tuple[str, str]]


def loaded(write: Write, folder: Path, **options: Any) -> LlamaVoice:
    voice = LlamaVoice(config(write(folder, **options)))
    voice.load()
    return voice


@pytest.fixture(scope="module", params=[write_voice, write_qwen3_voice], ids=["pocket", "qwen3"])
def write(request: pytest.FixtureRequest) -> Write:
    made: Write = request.param
    return made


pocket_alone = pytest.mark.parametrize("write", [write_voice], indirect=True, ids=["pocket"])


@pytest.fixture(scope="module")
def voice(write: Write, tmp_path_factory: pytest.TempPathFactory):
    made = loaded(write, tmp_path_factory.mktemp("voice"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def endless(write: Write, tmp_path_factory: pytest.TempPathFactory):
    made = loaded(write, tmp_path_factory.mktemp("endless"), ends=False)
    yield made
    made.close()


@pocket_alone
@pytest.mark.parametrize("speaker", [None, tone(1.0)], ids=["nobody", "somebody"])
def test_a_text_becomes_whole_frames_of_sound(voice: LlamaVoice, speaker: Samples | None) -> None:
    samples = voice.speak(TEXT, speaker, "", no_pause)
    assert (samples.dtype, samples.shape) == (np.float32, (TAIL_FRAMES * FRAME,))
    assert np.isfinite(samples).all()
    assert 0 < np.abs(samples).max() <= 1
    assert SAMPLE_RATE == FRAME * FRAMES_A_SECOND


def test_the_same_text_and_speaker_give_the_same_sound(write: Write, voice: LlamaVoice, tmp_path: Path) -> None:
    first = voice.speak(TEXT, None, "", no_pause)
    assert np.array_equal(voice.speak(TEXT, None, "", no_pause), first)
    by_another = voice.speak(TEXT, tone(1.0), "", no_pause)
    other_text = voice.speak("Good bye.", None, "", no_pause)
    assert np.array_equal(voice.speak(TEXT, None, "", no_pause), first)
    assert np.array_equal(voice.speak(TEXT, tone(1.0), "", no_pause), by_another)
    again = loaded(write, tmp_path)
    assert np.array_equal(again.speak(TEXT, None, "", no_pause), first)
    again.close()
    assert not np.array_equal(other_text, first)


def test_each_speaker_sounds_different(voice: LlamaVoice) -> None:
    sounds = [voice.speak(TEXT, speaker, "", no_pause) for speaker in (None, tone(1.0), tone(1.0, 300.0), tone(0.01))]
    assert len({sound.tobytes() for sound in sounds}) == len(sounds)


def test_a_voice_of_its_own_speaks_for_whoever_asks_for_no_other(
    write: Write, voice: LlamaVoice, tmp_path: Path
) -> None:
    own = LlamaVoice(config(write(tmp_path)), tone(1.0))
    own.load()
    assert np.array_equal(own.speak(TEXT, None, "", no_pause), voice.speak(TEXT, tone(1.0), "", no_pause))
    assert np.array_equal(
        own.speak(TEXT, tone(1.0, 300.0), "", no_pause), voice.speak(TEXT, tone(1.0, 300.0), "", no_pause)
    )
    own.close()


def test_of_a_long_recording_only_the_beginning_is_heard(voice: LlamaVoice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_voice, "MAX_HEARD_S", 1)
    short, long = tone(1.0), np.concatenate([tone(1.0), tone(2.0, 300.0)])
    assert np.array_equal(voice.speak(TEXT, short, "", no_pause), voice.speak(TEXT, long, "", no_pause))


@pocket_alone
@pytest.mark.parametrize(
    "text",
    ["a", "\x00", "\ud800", "日本語。", "😀", "9" * LIMIT, "日" * LIMIT, "<|audio_bos|>"],
    ids=["a", "nul", "surrogate", "other script", "emoji", "digits", "long in bytes", "control"],
)
def test_odd_text_gives_sound_too(voice: LlamaVoice, text: str) -> None:
    samples = voice.speak(text, tone(0.5), "", no_pause)
    assert len(samples) in (TAIL_FRAMES * FRAME, (TAIL_FRAMES + 2) * FRAME)
    assert np.isfinite(samples).all()


@pocket_alone
def test_a_text_of_several_sentences_is_spoken_in_parts(voice: LlamaVoice) -> None:
    sentence = "This is a sentence of some forty letters. "
    assert len(voice.speak(sentence * 4, tone(0.5), "", no_pause)) == 4 * TAIL_FRAMES * FRAME


@pytest.mark.parametrize("text", ["", " ", "\n\t "])
def test_nothing_to_say_gives_no_samples(voice: LlamaVoice, text: str) -> None:
    assert len(voice.speak(text, None, "", no_pause)) == 0


@pytest.mark.parametrize("length", [20, LIMIT])
def test_a_voice_that_finds_no_end_is_stopped(endless: LlamaVoice, length: int) -> None:
    samples = endless.speak("9" * length, None, "", no_pause)
    assert len(samples) == int((MAX_S + MAX_S_A_CHARACTER * length) * FRAMES_A_SECOND) * FRAME
    assert np.isfinite(samples).all()


@pocket_alone
def test_the_longest_text_and_recording_have_room(endless: LlamaVoice) -> None:
    samples = endless.speak("9" * LIMIT, tone(MAX_HEARD_S + 1.0), "", no_pause)
    assert len(samples) == int((MAX_S + MAX_S_A_CHARACTER * LIMIT) * FRAMES_A_SECOND) * FRAME


def test_what_is_no_number_is_not_heard(tmp_path: Path) -> None:
    voice = loaded(write_voice, tmp_path, nan=True)
    samples = voice.speak(TEXT, None, "", no_pause)
    voice.close()
    assert len(samples) == TAIL_FRAMES * FRAME
    assert np.isfinite(samples).all()


def test_an_ordinary_sentence_warns_of_nothing(voice: LlamaVoice, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        voice.speak(TEXT, tone(1.0), "", no_pause)
    assert caplog.records == []


class Interrupted(Exception):
    pass


def test_it_ends_at_any_pause_and_speaks_as_before_afterwards(
    voice: LlamaVoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_pauses, "SLICE_S", 0.0)
    speaker = tone(0.5)
    pauses = 0

    def pause() -> None:
        nonlocal pauses
        pauses += 1
        if pauses == last:
            raise Interrupted

    last = 0
    whole = voice.speak(TEXT, speaker, "", pause)
    most = pauses
    assert most > 50, "the encoding of the recording and the making of sound have pauses within"
    for last in [*range(1, most, most // 10), most]:
        pauses = 0
        with pytest.raises(Interrupted):
            voice.speak(TEXT, speaker, "", pause)
        assert pauses == last, "nothing is asked for after the end"
    assert np.array_equal(voice.speak(TEXT, speaker, "", no_pause), whole)


def test_of_light_nodes_only_each_sixteenth_is_stopped_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_pauses, "_elements", lambda tensor: tensor)
    light, heavy = graph_pauses.LIGHT_ELEMENTS, graph_pauses.LIGHT_ELEMENTS + 1
    pauses = graph_pauses.GraphPauses()
    stops = [pauses._on_node(node, True, None) for node in [heavy, *[light] * 16, heavy, *[light] * 15, heavy]]
    assert stops == [True, *[False] * 15, True, True, *[False] * 15, True]


@pytest.mark.parametrize(
    ("variant", "language"),
    [("english", "en"), ("english_2026-04", "en"), ("french_24l", "fr"), ("german", "de"), ("klingon", "en")],
)
def test_what_it_speaks_is_known_by_the_name_of_its_weights(tmp_path: Path, variant: str, language: str) -> None:
    voice = loaded(write_voice, tmp_path, variant=variant)
    voice.close()
    assert (voice.languages, voice.clones) == ((language,), True)


def test_files_that_are_no_voice_are_refused_by_the_name_of_their_flag(tmp_path: Path) -> None:
    good = write_voice(tmp_path)
    (tmp_path / "text.gguf").write_text("not a GGUF file at all, but long enough to be read as one")
    text, missing = str(tmp_path / "text.gguf"), str(tmp_path / "missing.gguf")
    for folder in ("deaf", "dumb", "wide", "other"):
        (tmp_path / folder).mkdir()
    deaf = write_voice(tmp_path / "deaf", hears=False)
    dumb = write_voice(tmp_path / "dumb", speaks=False)
    wide = write_voice(tmp_path / "wide", width=64)
    other = write_qwen3_voice(tmp_path / "other")
    for files, flag, problem in [
        ((missing, good[1]), "--tts-model: ", "missing.gguf"),
        ((text, good[1]), "--tts-model: ", "text.gguf"),
        ((good[1], good[1]), "--tts-model: ", "could not load it"),
        ((find(""), good[1]), "--tts-model ", 'its architecture is "llama": choose a Pocket TTS or Qwen3-TTS model'),
        ((good[0], missing), "--tts-mmproj: ", "missing.gguf"),
        ((good[0], text), "--tts-mmproj: ", "text.gguf"),
        ((good[0], good[0]), "--tts-mmproj ", "could not load it"),
        ((good[0], deaf[1]), "--tts-mmproj ", "could not load it"),
        ((wide[0], good[1]), "--tts-mmproj ", "could not load it"),
        ((good[0], dumb[1]), "--tts-mmproj ", "it does not speak: choose the mmproj of a Pocket TTS or Qwen3-TTS"),
        ((good[0], other[1]), "--tts-mmproj ", "it belongs to a Qwen3-TTS model, and"),
        ((other[0], good[1]), "--tts-mmproj ", "it belongs to a Pocket TTS model, and"),
    ]:
        voice = LlamaVoice(config(files))
        with pytest.raises(ModelError) as caught:
            voice.load()
        message = str(caught.value)
        assert message.startswith(flag), message
        assert problem in message
        assert "\n" not in message
        voice.close()


# With the daemon's parts around it.


class Compute:
    """A compute thread, and what an answer that is spoken on it delivers."""

    def __init__(self, voice: LlamaVoice) -> None:
        self.wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.thread = JobThread("compute", lambda: self.wakes.put(None))
        self.speech = Speech(voice, lambda: None, self.thread)
        self.outputs: list[Output | RequestError] = []

    def run(self) -> None:
        while not self.speech.idle:
            self.wakes.get()
            self.thread.collect()

    def close(self) -> None:
        assert self.thread.stop(60)


@pytest.fixture
def compute(voice: LlamaVoice):
    made = Compute(voice)
    yield made
    made.close()


DONE = Finished(FinishReason.STOP, Usage(1, 2))
RECORDING = Audio(base64.b64encode(tone(0.5).tobytes()).decode(), "tts.ref_audio_data", SAMPLE_RATE)


def test_an_answer_is_spoken_on_the_compute_thread_while_ticks_run(compute: Compute) -> None:
    order: list[str] = []
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        if compute.speech.idle or ticks == 10:
            order.append("last tick")
        else:
            compute.thread.submit(tick, lambda result: None)

    compute.thread.submit(tick, lambda result: None)
    answer = compute.speech.answer(lambda output: order.append(type(output).__name__), Speaking(RECORDING))
    answer.take(Token("Hello there.\nGood", 1))
    answer.take(DONE)
    compute.run()
    assert order == ["Token", "last tick", "Spoken", "Spoken", "Finished"]


def heard(compute: Compute, speaker: Audio | None) -> bytes:
    compute.outputs.clear()
    answer = compute.speech.answer(compute.outputs.append, Speaking(speaker))
    answer.take(Token("Hello there.", 1))
    answer.take(DONE)
    compute.run()
    return b"".join(output.sound for output in compute.outputs if isinstance(output, Spoken))


def test_the_speaker_of_an_answer_is_heard(compute: Compute) -> None:
    own, cloned = heard(compute, None), heard(compute, RECORDING)
    assert own != cloned
    assert all(sound and len(sound) % (FRAME * 4) == 0 for sound in (own, cloned))


def test_a_bad_recording_ends_the_answer_as_the_clients_mistake_before_there_is_any(compute: Compute) -> None:
    compute.outputs.clear()
    compute.speech.answer(compute.outputs.append, Speaking(Audio("!", "tts.ref_audio_data", 16_000)))
    compute.run()
    error = compute.outputs[-1]
    assert isinstance(error, RequestError)
    assert error.fault is Fault.BAD_REQUEST
    assert error.message.startswith("tts.ref_audio_data: expected base64")
