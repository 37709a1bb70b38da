"""``python -m bench.wheels``: how fast the code is that llama.cpp takes from a wheel for all processors, beside a build
for this one."""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.decode_times import MOST
from bench.report import load_average, machine, number, progress, table
from umaserve.core.errors import ConfigError, ModelError
from umaserve.engine.files.row_times import in_turn
from umaserve.engine.llama.model import find
from umaserve.settings.daemon import SETTINGS
from umaserve.system.cores import usable_cores

ROWS = {1: "tokens/s of one stream", 16: "of 16 streams", MOST: "prompt tokens/s"}
ROOT = Path(__file__).parents[1]


class Side:
    """The llama.cpp of one interpreter, in a process of its own. Raises ``RuntimeError`` when that ends."""

    def __init__(self, python: str, model: str, threads: int) -> None:
        # The same umaserve on both sides, this one.
        self._process = subprocess.Popen(
            [python, "-m", "bench.decode_times", model, str(threads)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._python = python
        self.kernels = self._line()

    def decode_s(self, n: int) -> float:
        """The seconds of a decode of ``n`` tokens."""
        assert self._process.stdin is not None
        print(n, file=self._process.stdin, flush=True)
        return float(self._line())

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return line.strip()
        raise RuntimeError(f"{self._python} ended with status {self._process.wait()}: is umaserve installed for it?")


def report(native: Side, wheel: Side, seconds: float) -> str:
    """Raises ``RuntimeError``."""
    rows = []
    for n, what in ROWS.items():
        progress(what)
        for side in (native, wheel):
            side.decode_s(n)
        found = in_turn(functools.partial(native.decode_s, n), functools.partial(wheel.decode_s, n), seconds)
        rates = [number(n / found.first_s), number(n / found.second_s)]
        rows.append([what, *rates, f"{found.speedup:.1%}", f"{found.doubt:.1%}"])
    return f"""\
## Wheels: a wheel for all processors beside a build for this one

{table(["", "native", "wheel", "ratio", "±"], rows)}
Decodes of 1, 16 and {MOST} tokens of an empty sequence, with both in turn: the rates of the median decodes, the median
of the pairs' ratios, and twice its standard error.

- native: {native.kernels}
- wheel: {wheel.kernels}
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        "python -m bench.wheels",
        description="Compare the llama.cpp of two Python interpreters: one compiled for this processor, and the wheel "
        "that scripts/wheels makes.",
        epilog="Model and threads come from UMA_MODEL and UMA_THREADS.",
        allow_abbrev=False,
    )
    parser.add_argument("wheel", metavar="PYTHON", help="the interpreter of the environment with the wheel")
    parser.add_argument("--native", default=sys.executable, metavar="PYTHON", help="the other one (default: this one)")
    parser.add_argument(
        "--seconds", type=float, default=20.0, metavar="S", help="for each number of tokens (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    sides: list[Side] = []
    before = load_average()
    try:
        settings = SETTINGS.load({}, os.environ).config
        model, threads = find(settings.model), settings.threads or usable_cores()
        for python in (options.native, options.wheel):
            sides.append(Side(python, model, threads))
        print(report(sides[0], sides[1], options.seconds))
    except (ConfigError, ModelError, OSError, RuntimeError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        return 130
    finally:
        for side in sides:
            side.end()
    print(f"{machine()}; {Path(model).name}, {threads} threads.")
    print(f"Load average before: {before}; after: {load_average()}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
