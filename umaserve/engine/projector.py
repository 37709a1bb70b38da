"""llama.cpp's multimodal projector (mtmd): pictures and sounds laid out in chunks, chunks encoded to embeddings."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp import mtmd_cpp

from umaserve.engine import gguf
from umaserve.engine.model import Model, log_line
from umaserve.errors import Fault, ModelError, RequestError
from umaserve.media.images import Picture
from umaserve.serving.ticks import YieldPoint

log = logging.getLogger(__name__)

SLICE_S = 0.01
"""Of encoding, before the others have their turn: less than most ticks take."""
MIN_SHARE = 0.25
"""Of the time that the others took last: beside long ticks it would have no end."""
MAX_ASPECT = 100
MIN_SAMPLES = 1600
"""Of a sound, which is filled up with silence."""
_DIGEST_BYTES = 16
PICTURE_BYTES = 512 * 512 * 3 * 4
"""Of floats, for a picture or a slice."""
MAX_WINDOW_S = 32

Samples = npt.NDArray[np.float32]
Embeddings = npt.NDArray[np.float32]


class MediaChunk:
    """What is encoded at once: laid out at first, and encoded when a prompt comes to it. Implements ``ticks.Chunk``.

    ``places``: for M-RoPE, the positions of its tokens beside the first one, shape (4, ``tokens``); ``None`` where they
    count up. ``positions`` is how many of those it takes.
    """

    def __init__(
        self, native: Any, digest: int, whole: bool, places: npt.NDArray[np.int32] | None, n_bytes: int
    ) -> None:
        """``n_bytes``: what it takes in memory before it is encoded, about."""
        self.native = native
        self._n_bytes = n_bytes
        self.digest = digest
        self.whole = whole
        self.places = places
        self.tokens: int = mtmd_cpp.mtmd_input_chunk_get_n_tokens(native)
        self.positions: int = mtmd_cpp.mtmd_input_chunk_get_n_pos(native)
        self.embeddings: Embeddings | None = None
        self._free = weakref.finalize(self, mtmd_cpp.mtmd_input_chunk_free, native)

    @property
    def n_bytes(self) -> int:
        """What it takes in memory, about."""
        return self._n_bytes if self.embeddings is None else self.embeddings.nbytes

    @property
    def encoded(self) -> bool:
        return self.embeddings is not None

    def keep(self, embeddings: Embeddings) -> None:
        """The preprocessed pixels or spectrum are let go."""
        self.embeddings = embeddings
        self.native = None
        self._free()


Piece = list[int] | MediaChunk
"""A part of a prompt: token ids, or what has to be encoded."""


class Projector:
    """The projector ``path`` beside ``model``. Made, used and freed on the compute thread, save for ``lay_out``, which
    only reads it. Raises ``ModelError``."""

    def __init__(self, path: str, model: Model, *, gpu: bool) -> None:
        gguf.check(path)
        self._model = model
        self._n_embd: int = llama_cpp.llama_model_n_embd_inp(model.native)
        self._pause: YieldPoint | None = None
        self._wanted: Callable[[], bool] = lambda: True
        self._given_up = False
        self._paused_at, self._slice_s = 0.0, SLICE_S
        # Kept, since llama.cpp holds no reference to it.
        self._callback = llama_cpp.ggml_backend_sched_eval_callback(self._on_node)
        params = mtmd_cpp.mtmd_context_params_default()
        params.use_gpu = gpu
        params.print_timings = False
        params.n_threads = model.n_threads_batch
        params.cb_eval = self._callback
        mtmd_cpp.mtmd_log_set(log_line, ctypes.c_void_p())
        mtmd_cpp.mtmd_helper_log_set(log_line, ctypes.c_void_p())
        self._native = mtmd_cpp.mtmd_init_from_file(path.encode(), model.native, params)
        if not self._native:
            raise ModelError(
                f"mmproj {path}: llama.cpp could not load it for the model {model.name}: run with --log-level debug to "
                "see why (a projector for another model, or newer than the installed llama-cpp-python)"
            )
        self.sees: bool = mtmd_cpp.mtmd_support_vision(self._native)
        self.hears: bool = mtmd_cpp.mtmd_support_audio(self._native)
        self.sample_rate: int = mtmd_cpp.mtmd_get_audio_sample_rate(self._native) if self.hears else 0
        """Samples a second that it hears; 0 where it hears nothing."""
        self._mrope: bool = mtmd_cpp.mtmd_decode_use_mrope(self._native)
        self.window_s = self._window_s()
        """Sound that it takes in one go: what is shorter is filled up with silence, and costs as much."""

    def lay_out(self, content: Picture | Samples, digest: bytes) -> list[Piece]:
        """The pieces that stand for a picture, or for sound at ``sample_rate``; ``digest`` is that of the content. From
        any thread, also while another encodes.

        Raises ``ValueError`` where the projector refuses it.
        """
        bitmap = _picture(content) if isinstance(content, Picture) else _sound(content)
        chunks = mtmd_cpp.mtmd_input_chunks_init()
        try:
            marker = mtmd_cpp.mtmd_default_marker()
            text = mtmd_cpp.mtmd_input_text(marker, len(marker), False, True)
            bitmaps = (mtmd_cpp.mtmd_bitmap_p_ctypes * 1)(bitmap)
            if mtmd_cpp.mtmd_tokenize(self._native, chunks, ctypes.byref(text), bitmaps, 1):
                raise ValueError("the projector refuses it; run with --log-level debug to see why")
            n = mtmd_cpp.mtmd_input_chunks_size(chunks)
            # mtmd doesn't tell how large it makes a picture; most kinds see about so much at once.
            n_bytes = PICTURE_BYTES if isinstance(content, Picture) else content.nbytes // n
            return [self._piece(mtmd_cpp.mtmd_input_chunks_get(chunks, i), digest, i, n_bytes) for i in range(n)]
        finally:
            mtmd_cpp.mtmd_input_chunks_free(chunks)
            mtmd_cpp.mtmd_bitmap_free(bitmap)

    def encode(self, chunk: MediaChunk, pause: YieldPoint, wanted: Callable[[], bool]) -> None:
        """Encode ``chunk``, unless that was done, with pauses, and only as long as it is ``wanted``."""
        if chunk.encoded or not wanted():
            return
        self._pause, self._wanted, self._paused_at = pause, wanted, time.perf_counter()
        self._given_up, self._slice_s = False, SLICE_S
        try:
            failed = mtmd_cpp.mtmd_encode_chunk(self._native, chunk.native)
        finally:
            self._pause, self._wanted = None, lambda: True
        if self._given_up:
            # llama.cpp calls that a success, of numbers that mean nothing.
            return
        if failed:
            raise RequestError(Fault.DECODE_FAILED, "messages", "the projector failed on an image or a recording")
        native = mtmd_cpp.mtmd_get_output_embd(self._native)
        embeddings = np.ctypeslib.as_array(native, (chunk.tokens, self._n_embd)).copy()
        if not np.isfinite(embeddings).all():
            raise RequestError(
                Fault.DECODE_FAILED, "messages", "the projector makes no sense of an image or a recording"
            )
        chunk.keep(embeddings)

    def free(self) -> None:
        mtmd_cpp.mtmd_free(self._native)

    def _window_s(self) -> int:
        if not self.hears:
            return 1
        seconds, tokens = 1, self._tokens_of_silence(1)
        while seconds < MAX_WINDOW_S and self._tokens_of_silence(2 * seconds) == tokens:
            seconds *= 2
        return seconds

    def _tokens_of_silence(self, seconds: int) -> int:
        return sum(c.tokens for c in media_chunks(self.lay_out(np.zeros(seconds * self.sample_rate, np.float32), b"")))

    def _on_node(self, _tensor: object, ask: bool, _user_data: object) -> bool:
        """Asked before each node whether to stop behind it, and told when it did; false then ends the encoding, or on a
        GPU a part of it, so that it is said again."""
        if ask:
            # Behind every one, which costs nothing: one node, which can't be parted, takes up to 36 ms of SmolVLM's
            # 1.6 s on two cores, and 1.5 s of Gemma 3's 68 s on one.
            return True
        if self._pause is not None and time.perf_counter() - self._paused_at >= self._slice_s:
            paused_at = time.perf_counter()
            self._pause()
            self._paused_at = time.perf_counter()
            self._slice_s = max(SLICE_S, MIN_SHARE * (self._paused_at - paused_at))
        self._given_up = self._given_up or not self._wanted()
        return not self._given_up

    def _piece(self, native: Any, content_digest: bytes, index: int, n_bytes: int) -> Piece:
        if mtmd_cpp.mtmd_input_chunk_get_type(native) == mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_TEXT:
            n = ctypes.c_size_t()
            tokens = mtmd_cpp.mtmd_input_chunk_get_tokens_text(native, ctypes.byref(n))
            # What marks a slice is looked up in the vocabulary, which may lack it.
            return [tokens[i] for i in range(n.value) if tokens[i] >= 0]
        whole = mtmd_cpp.mtmd_decode_use_non_causal(self._native, native)
        digest = hashlib.blake2b(content_digest + index.to_bytes(4, "little"), digest_size=_DIGEST_BYTES).digest()
        places = self._places(native) if self._mrope else None
        copy = mtmd_cpp.mtmd_input_chunk_copy(native)
        return MediaChunk(copy, int.from_bytes(digest, "little"), whole, places, n_bytes)

    def _places(self, native: Any) -> npt.NDArray[np.int32]:
        """In the order of llama.cpp's sections: time, row, column, and one that is not used."""
        n = mtmd_cpp.mtmd_input_chunk_get_n_tokens(native)
        if mtmd_cpp.mtmd_input_chunk_get_type(native) == mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_AUDIO:
            return np.tile(np.arange(n, dtype=np.int32), (4, 1))
        image = mtmd_cpp.mtmd_input_chunk_get_tokens_image(native)
        found, further = ((mtmd_cpp.mtmd_decoder_pos * n)() for _ in range(2))
        mtmd_cpp.mtmd_helper_image_get_decoder_pos(image, 0, found)
        mtmd_cpp.mtmd_helper_image_get_decoder_pos(image, 1, further)
        if any(
            (one.t + 1, one.y + 1, one.x + 1) != (two.t, two.y, two.x) for one, two in zip(found, further, strict=True)
        ):
            raise ValueError("the daemon can't say where the images of this kind of projector stand (HunyuanVL's)")
        return np.array([(at.t, at.y, at.x, at.z) for at in found], np.int32).T


def media_chunks(pieces: Sequence[Piece]) -> list[MediaChunk]:
    return [piece for piece in pieces if isinstance(piece, MediaChunk)]


def _picture(picture: Picture) -> Any:
    # Some projectors make a thousand slices of a thread.
    if max(picture.width, picture.height) > MAX_ASPECT * min(picture.width, picture.height):
        longest = f"expected an image whose longer edge is at most {MAX_ASPECT} times the other"
        raise ValueError(f"{longest}, got {picture.width} x {picture.height}")
    pixels = (ctypes.c_uint8 * len(picture.rgb)).from_buffer_copy(picture.rgb)
    return mtmd_cpp.mtmd_bitmap_init(picture.width, picture.height, pixels)


def _sound(samples: Samples) -> Any:
    # One sample alone would end the process.
    samples = np.pad(samples, (0, max(0, MIN_SAMPLES - len(samples))))
    data = samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return mtmd_cpp.mtmd_bitmap_init_from_audio(len(samples), data)
