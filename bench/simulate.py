"""``python -m bench.simulate``: how policies would serve thousands of sessions on a box, by an invented clock."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.box import Box
from bench.report import number, progress, table
from bench.simulator import POLICIES, Load, Run, Simulation, jobs, most_rate
from umaserve.core.errors import ConfigError
from umaserve.core.requests import Priority
from umaserve.settings.daemon import Config

COSTS = Path(__file__).parent / "costs"
RATES = (10, 30, 50, 60, 70, 80, 90, 100, 110, 120, 150)

_NOTES = """\
Load: of what the machine could serve with all slots full and without targets. Goodput: sessions per second whose first
token met its target, and the later ones on average. TTFT and gaps: of the interactive sessions that were not refused,
in ms. Attained: the share of a class's sessions that count as goodput. Background sessions have {factor:g} times as
much time. First come: a prompt is computed whole as soon as a slot is free, while all streams wait. Decode first: each
tick has a token of every stream, and prompts fill the batch. Moving the KV of a preempted session costs nothing here,
and every policy knows the true cost of a tick.
"""


@dataclass(frozen=True, slots=True)
class Point:
    """One policy under one load: rates in sessions a second, times in seconds, NaN where there is nothing."""

    load: float
    """Share of what the box could carry."""
    policy: str
    offered: float
    goodput: float
    ttft_p50: float
    ttft_p99: float
    gap_p99: float
    attained: dict[Priority, float]
    refused: float
    """Share of all sessions."""


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        box = Box.load(options.box)
        load = Load(
            prompt_tokens=options.prompt_tokens,
            answer_tokens=options.answer_tokens,
            background=options.background,
            ttft_s=options.ttft_ms / 1000,
            tbt_s=options.tbt_ms / 1000,
        )
        points = sweep(box, load, options)
    except ConfigError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except ValueError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        return 130
    print(report(points, options.box.stem, load, options.sessions))
    if options.png:
        try:
            draw(points, options.png, f"{options.box.stem}: {options.sessions} sessions at each load")
        except ImportError:
            parser.exit(1, f"{parser.prog}: drawing needs matplotlib: pip install 'umaserve[bench]'\n")
    return 0


def sweep(box: Box, load: Load, options: argparse.Namespace) -> list[Point]:
    """Every policy under every load, from the same sessions."""
    most = most_rate(box, jobs(load, options.sessions, 1.0, options.seed))
    points = []
    for percent in options.rates:
        offered = most * percent / 100
        sessions = jobs(load, options.sessions, offered, options.seed)
        for name, policy in POLICIES.items():
            progress(f"{percent:g}% of {most:.2f} sessions/s, {name}")
            simulation = Simulation(box, sessions, policy, queue=options.queue, noise=options.noise, seed=options.seed)
            points.append(point(percent / 100, name, offered, simulation.run()))
    return points


def point(load: float, policy: str, offered: float, run: Run) -> Point:
    """What came of one run."""
    first = [job.ttft_s for job in run.sessions if job.priority is Priority.INTERACTIVE and not job.refused]
    of_class = {class_: [job for job in run.sessions if job.priority is class_] for class_ in Priority}
    return Point(
        load,
        policy,
        offered,
        goodput=sum(job.attained for job in run.sessions) / run.ended_at,
        ttft_p50=_percentile(first, 50),
        ttft_p99=_percentile(first, 99),
        gap_p99=_percentile(run.gaps, 99),
        attained={class_: _share(job.attained for job in of_class[class_]) for class_ in Priority},
        refused=_share(job.refused for job in run.sessions),
    )


def report(points: Sequence[Point], box: str, load: Load, sessions: int) -> str:
    """A Markdown table of all points, and what its columns mean."""
    header = ["load", "offered/s", "policy", "goodput/s", "TTFT p50", "TTFT p99", "gap p99"]
    header += [*(f"{class_.name.lower()} attained" for class_ in Priority), "refused"]
    rows = [
        [f"{p.load:.0%}", f"{p.offered:.2f}", p.policy, f"{p.goodput:.2f}"]
        + [number(1000 * seconds) for seconds in (p.ttft_p50, p.ttft_p99, p.gap_p99)]
        + [_percent(share) for share in (*p.attained.values(), p.refused)]
        for p in points
    ]
    asked = (
        f"{sessions} sessions at each load, {load.background:.0%} of them background; prompts of {load.prompt_tokens} "
        f"and answers of {load.answer_tokens} tokens (medians); targets {1000 * load.ttft_s:g} ms to the first token "
        f"and {1000 * load.tbt_s:g} ms between tokens.\n"
    )
    return f"## Simulated: {box}\n\n{table(header, rows)}\n{asked}\n{_NOTES.format(factor=load.background_factor)}"


def draw(points: Sequence[Point], file: Path, title: str) -> None:
    """Goodput and TTFT against the load, a line for each policy. Raises ``ImportError`` without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(title)
    goodput, ttft = figure.subplots(1, 2)
    for name in POLICIES:
        own = [p for p in points if p.policy == name]
        loads = [100 * p.load for p in own]
        goodput.plot(loads, [p.goodput for p in own], marker="o", label=name)
        ttft.plot(loads, [p.ttft_p99 for p in own], marker="o", label=name)
    offered = sorted({(100 * p.load, p.offered) for p in points})
    goodput.plot(*zip(*offered, strict=True), color="grey", linestyle=":", label="offered")
    goodput.set(xlabel="offered load, % of capacity", ylabel="goodput, sessions/s", ylim=(0, None))
    ttft.set(xlabel="offered load, % of capacity", ylabel="TTFT p99 of interactive sessions, s", yscale="log")
    goodput.legend()
    figure.savefig(file, dpi=120)


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else math.nan


def _share(truths: Iterable[bool]) -> float:
    listed = list(truths)
    return sum(listed) / len(listed) if listed else math.nan


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.1%}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench.simulate",
        description="Drive the scheduler's policy, and two others, with an invented clock: who keeps their targets?",
        epilog="Example: python -m bench.simulate --box bench/costs/h100-8b.json --prompt-tokens 500 --png",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    load = Load()
    own_png = Path(__file__).with_suffix(".png")
    add = parser.add_argument
    add("--box", type=Path, default=COSTS / "2-cores.json", metavar="FILE", help="what ticks cost, and what fits")
    add("--sessions", type=_whole, default=10_000, metavar="N", help="at each load")
    add("--rates", type=_above_zero, nargs="+", default=RATES, metavar="PERCENT", help="of what the box could carry")
    add("--prompt-tokens", type=_whole, default=load.prompt_tokens, metavar="N", help="median of the prompts")
    add("--answer-tokens", type=_whole, default=load.answer_tokens, metavar="N", help="median of the answers")
    add("--background", type=_fraction, default=load.background, metavar="SHARE", help="of all sessions")
    add("--ttft-ms", type=_above_zero, default=1000 * load.ttft_s, metavar="MS", help="target to the first token")
    add("--tbt-ms", type=_above_zero, default=1000 * load.tbt_s, metavar="MS", help="target between tokens")
    add("--queue", type=_whole, default=Config().max_queue, metavar="N", help="sessions that may wait")
    add("--noise", type=_fraction, default=0.0, metavar="SHARE", help="by which ticks' times vary")
    add("--seed", type=int, default=1, metavar="N", help="of all chance")
    add("--png", type=Path, nargs="?", const=own_png, metavar="FILE", help=f"draw the curves too (to {own_png.name})")
    return parser


def _whole(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {text}")
    return int(text)


def _above_zero(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
