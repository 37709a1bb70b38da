"""Loads the models in the engine's process, where a client's request is not to find what is wrong with a file."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable

from umaserve.engine import context_size
from umaserve.engine.engine import LlamaEngine
from umaserve.engine.files import gguf
from umaserve.engine.last_words import Begins, ignore_begin
from umaserve.engine.llama.model import find
from umaserve.engine.loading import load_model
from umaserve.sessions.engine_api import Allowance
from umaserve.settings.daemon import Config
from umaserve.settings.kinds import AUTO

log = logging.getLogger(__name__)


def load_checked(
    config: Config,
    allowance: Allowance,
    progress: Callable[[float], bool],
    chat_template: str | None = None,
    begins: Begins = ignore_begin,
) -> LlamaEngine:
    """Load the engine, as ``engine.load``, and try the models out, unless they are known; ``begins`` is told each file
    that may end this process. Also raises ``TooLarge`` where they take more than is available."""
    path = find(config.model)
    for file in (path, config.draft_model, config.mmproj):
        if file:
            gguf.check(file)
    available, known = allowance.available_bytes, allowance.known_bytes
    asked = config
    config, needed_bytes = context_size.settle(
        path, asked, available, lambda: progress(0.0), known, allowance.known_cells
    )
    begins("model", path)
    model = load_model(path, config, progress, available)
    if needed_bytes and needed_bytes != known:
        # Of a converted copy, which is larger.
        needed_bytes += os.path.getsize(model.path) - os.path.getsize(path)
    engine = LlamaEngine(model, config, chat_template, begins)
    if not known:
        engine.try_out(begins)
    _tell_context(engine, asked)
    engine.info = dataclasses.replace(engine.info, needed_bytes=needed_bytes)
    return engine


def _tell_context(engine: LlamaEngine, asked: Config) -> None:
    """Log how much a sequence may have, and why no more."""
    tokens, trained, cells = engine.capacity.sequence_tokens, engine.info.training_tokens, engine.capacity.cells
    if tokens == trained:
        why = "as the model was trained for"
    elif asked.n_ctx == AUTO:
        why = f"since memory has no room for more; the model was trained for {trained}"
    else:
        why = f"as n_ctx says; the model was trained for {trained}"
    fields = {"kv_cells": cells, "parallel": engine.capacity.slots}
    log.info("context: a sequence may have %d tokens, %s", tokens, why, extra={"fields": fields})
