"""Pauses between the nodes of a graph that mtmd computes, and a check of its numbers."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp._ggml import libggml

from umaserve.sessions.engine_api import YieldPoint

SLICE_S = 0.01
"""Computing time between two pauses, in seconds."""
LIGHT_ELEMENTS, LIGHT_NODES = 4096, 16
"""Limits for light nodes: one of at most ``LIGHT_ELEMENTS`` takes less than a millisecond, so the graph stops only
after every ``LIGHT_NODES`` of them: stopping after each of the thousands of nodes of a frame would take 10 of its 80 ms
(two threads)."""
TOP_K = 50
"""Number of candidates in the top-k sampling of a frame's codes."""

_INDEXED_BY = {b"sample_top_k_logits": TOP_K, b"cache_set_out": 1}
"""Tensors that llama.cpp computes a row's index from, with their number of elements. NaN or infinity gives an index out
of range, at which llama.cpp aborts the process."""

# Prototypes declared here: a ``restype`` set on the library's attributes would change them for llama_cpp too.
_elements = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(("ggml_nelements", libggml))
_name = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(("ggml_get_name", libggml))
_read = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)(
    ("ggml_backend_tensor_get", libggml)
)


class GraphPauses:
    """Pauses a graph computed with the callback ``native`` every ``SLICE_S``, between ``begin`` and ``end``.

    The graph stops where a pause raises, or where a NaN or an infinity would make llama.cpp abort; ``check`` then
    raises why.
    """

    def __init__(self) -> None:
        self.native: Any = llama_cpp.ggml_backend_sched_eval_callback(self._on_node)
        """Callback for llama.cpp. Kept here because llama.cpp holds no reference to it."""
        self._pause: YieldPoint | None = None
        self._paused_at = 0.0
        self._light_nodes = 0
        self._ended_by: BaseException | None = None

    def begin(self, pause: YieldPoint) -> None:
        self._pause, self._paused_at = pause, time.perf_counter()
        self._light_nodes = 0

    def end(self) -> None:
        self._pause = self._ended_by = None

    def take(self) -> None:
        """Pause now."""
        assert self._pause is not None
        self._pause()
        self._paused_at = time.perf_counter()

    def check(self) -> None:
        """Raise what stopped the computation, if anything did."""
        ended_by, self._ended_by = self._ended_by, None
        if ended_by is not None:
            raise ended_by

    def _on_node(self, tensor: int, ask: bool, _user_data: object) -> bool:
        """llama.cpp's callback. With ``ask``: whether to stop after this node. Without: the node is computed, and false
        stops the computation."""
        if ask:
            return self._stops_behind(tensor)
        if self._ended_by is None:
            try:
                _check_numbers(tensor)
                if time.perf_counter() - self._paused_at >= SLICE_S:
                    self.take()
            except BaseException as error:
                # No exception can pass through llama.cpp.
                self._ended_by = error
        return self._ended_by is None

    def _stops_behind(self, tensor: int) -> bool:
        self._light_nodes += 1
        elements = _elements(tensor)
        if (
            elements <= LIGHT_ELEMENTS
            and self._light_nodes < LIGHT_NODES
            # Comparing all names would take too long. The caches of a real model are larger than light nodes.
            and (elements != TOP_K or _name(tensor) not in _INDEXED_BY)
            # With several devices, the next part of the graph starts even after false: stop at its first node.
            and self._ended_by is None
        ):
            return False
        self._light_nodes = 0
        return True


def _check_numbers(tensor: int) -> None:
    elements = np.empty(_INDEXED_BY.get(_name(tensor), 0), np.float32)
    if elements.size:
        _read(tensor, elements.ctypes.data, 0, elements.nbytes)
        if not np.isfinite(elements).all():
            raise RuntimeError("the voice's model has computed invalid numbers")
