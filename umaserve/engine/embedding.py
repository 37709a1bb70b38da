"""Embeddings: one vector per text, by a context that pools the embeddings of its tokens; and scores of rerankers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from umaserve.engine.batch import Batch
from umaserve.engine.model import Model
from umaserve.errors import Fault, RequestError
from umaserve.serving.ticks import Run


class Embedder:
    """Decodes one text at a time, on the context's last sequence: at once, or, where only its last token counts and no
    token attends to those behind it, in parts of ``n_ubatch`` tokens."""

    def __init__(self, model: Model, batch: Batch, n_ubatch: int, sequence_tokens: int) -> None:
        self._model = model
        self._batch = batch
        pooling = llama_cpp.llama_pooling_type(model.context)
        last = pooling == llama_cpp.LLAMA_POOLING_TYPE_LAST
        self.ranks = pooling == llama_cpp.LLAMA_POOLING_TYPE_RANK
        """Whether the vectors are scores of pairs."""
        self._n_ubatch = n_ubatch
        self._sequence_tokens = sequence_tokens
        self._max_tokens = sequence_tokens if last and model.is_causal else min(n_ubatch, sequence_tokens)
        self._memory = llama_cpp.llama_get_memory(model.context)
        self._sequence = model.n_seq_max - 1
        self._length: int = 1 if self.ranks else llama_cpp.llama_model_n_embd_out(model.native)

    def vectors(self, inputs: Sequence[Sequence[int]]) -> list[list[float]]:
        """A vector of unit length, or a score, for each of ``inputs`` (token ids); on the compute thread, between
        ticks.

        Raises ``RequestError`` before anything is computed where an input is empty or too long.
        """
        for tokens in inputs:
            if not tokens:
                raise RequestError(Fault.BAD_REQUEST, "input", "expected at least one token, got none")
            if len(tokens) > self._max_tokens:
                problem = f"expected at most {self._max_tokens} tokens, got {len(tokens)}"
                if len(tokens) <= self._sequence_tokens:
                    problem += ": this model computes a text at once, so the server needs more --n-batch and --n-ubatch"
                raise RequestError(Fault.CONTEXT_EXCEEDED, "input", problem)
        llama_cpp.llama_set_embeddings(self._model.context, True)
        try:
            return [self._vector(tokens) for tokens in inputs]
        finally:
            llama_cpp.llama_set_embeddings(self._model.context, False)

    def _vector(self, tokens: Sequence[int]) -> list[float]:
        try:
            code = self._decode(tokens)
            if code == 1:
                raise RequestError(
                    Fault.MEMORY_PRESSURE,
                    "input",
                    f"no room in the KV cache for {len(tokens)} tokens now; try again later",
                )
            if code:
                raise RequestError(Fault.DECODE_FAILED, "input", "llama.cpp failed to compute it")
            pooled: Any = llama_cpp.llama_get_embeddings_seq(self._model.context, self._sequence)
            vector = np.ctypeslib.as_array(pooled, (self._length,)).astype(np.float64)
        finally:
            llama_cpp.llama_memory_seq_rm(self._memory, self._sequence, -1, -1)
        if self.ranks:
            return [float(vector[0])]
        length = np.linalg.norm(vector)
        unit: list[float] = (vector / (length or 1.0)).astype(np.float32).tolist()
        return unit

    def _decode(self, tokens: Sequence[int]) -> int:
        """The code of ``llama_decode``, which is 0 once all are decoded."""
        for start in range(0, len(tokens), self._n_ubatch):
            part = tokens[start : start + self._n_ubatch]
            self._batch.fill([Run(self._sequence, start, part, None)], every_row=True)
            code = int(llama_cpp.llama_decode(self._model.context, self._batch.native))
            if code:
                return code
        return 0


def pools(model: Model) -> bool:
    """Whether the model's context pools a text's embeddings into one vector or score."""
    return bool(llama_cpp.llama_pooling_type(model.context) != llama_cpp.LLAMA_POOLING_TYPE_NONE)
