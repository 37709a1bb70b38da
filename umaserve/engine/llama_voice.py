"""The voice that llama.cpp computes (mtmd's generation of audio): Pocket TTS, which can take on a recorded voice."""

from __future__ import annotations

import ctypes
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp

from umaserve.config import Config
from umaserve.engine import gguf
from umaserve.engine.model import Model, log_line
from umaserve.errors import ModelError
from umaserve.serving.ticks import Pause
from umaserve.speech.sentences import LIMIT
from umaserve.speech.voice import MOST_HEARD_S, SAMPLE_RATE, Samples

ARCHITECTURE = "pockettts"
FRAMES_A_SECOND = 12.5
MOST_S, MOST_S_A_CHARACTER = 3.0, 0.25
"""Speech has some 15 characters a second, numbers in digits 3: what goes on longer has lost its way."""
PROMPT_STEP = 16
"""Tokens of the prompt that are computed at once."""
SLICE_S = 0.01
"""Of computing, before the others have their turn."""

_MOST_TOKENS = 4 * LIMIT + 32
"""Never more tokens than bytes, save for the few that are added; llama.cpp may compute them all in one batch."""
_CELLS = (
    _MOST_TOKENS + int(MOST_HEARD_S * FRAMES_A_SECOND) + int((MOST_S + MOST_S_A_CHARACTER * LIMIT) * FRAMES_A_SECOND)
)
_LANGUAGES = {"english": "en", "french": "fr", "german": "de", "italian": "it", "portuguese": "pt", "spanish": "es"}
"""By the name of the weights' variant, such as "english_2026-04"; each speaks one."""
_SEED, _OTHER_SEED = 0, 1


class LlamaVoice:
    """Implements ``speech.voice.Voice`` with the backbone ``config.tts_model`` and the generator ``config.tts_mmproj``.

    ``load``, before all else, and ``speak`` are the compute thread's; ``close`` comes after it. ``own`` is a recording
    at ``SAMPLE_RATE`` of the one who speaks where nobody else is asked for; without it that is nobody, who may sound
    different in each sentence.
    """

    clones = True

    def __init__(self, config: Config, own: Samples | None = None) -> None:
        self.languages: Sequence[str] = ("en",)
        """Known once it is loaded."""
        self._config = config
        self._own = own
        self._loaded: _Loaded | None = None

    def load(self) -> None:
        """Read the weights; raises ``ModelError``."""
        self._loaded = _Loaded(self._config)
        self.languages = (self._loaded.language,)

    def speak(self, text: str, speaker: Samples | None, language: str, pause: Pause) -> Samples:
        """As ``Voice`` has it: the same samples for the same text and speaker, of whom the first ``MOST_HEARD_S``
        seconds are heard. Raises ``RuntimeError`` where llama.cpp fails, and what ``pause`` raises."""
        assert self._loaded is not None, "a voice that was not loaded"
        assert len(text) <= LIMIT, "more text than a piece of an answer has"
        if not text.strip():
            return np.zeros(0, np.float32)
        return self._loaded.speak(text, self._own if speaker is None else speaker, pause)

    def close(self) -> None:
        if self._loaded is not None:
            self._loaded.free()
            self._loaded = None


class _Loaded:
    def __init__(self, config: Config) -> None:
        self._pause: Pause | None = None
        self._paused_at = 0.0
        self._interrupted: BaseException | None = None
        # Kept, since llama.cpp holds no reference to it.
        self._callback = llama_cpp.ggml_backend_sched_eval_callback(self._on_node)
        self._model = _backbone(config)
        try:
            self._generator = self._new_generator(config)
        except ModelError:
            self._model.free()
            raise
        variant = mtmd_cpp.mtmd_gen_audio_get_info(self._generator).model_variant or b""
        self.language = _LANGUAGES.get(variant.decode(errors="replace").partition("_")[0], "en")
        self._memory = llama_cpp.llama_get_memory(self._model.context)
        self._native = mtmd_cpp.mtmd_helper_gen_audio_init(self._model.context, self._generator)
        self._silence = (ctypes.c_float * llama_cpp.llama_model_n_embd_inp(self._model.native))()

    def speak(self, text: str, speaker: Samples | None, pause: Pause) -> Samples:
        self._pause, self._paused_at = pause, time.perf_counter()
        try:
            self._begin(text, speaker)
            self._read_prompt()
            self._generate(int((MOST_S + MOST_S_A_CHARACTER * len(text)) * FRAMES_A_SECOND))
            return self._output()
        finally:
            self._pause = None

    def free(self) -> None:
        mtmd_cpp.mtmd_helper_gen_audio_free(self._native)
        mtmd_cpp.mtmd_free(self._generator)
        self._model.free()

    # -- loading -------------------------------------------------------------------------------------------------

    def _new_generator(self, config: Config) -> Any:
        path = config.tts_mmproj
        _check_file(path, "--tts-mmproj")
        mtmd_cpp.mtmd_helper_log_set(log_line, ctypes.c_void_p())
        params = mtmd_cpp.mtmd_context_params_default()
        params.use_gpu = config.n_gpu_layers != 0
        params.print_timings = False
        params.warmup = False
        params.n_threads = self._model.n_threads_batch
        params.cb_eval = self._callback
        generator = mtmd_cpp.mtmd_init_from_file(path.encode(), self._model.native, params)
        if not generator:
            raise ModelError(
                f"--tts-mmproj {path}: llama.cpp could not load it for {config.tts_model}: run with --log-level debug "
                "to see why (made for another model, or newer than the installed llama-cpp-python)"
            )
        info = mtmd_cpp.mtmd_gen_audio_get_info(generator)
        if info.type != mtmd_cpp.MTMD_GEN_AUDIO_TYPE_POCKETTTS or info.sample_rate != SAMPLE_RATE:
            mtmd_cpp.mtmd_free(generator)
            raise ModelError(f"--tts-mmproj {path}: it does not speak: choose the mmproj of a Pocket TTS model")
        return generator

    # -- speaking ------------------------------------------------------------------------------------------------

    def _begin(self, text: str, speaker: Samples | None) -> None:
        self._seed()
        llama_cpp.llama_memory_clear(self._memory, False)
        prompt = text.encode(errors="replace")
        bitmap = None
        if speaker is not None:
            heard = np.ascontiguousarray(speaker[: MOST_HEARD_S * SAMPLE_RATE], np.float32)
            data = heard.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            bitmap = mtmd_cpp.mtmd_bitmap_init_from_audio(len(heard), data)
        try:
            wanted = mtmd_cpp.mtmd_helper_gen_audio_inp(
                prompt=prompt,
                prompt_len=len(prompt),
                speaker_ref=bitmap,
                seed=_SEED,
                out_type=mtmd_cpp.MTMD_HELPER_GEN_AUDIO_OUTTYPE_PCM,
            )
            self._check(mtmd_cpp.mtmd_helper_gen_audio_set_input(self._native, ctypes.byref(wanted)))
        finally:
            if bitmap is not None:
                mtmd_cpp.mtmd_bitmap_free(bitmap)

    def _seed(self) -> None:
        """Begin the random numbers anew: llama.cpp goes on with those it has unless it is given another seed."""
        other = mtmd_cpp.mtmd_gen_inp_default(self._generator)
        other.embd = self._silence
        other.seed = _OTHER_SEED
        ignored = mtmd_cpp.mtmd_gen_out()
        self._check(mtmd_cpp.mtmd_gen_audio_process(self._generator, ctypes.byref(other), ctypes.byref(ignored)))

    def _read_prompt(self) -> None:
        # Only the last token's embedding is wanted; with embeddings on, llama.cpp makes all, and warns of it.
        context = self._model.context
        llama_cpp.llama_set_embeddings(context, False)
        left = self._step_prompt(1)
        while left > 1:
            left = self._step_prompt(min(PROMPT_STEP, left - 1))
        llama_cpp.llama_set_embeddings(context, True)
        self._step_prompt(1)

    def _step_prompt(self, most: int) -> int:
        left: int = mtmd_cpp.mtmd_helper_gen_audio_step_prompt(self._native, most)
        self._check(min(left, 0))
        self._take_turns()
        return left

    def _generate(self, most_frames: int) -> None:
        state = llama_cpp.llama_get_embeddings_ith(self._model.context, -1)
        self._check(not state)
        following = ctypes.POINTER(ctypes.c_float)()
        stop = ctypes.c_bool()
        for _ in range(most_frames):
            self._check(
                mtmd_cpp.mtmd_helper_gen_audio_step_gen(
                    self._native, llama_cpp.LLAMA_TOKEN_NULL, state, ctypes.byref(following), ctypes.byref(stop)
                )
            )
            if stop or not following:
                return
            state = following
            self._take_turns()

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
        """Raise what ended a call into llama.cpp."""
        interrupted, self._interrupted = self._interrupted, None
        if interrupted is not None:
            raise interrupted
        if failed:
            raise RuntimeError(f"llama.cpp's voice failed with {failed}; --log-level debug shows why")

    def _take_turns(self) -> None:
        assert self._pause is not None
        self._pause()
        self._paused_at = time.perf_counter()

    def _on_node(self, _tensor: object, ask: bool, _user_data: object) -> bool:
        """Asked before each node of the generator's graphs whether to stop behind it, and told when it did; false then
        ends the computing."""
        if ask:
            return True
        if self._interrupted is None and time.perf_counter() - self._paused_at >= SLICE_S:
            try:
                self._take_turns()
            except BaseException as error:
                # Nothing can be raised through llama.cpp.
                self._interrupted = error
        return self._interrupted is None


def _backbone(config: Config) -> Model:
    path = config.tts_model
    _check_file(path, "--tts-model")
    shape = dataclasses.replace(
        config, n_ctx=_CELLS, n_batch=_MOST_TOKENS, n_ubatch=_MOST_TOKENS, parallel=1, kv_type="f16", pooling="model"
    )
    try:
        model = Model(path, shape, lambda _fraction: True)
    except ModelError as error:
        raise ModelError(f"--tts-model: {error}") from error
    architecture = model.info(0).architecture
    if architecture != ARCHITECTURE:
        model.free()
        raise ModelError(
            f'--tts-model {path}: its architecture is "{architecture}": choose a Pocket TTS model ("{ARCHITECTURE}"), '
            "and its mmproj as --tts-mmproj"
        )
    return model


def _check_file(path: str, flag: str) -> None:
    try:
        gguf.check(path)
    except ModelError as error:
        raise ModelError(f"{flag}: {error}") from error
