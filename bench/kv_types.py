"""``python -m bench.kv_types``: what types of K and V in the KV cells cost in quality."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence

from bench.report import machine, progress, table
from bench.weights import LENGTH, TEMPERATURE, Reader, divergences, quality_line, texts_of
from umaserve.core.errors import ConfigError, ModelError
from umaserve.engine.llama.model import Model, find
from umaserve.settings.daemon import SETTINGS, Config
from umaserve.system import logs

EXACT = ("f16", "f16")
PAIRS = (("q8_0", "f16"), ("f16", "q8_0"), ("q8_0", "q8_0"), ("q8_0", "q4_0"), ("q4_0", "q8_0"), ("q4_0", "q4_0"))
"""Types of K and V."""


def report(path: str, settings: Config, n_tokens: int, pairs: Sequence[tuple[str, str]] = PAIRS) -> str:
    """Compare the distributions. Raises ``ModelError`` and ``RuntimeError``."""
    exact = _reader(path, settings, EXACT)
    texts = texts_of(exact, n_tokens)
    lines = []
    for pair in pairs:
        progress(f"K {pair[0]}, V {pair[1]}")
        other = _reader(path, settings, pair)
        lines.append(quality_line(f"K {pair[0]}, V {pair[1]}", *divergences(exact, other, texts)))
        other.model.free()
    info = exact.model.info(LENGTH)
    exact.model.free()
    return f"""\
## KV types: {info.name} ({info.quantization})

{table(["types", "KL mean", "KL median", "KL p99", "KL max", "same greedy token"], lines)}
KL: Kullback-Leibler divergence of the distributions of the next token from those with K and V as f16, in nats, over
{sum(map(len, texts))} tokens in texts of {LENGTH} at most: a paragraph, and what the model itself wrote at temperature
{TEMPERATURE}.
"""


def _reader(path: str, settings: Config, kv_types: tuple[str, str]) -> Reader:
    k, v = kv_types
    sizes = {"n_ctx": LENGTH, "n_batch": LENGTH, "n_ubatch": LENGTH, "parallel": 1}
    config = dataclasses.replace(settings, **sizes, flash_attn="on", kv_type_k=k, kv_type_v=v)
    return Reader(Model(path, config, lambda _fraction: True))


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        "python -m bench.kv_types",
        description="Compare types of K and V in the KV cells with f16: how far a model's distributions go apart.",
        epilog="Model and threads come from UMA_MODEL, UMA_THREADS and UMA_THREADS_BATCH.",
        allow_abbrev=False,
    )
    parser.add_argument("--tokens", type=int, default=2000, metavar="N", help="of text (default: %(default)s)")
    options = parser.parse_args(argv)
    logs.configure("error", "text")
    try:
        settings = SETTINGS.load({}, os.environ).config
        print(report(find(settings.model), settings, options.tokens))
    except (ConfigError, ModelError, RuntimeError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        return 130
    print(f"{machine()}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
