"""The voice computed by llama.cpp (mtmd's audio generation): Pocket TTS or Qwen3-TTS, which can clone a recorded
voice."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp

from umaserve.core.errors import ModelError
from umaserve.engine.files import gguf
from umaserve.engine.llama.llama_log import log_line
from umaserve.engine.llama.model import Model
from umaserve.engine.media.graph_pauses import TOP_K, GraphPauses
from umaserve.engine.tts.pocket_tts import PocketTts
from umaserve.engine.tts.qwen3_tts import Qwen3Tts
from umaserve.sessions.engine_api import YieldPoint
from umaserve.settings.daemon import Config
from umaserve.speech.sentences import LIMIT
from umaserve.speech.voice import MAX_HEARD_S, SAMPLE_RATE, Samples

FRAMES_A_SECOND = 12.5
MAX_S, MAX_S_A_CHARACTER = 3.0, 0.25
"""Longest speech, in seconds: a constant part and a part per character. Normal speech has some 15 characters a second,
and numbers in digits 3, so that longer output means that the model doesn't find its end."""
PROMPT_STEP = 16
"""Tokens of the prompt per decode."""
DRAWS, MAX_DRAWN = 2**15, 1 - 1e-4
"""Limits for Qwen3-TTS, which draws each code with a random number in [0, 1), fewer than ``DRAWS`` of them in a
sentence. The sum of the probabilities is rounded: a random number above it selects a code out of range, at which
llama.cpp aborts the process. So the first ``DRAWS`` random numbers of a seed must all be below ``MAX_DRAWN``."""
SEED, OTHER_SEED = 68, 91

_MAX_TOKENS = 4 * LIMIT + 32
"""Most tokens of a text: one per byte, and a few that are added; llama.cpp may compute them all in one batch."""
_CELLS = _MAX_TOKENS + int(MAX_HEARD_S * FRAMES_A_SECOND) + int((MAX_S + MAX_S_A_CHARACTER * LIMIT) * FRAMES_A_SECOND)
_KINDS: dict[int, type[PocketTts | Qwen3Tts]] = {
    mtmd_cpp.MTMD_GEN_AUDIO_TYPE_POCKETTTS: PocketTts,
    mtmd_cpp.MTMD_GEN_AUDIO_TYPE_QWEN3TTS: Qwen3Tts,
}
_CHOICE = " or ".join(kind.name for kind in _KINDS.values())


class LlamaVoice:
    """Implements ``speech.voice.Voice`` with the backbone ``config.tts_model`` and the generator ``config.tts_mmproj``.

    ``load`` (first) and ``speak`` are called on the compute thread, ``close`` after it. ``own`` is a recording of the
    default speaker at ``SAMPLE_RATE``; without it, the voice may differ from sentence to sentence.
    """

    clones = True

    def __init__(self, config: Config, own: Samples | None = None) -> None:
        self.name = Path(config.tts_model).stem
        self.languages: Sequence[str] = ("en",)
        """Languages that the voice speaks; the model's own after ``load``."""
        self._config = config
        self._own = own
        self._loaded: _Loaded | None = None

    def load(self) -> None:
        """Read the weights; raises ``ModelError``."""
        self._loaded = _Loaded(self._config)
        self.languages = self._loaded.kind.languages

    def speak(self, text: str, speaker: Samples | None, language: str, pause: YieldPoint) -> Samples:
        """Speak ``text``, as ``Voice.speak``: the same samples for the same text, speaker and language. Only the first
        ``MAX_HEARD_S`` seconds of ``speaker`` are used. Raises ``RuntimeError`` where llama.cpp fails, and what
        ``pause`` raises."""
        assert self._loaded is not None, "a voice that was not loaded"
        assert len(text) <= LIMIT, "more text than a piece of an answer has"
        if not text.strip():
            return np.zeros(0, np.float32)
        return self._loaded.speak(text, self._own if speaker is None else speaker, language, pause)

    def close(self) -> None:
        if self._loaded is not None:
            self._loaded.free()
            self._loaded = None


class _Loaded:
    def __init__(self, config: Config) -> None:
        self._pauses = GraphPauses()
        self._model = _backbone(config)
        try:
            self._generator, self.kind = self._new_generator(config)
        except ModelError:
            self._model.free()
            raise
        self._memory = llama_cpp.llama_get_memory(self._model.context)
        self._native = mtmd_cpp.mtmd_helper_gen_audio_init(self._model.context, self._generator)
        self._silence = (ctypes.c_float * llama_cpp.llama_model_n_embd_inp(self._model.native))()

    def speak(self, text: str, speaker: Samples | None, language: str, pause: YieldPoint) -> Samples:
        self._pauses.begin(pause)
        try:
            self._begin(text, speaker, language or self.kind.languages[0])
            self._read_prompt()
            self._generate(int((MAX_S + MAX_S_A_CHARACTER * len(text)) * FRAMES_A_SECOND))
            return self._output()
        except BaseException:
            # Attention multiplies masked cells too: a NaN in one would make all later sentences silent.
            llama_cpp.llama_memory_clear(self._memory, True)
            raise
        finally:
            self._pauses.end()

    def free(self) -> None:
        mtmd_cpp.mtmd_helper_gen_audio_free(self._native)
        mtmd_cpp.mtmd_free(self._generator)
        self._model.free()

    # -- loading -------------------------------------------------------------------------------------------------

    def _new_generator(self, config: Config) -> tuple[Any, PocketTts | Qwen3Tts]:
        path = config.tts_mmproj
        _check_file(path, "--tts-mmproj")
        mtmd_cpp.mtmd_helper_log_set(log_line, ctypes.c_void_p())
        params = mtmd_cpp.mtmd_context_params_default()
        params.use_gpu = config.n_gpu_layers != 0
        params.print_timings = False
        params.warmup = False
        params.n_threads = self._model.n_threads_batch
        params.cb_eval = self._pauses.native
        generator = mtmd_cpp.mtmd_init_from_file(path.encode(), self._model.native, params)
        if not generator:
            raise ModelError(
                f"--tts-mmproj {path}: llama.cpp could not load it for {config.tts_model}: run with --log-level debug "
                "to see why (made for another model, or newer than the installed llama-cpp-python)"
            )
        try:
            return generator, self._kind_of(generator, config)(self._model, generator)
        except ModelError:
            mtmd_cpp.mtmd_free(generator)
            raise

    def _kind_of(self, generator: Any, config: Config) -> type[PocketTts | Qwen3Tts]:
        info = mtmd_cpp.mtmd_gen_audio_get_info(generator)
        kind = _KINDS.get(info.type)
        if kind is None or info.sample_rate != SAMPLE_RATE:
            raise ModelError(
                f"--tts-mmproj {config.tts_mmproj}: it does not speak: choose the mmproj of a {_CHOICE} model"
            )
        if kind.architecture != self._model.info(0).architecture:
            raise ModelError(
                f"--tts-mmproj {config.tts_mmproj}: it belongs to a {kind.name} model, and {config.tts_model} is none: "
                "choose the two files of one model"
            )
        return kind

    # -- speaking ------------------------------------------------------------------------------------------------

    def _begin(self, text: str, speaker: Samples | None, language: str) -> None:
        self.kind.begin()
        self._seed()
        llama_cpp.llama_memory_clear(self._memory, False)
        prompt = self.kind.prompt(text)
        bitmap = None
        if speaker is not None:
            heard = np.ascontiguousarray(self.kind.heard(speaker[: MAX_HEARD_S * SAMPLE_RATE]), np.float32)
            data = heard.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            bitmap = mtmd_cpp.mtmd_bitmap_init_from_audio(len(heard), data)
        try:
            wanted = mtmd_cpp.mtmd_helper_gen_audio_inp(
                prompt=prompt,
                prompt_len=len(prompt),
                speaker_ref=bitmap,
                lang=language.encode(),
                top_k=TOP_K,
                seed=SEED,
                out_type=mtmd_cpp.MTMD_HELPER_GEN_AUDIO_OUTTYPE_PCM,
            )
            self._check(mtmd_cpp.mtmd_helper_gen_audio_set_input(self._native, ctypes.byref(wanted)))
        finally:
            if bitmap is not None:
                mtmd_cpp.mtmd_bitmap_free(bitmap)

    def _seed(self) -> None:
        """Restart the random numbers: llama.cpp reseeds its generator only when the seed changes."""
        other = mtmd_cpp.mtmd_gen_inp_default(self._generator)
        other.embd = self._silence
        other.seed = OTHER_SEED
        ignored = mtmd_cpp.mtmd_gen_out()
        self._check(mtmd_cpp.mtmd_gen_audio_process(self._generator, ctypes.byref(other), ctypes.byref(ignored)))

    def _read_prompt(self) -> None:
        # Only the last token's embedding is needed; with embeddings on, llama.cpp outputs all, and logs a warning.
        context = self._model.context
        llama_cpp.llama_set_embeddings(context, False)
        left = self._step_prompt(1)
        while left > 1:
            left = self._step_prompt(min(PROMPT_STEP, left - 1))
        llama_cpp.llama_set_embeddings(context, True)
        self._step_prompt(1)

    def _step_prompt(self, limit: int) -> int:
        left: int = mtmd_cpp.mtmd_helper_gen_audio_step_prompt(self._native, limit)
        self._check(min(left, 0))
        self._pauses.take()
        return left

    def _generate(self, max_frames: int) -> None:
        state = llama_cpp.llama_get_embeddings_ith(self._model.context, -1)
        self._check(not state)
        following = ctypes.POINTER(ctypes.c_float)()
        stop = ctypes.c_bool()
        for _ in range(max_frames):
            token = self.kind.token(state)
            self._check(
                mtmd_cpp.mtmd_helper_gen_audio_step_gen(
                    self._native, token, state, ctypes.byref(following), ctypes.byref(stop)
                )
            )
            if stop or not following:
                return
            state = following
            self._pauses.take()

    def _output(self) -> Samples:
        rate = ctypes.c_int32()
        data = ctypes.POINTER(ctypes.c_char)()
        size = ctypes.c_size_t()
        self._check(
            mtmd_cpp.mtmd_helper_gen_audio_get_output(
                self._native, ctypes.byref(rate), ctypes.byref(data), ctypes.byref(size), None
            )
        )
        samples = np.frombuffer(ctypes.string_at(data, size.value), np.float32)
        return np.nan_to_num(samples).clip(-1, 1)

    def _check(self, failed: int) -> None:
        """Raise what stopped a call into llama.cpp, or ``RuntimeError`` for a code other than 0."""
        self._pauses.check()
        if failed:
            raise RuntimeError(f"llama.cpp's voice failed with {failed}; --log-level debug shows why")


def _backbone(config: Config) -> Model:
    path = config.tts_model
    _check_file(path, "--tts-model")
    sized = config.for_companion(n_ctx=_CELLS, n_batch=_MAX_TOKENS, n_ubatch=_MAX_TOKENS, parallel=1)
    shape = dataclasses.replace(sized, kv_type="f16", kv_type_k="", kv_type_v="", pooling="model")
    try:
        model = Model(path, shape, lambda _fraction: True)
    except ModelError as error:
        raise ModelError(f"--tts-model: {error}") from error
    architecture = model.info(0).architecture
    if architecture not in {kind.architecture for kind in _KINDS.values()}:
        model.free()
        raise ModelError(
            f'--tts-model {path}: its architecture is "{architecture}": choose a {_CHOICE} model, and its mmproj as '
            "--tts-mmproj"
        )
    return model


def _check_file(path: str, flag: str) -> None:
    try:
        gguf.check(path)
    except ModelError as error:
        raise ModelError(f"{flag}: {error}") from error
