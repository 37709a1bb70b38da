"""The voice of the ``hibari-tts`` package: American English, many times faster than real time on one core."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

import numpy as np
import regex

from umaserve.speech.voice import SAMPLE_RATE, Samples
from umaserve.system.threads import YieldPoint

_MAX_PHONEMES = 250
"""Per run of the model, whose memory use grows with them: about 15 s of speech. hibari splits only at punctuation."""
_LEAD = SAMPLE_RATE // 20
_TRAIL = SAMPLE_RATE * 35 // 100
"""Samples of silence kept before and after the speech. The model makes about 0.3 s and 0.5 s, which delays the first
word and makes the pauses between sentences too long."""
_AUDIBLE = 0.003

_OTHER_SCRIPTS = regex.compile(r"[^\p{Latin}\p{Greek}\p{Common}\p{Inherited}]+")
# hibari raises IndexError for longer numbers, and ValueError for characters that only str.isdigit takes as digits.
_LONG_NUMBER = re.compile(r"\d[\d,]{15,}")
_ODD_DIGIT = regex.compile(r"[\p{No}--²³¼½¾]", regex.VERSION1)


class HibariVoice:
    """Loads its model (0.6 s, 160 MiB) on the first call of ``speak``, on the caller's thread. Downloads nothing.

    Words in scripts other than Latin and Greek are skipped, so that one of them doesn't cost the rest of the sentence.
    Text with no other words gives no samples.
    """

    name = "hibari-tts"
    languages = ("en",)
    clones = False

    def __init__(self) -> None:
        self._hibari: Any = None

    def speak(
        self, text: str, speaker: Samples | None = None, language: str = "", pause: YieldPoint | None = None
    ) -> Samples:
        """Mono samples at ``SAMPLE_RATE``, within [-1, 1]; the same text gives the same samples. Never calls ``pause``:
        its thread has no other work."""
        assert speaker is None, "a voice that can't be another's"
        if self._hibari is None:
            self._hibari = _load()
        noise = np.random.default_rng(0)
        parts = [_trimmed(self._hibari.from_ids(ids, rng=noise)) for ids in self._phonemes(text)]
        if not parts:
            return np.zeros(0, np.float32)
        samples: Samples = np.nan_to_num(np.concatenate(parts))
        return samples.clip(-1, 1)

    def _phonemes(self, text: str) -> Iterator[list[int]]:
        text = _OTHER_SCRIPTS.sub(" ", text)
        text = _LONG_NUMBER.sub(lambda number: " ".join(number[0].replace(",", "")), text)
        text = _ODD_DIGIT.sub(lambda digit: f" {unicodedata.normalize('NFKC', digit[0])} ", text)
        for sentence in self._hibari.phonemize(text):
            while sentence:
                end = len(sentence)
                if end > _MAX_PHONEMES:
                    end = sentence.rfind(" ", 1, _MAX_PHONEMES) + 1 or _MAX_PHONEMES
                part, sentence = sentence[:end], sentence[end:]
                # From punctuation alone the model makes noise.
                if any(map(str.isalpha, part)):
                    yield self._hibari.ids(part)


def _load() -> Any:
    # Imported late: only daemons that speak pay for it, and the package may not be installed.
    from hibari import Hibari
    from hibari.voices import voice_path

    return Hibari(model=voice_path("heart", download_missing=False), threads=1)


def _trimmed(samples: Samples) -> Samples:
    audible = np.flatnonzero(np.abs(samples) > _AUDIBLE)
    if not len(audible):
        return samples[:0]
    return samples[max(audible[0] - _LEAD, 0) : audible[-1] + _TRAIL]
