"""What is specific to Qwen3-TTS among the voices that llama.cpp computes."""

from __future__ import annotations

from typing import Any

import llama_cpp
import numpy as np

from umaserve.core.errors import ModelError
from umaserve.core.requests import Sampling
from umaserve.engine.llama.model import Model
from umaserve.engine.media.graph_pauses import TOP_K
from umaserve.engine.sampling.candidates import Candidates
from umaserve.engine.sampling.sampler import Sampler
from umaserve.speech.voice import SAMPLE_RATE, Samples

CODES = 2048
"""Size of a frame's first codebook. Its codes are tokens of the backbone; the tokens after them have other uses."""
MIN_HEARD = SAMPLE_RATE // 10
"""The shortest recording of a speaker, in samples: llama.cpp fails below 385, and aborts the process below 1,280."""

_LANGUAGES = {
    "en": "english",
    "zh": "chinese",
    "de": "german",
    "it": "italian",
    "pt": "portuguese",
    "es": "spanish",
    "ja": "japanese",
    "ko": "korean",
    "fr": "french",
    "ru": "russian",
}
_END = "<|codec_eos_token|>"
_CONTROL = (
    "<|im_start|>",
    "<|im_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<|codec_pad|>",
    "<|codec_bos|>",
    "<|codec_think|>",
    "<|codec_think_bos|>",
    "<|codec_think_eos|>",
    _END,
)
_SAMPLING = Sampling(temperature=0.9, top_k=TOP_K, top_p=1.0, min_p=0.0, repeat_penalty=1.05, seed=0)
"""Default settings of the model for sampling."""


class Qwen3Tts:
    """Qwen3-TTS: the backbone makes a frame's first code; the generator gets that code and the state. Raises
    ``ModelError``."""

    name, architecture = "Qwen3-TTS", "qwen3tts"

    def __init__(self, backbone: Model, _generator: Any) -> None:
        self._context = backbone.context
        self._n_vocab = backbone.n_vocab
        self._n_embd: int = llama_cpp.llama_model_n_embd_out(backbone.native)
        ids = _control_tokens(backbone)
        codes = [f"<|codec_{code}|>" for code in range(CODES)]
        for token in (*_CONTROL, *codes):
            if token not in ids:
                raise _lacks(backbone, token)
        self.languages = tuple(code for code, name in _LANGUAGES.items() if f"<|codec_language_{name}|>" in ids)
        if not self.languages:
            raise _lacks(backbone, "<|codec_language_english|>, nor that of another language that it is known to speak")
        # The generator uses a token's offset from the first.
        if [ids[code] for code in codes] != list(range(ids[codes[0]], ids[codes[0]] + CODES)):
            raise ModelError(
                f"--tts-model {backbone.path}: its codec's tokens are not in order: choose one that llama.cpp's "
                "converter made"
            )
        self._tokens = np.array([ids[token] for token in (*codes, _END)])
        self._candidates = Candidates(len(self._tokens))
        self._sampler = self._new_sampler()

    def prompt(self, text: str) -> bytes:
        # All control tokens begin with "<", and none with "< ". White space at the ends would merge with the prompt's
        # into one token, but llama.cpp counts the prompt's tokens.
        return text.strip().replace("<", "< ").encode(errors="replace")

    def heard(self, speaker: Samples) -> Samples:
        return np.pad(speaker, (0, max(MIN_HEARD - len(speaker), 0)))

    def begin(self) -> None:
        self._sampler = self._new_sampler()

    def token(self, state: Any) -> int:
        """The next code's token, or the end token, sampled from the logits of the last position. ``state``: n_embd
        floats of the same position.

        Raises ``RuntimeError`` where the logits or the state hold NaN or infinity: see ``graph_pauses``. Other tokens
        are never returned: the generator would abort the process on some.
        """
        logits = llama_cpp.llama_get_logits_ith(self._context, -1)
        if not logits:
            raise RuntimeError("llama.cpp has no logits of the voice's last position")
        row = np.ctypeslib.as_array(logits, (self._n_vocab,))[self._tokens]
        if not (np.isfinite(row).all() and np.isfinite(np.ctypeslib.as_array(state, (self._n_embd,))).all()):
            raise RuntimeError("the voice's model has computed invalid numbers")
        return int(self._tokens[self._sampler.sample(row, self._candidates)])

    def _new_sampler(self) -> Sampler:
        return Sampler(len(self._tokens), (), _SAMPLING, None)


def _control_tokens(backbone: Model) -> dict[str, int]:
    """Ids by name, of tokens whose name begins with "<"; of duplicates the first, as in llama.cpp."""
    ids: dict[str, int] = {}
    for token in range(backbone.n_vocab):
        name: bytes = llama_cpp.llama_vocab_get_text(backbone.vocab, token)
        if name.startswith(b"<"):
            ids.setdefault(name.decode(errors="replace"), token)
    return ids


def _lacks(backbone: Model, what: str) -> ModelError:
    return ModelError(
        f"--tts-model {backbone.path}: its vocabulary lacks {what}: choose a Qwen3-TTS model that llama.cpp's "
        "converter made"
    )
