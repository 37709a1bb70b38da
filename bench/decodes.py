"""``python -m bench.decodes``: what one ``llama_decode`` costs with the KV cells shared and divided, and what sampling
adds; without scheduler, sockets and clients.

Beside the gaps that ``bench.matrix`` finds, it tells where the time of a tick goes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import llama_cpp
import numpy as np

from bench.report import load_average, machine, number, progress, table
from umaserve.core.errors import ConfigError, ModelError
from umaserve.core.requests import Sampling
from umaserve.engine.files.weights import choose
from umaserve.engine.llama.batch import Batch
from umaserve.engine.llama.model import CELLS_ROUNDED_TO, Model, find
from umaserve.engine.sampling.candidates import Candidates
from umaserve.engine.sampling.sampler import Sampler
from umaserve.sessions.engine_api import Run
from umaserve.settings.daemon import SETTINGS, Config

T = TypeVar("T")

STREAMS = (1, 16, 64, 128)
CELLS = 450
PROMPT = 256
SHARED, DIVIDED = "shared", "divided"

_TOKEN = 1
"""What is computed costs the same whatever it says."""
_HEADER = ("streams", "KV cells", "a row each", "and sampling", "prompt alone", "prompt beside", "both apart")
_NOTES = """\
Milliseconds, medians of {repeats}. A row each: one decode with the next token of every stream, each of which has
{cells} cells. And sampling: the same, and the choice of the tokens. Prompt: {prompt} rows of one more sequence, in a
decode of their own (alone), or in one decode with the rows of all streams (beside). Both apart: what a row each and
the prompt alone take together. Decodes have up to {n_batch} rows, computed in passes of up to {n_ubatch}.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """Milliseconds, as ``_NOTES`` explains them."""

    streams: int
    layout: str
    rows: float
    sampled: float
    prompt: float
    both: float

    def cells(self) -> list[str]:
        times = (self.rows, self.sampled, self.prompt, self.both, self.rows + self.prompt)
        return [str(self.streams), self.layout, *map(number, times)]


class Decodes:
    """Decodes of a loaded model, whose context has a sequence for each of the streams and one for the prompt."""

    def __init__(self, model: Model, n_batch: int, cells: int, prompt: int, repeats: int) -> None:
        self._model = model
        self._batch = Batch(n_batch)
        self._n_batch = n_batch
        self._cells = cells
        self._prompt = prompt
        self._repeats = repeats
        self._candidates = Candidates(model.n_vocab)
        self._sampler = Sampler(model.n_vocab, tuple(model.end_tokens), Sampling(ignore_eos=True), None)

    def measure(self, layout: str, streams: int) -> Row:
        llama_cpp.llama_memory_clear(self._model.memory, False)
        for sequence in range(streams):
            self._fill(sequence, 0, self._cells)
        rows = [_run(sequence, self._cells, 1) for sequence in range(streams)]
        prompt = _run(streams, 0, self._prompt)
        return Row(
            streams,
            layout,
            self._median(lambda: self._decode(rows), rows),
            self._median(lambda: self._sample(self._decode(rows)), rows),
            self._median(lambda: self._decode([prompt]), [prompt]),
            self._median(lambda: self._decode([*rows, prompt]), [*rows, prompt]),
        )

    def _median(self, work: Callable[[], object], runs: Sequence[Run]) -> float:
        """In ms; after each time the sequences are as before. The first time of a shape sets buffers up."""
        taken = []
        for _ in range(1 + self._repeats):
            started = time.perf_counter()
            work()
            taken.append(1000 * (time.perf_counter() - started))
            for run in runs:
                llama_cpp.llama_memory_seq_rm(self._model.memory, run.slot, run.start, -1)
        return statistics.median(taken[1:])

    def _fill(self, sequence: int, start: int, n_tokens: int) -> None:
        for first in range(start, start + n_tokens, self._n_batch):
            self._decode([_run(sequence, first, min(self._n_batch, start + n_tokens - first))])

    def _decode(self, runs: Sequence[Run]) -> int:
        outputs = self._batch.fill(runs)
        code = llama_cpp.llama_decode(self._model.context, self._batch.native)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")
        # Otherwise a GPU's work may only have been queued.
        llama_cpp.llama_synchronize(self._model.context)
        return outputs

    def _sample(self, outputs: int) -> None:
        native = llama_cpp.llama_get_logits(self._model.context)
        for logits in np.ctypeslib.as_array(native, (outputs, self._model.n_vocab)):
            self._sampler.sample(logits, self._candidates)


def _run(slot: int, start: int, n_tokens: int) -> Run:
    # The last row is output, as where a token is sampled.
    return Run(slot, start, [_TOKEN] * n_tokens, sampler=object())


def within(
    limit_s: float, tasks: Iterable[T], started: float, now: Callable[[], float] = time.monotonic
) -> Iterator[T]:
    """The tasks, one after another, until the next one might end later than ``limit_s`` after ``started``: it may take
    twice as long as the longest before. 0: all."""
    longest = 0.0
    for task in tasks:
        begun = now()
        if limit_s and begun + 2 * longest > started + limit_s:
            return
        yield task
        longest = max(longest, now() - begun)


def _settings(options: argparse.Namespace) -> Config:
    """The environment's, with a sequence for each stream and for the prompt, and cells for all. Raises
    ``ConfigError``."""
    sequences = max(options.streams) + 1
    each = -(-max(options.cells + 1, options.prompt) // CELLS_ROUNDED_TO) * CELLS_ROUNDED_TO
    sizes = {"UMA_PARALLEL": str(sequences), "UMA_N_CTX": str(sequences * each)}
    config = SETTINGS.load({}, {**os.environ, **sizes}).config
    most = config.n_batch - max(options.streams)
    if options.prompt > most:
        raise ConfigError(f"--prompt: expected at most {most} rows, since UMA_N_BATCH is {config.n_batch}: raise that")
    return config


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for, as long as there is time; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    before, started = load_average(), time.monotonic()
    try:
        config = _settings(options)
        path = find(config.model)
        progress("loading the model")
        weights = choose(path, config, lambda _fraction: True)
        model = Model(weights.path, config, lambda _fraction: True, repacked=weights.repacked)
    except (ConfigError, ModelError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    asked = [(streams, layout) for streams in options.streams for layout in (SHARED, DIVIDED)]
    rows: list[Row] = []
    try:
        for streams, layout in within(options.limit, asked, started):
            progress(f"{streams} streams, {layout} cells")
            model.divide(config.parallel if layout == DIVIDED else 0)
            decodes = Decodes(model, config.n_batch, options.cells, options.prompt, options.repeats)
            rows.append(decodes.measure(layout, streams))
    except KeyboardInterrupt:
        return 130
    finally:
        model.free()
    print(f"## Decodes: {Path(path).name}\n\n{table(_HEADER, [row.cells() for row in rows])}")
    if left_out := [f"{streams} streams, {layout} cells" for streams, layout in asked[len(rows) :]]:
        print(f"Left out: {'; '.join(left_out)}.\n")
    sizes = {"cells": options.cells, "prompt": options.prompt, "repeats": options.repeats}
    print(_NOTES.format(**sizes, n_batch=config.n_batch, n_ubatch=config.n_ubatch))
    print(f"{machine()}. Load average before: {before}; after: {load_average()}.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench.decodes",
        description="Measure single decodes, with the KV cells shared by all sequences and divided among them.",
        epilog="The model and all settings come from the UMA_* variables.",
        allow_abbrev=False,
    )
    help_ = f"streams that have a row in the decode (default: {' '.join(map(str, STREAMS))})"
    parser.add_argument("--streams", type=int, nargs="+", metavar="N", default=STREAMS, help=help_)
    parser.add_argument("--cells", type=int, default=CELLS, metavar="N", help="of each stream (default: %(default)s)")
    parser.add_argument("--prompt", type=int, default=PROMPT, metavar="N", help="its rows (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="default: %(default)s")
    parser.add_argument("--limit", type=float, default=0.0, metavar="S", help="stop after so many seconds")
    return parser


if __name__ == "__main__":
    sys.exit(main())
