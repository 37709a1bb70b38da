"""Pairs of a tiny projector and a tiny text model that takes its embeddings, with random weights, one of each kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from standin_projectors import (
    TINY,
    TINY_PATCHES,
    File,
    Shape,
    audio,
    image_encoder,
    merged_pairs,
    sound_encoder,
    vision,
    whole,
    writing,
)
from tiny_models import WIDTH, Value, tiny_model

BUCKETS = 70
"""A side of MiniCPM-V's learned positions."""
HEAD = 128
"""MiniCPM-V's resampler has heads of this width, as wide as the text model or a part of it."""
LISTENING = replace(TINY, layers=1)
"""Of those that hear: each sound costs as much as one of 30 s."""
QUERIES = 4
"""Tokens of one of its slices."""


@dataclass(frozen=True)
class Kind:
    """A kind of projector: how to write one for a text model of some width; and that model's architecture, its control
    tokens, and keys of its own."""

    write: Callable[[Path, int], Path]
    architecture: str = "llama"
    tokens: Sequence[str] = ()
    keys: dict[str, Value] = field(default_factory=dict)
    sees: bool = True
    hears: bool = False


def pair(folder: Path, name: str) -> tuple[str, str]:
    """Write the text model and the projector of this kind; returns their paths."""
    kind = KINDS[name]
    keys: dict[str, Any] = {"context_length": 2048, **kind.keys}
    model = tiny_model(folder / f"{name}.gguf", kind.architecture, tokens=kind.tokens, **keys)
    width = keys.get("embedding_length", WIDTH)
    assert isinstance(width, int)
    return model, str(kind.write(folder / f"{name}-mmproj.gguf", width))


def _text(shape: Shape, width: int) -> Shape:
    return replace(shape, text=width)


def _llava(path: Path, width: int) -> Path:
    """LLaVA 1.5: one square image, whatever its size, with a class token that is dropped."""
    with writing(path, "clip", _text(TINY, width)) as file:
        shape = file.shape
        file.writer.add_bool("clip.use_gelu", True)
        image_encoder(file, "mlp", positions=shape.patches + 1)
        file.bias("v.class_embd", shape.width)
        file.norm("v.pre_ln", shape.width)
        file.linear("mm.0", 2 * width, shape.width)
        file.linear("mm.2", width, 2 * width)
    return path


def _qwen25vl(path: Path, width: int) -> Path:
    """Qwen2.5-VL: images of any size, and attention within windows of 112 pixels in the first of two layers."""
    with writing(path, "clip", _text(TINY_PATCHES, width)) as file:
        _windowed(file, "qwen2.5vl_merger")
    return path


def _windowed(file: File, projector: str) -> None:
    image_encoder(file, projector)
    file.numbers({"clip.vision.n_wa_pattern": 2})
    merged_pairs(file)


def _qwen3vl(path: Path, width: int) -> Path:
    """Qwen3-VL: what the first layer makes of an image is added to that of the text model (deepstack)."""
    with writing(path, "clip", _text(TINY_PATCHES, width)) as file:
        _fused(file)
        merged = 4 * file.shape.width
        file.norm("v.deepstack.0.norm", merged)
        file.linear("v.deepstack.0.fc1", merged, merged)
        file.linear("v.deepstack.0.fc2", width, merged)
    return path


def _qwen35(path: Path, width: int) -> Path:
    """Qwen3.5: as Qwen3-VL, without deepstack, before a text model with a recurrent state."""
    with writing(path, "clip", _text(TINY_PATCHES, width)) as file:
        _fused(file)
    return path


def _fused(file: File) -> None:
    image_encoder(file, "qwen3vl_merger", positions=file.shape.patches, fused=True)
    file.bias("v.patch_embd.bias", file.shape.width)
    merged_pairs(file)


def _minicpmv(path: Path, width: int) -> Path:
    """MiniCPM-V 2.6: an overview and slices, each of which a resampler makes ``QUERIES`` tokens of."""
    with writing(path, "clip", _text(TINY, width)) as file:
        image_encoder(file, "resampler", positions=BUCKETS**2)
        file.writer.add_int32("clip.minicpmv_version", 3)
        file.numbers({"clip.minicpmv_query_num": QUERIES})
        _resampler(file, width)
    return path


def _resampler(file: File, width: int) -> None:
    file.weight("resampler.pos_embed_k", BUCKETS**2, width)  # There must be one, and none is used.
    file.weight("resampler.query", QUERIES, width)
    file.weight("resampler.proj.weight", width, width)
    file.weight("resampler.kv.weight", width, file.shape.width)
    for part in ("q", "k", "v", "out"):
        file.linear(f"resampler.attn.{part}", width, width)
    for part in ("q", "kv", "post"):
        file.norm(f"resampler.ln_{part}", width)


def _qwen2a(path: Path, width: int) -> Path:
    """Qwen2-Audio: each begun 30 s are 750 tokens."""
    with writing(path, "clip", _text(LISTENING, width)) as file:
        _hearing(file, "qwen2a")
    return path


def _omni(path: Path, width: int) -> Path:
    """Qwen2.5-Omni: Qwen2.5-VL's and Qwen2-Audio's in one file."""
    with writing(path, "clip", _text(TINY_PATCHES, width)) as file:
        _windowed(file, "qwen2.5o")
        _hearing(file, "qwen2.5o")
    return path


def _hearing(file: File, projector: str) -> None:
    sound_encoder(file, projector)
    file.linear("mm.a.fc", file.shape.text, file.shape.width)


_ROWS = [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)]

KINDS = {
    "llava": Kind(_llava),
    "idefics3": Kind(
        lambda path, width: vision(path, shape=_text(TINY, width)),
        tokens=("<fake_token_around_image>", "<global-img>", "\n\n", *_ROWS),
    ),
    "qwen2.5vl": Kind(_qwen25vl, "qwen2vl", ("<|vision_start|>", "<|vision_end|>")),
    "qwen3vl": Kind(_qwen3vl, "qwen3vl", ("<|vision_start|>", "<|vision_end|>")),
    "qwen35": Kind(_qwen35, "qwen35", ("<|vision_start|>", "<|vision_end|>")),
    "gemma3": Kind(
        lambda path, width: whole(path, _text(TINY_PATCHES, width)), "gemma3", ("<start_of_image>", "<end_of_image>")
    ),
    "minicpmv": Kind(_minicpmv, tokens=("<image>", "</image>", "<slice>", "</slice>"), keys={"embedding_length": HEAD}),
    "ultravox": Kind(lambda path, width: audio(path, _text(LISTENING, width)), sees=False, hears=True),
    "qwen2a": Kind(_qwen2a, "qwen2", ("<|audio_bos|>", "<|audio_eos|>"), sees=False, hears=True),
    "qwen2.5omni": Kind(
        _omni, "qwen2vl", ("<|vision_start|>", "<|vision_end|>", "<|audio_bos|>", "<|audio_eos|>"), hears=True
    ),
}
"""SmolVLM's is idefics3."""
