"""A ``llama_batch`` over numpy arrays, reused for every tick."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import llama_cpp
import numpy as np

from umaserve.engine.llama.positions import Positions
from umaserve.sessions.engine_api import Run


class Batch:
    """A batch of at most ``capacity`` tokens. It owns the arrays that ``native`` points to."""

    def __init__(self, capacity: int) -> None:
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._n_seq_id = np.ones(capacity, np.int32)
        self._seq_id = np.zeros(capacity, np.int32)
        self._output = np.zeros(capacity, np.int8)
        int32_p = ctypes.POINTER(ctypes.c_int32)
        stride = self._seq_id.itemsize
        self._seq_id_rows = (int32_p * capacity)(
            *(ctypes.cast(self._seq_id.ctypes.data + row * stride, int32_p) for row in range(capacity))
        )
        self.native = llama_cpp.llama_batch(
            n_tokens=0,
            token=self._token.ctypes.data_as(int32_p),
            embd=None,
            pos=self._pos.ctypes.data_as(int32_p),
            n_seq_id=self._n_seq_id.ctypes.data_as(int32_p),
            seq_id=ctypes.cast(self._seq_id_rows, ctypes.POINTER(int32_p)),
            logits=self._output.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, runs: Sequence[Run], positions: Positions | None = None, *, every_row: bool = False) -> int:
        """Lay out ``runs`` one after another; returns the number of output rows.

        A run with a sampler outputs its last row, and one more row before it for each of its draft tokens; one whose
        prompt's log-probabilities are wanted outputs all rows.
        ``positions``: maps token indices to positions where sequences contain media. ``every_row``: output all rows,
        as pooling of embeddings requires.
        """
        # Collected in lists first: each assignment to an array takes as long as many tokens.
        tokens: list[int] = []
        pos: list[int] = []
        seq_id: list[int] = []
        output: list[bool] = []
        outputs = 0
        for run in runs:
            n_tokens = len(run.tokens)
            if run.sampler is None:
                wanted = 0 if run.logprobs is None else n_tokens
            else:
                wanted = 1 + run.draft_tokens
            first = run.start if positions is None else positions.at(run.slot, run.start)
            tokens += run.tokens
            pos += range(first, first + n_tokens)
            seq_id += [run.slot] * n_tokens
            output += [every_row] * (n_tokens - wanted) + [True] * wanted
            outputs += wanted
        rows = len(tokens)
        self._token[:rows] = tokens
        self._pos[:rows] = pos
        self._seq_id[:rows] = seq_id
        self._output[:rows] = output
        self.native.n_tokens = rows
        return rows if every_row else outputs
