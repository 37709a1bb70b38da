"""Loads the model with the weights that this box computes fastest."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from umaserve.core.errors import ModelError
from umaserve.engine.files.weights import choose
from umaserve.engine.llama import backends
from umaserve.engine.llama.model import Model
from umaserve.settings.daemon import Config

log = logging.getLogger(__name__)

CHOOSING = 0.9
"""The share of the loading time in which a copy of the weights is made, if one must be, and measured."""


def load_model(
    path: str, config: Config, progress: Callable[[float], bool], available_bytes: int | None = None
) -> Model:
    """Load the weights that are faster, and fit into what is available, under the name of ``path``."""
    chosen = 0.0

    def choosing(fraction: float) -> bool:
        nonlocal chosen
        chosen = CHOOSING * fraction
        return progress(chosen)

    def loading(fraction: float) -> bool:
        return progress(chosen + (1 - chosen) * fraction)

    parted = is_parted(config)
    weights = choose(path, config, choosing, available_bytes)
    if weights.converted_from:
        try:
            name = Path(path).stem
            return Model(weights.path, config, loading, name=name, converted_from=weights.converted_from, parted=parted)
        except ModelError as error:
            if not loading(0.0):
                raise
            log.warning(
                "the converted copy of the weights can't be loaded, so the model's own file is used: delete the copy:"
                " %s",
                error,
            )
    return Model(path, config, loading, repacked=weights.repacked, parted=parted)


def is_parted(config: Config) -> bool:
    """Whether the KV cells are to be divided. Without host memory, cached prefixes need cells that nobody else waits
    for."""
    return on_cpu(config) and config.host_cache_bytes != 0


def on_cpu(config: Config) -> bool:
    """Whether all layers are computed on the CPU."""
    return config.n_gpu_layers == 0 or not backends.have_gpu()
