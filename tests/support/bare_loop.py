"""llama.cpp without anything of ours: what a model itself says."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence

import llama_cpp
import numpy as np

from umaserve.engine.llama import backends
from umaserve.settings.model_files import default_model


class BareLoop:
    """A model, a context, and one token in each decode."""

    def __init__(self, path: str, n_ctx: int) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = n_ctx, 1, 1
        model = llama_cpp.llama_model_default_params()
        model.use_extra_bufts = backends.may_repack()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), model)
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._n_vocab = llama_cpp.llama_vocab_n_tokens(self._vocab)

    def tokenize(self, text: str) -> list[int]:
        data = text.encode()
        tokens = (ctypes.c_int32 * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(self._vocab, data, len(data), tokens, len(tokens), True, True)
        assert count >= 0
        return tokens[:count]

    def log_probabilities(self, tokens: Sequence[int]) -> list[np.ndarray]:
        """Of all tokens behind each of ``tokens``."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        rows = []
        for token in tokens:
            batch = llama_cpp.llama_batch_get_one((ctypes.c_int32 * 1)(token), 1)
            assert llama_cpp.llama_decode(self._context, batch) == 0
            native = llama_cpp.llama_get_logits_ith(self._context, -1)
            logits = np.ctypeslib.as_array(native, (self._n_vocab,)).astype(np.float64)
            rows.append(logits - logits.max() - math.log(np.exp(logits - logits.max()).sum()))
        return rows

    def close(self) -> None:
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)


def of_default_model(n_ctx: int) -> Iterator[BareLoop]:
    """What a fixture yields: the loop of the default model."""
    path = default_model()
    assert path is not None
    loop = BareLoop(path, n_ctx)
    yield loop
    loop.close()
