"""``python -m bench.speed``: is umaserve as fast as when it was last recorded, beside what it is measured beside?"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench import llama_server, speed_record
from bench.other_programs import OtherPrograms
from bench.report import load_average, machine, number, progress, table
from bench.sides import OURS, missing_note
from bench.speed_cells import QUICK, WHOLE, Cell, Figure, Plan, cells
from bench.speed_record import Ratio, Record, ratio_of, verdict, worse
from umaserve.core.errors import ConfigError, ModelError
from umaserve.engine.files import gguf
from umaserve.engine.files.weights import choose
from umaserve.engine.llama.model import find
from umaserve.settings.daemon import SETTINGS
from umaserve.system.cores import instructions, processor, usable_cores

WHOLE_S = 570.0
"""Seconds for the measurements: the last pair of a cell may take longer than planned."""
QUIET_CORES = 0.1
"""What other programs may use."""

_NOTES = """\
Ratios: above 1 umaserve is better, also where less is better (times). The median of the pairs' ratios, with the
smallest and the largest in brackets; the other numbers are medians of the runs: rates in tokens/s, times in ms. The
runs of a pair follow each other, every other pair in reverse order, all warmed up. llama-server runs with -np N -kvu
and, but for prefix and storm, the model's file as it is; the bare loop has umaserve's weights. Compared with the last
record of the same kind of processor: worse or better where the ratio changed by more than the spread of either, which
counts as 5% at least.
"""


class Row(NamedTuple):
    """A figure that was measured."""

    cell: str
    figure: Figure
    ours: float
    theirs: float
    ratio: Ratio | None
    pairs: int

    @property
    def name(self) -> str:
        return f"{self.cell}: {self.figure.title}, beside {self.figure.beside}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for; returns the exit status: 1 where a figure is worse than the recorded one."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.record and options.quick:
        parser.error("--record: expected a whole run, got --quick")
    kind = _kind()
    try:
        binary = llama_server.binary()
        model = SETTINGS.load({}, os.environ).config.model
        models = [find(model), *(find(second) for second in filter(None, [options.model]))]
        for model in models:
            gguf.check(model)
        record = None if options.quick else speed_record.latest(options.results, kind)
    except (ConfigError, ModelError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    plan = QUICK if options.quick else WHOLE
    before, others = load_average(), OtherPrograms()
    try:
        rows = _measured(plan, cells(plan, models, binary))
    except (subprocess.CalledProcessError, RuntimeError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        return 130
    figures = {row.name: row.ratio for row in rows if row.ratio is not None}
    print(f"## Speed\n\n{_table(rows, record)}\n{_NOTES}{missing_note()}", end="")
    if options.model is None:
        print("A second model: not measured, --model (or SPEED_MODEL) names none.")
    print(f"{machine()}. Load average before: {before}; after: {load_average()}.")
    print(_quietness(others.cores()))
    loaded = _weights(models)
    print("Weights:", "; ".join(f"{model}: {what}" for model, what in loaded.items()) + ".")
    lines = worse(figures, record) if record else []
    print(_comparison(record, kind, lines, quick=options.quick))
    if options.record:
        now = Record(kind, datetime.now(UTC).isoformat(timespec="seconds"), _commit(), figures, loaded)
        print(f"Recorded in {speed_record.write(options.results, now)}.")
    return int(bool(lines))


def _kind() -> str:
    """The kind of processor. A virtual machine may name several generations alike, which differ by their
    instructions."""
    digest = hashlib.sha256(" ".join(sorted(instructions())).encode()).hexdigest()[:8]
    return f"{processor() or 'unknown processor'}, {usable_cores()} cores, instructions {digest}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "scripts/speed",
        description="Measure umaserve beside a bare llama.cpp loop and llama-server, in some 13 minutes, and compare "
        "the ratios with the last recorded ones of the same kind of processor. Exits with 1 where one is worse.",
        epilog="llama-server is measured where LLAMA_SERVER names its binary.",
        allow_abbrev=False,
    )
    model = "a second model's GGUF file, say with weights as Q4_K_M (default: what SPEED_MODEL names)"
    parser.add_argument("--model", metavar="FILE", default=os.environ.get("SPEED_MODEL") or None, help=model)
    parser.add_argument("--record", action="store_true", help="write the ratios to a file in --results")
    results = Path(__file__).with_name("results")
    parser.add_argument(
        "--results", type=Path, default=results, metavar="FOLDER", help="the records (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="tiny runs, which show in a minute that all of it works")
    return parser


def _measured(plan: Plan, planned: Sequence[Cell]) -> list[Row]:
    end = time.monotonic() + WHOLE_S
    rows = []
    for done, cell in enumerate(planned):
        now = time.monotonic()
        until = now + (end - now) / (len(planned) - done)
        found: dict[str, list[Any]] = {}
        with contextlib.ExitStack() as stack:
            sides = cell.start(stack)
            for round_ in rounds(plan.least, plan.most, until):
                for side in list(sides) if round_ % 2 == 0 else reversed(list(sides)):
                    progress(f"{cell.name}, pair {round_ + 1}, {side} ({done + 1} of {len(planned)})")
                    found.setdefault(side, []).append(sides[side](round_))
        rows += [_row(cell.name, figure, found[OURS], found[figure.beside]) for figure in cell.figures]
    return rows


def rounds(least: int, most: int, until: float, clock: Callable[[], float] = time.monotonic) -> Iterator[int]:
    """Count ``least`` to ``most`` rounds: as many as end by ``until`` if each takes as long as the slowest so far."""
    slowest = 0.0
    for round_ in range(most):
        begun = clock()
        if round_ >= least and begun + slowest > until:
            return
        yield round_
        slowest = max(slowest, clock() - begun)


def _row(cell: str, figure: Figure, ours: Sequence[Any], theirs: Sequence[Any]) -> Row:
    values = [figure.value(run) for run in ours], [figure.value(run) for run in theirs]
    ratio = ratio_of(*values, lower_is_better=figure.lower_is_better)
    return Row(cell, figure, statistics.median(values[0]), statistics.median(values[1]), ratio, len(ours))


def _table(rows: Sequence[Row], record: Record | None) -> str:
    header = ["load", "figure", "beside", "umaserve", "other", "pairs", "ratio", "recorded", ""]
    lines = []
    for row in rows:
        before = record.figures.get(row.name) if record else None
        numbers = [number(row.ours), number(row.theirs), str(row.pairs)]
        compared = [str(row.ratio or "-"), str(before or ""), verdict(row.ratio, before) if row.ratio else ""]
        lines.append([row.cell, row.figure.title, row.figure.beside, *numbers, *compared])
    return table(header, lines)


def _weights(models: Sequence[str]) -> dict[str, str]:
    """What umaserve loads of each model, by its file's name: measured before, so this takes no time."""
    config = SETTINGS.load({}, os.environ).config
    loaded = {}
    for model in models:
        weights = choose(model, config, lambda _fraction: True)
        of_file = "as it is" if weights.repacked else "mapped"
        copied = f"a copy converted from {weights.converted_from}"
        loaded[Path(model).name] = of_file if weights.path == model else copied
    return loaded


def _quietness(cores: float) -> str:
    if math.isnan(cores):
        return "Whether the machine was quiet can't be told: the kernel's counters can't be read."
    if cores > QUIET_CORES:
        return f"THE MACHINE WAS NOT QUIET: other programs used {cores:.2f} cores. These ratios tell little."
    return f"The machine was quiet: other programs used {cores:.2f} cores."


def _comparison(record: Record | None, kind: str, lines: Sequence[str], *, quick: bool) -> str:
    if quick:
        return "Tiny runs: compared with no record."
    if record is None:
        return f"Compared with nothing: there is no record of this kind of processor ({kind})."
    of = f"the record of {record.date} ({record.commit})"
    if not lines:
        return f"Nothing is worse than {of}."
    return "\n".join(itertools.chain([f"WORSE than {of}:"], (f"- {line}" for line in lines)))


def _commit() -> str:
    """The commit that was measured, with a mark where files differ from it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude", "*"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return "unknown"


if __name__ == "__main__":
    sys.exit(main())
