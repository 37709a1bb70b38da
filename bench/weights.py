"""``python -m bench.weights``: what it costs in quality, and gains in speed, to convert a model's weights to Q8_0."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt

from bench.report import machine, number, progress, table
from bench.workload import copying_prompt, prompts
from umaserve.core.errors import ConfigError, ModelError
from umaserve.engine.files.row_times import compared, load_small
from umaserve.engine.llama.model import Model, find
from umaserve.settings.daemon import SETTINGS, Config
from umaserve.system import logs, program
from umaserve.system.cores import usable_cores

ROWS = (1, 4, 16, 64, 256)
LENGTH = 256
"""Most tokens of a text; so many are decoded at once."""
TEMPERATURE = 0.8
SPEED_S = 6.0

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


class Reader:
    """Tells how likely a model finds each next token of a text."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._memory = llama_cpp.llama_get_memory(model.context)
        self._batch = llama_cpp.llama_batch_init(LENGTH, 0, 1)
        self._tokens: Ids = np.ctypeslib.as_array(self._batch.token, (LENGTH,))
        self._positions: Ids = np.ctypeslib.as_array(self._batch.pos, (LENGTH,))
        np.ctypeslib.as_array(self._batch.n_seq_id, (LENGTH,))[:] = 1
        np.ctypeslib.as_array(self._batch.logits, (LENGTH,))[:] = 1
        for row in range(LENGTH):
            self._batch.seq_id[row][0] = 0

    def log_probabilities(self, tokens: Sequence[int], begin: int = 0) -> Floats:
        """Decode ``tokens`` behind the first ``begin`` of the text: a row for the token after each of them."""
        if begin == 0:
            llama_cpp.llama_memory_clear(self._memory, False)
        n = len(tokens)
        self._tokens[:n] = tokens
        self._positions[:n] = np.arange(begin, begin + n)
        self._batch.n_tokens = n
        if code := llama_cpp.llama_decode(self.model.context, self._batch):
            raise RuntimeError(f"llama_decode returned {code}")
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.model.context), (n, self.model.n_vocab))
        return np.array([_log_softmax(row.astype(np.float64)) for row in logits])

    def continued(self, text: str, seed: int) -> list[int]:
        """``text`` and what the model goes on to write, up to ``LENGTH`` tokens."""
        random = np.random.default_rng(seed)
        tokens = self.model.tokenize(text)[:LENGTH]
        last = self.log_probabilities(tokens)[-1]
        while len(tokens) < LENGTH:
            # Adding Gumbel noise and taking the largest is sampling.
            tokens.append(int((last / TEMPERATURE + random.gumbel(size=len(last))).argmax()))
            if tokens[-1] in self.model.end_tokens:
                break
            last = self.log_probabilities(tokens[-1:], len(tokens) - 1)[-1]
        return tokens


def _log_softmax(logits: Floats) -> Floats:
    shifted: Floats = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def divergences(own: Reader, converted: Reader, texts: Sequence[Sequence[int]]) -> tuple[Floats, float]:
    """For each token of the texts, the Kullback-Leibler divergence (nats) of the distributions of the next one, and the
    share of tokens after which both models find the same one likeliest."""
    found: list[float] = []
    same = 0
    for text in texts:
        before, after = own.log_probabilities(text), converted.log_probabilities(text)
        found += (np.exp(before) * (before - after)).sum(axis=1).tolist()
        same += int((before.argmax(axis=1) == after.argmax(axis=1)).sum())
    return np.array(found), same / len(found)


def texts_of(own: Reader, n_tokens: int) -> list[list[int]]:
    """``n_tokens`` or a few more in texts of ``LENGTH`` at most: a paragraph of ours, and what the model writes."""
    texts = [own.model.tokenize(copying_prompt())[:LENGTH]]
    for seed, prompt in enumerate(prompts(n_tokens)):
        if sum(map(len, texts)) >= n_tokens:
            break
        progress(f"text {seed + 1}")
        texts.append(own.continued(prompt, seed))
    return texts


def report(path: str, settings: Config, n_tokens: int) -> str:
    """Convert, compare and measure. Raises ``ModelError``, ``ProgramError`` and ``RuntimeError``."""
    threads = settings.threads or usable_cores()
    threads_batch = settings.threads_batch or threads
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        files = [path]
        for to in ("Q8_0", "F32"):
            progress(f"converting to {to}")
            files.append(str(Path(folder, f"{to}.gguf")))
            arguments = (path, files[-1], to, str(threads_batch))
            program.run("umaserve.engine.files.requantize", *arguments, wanted=lambda: True, max_s=3600.0)
        sizes = [Path(file).stat().st_size for file in files]
        models = [load_small(file, threads, threads_batch, LENGTH) for file in files]
    own, converted, exact = map(Reader, models)
    texts = texts_of(own, n_tokens)
    progress("comparing")
    quality = [
        quality_line("own weights, from converted ones", *divergences(own, converted, texts)),
        quality_line("exact, from own weights", *divergences(exact, own, texts)),
        quality_line("exact, from converted ones", *divergences(exact, converted, texts)),
    ]
    progress("decodes of each size")
    speeds = compared(models[0], models[1], ROWS, SPEED_S)
    lines = [
        [str(n), number(n / found.first_s), number(n / found.second_s), f"{found.speedup:.0%}", f"{found.doubt:.0%}"]
        for n, found in zip(ROWS, speeds, strict=True)
    ]
    info = models[0].info(LENGTH)
    return f"""\
## Weights: {info.name} ({info.quantization}, {sizes[0] >> 20} MiB) converted to Q8_0 ({sizes[1] >> 20} MiB)

{table(["distributions", "KL mean", "KL median", "KL p99", "KL max", "same greedy token"], quality)}
KL: Kullback-Leibler divergence of the distributions of the next token, in nats, over {sum(map(len, texts))} tokens in
texts of {LENGTH} at most: a paragraph, and what the model itself wrote at temperature {TEMPERATURE}. Exact: the own
weights as F32, for which llama.cpp does not round activations to 8 bits, as it does for both other types.

{table(["rows", "own weights", "converted", "ratio", "±"], lines)}
Tokens/s of decodes of so many rows of one sequence, with {threads} threads ({threads_batch} for several rows): medians
of decodes with both weights in turn, the median of the pairs' ratios, and twice its standard error.
"""


def quality_line(name: str, found: Floats, same: float) -> list[str]:
    quantiles = (np.median(found), np.quantile(found, 0.99), found.max())
    return [name, *(f"{value:.5f}" for value in (found.mean(), *quantiles)), f"{same:.2%}"]


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        "python -m bench.weights",
        description="Compare a model's own weights with the same converted to Q8_0: quality and speed.",
        epilog="Model and threads come from UMA_MODEL, UMA_THREADS and UMA_THREADS_BATCH.",
        allow_abbrev=False,
    )
    parser.add_argument("--tokens", type=int, default=2000, metavar="N", help="of text (default: %(default)s)")
    options = parser.parse_args(argv)
    logs.configure("error", "text")
    try:
        settings = SETTINGS.load({}, os.environ).config
        print(report(find(settings.model), settings, options.tokens))
    except (ConfigError, ModelError, program.ProgramError, RuntimeError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        return 130
    print(f"{machine()}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
