"""Embeddings: one vector per text, by a context that pools the embeddings of its tokens; and scores of rerankers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from umaserve.core.errors import Fault, ModelError, RequestError
from umaserve.engine.llama.batch import Batch
from umaserve.engine.llama.embedding_pauses import EmbeddingPauses
from umaserve.engine.llama.model import CELLS_ROUNDED_TO, Model
from umaserve.sessions.engine_api import Run, YieldPoint

Vector = npt.NDArray[np.float64]
TEXTS_AT_ONCE = 32
"""Most texts in one decode; each costs the memory of a row of logits."""


class Embedder:
    """Decodes several texts at a time, as many as ``n_ubatch`` tokens hold, in a context of its own: so ticks can run
    while a text is computed, and take none of its cells.

    A longer text is computed in parts of ``n_ubatch`` tokens where only its last token counts and no token attends to
    those behind it; its cells are there for this time only.
    """

    def __init__(self, model: Model, adapt: Callable[[Any], None], n_ubatch: int, sequence_tokens: int) -> None:
        """``adapt`` sets the LoRA adapters of a new context. Raises ``ModelError``."""
        self._model = model
        self._adapt = adapt
        pooling = llama_cpp.llama_pooling_type(model.context)
        last = pooling == llama_cpp.LLAMA_POOLING_TYPE_LAST
        self.ranks = pooling == llama_cpp.LLAMA_POOLING_TYPE_RANK
        """Whether the vectors are scores of pairs."""
        self._rows = min(n_ubatch, sequence_tokens)
        self._sequence_tokens = sequence_tokens
        self._max_tokens = sequence_tokens if last and model.is_causal else self._rows
        # A recurrent state takes its memory whether it is used or not.
        self._texts_at_once = 1 if model.has_recurrent_state else min(TEXTS_AT_ONCE, self._rows)
        self._length: int = 1 if self.ranks else llama_cpp.llama_model_n_embd_out(model.native)
        self._batch = Batch(self._rows)
        self._pauses = EmbeddingPauses()
        self._context = self._new_context(self._rows)

    def check(self, inputs: Sequence[Sequence[int]]) -> None:
        """Check ``inputs``. Raises ``RequestError`` where an input is empty or too long."""
        for tokens in inputs:
            if not tokens:
                raise RequestError(Fault.BAD_REQUEST, "input", "expected at least one token, got none")
            if len(tokens) > self._max_tokens:
                problem = f"expected at most {self._max_tokens} tokens, got {len(tokens)}"
                if len(tokens) <= self._sequence_tokens:
                    problem += ": this model computes a text at once, so the server needs more --n-batch and --n-ubatch"
                raise RequestError(Fault.CONTEXT_EXCEEDED, "input", problem)

    def vectors(
        self, inputs: Sequence[Sequence[int]], threads: int, pause: YieldPoint, *, raw: bool = False
    ) -> list[list[float]]:
        """A vector of unit length, or of its own if it is wanted ``raw``, or a score, for each of ``inputs`` (token
        ids). ``pause`` is called every few milliseconds and may run ticks.

        Raises ``RequestError`` before anything is computed where an input is empty or too long.
        """
        self.check(inputs)
        vectors: list[Vector] = []
        for texts in self._decodes(inputs):
            if vectors:
                pause()
            vectors += self._vectors(texts, threads, pause)
        return [(vector if raw or self.ranks else _unit(vector)).astype(np.float32).tolist() for vector in vectors]

    def _decodes(self, inputs: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
        """The inputs in order, grouped by decode."""
        texts: list[Sequence[int]] = []
        rows = 0
        for tokens in inputs:
            if texts and (rows + len(tokens) > self._rows or len(texts) == self._texts_at_once):
                yield texts
                texts, rows = [], 0
            texts.append(tokens)
            rows += len(tokens)
        yield texts

    def _vectors(self, texts: Sequence[Sequence[int]], threads: int, pause: YieldPoint) -> list[Vector]:
        longest = max(map(len, texts))
        if longest <= self._rows:
            return self._pooled(self._context, texts, threads, pause)
        try:
            context = self._new_context(longest)
        except ModelError:
            problem = f"no memory for {longest} tokens now; try again later"
            raise RequestError(Fault.MEMORY_PRESSURE, "input", problem) from None
        try:
            return self._pooled(context, texts, threads, pause)
        finally:
            llama_cpp.llama_free(context)

    def _pooled(self, context: Any, texts: Sequence[Sequence[int]], threads: int, pause: YieldPoint) -> list[Vector]:
        """Vectors of several texts that fit into one decode, or of one text."""
        llama_cpp.llama_set_n_threads(context, threads, threads)
        try:
            for start in range(0, max(map(len, texts)), self._rows):
                parts = [tokens[start : start + self._rows] for tokens in texts]
                self._batch.fill([Run(i, start, part, None) for i, part in enumerate(parts)], every_row=True)
                code = self._pauses.decode(
                    sum(map(len, parts)), pause, lambda: int(llama_cpp.llama_decode(context, self._batch.native))
                )
                if code:
                    raise RequestError(Fault.DECODE_FAILED, "input", "llama.cpp failed to compute it")
            return [self._vector(llama_cpp.llama_get_embeddings_seq(context, i)) for i in range(len(texts))]
        finally:
            if memory := llama_cpp.llama_get_memory(context):
                llama_cpp.llama_memory_clear(memory, False)

    def _vector(self, pooled: Any) -> Vector:
        """Copy of the pooled vector; of a score's vector only the first number counts."""
        vector = np.ctypeslib.as_array(pooled, (self._length,)).astype(np.float64)
        return vector[:1] if self.ranks else vector

    def _new_context(self, cells: int) -> Any:
        rounded = -(-cells // CELLS_ROUNDED_TO) * CELLS_ROUNDED_TO
        context = self._model.pooling_context(rounded, self._rows, self._texts_at_once, self._pauses.native)
        self._adapt(context)
        return context

    def free(self) -> None:
        llama_cpp.llama_free(self._context)


def _unit(vector: Vector) -> Vector:
    return vector / (np.linalg.norm(vector) or 1.0)


def pools(model: Model) -> bool:
    """Whether the model's context pools a text's embeddings into one vector or score."""
    return bool(llama_cpp.llama_pooling_type(model.context) != llama_cpp.LLAMA_POOLING_TYPE_NONE)
