"""What the bytes of a saved sequence depend on, as one key: files by their content, wherever they lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import llama_cpp
import orjson

from umaserve.engine.files import gguf
from umaserve.engine.files.disk_file import MAGIC, key_of
from umaserve.engine.llama import backends
from umaserve.engine.llama.model import Model
from umaserve.sessions.engine_api import SavedBytes
from umaserve.settings.daemon import Config
from umaserve.settings.daemon.engine import ROPE

_HEAD_BYTES = 64 << 10
_SAMPLES = 64
_SAMPLE_BYTES = 4 << 10
"""Bytes of each sample of a file: weights are too many to read them all again. Samples tell finetunes of one size
apart, also where an installer gives all files the same time."""


def fingerprint(model: Model, config: Config, adapters: Mapping[str, str], saved_bytes: SavedBytes) -> bytes:
    """The key of sequences that this model computes with these settings. ``adapters``: their files by their
    names. Raises ``OSError``."""
    facts: dict[str, Any] = {
        "format": MAGIC.decode(),
        "llama_cpp": [llama_cpp.__version__, llama_cpp.LLAMA_STATE_SEQ_VERSION, backends.build()],
        "model": [_file(path) for path in gguf.files(model.path)],
        # Their scales are a part of the scope.
        "adapters": {name: _file(path) for name, path in adapters.items()},
        "kv_types": config.kv_types,
        # It decides in which order values lie, and "auto" by the device.
        "attention": [config.flash_attn, config.n_gpu_layers, config.split_mode, config.override_tensor],
        # K is stored with its positions.
        "rope": [getattr(config, name) for name in ROPE],
        # Some models choose their rotary factors by the number of cells.
        "cells": model.n_ctx,
        "states": model.removable,
        "saved_bytes": list(saved_bytes),
    }
    return key_of(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS))


def _file(path: str) -> list[str | int]:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        step = max(1, status.st_size // _SAMPLES)
        parts = [file.read(_HEAD_BYTES)]
        for at in range(0, status.st_size, step):
            file.seek(at)
            parts.append(file.read(_SAMPLE_BYTES))
    return [key_of(*parts).hex(), status.st_size, status.st_mtime_ns]
