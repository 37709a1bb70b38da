"""``python -m bench.matrix``: umaserve beside each way to run llama-server, for many sizes of load, as one table."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import orjson

from bench import llama_server
from bench.llama_server import LAYOUTS
from bench.loads import Load, started
from bench.report import load_average, machine, number, progress, table
from bench.sides import OURS
from bench.trace import Measures, medians
from umaserve.core.errors import ConfigError, ModelError
from umaserve.engine.llama.model import find
from umaserve.settings.daemon import SETTINGS

CLIENTS = (1, 4, 16)
WORDS = (24, 300, 1500)
TOKENS = (32, 128)
TALKS = ((8, 60, 4), (8, 100, 6), (16, 60, 4), (16, 100, 6))
"""Clients, words of a turn, turns."""
TALK_TOKENS = 24

_NOTES = """\
Rates in tokens/s of all clients, from the first request to the last token, prompts included; times in ms. All clients
ask at once, over SSE, what nobody has asked before, and take all tokens. With turns, each client goes on with its own
conversation, and the times to first token are those of the later turns. The rival is the way to run llama-server with
the highest rate of: {layouts}. Ratios: umaserve's to the rival's, by the medians of {repeats} rounds; a ! misses its
goal, which a gap p95 below umaserve's default target meets whatever the ratio. Both sides have the same threads, and KV
cells for all that is asked. The servers of a number of clients are all loaded and warmed up, and measured in turn,
every other round in reverse order.
"""


@dataclass(frozen=True, slots=True)
class Goal:
    """What the ratio of a measure to the rival's has to be, at least or at most, or else umaserve's own measure."""

    measure: str
    title: str
    least: float = 0.0
    most: float = math.inf
    or_below: float = -math.inf
    """Value of the measure itself that is good enough, whatever the ratio."""


TALK_GOALS = (
    Goal("whole_rate", "tokens/s", least=1 / 0.9),
    Goal("ttft_p50", "TTFT p50", most=0.5),
    Goal("ttft_p95", "TTFT p95", most=0.5),
)
GOALS = (
    Goal("whole_rate", "tokens/s", least=1.0),
    Goal("ttft_p95", "TTFT p95", most=1.05),
    Goal("gap_p95", "gap p95", most=1.0, or_below=SETTINGS.load({}, {}).config.slo_tbt_ms),
    Goal("gap_max", "gap max", most=0.5),
)

Found = Mapping[str, Measures]
"""The medians of each server's rounds, by its name; umaserve's comes first."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        binary = llama_server.binary()
        models = [find(model) for model in options.models or [""]]
        layouts = options.layouts or list(LAYOUTS)
    except (ConfigError, ModelError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    if binary is None:
        parser.exit(2, f"{parser.prog}: name llama-server's binary in {llama_server.VARIABLE} (see bench/README.md)\n")
    loads = [Load(*one) for one in itertools.product(options.clients, options.words, options.tokens)]
    if not options.no_talks:
        loads += [Load(clients, words, TALK_TOKENS, turns) for clients, words, turns in TALKS]
    before = load_average()
    results: dict[str, dict[Load, Found]] = {model: {} for model in models}
    failed = None
    try:
        for model, measured in results.items():
            measured.update(_kept(options.results, Path(model).name, loads))
            missing = [load for load in loads if load not in measured]
            for load, found in _measured(model, missing, binary, layouts, options.repeats):
                measured[load] = found
                _keep(options.results, Path(model).name, load, found)
    except (subprocess.CalledProcessError, RuntimeError) as error:
        failed = f"{parser.prog}: {error}\n"
    except KeyboardInterrupt:
        return 130
    for model, measured in results.items():
        of = dict(sorted(measured.items(), key=lambda item: astuple(item[0])))
        print(f"## The matrix: {Path(model).name}, runs: {options.repeats}\n\n{_report(of)}")
        if left_out := [load for load in loads if load not in of]:
            print(f"Left out: {'; '.join(map(str, left_out))}.\n")
    print(_NOTES.format(layouts=", ".join(layouts), repeats=options.repeats))
    print(f"{machine()}. Load average before: {before}; after: {load_average()}.", flush=True)
    if failed is not None:
        parser.exit(1, failed)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench.matrix",
        description="Measure umaserve beside llama-server in each configuration, for many sizes of load.",
        epilog="LLAMA_SERVER names llama-server's binary. One model takes over an hour: name fewer sizes.",
        allow_abbrev=False,
    )
    sizes = (("clients", CLIENTS, "clients at once"), ("words", WORDS, "words a prompt"), ("tokens", TOKENS, "answer"))
    for name, default, what in sizes:
        help_ = f"{what} (default: {' '.join(map(str, default))})"
        parser.add_argument(f"--{name}", type=int, nargs="+", metavar="N", default=default, help=help_)
    parser.add_argument("--models", nargs="+", metavar="FILE", help="GGUF files (default: the default model)")
    parser.add_argument(
        "--layouts", nargs="+", action="extend", choices=LAYOUTS, help="ways to run llama-server (default: all)"
    )
    parser.add_argument("--no-talks", action="store_true", help="leave out the conversations")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="rounds (default: %(default)s)")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="append each row here; those that it has are not measured again"
    )
    return parser


def _kept(file: Path | None, model: str, loads: Sequence[Load]) -> dict[Load, Found]:
    """What an earlier run has measured of ``loads``."""
    if file is None or not file.exists():
        return {}
    rows = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    return {
        load: {name: Measures(*map(float, of)) for name, of in row["found"].items()}
        for row in rows
        if row["model"] == model and (load := Load(*row["load"])) in loads
    }


def _keep(file: Path | None, model: str, load: Load, found: Found) -> None:
    if file is not None:
        row = {
            "model": model,
            "load": astuple(load),
            "found": {name: list(map(repr, astuple(of))) for name, of in found.items()},
        }
        with file.open("ab") as out:
            out.write(orjson.dumps(row) + b"\n")


def _measured(
    model: str, loads: Sequence[Load], binary: str, layouts: Sequence[str], repeats: int
) -> Iterator[tuple[Load, Found]]:
    for clients in dict.fromkeys(load.clients for load in loads):
        group = [load for load in loads if load.clients == clients]
        with contextlib.ExitStack() as stack:
            servers = started(stack, model, group, binary, {name: LAYOUTS[name] for name in layouts})
            for load in group:
                runs: dict[str, list[Measures]] = {name: [] for name in servers}
                for round_ in range(repeats):
                    for name in list(servers) if round_ % 2 == 0 else reversed(servers):
                        progress(f"{load}, round {round_ + 1}, {name}")
                        runs[name].append(load.measure(servers[name], round_))
                yield load, {name: medians(of) for name, of in runs.items()}


def _report(found: Mapping[Load, Found]) -> str:
    parts = []
    for goals, turns in ((GOALS, False), (TALK_GOALS, True)):
        rows = [_row(load, of, goals) for load, of in found.items() if (load.turns > 1) == turns]
        if rows:
            titles = [title for goal in goals for title in (goal.title, "rival's", "ratio")]
            parts.append(table(["clients", "words", "tokens", "rival", *titles], rows))
    ticks = [(load, of[OURS]) for load, of in found.items() if not math.isnan(of[OURS].tick_ms)]
    if ticks:
        rows = [
            [str(load.clients), load.prompts, str(load.tokens), number(ours.gap_p50), number(ours.tick_ms)]
            for load, ours in ticks
        ]
        parts.append(
            "umaserve's gaps and ticks, in ms. A tick is decode and sampling, the mean of the last ones of each load;\n"
            "the rest of a gap is what umaserve does between two ticks.\n"
        )
        parts.append(table(["clients", "words", "tokens", "gap p50", "tick"], rows))
    if found:
        busiest = max(measured.observer_cores for of in found.values() for measured in of.values())
        parts.append(f"The load generator took at most {busiest:.2f} of a core.\n")
    return "\n".join(parts)


def _row(load: Load, found: Found, goals: Sequence[Goal]) -> list[str]:
    row = [str(load.clients), load.prompts, str(load.tokens), _rival(found)]
    for goal in goals:
        ours, theirs = (getattr(found[name], goal.measure) for name in (OURS, _rival(found)))
        ratio = _ratio(goal, found)
        met = goal.least <= ratio <= goal.most or ours < goal.or_below
        row += [number(ours), number(theirs), f"{ratio:.2f}{'' if met else ' !'}"]
    return row


def _rival(found: Found) -> str:
    return max((name for name in found if name != OURS), key=lambda name: found[name].whole_rate)


def _ratio(goal: Goal, found: Found) -> float:
    ours, theirs = (float(getattr(found[name], goal.measure)) for name in (OURS, _rival(found)))
    return ours / theirs if theirs else float("nan")


if __name__ == "__main__":
    sys.exit(main())
