"""What memory a model will take, found out before it is loaded, and whether the box has that much.

``empty_model`` measures it in a process of its own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from umaserve.core.errors import TooLarge
from umaserve.settings.daemon import Config
from umaserve.system import program

log = logging.getLogger(__name__)

MAX_S = 60.0
AMPLE_SHARE = 0.9
"""Largest share of the available memory that is ample. With more, other programs and clients' media may leave too
little."""
KNOWN_CELLS = 1 << 15
"""Most KV cells with which the default model takes less than a GiB, and is not measured."""
_SETTINGS = (
    "n_ctx",
    "n_batch",
    "n_ubatch",
    "parallel",
    "kv_type",
    "kv_type_k",
    "kv_type_v",
    "flash_attn",
    "n_gpu_layers",
    "split_mode",
    "tensor_split",
    "main_gpu",
    "override_tensor",
    "n_cpu_moe",
    "pooling",
    "speculation",
    "host_cache_bytes",
)
_LARGE_KV_TYPES = ("f16", "bf16", "f32")


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes of the box's memory that a model takes; what is on other devices does not count."""

    weights: int
    """Weights in bytes, also those that llama.cpp maps from the file: each token reads them all."""
    cells: int
    """KV cells, and recurrent states, in bytes."""
    computing: int
    """Room in bytes for what a decode computes and for its logits; taken by the first large decodes."""
    vocabulary: int
    """Vocabulary in bytes, with all else that llama.cpp keeps of the file's header."""
    n_ctx: int
    """Number of KV cells, and below of the sequences that share them."""
    n_seq_max: int
    gpu_cells: int = 0
    """KV cells in the memory of GPUs, in bytes, and below the room that GPUs have for them."""
    gpu_room: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.cells + self.computing + self.vocabulary


def measured(path: str, config: Config, wanted: Callable[[], bool], *, sequences: int = 0) -> Needs | None:
    """Needs of a model; ``None`` where they can't be found out: for a model that can't be loaded, which its loading
    explains, and when it is not ``wanted`` any more. ``sequences``: of a model that a draft model, this one, drafts
    for. Blocks for half a second, and as long as llama.cpp reads the header."""
    # Not the whole configuration: other users may see a program's arguments.
    settings = {name: getattr(config, name) for name in _SETTINGS}
    arguments = (path, orjson.dumps(settings).decode(), str(sequences))
    try:
        found = program.run("umaserve.engine.files.empty_model", *arguments, wanted=wanted, max_s=MAX_S)
    except program.Cancelled:
        return None
    except (OSError, program.ProgramError) as error:
        log.info("the memory that %s needs is unknown: %s", path, error)
        return None
    return Needs(**orjson.loads(found))


def check(path: str, config: Config, available: int, wanted: Callable[[], bool], known_bytes: int = 0) -> int:
    """The bytes that the model at ``path`` takes, with its draft model and projector; 0 where that is not measured: of
    the default model, where parts are on other boxes, and where it can't be found out. Raises ``TooLarge`` where it is
    more than is ``available`` without swapping, and warns where little is left. ``known_bytes``, from an
    earlier loading, are taken for it where so much is no question, and nothing is refused because of them."""
    if known_bytes and is_ample(known_bytes, config, available):
        return known_bytes
    if config.rpc or (not config.model and config.n_ctx <= KNOWN_CELLS):
        return 0
    found = whole(path, config, wanted)
    if found is None:
        return 0
    judge(path, config, *found, available)
    needs, others = found
    return needs.total + others


def whole(path: str, config: Config, wanted: Callable[[], bool]) -> tuple[Needs, int] | None:
    """Needs of a model, and the bytes of its draft model and projector; ``None`` as ``measured``."""
    needs = measured(path, config, wanted)
    if needs is None:
        return None
    others = os.path.getsize(config.mmproj) if config.mmproj and config.n_gpu_layers == 0 else 0
    if config.draft_model:
        of_draft = config.for_companion(n_ctx=needs.n_ctx, pooling="model")
        draft = measured(config.draft_model, of_draft, wanted, sequences=needs.n_seq_max)
        others += 0 if draft is None else draft.total
    return needs, others


def judge(path: str, config: Config, needs: Needs, others: int, available: int) -> None:
    """Check whether the model fits, by what is known: ``others`` are the bytes of the draft model and the projector.
    Raises ``TooLarge``, and warns where little is left."""
    total = needs.total + others
    parts = {
        "weights": needs.weights,
        "KV cells": needs.cells,
        "computing": needs.computing + needs.vocabulary,
        "draft model and projector": others,
    }
    sizes = ", ".join(f"{name} {n_bytes >> 20}" for name, n_bytes in parts.items() if n_bytes >> 20)
    found = f"model {path}: it takes {total >> 20} MiB of memory ({sizes}), and {available >> 20} MiB are available"
    if total > available:
        raise TooLarge(f"{found}: {_remedy(config, needs, total - available)}", total)
    if not is_ample(total, config, available):
        cache = f", and --host-cache-bytes lets it take {config.least_host_cache_bytes >> 20} more"
        log.warning("memory may run short. %s%s", found, cache if config.least_host_cache_bytes >> 20 else "")


def is_ample(total: int, config: Config, available: int) -> bool:
    """Whether the memory that is ``available`` leaves enough beside a model that takes ``total`` bytes."""
    return total + config.least_host_cache_bytes <= available * AMPLE_SHARE


def _remedy(config: Config, needs: Needs, missing: int) -> str:
    smaller = "choose a smaller model or a stronger quantization"
    if needs.cells + needs.computing < missing:
        return smaller
    less = f"lower --n-ctx ({needs.n_ctx}) or --parallel ({config.parallel})"
    if set(config.kv_types).issubset(_LARGE_KV_TYPES):
        less += ", set --kv-type q8_0"
    return f"{less}, or {smaller}"
