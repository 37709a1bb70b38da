"""llama.cpp's multimodal projector (mtmd): lays out pictures and sounds in chunks, and encodes chunks to embeddings."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import re
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp import mtmd_cpp

from umaserve.core.errors import Fault, ModelError, RequestError
from umaserve.engine.files import gguf
from umaserve.engine.llama.llama_log import ERROR_LEVEL, log_line
from umaserve.engine.llama.model import FLASH_ATTN, Model
from umaserve.media.images import Picture
from umaserve.sessions.engine_api import YieldPoint

log = logging.getLogger(__name__)

SLICE_S = 0.01
"""Encoding time between two pauses, in seconds: less than most ticks take."""
MIN_SHARE = 0.25
"""Least length of a slice, as a share of the last pause: otherwise encoding would hardly advance beside long ticks."""
MAX_ASPECT = 100
MIN_SAMPLES = 1600
"""Least samples of a sound; shorter ones are padded with silence."""
_DIGEST_BYTES = 16
PICTURE_BYTES = 512 * 512 * 3 * 4
"""Estimated size of a preprocessed picture or slice, in bytes: 512 x 512 pixels of three float32."""
MAX_WINDOW_S = 32
_OTHER_WIDTH = re.compile(r"text model \(n_embd = (\d+)\) and \S*mmproj \(n_embd = (\d+)\)")
"""Message of llama.cpp about a projector for a model of another width."""
_NO_PROJECTOR = (
    "it is not a projector, since it encodes neither images nor sounds: give the one that was made for the model; its "
    "file is often named mmproj"
)

Samples = npt.NDArray[np.float32]
Embeddings = npt.NDArray[np.float32]


class Places(NamedTuple):
    """The M-RoPE positions of a chunk's tokens, in the order of llama.cpp's sections: time, row, column, and one that
    images have no use for."""

    first: npt.NDArray[np.int32]
    """Positions of a chunk at position 0, shape (4, tokens)."""
    moves: npt.NDArray[np.int32]
    """Amount that each section adds for each position that the chunk lies further on, shape (4, 1)."""

    def at(self, position: int) -> npt.NDArray[np.int32]:
        """Positions of a chunk at ``position``, shape (4, tokens)."""
        return self.first + position * self.moves


class MediaChunk:
    """Chunk of media that is encoded in one call: laid out first, encoded when a prompt gets to it. Implements
    ``engine_api.Chunk``.

    ``places``: where M-RoPE puts its tokens; ``None`` where they just count up. ``positions``: the number of positions
    it takes.
    """

    def __init__(
        self, native: Any, digest: int, whole: bool, places: Places | None, n_bytes: int, sound_s: float
    ) -> None:
        """``n_bytes``: its estimated memory before it is encoded. ``sound_s``: its share of a sound's seconds."""
        self.native = native
        self._n_bytes = n_bytes
        self.digest = digest
        self.sound_s = sound_s
        self.whole = whole
        self.places = places
        self.tokens: int = mtmd_cpp.mtmd_input_chunk_get_n_tokens(native)
        self.positions: int = mtmd_cpp.mtmd_input_chunk_get_n_pos(native)
        self.embeddings: Embeddings | None = None
        self._free = weakref.finalize(self, mtmd_cpp.mtmd_input_chunk_free, native)

    @property
    def n_bytes(self) -> int:
        """Memory of the chunk, in bytes; estimated until it is encoded."""
        return self._n_bytes if self.embeddings is None else self.embeddings.nbytes

    @property
    def encoded(self) -> bool:
        return self.embeddings is not None

    def keep(self, embeddings: Embeddings) -> None:
        """Keep the embeddings, shape (``tokens``, n_embd), and free the preprocessed pixels or spectrum."""
        self.embeddings = embeddings
        self.native = None
        self._free()


Piece = list[int] | MediaChunk
"""A part of a prompt: token ids, or a chunk to be encoded."""


class Projector:
    """The projector ``path`` of ``model``. Made, used and freed on the compute thread, except ``lay_out``, which only
    reads it. Raises ``ModelError``."""

    def __init__(self, path: str, model: Model, *, gpu: bool, flash_attn: str = "auto") -> None:
        """``flash_attn`` is as in the settings."""
        gguf.check(path)
        self._model = model
        self._n_embd: int = llama_cpp.llama_model_n_embd_inp(model.native)
        self._pause: YieldPoint | None = None
        self._wanted: Callable[[], bool] = lambda: True
        self._given_up = False
        self._paused_at, self._slice_s = 0.0, SLICE_S
        # Kept here because llama.cpp holds no reference to it.
        self._callback = llama_cpp.ggml_backend_sched_eval_callback(self._on_node)
        params = mtmd_cpp.mtmd_context_params_default()
        params.use_gpu = gpu
        params.print_timings = False
        params.n_threads = model.n_threads_batch
        params.cb_eval = self._callback
        params.flash_attn_type = FLASH_ATTN[flash_attn]
        self._native = _loaded(path, model, params)
        self.sees: bool = mtmd_cpp.mtmd_support_vision(self._native)
        self.hears: bool = mtmd_cpp.mtmd_support_audio(self._native)
        self.sample_rate: int = mtmd_cpp.mtmd_get_audio_sample_rate(self._native) if self.hears else 0
        """Sample rate of the audio input, in Hz; 0 where it takes no audio."""
        self._mrope: bool = mtmd_cpp.mtmd_decode_use_mrope(self._native)
        self.window_s = self._window_s()
        """Seconds of sound that the projector encodes at once: shorter sound is padded with silence and costs as
        much."""

    def lay_out(self, content: Picture | Samples, digest: bytes) -> list[Piece]:
        """The pieces of a prompt for a picture, or for sound at ``sample_rate``; ``digest`` is that of the content.

        From any thread, also while another encodes. Raises ``ValueError`` where the projector refuses it.
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
            # mtmd doesn't tell the size of a preprocessed picture; this is about right for most projectors.
            n_bytes = PICTURE_BYTES if isinstance(content, Picture) else content.nbytes // n
            natives = [mtmd_cpp.mtmd_input_chunks_get(chunks, i) for i in range(n)]
            of_media = sum(not _is_text(native) for native in natives)
            sound_s = 0.0 if isinstance(content, Picture) else len(content) / self.sample_rate / max(1, of_media)
            return [self._piece(native, digest, i, n_bytes, sound_s) for i, native in enumerate(natives)]
        finally:
            mtmd_cpp.mtmd_input_chunks_free(chunks)
            mtmd_cpp.mtmd_bitmap_free(bitmap)

    def encode(self, chunk: MediaChunk, pause: YieldPoint, wanted: Callable[[], bool]) -> None:
        """Encode ``chunk`` unless it is encoded, with pauses, and stop when it isn't ``wanted`` any more. Raises
        ``RequestError``."""
        if chunk.encoded or not wanted():
            return
        self._pause, self._wanted, self._paused_at = pause, wanted, time.perf_counter()
        self._given_up, self._slice_s = False, SLICE_S
        try:
            failed = mtmd_cpp.mtmd_encode_chunk(self._native, chunk.native)
        finally:
            self._pause, self._wanted = None, lambda: True
        if self._given_up:
            # llama.cpp reports success, but the output is meaningless.
            return
        if failed:
            raise RequestError(Fault.DECODE_FAILED, "messages", "the projector could not encode an image or a sound")
        native = mtmd_cpp.mtmd_get_output_embd(self._native)
        embeddings = np.ctypeslib.as_array(native, (chunk.tokens, self._n_embd)).copy()
        if not np.isfinite(embeddings).all():
            raise RequestError(
                Fault.DECODE_FAILED, "messages", "the projector has computed invalid numbers for an image or a sound"
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
        """llama.cpp's callback. With ``ask``: whether to stop after this node. Without: the node is computed, and false
        stops the encoding; with several devices only a part of the graph, so false is returned again."""
        if ask:
            # After every node, which costs nothing: a single node takes up to 36 ms of SmolVLM's 1.6 s (two cores), and
            # 1.5 s of Gemma 3's 68 s (one core).
            return True
        if self._pause is not None and time.perf_counter() - self._paused_at >= self._slice_s:
            paused_at = time.perf_counter()
            self._pause()
            self._paused_at = time.perf_counter()
            self._slice_s = max(SLICE_S, MIN_SHARE * (self._paused_at - paused_at))
        self._given_up = self._given_up or not self._wanted()
        return not self._given_up

    def _piece(self, native: Any, content_digest: bytes, index: int, n_bytes: int, sound_s: float) -> Piece:
        if _is_text(native):
            n = ctypes.c_size_t()
            tokens = mtmd_cpp.mtmd_input_chunk_get_tokens_text(native, ctypes.byref(n))
            # mtmd looks up tokens that mark slices in the vocabulary; -1 stands for those that it lacks.
            return [tokens[i] for i in range(n.value) if tokens[i] >= 0]
        whole = mtmd_cpp.mtmd_decode_use_non_causal(self._native, native)
        digest = hashlib.blake2b(content_digest + index.to_bytes(4, "little"), digest_size=_DIGEST_BYTES).digest()
        places = self._places(native) if self._mrope else None
        copy = mtmd_cpp.mtmd_input_chunk_copy(native)
        return MediaChunk(copy, int.from_bytes(digest, "little"), whole, places, n_bytes, sound_s)

    def _places(self, native: Any) -> Places:
        n = mtmd_cpp.mtmd_input_chunk_get_n_tokens(native)
        if mtmd_cpp.mtmd_input_chunk_get_type(native) == mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_AUDIO:
            return Places(np.tile(np.arange(n, dtype=np.int32), (4, 1)), np.ones((4, 1), np.int32))
        image = mtmd_cpp.mtmd_input_chunk_get_tokens_image(native)
        found, further = (_image_places(image, n, position) for position in (0, 1))
        moves = (further - found)[:, :1]
        if (moves[:3] != 1).any() or (found + moves != further).any():
            raise ValueError(
                "the daemon doesn't know the positions of images with this kind of projector (HunyuanVL's)"
            )
        return Places(found, moves)


def _is_text(native: Any) -> bool:
    """Whether a chunk is of tokens, such as the marks around a sound."""
    text: int = mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_TEXT
    return bool(mtmd_cpp.mtmd_input_chunk_get_type(native) == text)


def _image_places(image: Any, n: int, position: int) -> npt.NDArray[np.int32]:
    """Positions that M-RoPE gives the ``n`` tokens of an image at ``position``, shape (4, n)."""
    found = (mtmd_cpp.mtmd_decoder_pos * n)()
    mtmd_cpp.mtmd_helper_image_get_decoder_pos(image, position, found)
    return np.array([(at.t, at.y, at.x, at.z) for at in found], np.int32).T


def _loaded(path: str, model: Model, params: Any) -> Any:
    """llama.cpp's object for the projector. Raises ``ModelError``, one line for the operator."""
    errors: list[str] = []

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def note(level: int, text: bytes, user_data: object) -> None:
        if level == ERROR_LEVEL:
            errors.append(text.decode(errors="replace"))
        else:
            log_line(level, text, user_data)

    mtmd_cpp.mtmd_helper_log_set(note, ctypes.c_void_p())
    native = mtmd_cpp.mtmd_init_from_file(path.encode(), model.native, params)
    able = mtmd_cpp.mtmd_get_cap_from_file(path.encode())
    mtmd_cpp.mtmd_helper_log_set(log_line, ctypes.c_void_p())
    said = " ".join(" ".join(errors).split())
    if not native:
        problem = _problem(model.name, said) if able.inp_vision or able.inp_audio else _NO_PROJECTOR
        raise ModelError(f"mmproj {path}: {problem}")
    if said:
        log.warning("%s", said)
    return native


def _problem(model: str, said: str) -> str:
    """Reason why llama.cpp, which ``said`` so, doesn't load a projector for this model, and what to do."""
    widths = _OTHER_WIDTH.search(said)
    if widths is not None:
        return (
            f"it makes embeddings of width {widths[2]}, and the model {model} takes {widths[1]}: give the projector "
            "that was made for this model, in its size"
        )
    return (
        f"llama.cpp can't load it for the model {model}: {said or 'no reason given'}: give the projector that was made "
        "for this model; a newer one may need a newer llama-cpp-python"
    )


def media_chunks(pieces: Sequence[Piece]) -> list[MediaChunk]:
    return [piece for piece in pieces if isinstance(piece, MediaChunk)]


def _picture(picture: Picture) -> Any:
    # Some projectors cut a very long, thin image into a thousand slices.
    if max(picture.width, picture.height) > MAX_ASPECT * min(picture.width, picture.height):
        longest = f"expected an image whose longer edge is at most {MAX_ASPECT} times the other"
        raise ValueError(f"{longest}, got {picture.width} x {picture.height}")
    pixels = (ctypes.c_uint8 * len(picture.rgb)).from_buffer_copy(picture.rgb)
    return mtmd_cpp.mtmd_bitmap_init(picture.width, picture.height, pixels)


def _sound(samples: Samples) -> Any:
    # On a single sample, llama.cpp would abort the process.
    samples = np.pad(samples, (0, max(0, MIN_SAMPLES - len(samples))))
    data = samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return mtmd_cpp.mtmd_bitmap_init_from_audio(len(samples), data)
