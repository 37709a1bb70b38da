"""What is specific to Pocket TTS among the voices that llama.cpp computes."""

from __future__ import annotations

from typing import Any

import llama_cpp
from llama_cpp import mtmd_cpp

from umaserve.engine.llama.model import Model
from umaserve.speech.voice import Samples

_LANGUAGES = {"english": "en", "french": "fr", "german": "de", "italian": "it", "portuguese": "pt", "spanish": "es"}
"""Languages by the first word of the weights' variant, such as "english_2026-04"; each speaks one language."""


class PocketTts:
    """Pocket TTS: the backbone makes no tokens, and the generator gets only its state."""

    name, architecture = "Pocket TTS", "pockettts"

    def __init__(self, _backbone: Model, generator: Any) -> None:
        variant = mtmd_cpp.mtmd_gen_audio_get_info(generator).model_variant or b""
        self.languages = (_LANGUAGES.get(variant.decode(errors="replace").partition("_")[0], "en"),)

    def prompt(self, text: str) -> bytes:
        # llama.cpp tokenizes it as plain text: names of control tokens in it have no effect.
        return text.encode(errors="replace")

    def heard(self, speaker: Samples) -> Samples:
        return speaker

    def begin(self) -> None:
        """Do nothing: there is nothing to reset between sentences."""

    def token(self, _state: Any) -> int:
        return int(llama_cpp.LLAMA_TOKEN_NULL)
