"""llama.cpp's array of candidate tokens, backed by numpy."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

Logits = npt.NDArray[np.float32]
Left = npt.NDArray[np.void]
"""Candidates that sampling has left, with their probabilities."""

COLUMNS = 1024
"""Number of columns into which a row of logits is divided to find the likeliest."""


class Candidates:
    """Tokens of the vocabulary as candidates: all, or the likeliest. One array, reused for every row of logits."""

    def __init__(self, n_vocab: int) -> None:
        self.tokens = np.zeros(n_vocab, _CANDIDATE)
        self._native = native(self.tokens)
        self._address = self.tokens.ctypes.data
        self._ids = np.arange(n_vocab, dtype=np.int32)

    def all(self, logits: Logits) -> Any:
        return self._filled(self._ids, logits)

    def likeliest(self, logits: Logits, k: int) -> Any:
        """Candidates for llama.cpp's top-k, which gives the same with them as with all tokens, in less time: some
        more than ``k``, or all."""
        rows = len(logits) // COLUMNS
        if not rows or k > COLUMNS:
            return self.all(logits)
        # In each of k columns, at least one token reaches the k-th largest maximum.
        maxima = np.maximum.reduce(logits[: rows * COLUMNS].reshape(rows, COLUMNS))
        maxima.partition(-k)
        (ids,) = (logits >= maxima[-k]).nonzero()
        kept = logits[ids]
        # Which of several equal logits come first in llama.cpp depends on the other candidates. There are too few where
        # some are not numbers, and many where most are masked.
        if not k <= len(ids) <= COLUMNS or len(set(kept.tolist())) < len(ids):
            return self.all(logits)
        return self._filled(ids, kept)

    def left(self, native: Any) -> Left:
        """The candidates that sampling has left of ``native``: some samplers drop the first ones."""
        begin = (ctypes.addressof(native.data.contents) - self._address) // _CANDIDATE.itemsize
        return self.tokens[begin : begin + native.size]

    def only(self, token: int) -> Left:
        """``token`` as the one that was certain."""
        self.tokens[0] = (token, 0.0, 1.0)
        return self.tokens[:1]

    def _filled(self, ids: npt.NDArray[np.integer[Any]], logits: Logits) -> Any:
        size = len(ids)
        self.tokens["id"][:size] = ids
        self.tokens["logit"][:size] = logits
        return llama_cpp.llama_token_data_array(data=self._native.data, size=size, selected=-1, sorted=False)


def native(tokens: npt.NDArray[Any]) -> Any:
    """A ``llama_token_data_array`` that points into ``tokens``, which must outlive it."""
    pointer = tokens.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data))
    return llama_cpp.llama_token_data_array(data=pointer, size=len(tokens), selected=-1, sorted=False)
