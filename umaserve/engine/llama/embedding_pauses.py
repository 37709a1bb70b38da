"""Pauses between the nodes of a graph of texts to be embedded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import llama_cpp

from umaserve.sessions.engine_api import YieldPoint

SLICE_S = 0.03
"""Computing time between two pauses, in seconds. With 10 ms, a stream's ticks leave half of the time to long texts,
with 30 ms three quarters, and its gaps stay below most targets."""
MIN_SHARE = 0.25
"""Least length of a slice, as a share of the last pause: otherwise embedding would hardly advance beside long ticks."""
NODES = 1000
"""Assumed number of nodes of a graph, before one was computed: more than most have."""


class EmbeddingPauses:
    """Computes graphs with the callback ``native`` in slices, between which ``pause`` is called.

    Stopping at a node takes as long as computing a small one. So the graph of a short text stops seldom or never: only
    where the slice will be over, by the time that a row took before.
    """

    def __init__(self) -> None:
        self.native: Any = llama_cpp.ggml_backend_sched_eval_callback(self._on_node)
        """Callback for llama.cpp. Kept here because llama.cpp holds no reference to it."""
        self._pause: YieldPoint = lambda: None
        self._slice_s = SLICE_S
        self._paused_at = self._paused_s = 0.0
        self._row_s = 0.0
        """How long a row took, in seconds; 0: not known yet."""
        self._nodes, self._seen = NODES, 0
        self._stride = 1
        self._ended_by: BaseException | None = None

    def decode(self, rows: int, pause: YieldPoint, decode: Callable[[], int]) -> int:
        """Call ``decode``, which computes one graph of so many ``rows``, and return what it returns. Raises what
        ``pause`` raises."""
        self._stride = max(1, int(self._nodes * SLICE_S / (rows * self._row_s))) if self._row_s else 1
        self._pause, self._seen, self._paused_s = pause, 0, 0.0
        began = self._paused_at = time.perf_counter()
        code = decode()
        self._row_s = (time.perf_counter() - began - self._paused_s) / rows
        self._nodes = max(1, self._seen)
        self._pause = lambda: None
        ended_by, self._ended_by = self._ended_by, None
        if ended_by is not None:
            raise ended_by
        return code

    def take(self) -> None:
        """Pause now."""
        began = time.perf_counter()
        self._pause()
        self._paused_at = time.perf_counter()
        self._paused_s += self._paused_at - began
        self._slice_s = max(SLICE_S, MIN_SHARE * (self._paused_at - began))

    def _on_node(self, _tensor: object, ask: bool, _user_data: object) -> bool:
        """llama.cpp's callback. With ``ask``: whether to stop after this node. Without: the node is computed, and false
        stops the computation; with several devices only a part of the graph, so false is returned again."""
        if ask:
            self._seen += 1
            return self._seen % self._stride == 0 or self._ended_by is not None
        if self._ended_by is None and time.perf_counter() - self._paused_at >= self._slice_s:
            try:
                self.take()
            except BaseException as error:
                # No exception can pass through llama.cpp.
                self._ended_by = error
        return self._ended_by is None
