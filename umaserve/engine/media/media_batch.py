"""Decoding a media chunk's embeddings as part of a sequence."""

from __future__ import annotations

import ctypes

import llama_cpp
import numpy as np

from umaserve.engine.llama.model import Model
from umaserve.engine.llama.positions import Positions
from umaserve.engine.media.projector import MediaChunk
from umaserve.sessions.engine_api import Run, Span


class MediaBatch:
    """Decodes runs of media one by one: a llama.cpp batch can't mix tokens and embeddings."""

    def __init__(self, model: Model, positions: Positions) -> None:
        self._model = model
        self._positions = positions

    def decode(self, run: Run, span: Span) -> int:
        """Decode ``run``, which lies in ``span``; returns ``llama_decode``'s code."""
        chunk = span.chunk
        assert isinstance(chunk, MediaChunk)
        assert chunk.embeddings is not None
        first, n = run.start - span.start, len(run.tokens)
        rows = np.ascontiguousarray(chunk.embeddings[first : first + n])
        begin = self._positions.at(run.slot, span.start)
        if chunk.places is None:
            places = np.arange(begin + first, begin + first + n, dtype=np.int32)
        else:
            places = np.ascontiguousarray(chunk.places.at(begin)[:, first : first + n], dtype=np.int32)
        sequence = ctypes.c_int32(run.slot)
        int32_p = ctypes.POINTER(ctypes.c_int32)
        batch = llama_cpp.llama_batch(
            n_tokens=n,
            token=None,
            embd=rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            pos=places.ctypes.data_as(int32_p),
            n_seq_id=(ctypes.c_int32 * n)(*[1] * n),
            seq_id=(int32_p * n)(*[ctypes.pointer(sequence)] * n),
            logits=(ctypes.c_int8 * n)(),
        )
        if chunk.whole:
            llama_cpp.llama_set_causal_attn(self._model.context, False)
        try:
            code: int = llama_cpp.llama_decode(self._model.context, batch)
        finally:
            if chunk.whole:
                llama_cpp.llama_set_causal_attn(self._model.context, True)
        if not code and run.start + n == span.end:
            self._positions.skip(run.slot, span.end, chunk.tokens - chunk.positions)
        return code
