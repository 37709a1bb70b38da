"""Where llama.cpp places a model's tensors: on which GPUs, in which shares, and those that are to lie elsewhere."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import llama_cpp

from umaserve.core.errors import ModelError
from umaserve.engine.llama import backends
from umaserve.settings.daemon import Config

SPLIT_MODES = {
    "none": llama_cpp.LLAMA_SPLIT_MODE_NONE,
    "layer": llama_cpp.LLAMA_SPLIT_MODE_LAYER,
    "row": llama_cpp.LLAMA_SPLIT_MODE_ROW,
    "tensor": 3,  # LLAMA_SPLIT_MODE_TENSOR in llama.h; the bindings lack the name
}
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Names of the tensors that hold a layer's experts."""
MAX_LAYERS = 512
"""llama.cpp's own limit (LLAMA_MAX_LAYERS)."""


class _Override(ctypes.Structure):
    """llama.cpp's ``llama_model_tensor_buft_override``."""

    _fields_ = (("pattern", ctypes.c_char_p), ("memory", ctypes.c_void_p))


def place(params: Any, config: Config) -> list[Any]:
    """Set in ``params``, a model's, where its tensors lie; returns what must outlive the loading. Raises
    ``ModelError``."""
    params.n_gpu_layers = config.n_gpu_layers
    params.split_mode = SPLIT_MODES[config.split_mode]
    params.main_gpu = config.main_gpu
    kept: list[Any] = []
    if config.tensor_split:
        most = llama_cpp.llama_max_devices()
        if len(config.tensor_split) > most:
            raise ModelError(f"tensor_split: expected at most {most} shares, got {len(config.tensor_split)}")
        shares = (ctypes.c_float * most)(*map(float, config.tensor_split))
        params.tensor_split = shares
        kept.append(shares)
    if overrides := list(_overrides(config)):
        array = (_Override * (len(overrides) + 1))(*overrides)
        params.tensor_buft_overrides = ctypes.addressof(array)
        kept.append(array)
    return kept


def _overrides(config: Config) -> Iterator[_Override]:
    """The overrides in the order in which they count."""
    if not (config.override_tensor or config.n_cpu_moe):
        return
    memories = backends.memories()
    for override in config.override_tensor:
        pattern, _equals, name = override.rpartition("=")
        if name not in memories:
            known = ", ".join(sorted(memories))
            raise ModelError(f"override_tensor: expected one of {known} as the memory of {pattern}, got {name}")
        yield _Override(pattern.encode(), memories[name])
    for layer in range(min(config.n_cpu_moe, MAX_LAYERS)):
        yield _Override(rf"blk\.{layer}{EXPERTS}".encode(), memories["CPU"])
