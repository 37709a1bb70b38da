"""How fast decodes of few and of many tokens are with one model's weights, compared with another's, or not repacked.

Also a program, which ``weights`` runs. Arguments: the threads for one token and for several, the numbers of tokens
("1,64"), the paths of the two models, and whether the second one may be "repacked" or is "mapped". Its output is a JSON
array with an array for each number that was measured: a ``Comparison``.
"""

from __future__ import annotations

import ctypes
import functools
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import llama_cpp
import orjson

from umaserve.engine.llama.model import Model
from umaserve.engine.spinning import Spinning
from umaserve.settings.daemon import Config
from umaserve.system.program import begin

BUDGET_S = 2.0
"""Seconds of measurement for each number of tokens."""
MIN_PAIRS, MAX_PAIRS = 3, 200
MAX_DECODE_S = 2.0
"""Longest decode, in seconds. Numbers of tokens that would take longer are left out, but for the first two: no load
waits minutes for them."""


class Comparison(NamedTuple):
    """Comparison of decodes with two models in turn: the median seconds with each, the median of how many times as fast
    the second one is, and how far that may be off. On a busy box, where decodes take their times by chance, that is
    far."""

    first_s: float
    second_s: float
    speedup: float
    doubt: float


def compared(first: Model, second: Model, rows: Sequence[int], budget_s: float = BUDGET_S) -> list[Comparison]:
    """Compare decodes of each number of tokens, for some ``budget_s`` seconds each; what would take far longer
    is left out at the end. Raises ``RuntimeError`` where llama.cpp can't decode."""
    for model in (first, second):
        decode_s(model, rows[0])  # reads the weights from disk
    found: list[Comparison] = []
    for index, n in enumerate(rows):
        if index >= 2 and found[-1].first_s * n / rows[index - 1] > MAX_DECODE_S:
            break
        found.append(in_turn(functools.partial(decode_s, first, n), functools.partial(decode_s, second, n), budget_s))
    return found


def comparison(pairs: Sequence[tuple[float, float]]) -> Comparison:
    """Comparison that follows from pairs of decodes, in seconds; at least two."""
    speedups = [first / second for first, second in pairs]
    low, median, high = statistics.quantiles(speedups, n=4, method="inclusive")
    # Twice the standard error of a median, as for normal errors, by the quartiles: outliers are common.
    doubt = 2 * 0.93 * (high - low) / math.sqrt(len(pairs))
    first_s, second_s = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    return Comparison(first_s, second_s, median, doubt)


def in_turn(first: Callable[[], float], second: Callable[[], float], budget_s: float) -> Comparison:
    """Call both in turn for some ``budget_s`` seconds, and compare what they return: the seconds that each took."""
    pairs: list[tuple[float, float]] = []
    until = time.monotonic() + budget_s
    while len(pairs) < MIN_PAIRS or (len(pairs) < MAX_PAIRS and time.monotonic() < until):
        if len(pairs) % 2:
            second_s = second()
            pairs.append((first(), second_s))
        else:
            first_s = first()
            pairs.append((first_s, second()))
    return comparison(pairs)


def decode_s(model: Model, n: int) -> float:
    """Decode ``n`` tokens, whatever they say, of an empty sequence; returns the seconds that takes."""
    tokens = (ctypes.c_int32 * n)(*(position * 37 % model.n_vocab for position in range(n)))
    memory: Any = llama_cpp.llama_get_memory(model.context)
    if memory:
        llama_cpp.llama_memory_clear(memory, False)
    batch = llama_cpp.llama_batch_get_one(tokens, n)
    started = time.perf_counter()
    if code := llama_cpp.llama_decode(model.context, batch):
        raise RuntimeError(f"llama_decode returned {code}")
    llama_cpp.llama_synchronize(model.context)
    return time.perf_counter() - started


def load_small(path: str, threads: int, threads_batch: int, most: int, *, repacked: bool = True) -> Model:
    """A model with a small context, for decodes of ``most`` tokens; on the CPU. Raises ``ModelError``."""
    config = Config(
        n_ctx=max(64, most),
        parallel=1,
        n_batch=max(64, most),
        n_ubatch=max(64, most),
        threads=threads,
        threads_batch=threads_batch,
        n_gpu_layers=0,
    )
    return Model(path, config, lambda _fraction: True, repacked=repacked)


def main(arguments: Sequence[str]) -> None:
    threads, threads_batch, listed, path, other, how = arguments
    begin()
    rows = [int(n) for n in listed.split(",")]
    first = load_small(path, int(threads), int(threads_batch), max(rows))
    second = load_small(other, int(threads), int(threads_batch), max(rows), repacked=how == "repacked")
    Spinning(int(threads)).watch()
    sys.stdout.buffer.write(orjson.dumps([list(found) for found in compared(first, second, rows)]))


if __name__ == "__main__":
    main(sys.argv[1:])
