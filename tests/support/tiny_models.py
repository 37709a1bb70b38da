"""Tiny models of many architectures, with random weights: llama.cpp itself says which tensors each one has, so an
architecture takes no more than its keys."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import llama_cpp
import numpy as np
from gguf import GGUFReader, GGUFWriter
from llama_cpp._ggml import libggml

from bench.random_model import copy_tokenizer

N_CTX = 1024
WIDTH, HEADS, LAYERS, FF = 64, 2, 2, 96
HEAD = WIDTH // HEADS
WINDOW = 32
"""Of sliding-window attention."""

Value = int | float | bool | str | Sequence[int] | Sequence[float]

SPECIAL = ("<unk>", "<s>", "</s>")
LETTERS = tuple("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789<>|\n▁")
"""Each is a token of its own, so that every text has exactly one row of tokens."""
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""Never likely. Without them, llama.cpp ends the process at a text that its vocabulary can't write."""
TEMPLATE = "{% for m in messages %}<{{ m.role }}|{{ m.content }}>{% endfor %}<assistant|"

_UNUSUAL = ("scale", "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight", "attn_qkv.bias")
"""Tensors that llama.cpp would take, and that few models have."""
_USUAL = {
    "bloom": "attn_qkv.bias",
    "gemma4": "rope_freqs.weight",
    "gpt2": "attn_qkv.bias",
    "gptneox": "attn_qkv.bias",
    "jais": "attn_qkv.bias",
    "qwen": "attn_qkv.bias",
    "starcoder": "attn_qkv.bias",
}
"""Architectures with a tensor that others lack."""
_PER_LAYER = [HEADS, 0]
"""Attention in the first layer, a recurrent state in the second."""
_MOE: dict[str, Value] = {
    "expert_count": 2,
    "expert_used_count": 2,
    "expert_shared_count": 1,
    "expert_feed_forward_length": FF,
    "expert_shared_feed_forward_length": FF,
    "expert_gating_func": 2,
    "expert_weights_scale": 1.0,
    "leading_dense_block_count": 1,
    "interleave_moe_layer_step": 2,
}
_SSM: dict[str, Value] = {
    "ssm.inner_size": 2 * WIDTH,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 32,
    "ssm.time_step_rank": 2,
}
_SWA: dict[str, Value] = {"attention.sliding_window": WINDOW, "attention.sliding_window_pattern": 2}
_SWA_FIRST: dict[str, Value] = _SWA | {"attention.sliding_window_pattern": [True, False]}
_HYBRID: dict[str, Value] = {"attention.head_count": _PER_LAYER, "attention.head_count_kv": _PER_LAYER}
_DELTA_NET: dict[str, Value] = {
    "ssm.inner_size": 64,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 32,
    "ssm.time_step_rank": 2,
    "ssm.group_count": 2,
    "full_attention_interval": 2,
    "rope.dimension_sections": [4, 4, 4, 4],
}
_MLA: dict[str, Value] = {
    "attention.head_count": 1,
    "attention.head_count_kv": 1,
    "attention.key_length": 96,
    "attention.value_length": 64,
    "attention.key_length_mla": 64,
    "attention.value_length_mla": 32,
    "attention.kv_lora_rank": 64,
    "attention.q_lora_rank": 32,
    "rope.dimension_count": 32,
}
_MLA_SWA: dict[str, Value] = {
    "attention.kv_lora_rank_swa": 64,
    "attention.key_length_swa": 96,
    "attention.value_length_swa": 64,
    "attention.key_length_mla_swa": 64,
    "attention.value_length_mla_swa": 32,
    "rope.freq_base_swa": 10000.0,
}
_INDEXER: dict[str, Value] = {
    "attention.indexer.head_count": 2,
    "attention.indexer.key_length": 128,
    "attention.indexer.top_k": N_CTX,
}
"""Sparse attention: a layer attends only to the tokens that its indexer chooses. All, since many are
equally good with random weights."""
_INDEXED_BLOCKS: dict[str, Value] = {
    "attention.indexer.block_size": 16,
    "attention.indexer.local_blocks": 1,
    "attention.indexer.init_blocks": 1,
}
_KDA: dict[str, Value] = _MLA | {
    "attention.head_count": [1, 0],
    "attention.head_count_kv": [1, 0],
    "kda.head_dim": 32,
    "ssm.conv_kernel": 4,
}
_HYPER: dict[str, Value] = {
    "hyper_connection.count": 4,
    "hyper_connection.sinkhorn_iterations": 2,
    "hyper_connection.epsilon": 1e-6,
    "hyper_connection.low_rank": 8,
    "swiglu_clamp_exp": 10.0,
}
"""Several residual streams."""
_COMPRESSED: dict[str, Value] = {
    "block_count": 3,
    "attention.head_count_kv": 1,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "attention.q_lora_rank": 32,
    "attention.sliding_window": WINDOW,
    "attention.compress_ratios": [0, 4, 128],
    "attention.compress_rope_freq_base": 160000.0,
    "attention.output_group_count": 2,
    "attention.output_lora_rank": 32,
    "rope.dimension_count": HEAD // 2,
    "expert_gating_func": 4,
    "expert_weights_norm": True,
    "hash_layer_count": 1,
}
"""The tokens of a window, and before them a row for each 4 or 128 tokens, compressed."""
_NEMOTRON_H: dict[str, Value] = _SSM | {
    "ssm.group_count": 2,
    "block_count": 3,
    "attention.head_count": [HEADS, 0, 0],
    "attention.head_count_kv": [HEADS, 0, 0],
    "feed_forward_length": [0, 0, FF],
}
_RWKV7: dict[str, Value] = {
    "embedding_length": 128,
    "wkv.head_size": 64,
    "attention.decay_lora_rank": 16,
    "attention.iclr_lora_rank": 16,
    "attention.value_residual_mix_lora_rank": 16,
    "attention.gate_lora_rank": 16,
}

_SCALES: dict[str, Value] = {"logit_scale": 1.0, "residual_scale": 1.0, "embedding_scale": 1.0}
_BERT: dict[str, Value] = {"attention.causal": False, "pooling_type": 1, "tokenizer.ggml.token_type_count": 2}

FULL_ATTENTION: dict[str, dict[str, Value]] = {
    "apertus": {"xielu.alpha_n": 1.0, "xielu.alpha_p": 1.0, "xielu.beta": 1.0, "xielu.eps": 1e-7},
    "arcee": {},
    "arctic": _MOE,
    "baichuan": {},
    "bailingmoe": _MOE,
    "bailingmoe2": _MOE,
    "bitnet": {},
    "bloom": {"attention.max_alibi_bias": 8.0},
    "chatglm": {},
    "codeshell": {},
    "command-r": {"logit_scale": 1.0},
    "dbrx": _MOE | {"attention.clamp_kqv": 1.0},
    "deci": {},
    "deepseek": _MOE,
    "deepseek2": _MOE | _MLA,
    "deepseek2-ocr": _MOE,
    "deepseek32": _MOE | _MLA | _INDEXER,
    "dots1": _MOE,
    "ernie4_5": {},
    "ernie4_5-moe": _MOE,
    "exaone": {},
    "falcon": {},
    "gemma": {},
    "glm-dsa": _MOE | _MLA | _INDEXER,
    "glm4": {},
    "glm4moe": _MOE,
    "gpt2": {},
    "gptneox": {"use_parallel_residual": True},
    "granite": _SCALES | {"attention.scale": 0.2},
    "granitemoe": _MOE | _SCALES | {"attention.scale": 0.2},
    "grok": _MOE | {"logit_scale": 1.0},
    "grovemoe": _MOE | {"expert_group_scale": 1.0, "experts_per_group": 1},
    "hunyuan-dense": {},
    "hunyuan-moe": _MOE,
    "hunyuan_vl": {},
    "hy_v3": _MOE,
    "hy_v4": _MOE
    | _MLA
    | _INDEXER
    | _HYPER
    | {"hyper_connection.magnitude": 2.0, "attention.indexer.types": [True, False]},
    "internlm2": {},
    "jais": {"attention.max_alibi_bias": 8.0},
    "jais2": {},
    "llama": {},
    "maincoder": {},
    "minicpm": _SCALES,
    "minicpm3": _SCALES | _MLA | {"attention.head_count": HEADS, "attention.head_count_kv": HEADS},
    "minimax-m2": _MOE,
    "minimax-m3": _MOE | _INDEXER | _INDEXED_BLOCKS,
    "mistral3": {},
    "mistral4": _MOE | _MLA,
    "mpt": {"attention.clamp_kqv": 1.0, "attention.max_alibi_bias": 8.0},
    "nanbeige": {},
    "nemotron": {},
    "olmo": {"attention.clamp_kqv": 1.0},
    "olmo2": {},
    "olmoe": _MOE,
    "openelm": {},
    "orion": {},
    "paddleocr": {"rope.dimension_sections": [4, 6, 6, 0]},
    "pangu-embedded": {},
    "phi2": {},
    "phi3": {},
    "phimoe": _MOE,
    "plm": _MLA | {"attention.head_count": HEADS, "attention.head_count_kv": HEADS},
    "qwen": {},
    "qwen2": {},
    "qwen2moe": _MOE,
    "qwen2vl": {"rope.dimension_sections": [4, 6, 6, 0]},
    "qwen3": {},
    "qwen3moe": _MOE,
    "qwen3vl": {"rope.dimension_sections": [6, 5, 5, 0], "n_deepstack_layers": 1},
    "qwen3vlmoe": _MOE | {"rope.dimension_sections": [6, 5, 5, 0], "n_deepstack_layers": 1},
    "refact": {},
    "seed_oss": {},
    "smollm3": {},
    "stablelm": {"use_parallel_residual": False},
    "starcoder": {},
    "starcoder2": {},
    "talkie": {"logit_scale": 1.0},
    "xverse": {},
}
SLIDING_WINDOW: dict[str, dict[str, Value]] = {
    "afmoe": _MOE | _SWA | {"block_count": 4},
    "cohere2": _SWA | {"logit_scale": 1.0},
    "cohere2moe": _MOE | _SWA_FIRST | {"logit_scale": 1.0},
    "dots3note": _MOE | _MLA | _INDEXER | _SWA_FIRST | _MLA_SWA | {"attention.indexer.types": [False, True]},
    "exaone-moe": _MOE | _SWA_FIRST,
    "exaone4": _SWA,
    "gemma2": _SWA,
    "gemma3": _SWA,
    "gemma3n": _SWA | {"block_count": 22, "embedding_length_per_layer_input": 16},
    "gemma4": _SWA_FIRST
    | {
        "attention.key_length_swa": HEAD,
        "attention.value_length_swa": HEAD,
        "embedding_length_per_layer_input": 16,
    },
    "gpt-oss": _MOE | _SWA,
    "granite_swa": _SWA_FIRST | _SCALES | {"attention.scale": 0.2},
    "laguna": _MOE | _SWA_FIRST,
    "llama4": _MOE | {"block_count": 4},
    "maple": _MOE | _SWA_FIRST | {"swiglu_clamp_exp": 7.0},
    "mellum": _MOE | _SWA,
    "mimo2": _MOE | _SWA_FIRST,
    "muse-glimmer": _SWA | {"logit_scale": 1.0},
    "plamo3": _SWA,
    "smallthinker": _MOE | {"attention.sliding_window": WINDOW, "block_count": 4},
    "spark2_5": _SWA_FIRST,
    "step35": _MOE | _SWA_FIRST,
}
RECURRENT: dict[str, dict[str, Value]] = {
    "bailingmoe3": _MOE | _KDA | {"kda.gate_lower_bound": -5.0},
    "deepseek4": _MOE | _INDEXER | _HYPER | _COMPRESSED,
    "falcon-h1": _SSM | {"ssm.group_count": 2},
    "glm5-next": _MOE
    | _KDA
    | _INDEXER
    | _HYPER
    | {
        "kda.gate_lower_bound": -5.0,
        "attention.head_count": 1,
        "attention.key_length": 64,
        "attention.indexer.kpool": 4,
        "attention.indexer.kpool_select_tail": True,
        "rope.dimension_count": 0,
    },
    "granitehybrid": _HYBRID | _SSM | {"ssm.group_count": 2},
    "jamba": _HYBRID | _SSM,
    "kimi-k3": _MOE
    | _KDA
    | {
        "kda.gate_lower_bound": -5.0,
        "attn_res.block_size": 12,
        "activation.situ_beta": 4.0,
        "activation.situ_linear_beta": 25.0,
    },
    "kimi-linear": _MOE | _KDA,
    "lfm2": _HYBRID | {"shortconv.l_cache": 3},
    "lfm2moe": _MOE | _HYBRID | {"shortconv.l_cache": 3},
    "mamba": _SSM,
    "mamba2": _SSM | {"ssm.group_count": 2},
    "minimax-01": _MOE | {"residual_scale": 1.0, "full_attention_interval": 2},
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H | _MOE,
    "qwen35": _DELTA_NET,
    "qwen35moe": _DELTA_NET | _MOE,
    "qwen3next": _DELTA_NET | _MOE,
    "qwen4exp": _DELTA_NET | _MOE | _INDEXER | _HYPER | {"attention.compress_ratios": [4, 4]},
    "rwkv6": {"wkv.head_size": HEAD, "time_mix_extra_dim": 16, "time_decay_extra_dim": 16},
    "rwkv7": _RWKV7,
}
"""Absent from these, since llama-server has no certain answer of theirs: arwkv7 (another one beside other prompts),
cogvlm (another one each time), plamo2 and rwkv6qwen2 (it ends)."""
EMBEDDING: dict[str, dict[str, Value]] = {"bert": _BERT, "modern-bert": _BERT | _SWA, "nomic-bert": _BERT}
OTHERS: dict[str, dict[str, Value]] = {
    "dream": {},
    "llada": {},
    "llada-moe": _MOE,
    "rnd1": _MOE,
    "t5": {"attention.relative_buckets_count": 8},
}

_COMMON: dict[str, Value] = {
    "context_length": N_CTX,
    "embedding_length": WIDTH,
    "block_count": LAYERS,
    "feed_forward_length": FF,
    "attention.head_count": HEADS,
    "attention.head_count_kv": HEADS,
    "attention.layer_norm_epsilon": 1e-5,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


def tiny_model(
    path: Path,
    architecture: str,
    seed: int = 1,
    tokens: Sequence[str] = (),
    vocabulary: str = "",
    tokenizer: str = "",
    **keys: Value,
) -> str:
    """Write a model of ``architecture`` to ``path``; ``tokens`` are control tokens beside the usual ones, and ``keys``
    replace keys of its own, with ``__`` for a dot. ``vocabulary``: its kind, where it is another than usual.
    ``tokenizer``: the file of a model whose vocabulary and template it has instead."""
    vocabulary = vocabulary or ("bert" if architecture.endswith("bert") else "llama")
    own = (FULL_ATTENTION | SLIDING_WINDOW | RECURRENT | EMBEDDING | OTHERS)[architecture]
    values = _COMMON | own | {key.replace("__", "."): value for key, value in keys.items()}

    def add_vocabulary(writer: GGUFWriter) -> None:
        if tokenizer:
            copy_tokenizer(GGUFReader(tokenizer), writer)
        else:
            _add_vocabulary(writer, vocabulary, tokens)

    _write(path, architecture, values, [], seed, add_vocabulary)
    _write(path, architecture, values, _tensors(path, architecture), seed, add_vocabulary)
    return str(path)


def _write(
    path: Path,
    architecture: str,
    values: dict[str, Value],
    tensors: list[tuple[str, tuple[int, ...]]],
    seed: int,
    add_vocabulary: Callable[[GGUFWriter], None],
) -> None:
    writer = GGUFWriter(path, architecture)
    for key, value in values.items():
        name = key if key.startswith(("tokenizer.", "xielu.")) else f"{architecture}.{key}"
        match value:
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
            case float():
                writer.add_float32(name, value)
            case str():
                writer.add_string(name, value)
            case _:
                writer.add_array(name, value)
    add_vocabulary(writer)
    random = np.random.default_rng(seed)
    untied = any(name == "output.weight" for name, _shape in tensors)
    for name, shape in tensors:
        role = "output.weight" if name == "token_embd.weight" and not untied else name
        writer.add_tensor(name, _random(random, role, shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: GGUFWriter, kind: str, control: Sequence[str]) -> None:
    written = [*SPECIAL, *LETTERS, *(BYTES if kind == "llama" else ())]
    types = [2, 3, 3] + [1] * len(LETTERS) + [6] * (len(written) - len(SPECIAL) - len(LETTERS))
    tokens = [*written, *control]
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(types + [3] * len(control))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    if kind == "bert":
        for special in (writer.add_sep_token_id, writer.add_pad_token_id, writer.add_unk_token_id):
            special(0)


def _random(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers with which every token changes what follows, and two tokens are seldom nearly as likely."""
    values = random.standard_normal(shape).astype(np.float32)
    if name.endswith("tid2eid.weight"):
        return random.integers(0, 2, shape, np.int32)  # The experts of each token.
    if ("norm" in name or "rope_freqs" in name) and name.endswith("weight"):
        return 1 + 0.1 * values
    if "ssm_a" in name:
        return -np.abs(values)  # The state decays.
    if name == "token_embd.weight":
        return values
    if name == "output.weight":
        values[: len(SPECIAL)] = values[len(SPECIAL) + len(LETTERS) :] = 0  # Only letters are generated.
        return values
    return values * np.float32(1.5 * shape[-1] ** -0.5 if len(shape) > 1 else 0.3)


class _Tensor(ctypes.Structure):
    """The beginning of ``ggml_tensor``."""

    _fields_ = (("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4))


class _InitParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def _ignore(_level: int, _text: bytes, _user_data: object) -> None:
    """Drop what the model logs of what it finds when it is loaded."""


_no_log = llama_cpp.llama_log_callback(_ignore)
_name_of = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(("ggml_get_name", libggml))
_open = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, _InitParams)(("gguf_init_from_file", libggml))
_close = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(("gguf_free", libggml))


def _tensors(path: Path, architecture: str) -> list[tuple[str, tuple[int, ...]]]:
    """The tensors that llama.cpp wants for the keys in this file, each with its shape in numpy's order."""
    found: dict[str, tuple[int, ...]] = {}
    unusual = tuple(name for name in _UNUSUAL if name != _USUAL.get(architecture))

    def note(tensor: int, _user_data: object) -> None:
        dims = list(_Tensor.from_address(tensor).ne)
        while len(dims) > 1 and dims[-1] == 1:
            dims.pop()
        name = _name_of(tensor).decode()
        if not name.endswith(unusual):
            found[name] = tuple(reversed(dims))

    llama_cpp.llama_log_set(_no_log, ctypes.c_void_p())
    metadata = _open(str(path).encode(), _InitParams(True, None))
    model = llama_cpp.llama_model_init_from_user(
        metadata, llama_cpp.llama_model_set_tensor_data_t(note), None, llama_cpp.llama_model_default_params()
    )
    _close(metadata)
    if not model:
        raise RuntimeError(f"llama.cpp makes no model of the keys in {path}")
    llama_cpp.llama_model_free(model)
    return list(found.items())
