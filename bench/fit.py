"""What a tick costs on this box: real decodes of many shapes, and the cost that explains them best."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import numpy as np

from bench.box import Box
from bench.report import machine, progress
from umaserve.engine.files.weights import choose
from umaserve.engine.llama.batch import Batch
from umaserve.engine.llama.model import Model, find
from umaserve.sessions.cost_model import Cost
from umaserve.sessions.engine_api import Run
from umaserve.settings.daemon import Config

DECODE_ROWS = (0, 1, 2, 4, 8, 16)
PREFILL_ROWS = (0, 8, 32, 128)
CACHED_SHARES = (0.0, 0.2, 0.5)
"""Of all cells, before the tick."""
REPEATS = 3
_TOKEN = 1
"""What is computed costs the same whatever it says."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One shape of tick, and the median of what it took."""

    decode_rows: int
    prefill_rows: int
    cached: int
    seconds: float


def fit(measured: Sequence[Measured]) -> Cost:
    """The cost with the least squares of relative errors. What would be negative is 0, and the rest fitted again."""
    rows = np.array([(1.0, m.decode_rows, m.prefill_rows, _attended(m), _several(m)) for m in measured])
    seconds = np.array([m.seconds for m in measured])
    weighted = rows / seconds[:, None]
    kept = list(range(rows.shape[1]))
    while True:
        solution = np.linalg.lstsq(weighted[:, kept], np.ones(len(seconds)), rcond=None)[0]
        if (solution >= 0).all():
            break
        del kept[int(solution.argmin())]
    values = [0.0] * rows.shape[1]
    for column, value in zip(kept, solution, strict=True):
        values[column] = float(value)
    return Cost(*values)


def residual(cost: Cost, measured: Sequence[Measured]) -> tuple[float, float]:
    """The median and the largest error of ``cost``, relative to what was measured."""
    errors = [abs(cost.seconds(m.decode_rows, m.prefill_rows, m.cached) / m.seconds - 1) for m in measured]
    return statistics.median(errors), max(errors)


def _several(m: Measured) -> bool:
    return m.decode_rows + m.prefill_rows > 1


def _attended(m: Measured) -> float:
    return (m.decode_rows + m.prefill_rows) * m.cached / 1000


def fit_box(settings: Config) -> tuple[Box, list[Measured]]:
    """Load the model that ``settings`` name, or the default one, and measure; a minute or two on a small box.

    Sampling is not in it. Raises ``ModelError``.
    """
    progress("loading the model")
    path = find(settings.model)
    weights = choose(path, settings, lambda _fraction: True)
    model = Model(weights.path, settings, lambda _fraction: True, name=Path(path).stem, repacked=weights.repacked)
    try:
        measured = Ticks(model, settings).measure()
        note = f"Measured: {model.name}; {machine()}."
        box = Box(fit(measured), settings.parallel, model.n_ctx, settings.n_batch, note)
    finally:
        model.free()
    return box, measured


class Ticks:
    """Decodes of any shape: streams of equal length in the first sequences, a prompt in the last one."""

    def __init__(self, model: Model, settings: Config) -> None:
        self._model = model
        self._memory = llama_cpp.llama_get_memory(model.context)
        self._batch = Batch(settings.n_batch)
        self._batch_tokens = settings.n_batch
        self._sequences = model.n_seq_max - 1

    def measure(self) -> list[Measured]:
        """All shapes that fit, each some times, in an order that spreads what else the box does over all of them."""
        measured = []
        for share in CACHED_SHARES:
            each = int(share * self._model.n_ctx / self._sequences)
            progress(f"ticks beside {each * self._sequences} cached cells")
            self._fill(each)
            shapes = [
                (decode, prefill)
                for decode, prefill in itertools.product(DECODE_ROWS, PREFILL_ROWS)
                if 0 < decode + prefill <= self._batch_tokens and decode <= self._sequences
            ]
            tries = shapes * REPEATS
            random.Random(0).shuffle(tries)
            taken: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
            for decode, prefill in tries:
                taken[decode, prefill].append(self._tick(decode, prefill, each))
            measured += [
                Measured(*shape, each * self._sequences, statistics.median(seconds)) for shape, seconds in taken.items()
            ]
        return measured

    def _fill(self, each: int) -> None:
        """Give every stream's sequence ``each`` cells, and the prompt's none."""
        llama_cpp.llama_memory_clear(self._memory, False)
        for sequence in range(self._sequences):
            for start in range(0, each, self._batch_tokens):
                self._decode([_run(sequence, start, min(self._batch_tokens, each - start))])

    def _tick(self, decode: int, prefill: int, each: int) -> float:
        """Seconds of one tick, after which the sequences are as before."""
        runs = [_run(sequence, each, 1) for sequence in range(decode)]
        if prefill:
            runs.append(_run(self._sequences, 0, prefill))
        started = time.perf_counter()
        self._decode(runs)
        seconds = time.perf_counter() - started
        for run in runs:
            llama_cpp.llama_memory_seq_rm(self._memory, run.slot, run.start, -1)
        return seconds

    def _decode(self, runs: Sequence[Run]) -> None:
        self._batch.fill(runs)
        code = llama_cpp.llama_decode(self._model.context, self._batch.native)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")
        # Otherwise a GPU's work may only have been queued.
        llama_cpp.llama_synchronize(self._model.context)


def _run(slot: int, start: int, n_tokens: int) -> Run:
    # The last row is output, as where a token is sampled.
    return Run(slot, start, [_TOKEN] * n_tokens, sampler=object())
