"""The tiny projectors encode images and sounds through llama.cpp's multimodal library as real ones do."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
import standin_projectors as projectors
from llama_cpp import mtmd_cpp

from umaserve.engine.llama.model import Model, find
from umaserve.settings.daemon import Config

TEXT = b"What is " + mtmd_cpp.mtmd_default_marker() + b"?"


@llama_cpp.llama_log_callback
def quiet(_level: int, _text: bytes, _user_data: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Chunk:
    kind: int
    positions: int
    embeddings: np.ndarray
    """[tokens, the model's width]; none of a text."""


def image(width: int, height: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def sine(seconds: float, hertz: float = 440) -> np.ndarray:
    return np.sin(np.arange(int(seconds * 16000), dtype=np.float32) * np.float32(2 * np.pi * hertz / 16000))


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[[str], Model]]:
    models: dict[str, Model] = {}

    def loaded(path: str) -> Model:
        if path not in models:
            models[path] = Model(path, Config(n_ctx=256, parallel=1, threads=1), lambda _fraction: True)
        mtmd_cpp.mtmd_log_set(quiet, None)
        mtmd_cpp.mtmd_helper_log_set(quiet, None)
        return models[path]

    yield loaded
    for model in models.values():
        model.free()


@pytest.fixture
def model(load: Callable[[str], Model]) -> Model:
    return load(find(""))


@contextmanager
def opened(model: Model, projector: Path) -> Iterator[Any]:
    params = mtmd_cpp.mtmd_context_params_default()
    params.use_gpu = params.warmup = params.print_timings = False
    params.n_threads = 1
    context = mtmd_cpp.mtmd_init_from_file(str(projector).encode(), model.native, params)
    assert context
    yield context
    mtmd_cpp.mtmd_free(context)


@contextmanager
def tokenized(context: Any, media: np.ndarray) -> Iterator[Any]:
    """``TEXT`` around an image [height, width, 3] of bytes, or around samples of sound [n]."""
    if media.dtype == np.uint8:
        pixels = media.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmap = mtmd_cpp.mtmd_bitmap_init(media.shape[1], media.shape[0], pixels)
    else:
        samples = media.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        bitmap = mtmd_cpp.mtmd_bitmap_init_from_audio(len(media), samples)
    text = mtmd_cpp.mtmd_input_text(TEXT, len(TEXT), False, True)
    bitmaps = (mtmd_cpp.mtmd_bitmap_p_ctypes * 1)(bitmap)
    chunks = mtmd_cpp.mtmd_input_chunks_init()
    assert mtmd_cpp.mtmd_tokenize(context, chunks, ctypes.byref(text), bitmaps, 1) == 0
    mtmd_cpp.mtmd_bitmap_free(bitmap)
    yield chunks
    mtmd_cpp.mtmd_input_chunks_free(chunks)


def encoded(model: Model, projector: Path, media: np.ndarray) -> list[Chunk]:
    """What ``media`` becomes: its own chunks, without those of text around and between them."""
    width = llama_cpp.llama_model_n_embd(model.native)
    found = []
    with opened(model, projector) as context, tokenized(context, media) as chunks:
        for i in range(mtmd_cpp.mtmd_input_chunks_size(chunks)):
            chunk = mtmd_cpp.mtmd_input_chunks_get(chunks, i)
            kind = mtmd_cpp.mtmd_input_chunk_get_type(chunk)
            if kind == mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_TEXT:
                continue
            assert mtmd_cpp.mtmd_encode_chunk(context, chunk) == 0
            shape = (mtmd_cpp.mtmd_input_chunk_get_n_tokens(chunk), width)
            embeddings = np.ctypeslib.as_array(mtmd_cpp.mtmd_get_output_embd(context), shape).copy()
            found.append(Chunk(kind, mtmd_cpp.mtmd_input_chunk_get_n_pos(chunk), embeddings))
    return found


def decoded(model: Model, context: Any, media: np.ndarray) -> tuple[int, np.ndarray]:
    """The positions that all of it takes, and the logits [vocabulary] after it."""
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(model.context), True)
    end = llama_cpp.llama_pos(0)
    with tokenized(context, media) as chunks:
        status = mtmd_cpp.mtmd_helper_eval_chunks(context, model.context, chunks, 0, 0, 64, True, ctypes.byref(end))
    assert status == 0
    logits = llama_cpp.llama_get_logits_ith(model.context, -1)
    return end.value, np.ctypeslib.as_array(logits, (model.n_vocab,)).copy()


@pytest.mark.parametrize(
    ("name", "media", "another", "tokens"),
    [
        ("vision", image(60, 70), image(60, 70, seed=1), [4, 4]),
        ("vision", image(130, 70), image(130, 70, seed=1), [4, 4, 4]),
        ("audio", sine(1), sine(1, hertz=880), [15]),
        ("audio", sine(30), sine(30, hertz=880), [15, 15]),  # of exactly 30 s, the silence after it too
        ("both", image(64, 64), image(64, 64, seed=1), [4, 4]),
        ("both", sine(0.5), sine(0.5, hertz=880), [15]),
        ("whole", image(300, 20), image(300, 20, seed=1), [16]),
    ],
)
def test_each_kind_makes_different_embeddings_of_different_media(
    model: Model, tmp_path: Path, name: str, media: np.ndarray, another: np.ndarray, tokens: list[int]
):
    projector = getattr(projectors, name)(tmp_path / "mmproj.gguf")
    image_or_sound = (
        mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_IMAGE if media.dtype == np.uint8 else mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_AUDIO
    )
    made, again, other = (encoded(model, projector, given) for given in (media, media, another))
    assert [chunk.kind for chunk in made] == [image_or_sound] * len(tokens)
    assert [chunk.embeddings.shape for chunk in made] == [(n, projectors.TEXT_WIDTH) for n in tokens]
    assert [chunk.positions for chunk in made] == tokens
    assert all(np.isfinite(chunk.embeddings).all() and chunk.embeddings.any(axis=1).all() for chunk in made)
    assert all(np.array_equal(a.embeddings, b.embeddings) for a, b in zip(made, again, strict=True))
    assert np.abs(made[0].embeddings - other[0].embeddings).max() > 0.01


@pytest.mark.parametrize(
    ("longest_edge", "size", "slices"),
    [
        (0, (32, 32), 1),
        (0, (95, 95), 1),
        (0, (96, 96), 4),
        (0, (256, 128), 8),
        (256, (32, 32), 16),
        (256, (256, 256), 16),
        (256, (1000, 1000), 16),
        (256, (1000, 250), 4),
    ],
)
def test_a_smaller_image_makes_fewer_slices_unless_all_are_scaled_to_one_edge(
    model: Model, tmp_path: Path, longest_edge: int, size: tuple[int, int], slices: int
):
    projector = projectors.vision(tmp_path / "mmproj.gguf", longest_edge)
    overview = 1
    assert len(encoded(model, projector, image(*size))) == slices + overview


@pytest.mark.parametrize(
    ("name", "sees", "hears", "all_at_once"),
    [
        ("vision", True, False, False),
        ("audio", False, True, False),
        ("both", True, True, False),
        ("whole", True, False, True),
    ],
)
def test_what_each_kind_can_do_is_known(
    model: Model, tmp_path: Path, name: str, sees: bool, hears: bool, all_at_once: bool
):
    projector = getattr(projectors, name)(tmp_path / "mmproj.gguf")
    caps = mtmd_cpp.mtmd_get_cap_from_file(str(projector).encode())
    assert (caps.inp_vision, caps.inp_audio) == (sees, hears)
    with opened(model, projector) as context:
        assert (mtmd_cpp.mtmd_support_vision(context), mtmd_cpp.mtmd_support_audio(context)) == (sees, hears)
        assert mtmd_cpp.mtmd_get_audio_sample_rate(context) == (16000 if hears else -1)
        assert mtmd_cpp.mtmd_decode_use_non_causal(context, None) == all_at_once
        assert not mtmd_cpp.mtmd_decode_use_mrope(context)


def test_with_mrope_an_image_takes_fewer_positions_than_tokens_and_changes_what_follows(
    load: Callable[[str], Model], tmp_path: Path
):
    model = load(str(projectors.mrope_model(tmp_path / "model.gguf")))
    projector = projectors.mrope_vision(tmp_path / "mmproj.gguf")
    (chunk,) = encoded(model, projector, image(96, 64))
    assert chunk.embeddings.shape == (6 * 4, projectors.MROPE_WIDTH)
    assert chunk.positions == 6
    logits = []
    with opened(model, projector) as context:
        assert mtmd_cpp.mtmd_decode_use_mrope(context)
        for seed in (0, 1):
            positions, after = decoded(model, context, image(96, 64, seed))
            # A token for each byte, and one on either side of the image.
            assert positions == len(b"What is ?") + 2 + chunk.positions
            logits.append(after)
    assert np.isfinite(logits).all()
    assert np.abs(logits[0] - logits[1]).max() > 0.01


@pytest.mark.parametrize("name", ["vision", "audio", "both", "whole", "mrope_vision", "mrope_model"])
def test_a_file_is_small_and_always_the_same(tmp_path: Path, name: str):
    write = getattr(projectors, name)
    first, second = (write(tmp_path / file).read_bytes() for file in ("a.gguf", "b.gguf"))
    assert first == second
    assert len(first) < 2 << 20
