"""``python -m bench.random_model FILE``: a model of any size with random weights, for measurements of speed.

It has Llama's architecture and another model's tokenizer. Its answers make no sense, but take as long as those of a
trained model of the same shape. Equal arguments write equal files.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType

from umaserve.core.errors import ModelError
from umaserve.engine.llama import backends, llama_log
from umaserve.engine.llama.model import find
from umaserve.system.cores import usable_cores

Bytes = npt.NDArray[np.uint8]

HEAD_SIZES = (64, 128)
CONTEXT_LENGTH = 32768
MAX_PARAMETERS = 100_000_000_000

_BLOCK = 32
"""Weights of one block in each of ``KINDS``; plain F16 has no blocks, but is written the same way."""
_K_BLOCK = 256
"""Weights of one block in those of ``QUANTIZED``."""
_TEMPLATE_BLOCKS = 131_071
"""A prime number, so that the rows of a tensor, all cut from one repeated template, differ from each other."""
_TOKENIZER = "tokenizer."
_TOKENS = "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of weights."""

    type: GGMLQuantizationType
    file_type: LlamaFileType
    block_bytes: int


KINDS = {
    "Q8_0": Kind(GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0, 34),
    "Q4_0": Kind(GGMLQuantizationType.Q4_0, LlamaFileType.MOSTLY_Q4_0, 18),
    "F16": Kind(GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16, 64),
}
"""What is written here."""
QUANTIZED = {"Q4_K_M": LlamaFileType.MOSTLY_Q4_K_M}
"""What llama.cpp makes of F16: it chooses a type for each tensor."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model with Llama's architecture. ``tied``: the embeddings of the tokens are the output's too."""

    vocabulary: int
    width: int
    layers: int
    head_size: int
    tied: bool

    @property
    def heads(self) -> int:
        return self.width // self.head_size

    @property
    def kv_heads(self) -> int:
        return max(1, self.heads // 4)

    @property
    def inner(self) -> int:
        """The width between the two halves of a feed-forward network, about 3.5 times as large."""
        return max(1, round(3.5 * self.width / 256)) * 256

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for _, shape in self.tensors())

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of each tensor, outputs before inputs."""
        width, inner, kv_width = self.width, self.inner, self.kv_heads * self.head_size
        yield "token_embd.weight", (self.vocabulary, width)
        for layer in range(self.layers):
            for name, shape in (
                ("attn_norm", (width,)),
                ("attn_q", (width, width)),
                ("attn_k", (kv_width, width)),
                ("attn_v", (kv_width, width)),
                ("attn_output", (width, width)),
                ("ffn_norm", (width,)),
                ("ffn_gate", (inner, width)),
                ("ffn_up", (inner, width)),
                ("ffn_down", (width, inner)),
            ):
                yield f"blk.{layer}.{name}.weight", shape
        yield "output_norm.weight", (width,)
        if not self.tied:
            yield "output.weight", (self.vocabulary, width)


def shape_of(parameters: int, head_size: int, vocabulary: int, row_multiple: int = 1) -> Shape:
    """The shape of about so many parameters whose layers are as many for their width as in known models: 16 at a width
    of 2048, 32 at 4096. Embeddings that would be more than half of the model are tied. All rows have a multiple of
    ``row_multiple`` weights."""
    shapes = []
    for width in (head_size, 2 * head_size, *range(4 * head_size, 16385, 4 * head_size)):
        if width % row_multiple:
            continue
        tied = 2 * vocabulary * width > parameters // 2
        none, one = (Shape(vocabulary, width, layers, head_size, tied).parameters for layers in (0, 1))
        layers = max(1, round((parameters - none) / (one - none)))
        shapes.append(Shape(vocabulary, width, layers, head_size, tied))

    def badness(shape: Shape) -> float:
        return abs(math.log(shape.layers * 128 / shape.width)) + 10 * abs(math.log(shape.parameters / parameters))

    return min(shapes, key=badness)


def write(path: Path, parameters: int, kind: str = "Q8_0", head_size: int = 64, tokenizer: str = "") -> Shape:
    """Write a model with the tokenizer of the model ``tokenizer``, or of the default one. Raises ``ModelError``."""
    of_tokenizer = _read(tokenizer)
    vocabulary = len(of_tokenizer.fields[_TOKENS].data)
    name = f"Random {size_label(parameters)} {kind}"
    if kind in KINDS:
        shape = shape_of(parameters, head_size, vocabulary)
        _write(path, shape, KINDS[kind], name, of_tokenizer)
    else:
        shape = shape_of(parameters, head_size, vocabulary, _K_BLOCK)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".gguf") as plain:
            _write(Path(plain.name), shape, KINDS["F16"], name, of_tokenizer)
            _quantize(Path(plain.name), path, QUANTIZED[kind])
    return shape


def _write(path: Path, shape: Shape, kind: Kind, name: str, of_tokenizer: GGUFReader) -> None:
    gguf = GGUFWriter(path, "llama")
    gguf.add_name(name)
    gguf.add_file_type(kind.file_type)
    gguf.add_vocab_size(shape.vocabulary)
    gguf.add_context_length(CONTEXT_LENGTH)
    gguf.add_embedding_length(shape.width)
    gguf.add_block_count(shape.layers)
    gguf.add_feed_forward_length(shape.inner)
    gguf.add_head_count(shape.heads)
    gguf.add_head_count_kv(shape.kv_heads)
    gguf.add_rope_dimension_count(shape.head_size)
    gguf.add_rope_freq_base(100_000.0)
    gguf.add_layer_norm_rms_eps(1e-5)
    copy_tokenizer(of_tokenizer, gguf)
    _write_tensors(gguf, shape, kind)


def _quantize(plain: Path, path: Path, to: LlamaFileType) -> None:
    backends.load()
    llama_log.print_errors()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = int(to)
    params.nthread = usable_cores()
    if llama_cpp.llama_model_quantize(bytes(plain), bytes(path), ctypes.byref(params)):
        raise ModelError(f"{path}: llama.cpp could not quantize the weights")


def size_label(parameters: int) -> str:
    """Write a size as names of models have it: 135M, 1.5B."""
    scale, unit = (1e9, "B") if parameters >= 1e9 else (1e6, "M")
    return f"{parameters / scale:.3g}{unit}"


def _read(model: str) -> GGUFReader:
    path = find(model)
    try:
        reader = GGUFReader(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"tokenizer {path}: {error}") from None
    if _TOKENS not in reader.fields:
        raise ModelError(f"tokenizer {path}: the file has no tokens")
    return reader


def copy_tokenizer(source: GGUFReader, gguf: GGUFWriter) -> None:
    """Give a model that is being written the tokens and the chat template of another."""
    for name, field in source.fields.items():
        if name.startswith(_TOKENIZER):
            gguf.add_key_value(name, field.contents(), field.types[0], field.types[-1])


def _write_tensors(gguf: GGUFWriter, shape: Shape, kind: Kind) -> None:
    for name, sizes in shape.tensors():
        gguf.add_tensor_info(name, sizes, np.dtype(np.float32), _bytes(sizes, kind), _type(sizes, kind))
    gguf.write_header_to_file()
    gguf.write_kv_data_to_file()
    gguf.write_ti_data_to_file()
    templates: dict[int, Bytes] = {}
    for _, sizes in shape.tensors():
        inputs = sizes[-1]
        if len(sizes) == 1:
            gguf.write_tensor_data(np.ones(inputs, np.float32).view(np.uint8))
            continue
        if inputs not in templates:
            templates[inputs] = _template(kind, inputs)
        gguf.write_tensor_data(np.resize(templates[inputs], _bytes(sizes, kind)))
    gguf.close()


def _type(sizes: tuple[int, ...], kind: Kind) -> GGMLQuantizationType:
    # The norms; llama.cpp has them as F32 in every file.
    return kind.type if len(sizes) > 1 else GGMLQuantizationType.F32


def _bytes(sizes: tuple[int, ...], kind: Kind) -> int:
    return math.prod(sizes) // _BLOCK * kind.block_bytes if len(sizes) > 1 else 4 * sizes[0]


def _template(kind: Kind, inputs: int) -> Bytes:
    """Blocks of random weights, so large that what goes in comes out about as large."""
    random = np.random.default_rng(inputs)
    deviation: float = inputs**-0.5
    if kind.type == GGMLQuantizationType.F16:
        weights = random.standard_normal(_TEMPLATE_BLOCKS * _BLOCK, np.float32) * deviation
        return weights.astype(np.float16).view(np.uint8)
    blocks = random.integers(0, 256, (_TEMPLATE_BLOCKS, kind.block_bytes), np.uint8)
    # A block begins with its scale. A random byte is -128 to 127 times that, a random half of one -8 to 7 times.
    values = 256 if kind.type == GGMLQuantizationType.Q8_0 else 16
    scale = np.array([deviation / (values / math.sqrt(12))], np.float16)
    blocks[:, :2] = scale.view(np.uint8)
    return blocks.reshape(-1)


def parse_size(text: str) -> int:
    """The number that "10M" or "1.5B" means. Raises ``argparse.ArgumentTypeError``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([MB]?)", text)
    size = round(float(found[1]) * {"": 1, "M": 10**6, "B": 10**9}[found[2]]) if found else 0
    if not 10**6 <= size <= MAX_PARAMETERS:
        raise argparse.ArgumentTypeError(f"expected a number of parameters from 1M to 100B, such as 1.5B, got {text!r}")
    return size


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.random_model", description="Write a model of random weights.")
    parser.add_argument("file", type=Path, help="the GGUF file to write")
    parser.add_argument("--parameters", type=parse_size, default=10**9, metavar="N", help="10M to 8B (default: 1B)")
    parser.add_argument(
        "--weights", choices=[*KINDS, *QUANTIZED], default="Q8_0", help="their type (default: %(default)s)"
    )
    parser.add_argument("--head-size", type=int, choices=HEAD_SIZES, default=64, help="default: %(default)s")
    parser.add_argument("--tokenizer", default="", metavar="FILE", help="GGUF file (default: the default model)")
    options = parser.parse_args(argv)
    try:
        shape = write(options.file, options.parameters, options.weights, options.head_size, options.tokenizer)
    except (ModelError, OSError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    print(
        f"{options.file}: {size_label(shape.parameters)} parameters, {shape.layers} layers of {shape.width}, "
        f"{shape.heads} heads, {shape.kv_heads} of them for KV, {options.file.stat().st_size / 1e9:.2f} GB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
