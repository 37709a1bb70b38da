"""Tries a model that was just loaded: some files that llama.cpp loads end it at the first tokens, and no client's
request should be what finds that."""

from __future__ import annotations

import contextlib
import ctypes
import string

import llama_cpp

from umaserve.core.errors import RequestError
from umaserve.engine.llama.embedding import Embedder
from umaserve.engine.llama.model import Model

MAX_COMPUTED = 4 << 30
"""Most bytes of weights with which a trial decodes, since all are read. With more, a slow disk would take minutes."""
_TEXT = string.printable + "é \U0001f600"


def try_out(model: Model, embedder: Embedder | None = None) -> None:
    """Tokenize a text, and unless the weights are many, decode a prompt, and a token after it; with an ``embedder``,
    embed a text too. What fails in an orderly way is left to the requests that it will fail."""
    data = _TEXT.encode()
    tokens = (ctypes.c_int32 * (len(data) + 8))()
    for special in (True, False):
        llama_cpp.llama_tokenize(model.vocab, data, len(data), tokens, len(tokens), special, special)
    if llama_cpp.llama_model_size(model.native) > MAX_COMPUTED:
        return
    prompt = (ctypes.c_int32 * 2)(0, model.n_vocab - 1)
    for n in (2, 1):
        llama_cpp.llama_decode(model.context, llama_cpp.llama_batch_get_one(prompt, n))
    if model.memory:
        llama_cpp.llama_memory_seq_rm(model.memory, 0, -1, -1)
    if embedder is not None:
        with contextlib.suppress(RequestError):
            embedder.vectors([prompt[:]], model.n_threads, lambda: None)
