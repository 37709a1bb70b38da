"""Tiny multimodal projectors of random weights, so that llama.cpp's own loading, slicing and encoding runs.

All but M-RoPE's go with the default model, unless their shape names another width. What each kind of projector must
hold is said by ``clip.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import DTypeLike

TEXT_WIDTH = 576
"""The default model's; embeddings go in among those of its tokens."""

MROPE_WIDTH = 64
MEL_BINS = 16
FRAMES = 3000
"""Of 10 ms, in a chunk of audio: the encoder takes 30 s at a time, and a shorter end is filled up with silence."""

STACKED = 100
"""Frames that make one token, after each two became one: 15 tokens a chunk, where real models make hundreds."""


@dataclass(frozen=True)
class Shape:
    """Of an encoder: its transformer, and the images that it sees, in pixels a side. ``merged``: patches a side that
    make one token; ``text``: the width of the text model."""

    width: int
    hidden: int
    heads: int
    layers: int
    image: int
    patch: int
    merged: int
    text: int = TEXT_WIDTH

    @property
    def patches(self) -> int:
        return (self.image // self.patch) ** 2


TINY = Shape(width=32, hidden=64, heads=2, layers=2, image=64, patch=16, merged=2)
TINY_PATCHES = replace(TINY, patch=8)
TINY_MROPE = replace(TINY_PATCHES, text=MROPE_WIDTH)


class File:
    """A GGUF that is being written; weights come from one generator, in the order in which they are asked for."""

    def __init__(self, path: Path, architecture: str, shape: Shape) -> None:
        self.writer = gguf.GGUFWriter(path, architecture)
        self.shape = shape
        self._random = np.random.default_rng(0)

    def numbers(self, values: dict[str, int]) -> None:
        for key, value in values.items():
            self.writer.add_uint32(key, value)

    def weight(self, name: str, *shape: int, dtype: DTypeLike = np.float32) -> None:
        """Of numpy's order, outputs first, and about as large as what goes in."""
        values = self._random.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:]), dtype=np.float32)
        self.writer.add_tensor(name, values.astype(dtype))

    def bias(self, name: str, *shape: int) -> None:
        self.writer.add_tensor(name, self._random.standard_normal(shape, np.float32) / 10)

    def norm(self, name: str, width: int, *, bias: bool = True) -> None:
        self.writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
        if bias:
            self.bias(f"{name}.bias", width)

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool = True) -> None:
        self.weight(f"{name}.weight", outputs, inputs)
        if bias:
            self.bias(f"{name}.bias", outputs)


def vision(path: Path, longest_edge: int = 0, shape: Shape = TINY) -> Path:
    """SmolVLM's kind (idefics3): an image becomes slices of its shape's size and an overview, each of 4 tokens
    where that is tiny.

    ``longest_edge``: each image is scaled to it first, whatever its size; 0 as in older files, where it's only rounded
    to whole slices.
    """
    with writing(path, "clip", shape) as file:
        _sliced_images(file, longest_edge)
    return path


def audio(path: Path, shape: Shape = TINY) -> Path:
    """Ultravox's kind: each begun 30 s at 16 kHz are a chunk of ``FRAMES // 2 // STACKED`` tokens; 30 s make two."""
    with writing(path, "clip", shape) as file:
        _audio(file)
    return path


def both(path: Path, longest_edge: int = 0) -> Path:
    """``vision`` and ``audio`` in one file."""
    with writing(path, "clip") as file:
        _sliced_images(file, longest_edge)
        _audio(file)
    return path


def whole(path: Path, shape: Shape = TINY_PATCHES) -> Path:
    """Gemma 3's kind: any image becomes 16 tokens that all see one another, so that they're decoded in one batch."""
    with writing(path, "clip", shape) as file:
        image_encoder(file, "gemma3", positions=shape.patches)
        file.numbers({"clip.vision.projector.scale_factor": 2})
        file.norm("mm.soft_emb_norm", shape.width, bias=False)
        file.weight("mm.input_projection.weight", shape.width, shape.text)  # inputs first, unlike all others
    return path


def mrope_vision(path: Path) -> Path:
    """Qwen2-VL's kind, for ``mrope_model``: a token for each 16 by 16 pixels, and as many positions as the longer edge
    has tokens."""
    with writing(path, "clip", TINY_MROPE) as file:
        image_encoder(file, "qwen2vl_merger")
        merged_pairs(file)
    return path


def merged_pairs(file: File) -> None:
    """What the kinds of Qwen-VL have: patches of two frames, of which four in a square make a token."""
    shape = file.shape
    file.weight("v.patch_embd.weight.1", shape.width, 3, shape.patch, shape.patch)
    file.linear("mm.0", 4 * shape.width, 4 * shape.width)
    file.linear("mm.2", shape.text, 4 * shape.width)


def mrope_model(path: Path, *more_tokens: str) -> Path:
    """A text model of Qwen2-VL's architecture; each byte is a token, beside those of ChatML and around an image, and
    ``more_tokens``, which are control tokens too."""
    heads, hidden = 2, 2 * MROPE_WIDTH
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", *more_tokens]
    tokens = specials + _byte_tokens()
    with writing(path, "qwen2vl") as file:
        writer = file.writer
        writer.add_context_length(8192)
        writer.add_embedding_length(MROPE_WIDTH)
        writer.add_block_count(TINY.layers)
        writer.add_feed_forward_length(hidden)
        writer.add_head_count(heads)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_dimension_sections([4, 6, 6, 0])
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(tokens)
        writer.add_token_types([gguf.TokenType.CONTROL] * len(specials) + [gguf.TokenType.NORMAL] * 256)
        writer.add_token_merges(["\u0120 \u0120"])  # there must be one; it makes a token that there isn't
        writer.add_bos_token_id(specials.index("<|im_start|>"))
        writer.add_eos_token_id(specials.index("<|im_end|>"))
        writer.add_add_bos_token(False)
        writer.add_chat_template(
            "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        )
        file.weight("token_embd.weight", len(tokens), MROPE_WIDTH)
        file.norm("output_norm", MROPE_WIDTH, bias=False)
        for layer in range(TINY.layers):
            block = f"blk.{layer}"
            file.norm(f"{block}.attn_norm", MROPE_WIDTH, bias=False)
            for part in "qkv":
                file.linear(f"{block}.attn_{part}", MROPE_WIDTH, MROPE_WIDTH)
            file.linear(f"{block}.attn_output", MROPE_WIDTH, MROPE_WIDTH, bias=False)
            file.norm(f"{block}.ffn_norm", MROPE_WIDTH, bias=False)
            file.linear(f"{block}.ffn_gate", hidden, MROPE_WIDTH, bias=False)
            file.linear(f"{block}.ffn_up", hidden, MROPE_WIDTH, bias=False)
            file.linear(f"{block}.ffn_down", MROPE_WIDTH, hidden, bias=False)
    return path


@contextmanager
def writing(path: Path, architecture: str, shape: Shape = TINY) -> Iterator[File]:
    file = File(path, architecture, shape)
    yield file
    file.writer.write_header_to_file()
    file.writer.write_kv_data_to_file()
    file.writer.write_tensors_to_file()
    file.writer.close()


def _sliced_images(file: File, longest_edge: int) -> None:
    image_encoder(file, "idefics3", positions=file.shape.patches)
    file.numbers({"clip.vision.projector.scale_factor": file.shape.merged})
    if longest_edge:
        file.numbers({"clip.vision.preproc_image_size": longest_edge})
    file.linear("mm.model.fc", file.shape.text, file.shape.merged**2 * file.shape.width, bias=False)


def image_encoder(file: File, projector: str, *, positions: int = 0, fused: bool = False) -> None:
    """``positions``: those that are learned; 0 where none are. ``fused``: queries, keys and values are one matrix."""
    shape = file.shape
    file.writer.add_bool("clip.has_vision_encoder", True)
    file.writer.add_array("clip.vision.image_mean", [0.5] * 3)
    file.writer.add_array("clip.vision.image_std", [0.5] * 3)
    file.numbers({"clip.vision.image_size": shape.image, "clip.vision.patch_size": shape.patch})
    _encoder(file, "vision", projector, "v", positions=positions, fused=fused)
    file.weight("v.patch_embd.weight", shape.width, 3, shape.patch, shape.patch)


def _audio(file: File) -> None:
    width = file.shape.width
    file.numbers({"clip.audio.projector.stack_factor": STACKED})
    sound_encoder(file, "ultravox")
    file.norm("mm.a.norm_pre", STACKED * width, bias=False)
    file.linear("mm.a.mlp.1", 2 * width, STACKED * width, bias=False)
    file.norm("mm.a.norm_mid", width, bias=False)
    file.linear("mm.a.mlp.2", file.shape.text, width, bias=False)


def sound_encoder(file: File, projector: str) -> None:
    """Whisper's, which many kinds have."""
    width = file.shape.width
    file.writer.add_bool("clip.has_audio_encoder", True)
    file.numbers({"clip.audio.num_mel_bins": MEL_BINS})
    _encoder(file, "audio", projector, "a", positions=FRAMES // 2, key_bias=False)
    for name, inputs in (("a.conv1d.1", MEL_BINS), ("a.conv1d.2", width)):
        file.weight(f"{name}.weight", width, inputs, 3, dtype=np.float16)
        file.bias(f"{name}.bias", width, 1)


def _encoder(
    file: File,
    modality: str,
    projector: str,
    prefix: str,
    *,
    positions: int,
    key_bias: bool = True,
    fused: bool = False,
) -> None:
    """The transformer before the projector, which all kinds have; ``positions`` is 0 where they are not learned."""
    shape = file.shape
    file.writer.add_string(f"clip.{modality}.projector_type", projector)
    file.writer.add_float32(f"clip.{modality}.attention.layer_norm_epsilon", 1e-6)
    sizes = {
        "embedding_length": shape.width,
        "feed_forward_length": shape.hidden,
        "block_count": shape.layers,
        "attention.head_count": shape.heads,
        "projection_dim": shape.text,
    }
    file.numbers({f"clip.{modality}.{name}": size for name, size in sizes.items()})
    if positions:
        file.weight(f"{prefix}.position_embd.weight", positions, shape.width)
    for layer in range(shape.layers):
        block = f"{prefix}.blk.{layer}"
        file.norm(f"{block}.ln1", shape.width)
        if fused:
            file.linear(f"{block}.attn_qkv", 3 * shape.width, shape.width)
        for part in ("attn_out",) if fused else ("attn_q", "attn_k", "attn_v", "attn_out"):
            file.linear(f"{block}.{part}", shape.width, shape.width, bias=key_bias or part != "attn_k")
        file.norm(f"{block}.ln2", shape.width)
        file.linear(f"{block}.ffn_up", shape.hidden, shape.width)
        file.linear(f"{block}.ffn_down", shape.width, shape.hidden)
    file.norm(f"{prefix}.post_ln", shape.width)


def _byte_tokens() -> list[str]:
    """How byte-level vocabularies write the 256 bytes: as themselves where Latin-1 shows them, else from U+0100 on."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]
