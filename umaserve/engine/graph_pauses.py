"""Pauses between the nodes of a graph that mtmd computes, and an eye on the numbers in it."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp._ggml import libggml

from umaserve.serving.ticks import YieldPoint

SLICE_S = 0.01
"""Of computing, before the others have their turn."""
LIGHT_ELEMENTS, LIGHT_NODES = 4096, 16
"""A node of so few elements takes less than a millisecond, so that some may come between two looks at the clock: to
stop behind each of the thousands that make a frame's codes takes two threads some 10 ms of its 80."""
TOP_K = 50
"""Codes that one is drawn from."""

_INDEXED_BY = {b"sample_top_k_logits": TOP_K, b"cache_set_out": 1}
"""Tensors of a graph that draws codes, of which so many elements go into the index of a row. What is no number makes an
index of no row, at which llama.cpp aborts the process."""

# Prototypes of our own: a ``restype`` set on the library's attributes would change them for llama_cpp too.
_elements = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(("ggml_nelements", libggml))
_name = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(("ggml_get_name", libggml))
_read = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)(
    ("ggml_backend_tensor_get", libggml)
)


class GraphPauses:
    """Between ``begin`` and ``end``, the computing that ``native`` is told of has a pause every ``SLICE_S``, and ends
    where one raises or where what is no number would end the process; ``check`` says so afterwards."""

    def __init__(self) -> None:
        self.native: Any = llama_cpp.ggml_backend_sched_eval_callback(self._on_node)
        """Kept, since llama.cpp holds no reference to it."""
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
        """Let the others have their turn now."""
        assert self._pause is not None
        self._pause()
        self._paused_at = time.perf_counter()

    def check(self) -> None:
        """Raise what ended the computing, if anything did."""
        ended_by, self._ended_by = self._ended_by, None
        if ended_by is not None:
            raise ended_by

    def _on_node(self, tensor: int, ask: bool, _user_data: object) -> bool:
        """Asked of each node, before any of them is computed, whether to stop behind it, and told when it did; false
        then ends the computing."""
        if ask:
            return self._stops_behind(tensor)
        if self._ended_by is None:
            try:
                _check_numbers(tensor)
                if time.perf_counter() - self._paused_at >= SLICE_S:
                    self.take()
            except BaseException as error:
                # Nothing can be raised through llama.cpp.
                self._ended_by = error
        return self._ended_by is None

    def _stops_behind(self, tensor: int) -> bool:
        self._light_nodes += 1
        elements = _elements(tensor)
        if (
            elements <= LIGHT_ELEMENTS
            and self._light_nodes < LIGHT_NODES
            # To look at all names would take too long: the caches of a real model are no light nodes.
            and (elements != TOP_K or _name(tensor) not in _INDEXED_BY)
            # On another device the next part of the graph begins all the same.
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
            raise RuntimeError("the voice's model computes what is no number")
