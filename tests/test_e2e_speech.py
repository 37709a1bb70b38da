"""The installed voice: what it says can be understood, by a speech recognizer too."""

from __future__ import annotations

import socket

import numpy as np
import numpy.typing as npt
import pytest

from umaserve.speech.hibari_voice import HibariVoice
from umaserve.speech.voice import SAMPLE_RATE

pytest.importorskip("hibari", reason="hibari-tts is not installed")

TEXT = "The quick brown fox jumps over the lazy dog."
RECOGNIZED_RATE = 16_000


@pytest.fixture(scope="module")
def voice() -> HibariVoice:
    return HibariVoice()


def resampled(samples: npt.NDArray[np.float32], rate: int) -> npt.NDArray[np.float32]:
    """At the lower ``rate``, without what it can't hold: cut off in the spectrum."""
    n = len(samples) * rate // SAMPLE_RATE
    return (np.fft.irfft(np.fft.rfft(samples)[: n // 2 + 1], n) * (n / len(samples))).astype(np.float32)


def recognized(samples: npt.NDArray[np.float32]) -> list[str]:
    pocketsphinx = pytest.importorskip("pocketsphinx", reason="pocketsphinx is not installed")
    decoder = pocketsphinx.Decoder(samprate=RECOGNIZED_RATE, loglevel="FATAL")
    decoder.start_utt()
    # Quiet before and behind it, as a recording has.
    quiet = np.zeros(RECOGNIZED_RATE // 4, np.float32)
    sound = np.concatenate([quiet, resampled(samples, RECOGNIZED_RATE), quiet])
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
    assert sum(word in understood for word in words) >= 0.6 * len(words), understood


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
