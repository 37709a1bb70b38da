"""llama.cpp's array of candidate tokens, backed by numpy."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

Logits = npt.NDArray[np.float32]


class Candidates:
    """The whole vocabulary as candidates; one array, reused for every row."""

    def __init__(self, n_vocab: int) -> None:
        self.tokens = np.zeros(n_vocab, _CANDIDATE)
        self._ids = np.arange(n_vocab, dtype=np.int32)

    def fill(self, logits: Logits) -> Any:
        self.tokens["id"] = self._ids
        self.tokens["logit"] = logits
        return native(self.tokens)


def one(token: int) -> npt.NDArray[Any]:
    """An array with ``token`` as the only candidate."""
    return np.array([(token, 1.0, 0.0)], _CANDIDATE)


def native(tokens: npt.NDArray[Any]) -> Any:
    """A ``llama_token_data_array`` that points into ``tokens``, which must outlive it."""
    pointer = tokens.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data))
    return llama_cpp.llama_token_data_array(data=pointer, size=len(tokens), selected=-1, sorted=False)
