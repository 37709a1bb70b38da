"""``python -m bench.fleet``: how a relay spreads conversations over up to 1,000 workers, by an invented clock."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.fleet_simulator import POLICIES, Fleet, Load, Served
from bench.report import number, progress, table

FLEETS = ((10, 1_000), (100, 10_000), (1_000, 100_000))

_NOTES = """\
The pool, its queue and its timers are the relay's own; workers and clients are invented. Each client has
conversations of {turns} turns, one after the other, with {think:g} s between: {system} tokens that all conversations
begin with, {asked} more of the client's in each turn, and {answer} of the answer. A worker computes one prompt after
the other, {prefill:,.0f} tokens a second, has {places} places, and keeps the {cache:,} tokens that it used last.
In order: a free place goes to whoever waited longest. Goodput: requests a second whose first token came within
{target:g} s. Wait: for a place, in ms; TTFT: to the first token, in ms. Reused: of the prompts' tokens, those that the
worker had. Fairness: Jain's index of the clients' shares of answers in time; 1: all alike. Busiest: the prompt tokens
that the busiest worker computed, of the mean. Pool: real time of a request, with the simulation's own.
"""


@dataclass(frozen=True, slots=True)
class Point:
    """What came of one run. Times in seconds."""

    policy: str
    answers: float
    """Each second."""
    goodput: float
    wait_mean: float
    wait_p95: float
    ttft_p50: float
    ttft_p99: float
    reused: float
    fairness: float
    busiest: float
    failed: int
    pool_us: float
    """Of each request, in microseconds."""


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate and print a table; returns the exit status."""
    options = _parser().parse_args(argv)
    fleets = [(options.workers, options.clients)] if options.workers else FLEETS
    load = Load(think_s=options.think, target_s=options.target)
    rows = []
    for workers, clients in fleets:
        for policy in POLICIES:
            progress(f"{workers} workers, {clients} clients, {policy}")
            rows.append([f"{workers:,}", f"{clients:,}", *_row(measure(policy, workers, clients, load, options))])
    header = ["workers", "clients", "by", "answers/s", "goodput/s", "wait mean", "p95", "TTFT p50", "p99", "reused"]
    print(table([*header, "fairness", "busiest", "failed", "pool, µs"], rows))
    print(_NOTES.format(**load.described()))
    return 0


def measure(policy: str, workers: int, clients: int, load: Load, options: argparse.Namespace) -> Point:
    fleet = Fleet(policy, workers, clients, load, options.seed)
    started = time.perf_counter()
    served = fleet.run(options.seconds)
    took = time.perf_counter() - started
    # The first turns find no caches: the second half is what goes on.
    late = [one for one in served if one.asked_at >= options.seconds / 2 and not one.failed]
    if not late:
        raise ValueError(f"expected more than {options.seconds:g} s, which end before a second turn")
    ttft = np.array([one.first_at - one.asked_at for one in late])
    waits = np.array([one.given_at - one.asked_at for one in late])
    computed = np.array([link.computed for link in fleet.links], dtype=float)
    return Point(
        policy,
        answers=len(late) / (options.seconds / 2),
        goodput=float((ttft <= load.target_s).sum() / (options.seconds / 2)),
        wait_mean=float(waits.mean()),
        wait_p95=float(np.percentile(waits, 95)),
        ttft_p50=float(np.percentile(ttft, 50)),
        ttft_p99=float(np.percentile(ttft, 99)),
        reused=sum(one.reused for one in late) / sum(one.prompt for one in late),
        fairness=_fairness(late, load.target_s),
        busiest=float(computed.max() / max(1.0, computed.mean())),
        failed=sum(one.failed for one in served),
        pool_us=took / max(1, len(served)) * 1e6,
    )


def _fairness(served: Sequence[Served], target_s: float) -> float:
    """Jain's index, (Σx)² / (n Σx²), of the share of each client's requests that were in time."""
    clients = np.array([one.client for one in served])
    in_time = np.array([one.first_at - one.asked_at <= target_s for one in served])
    counts = np.bincount(clients)
    shares = np.bincount(clients, in_time)[counts > 0] / counts[counts > 0]
    return float(shares.sum() ** 2 / (len(shares) * (shares**2).sum())) if shares.any() else 0.0


def _row(point: Point) -> list[str]:
    ms = (point.wait_mean, point.wait_p95, point.ttft_p50, point.ttft_p99)
    return [
        point.policy,
        number(point.answers),
        number(point.goodput),
        *(number(1000 * seconds) for seconds in ms),
        f"{point.reused:.1%}",
        f"{point.fairness:.3f}",
        f"{point.busiest:.2f}",
        f"{point.failed:,}",
        number(point.pool_us),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench.fleet",
        description="Simulate a relay's pool: conversations by prefix, in order too; by the lowest load; at random.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--workers", type=_whole, default=0, metavar="N", help="0: 10, 100 and 1,000, with 100 clients for each")
    add("--clients", type=_whole, default=1_000, metavar="N", help="with --workers")
    add("--seconds", type=float, default=160.0, metavar="S", help="simulated; the second half is measured")
    add("--think", type=float, default=Load().think_s, metavar="S", help="mean time between a client's turns")
    add("--target", type=float, default=Load().target_s, metavar="S", help="time to first token of a good answer")
    add("--seed", type=int, default=1, metavar="N", help="of all chance")
    return parser


def _whole(text: str) -> int:
    if int(text) < 0:
        raise argparse.ArgumentTypeError(f"expected a number from 0, got {text}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
