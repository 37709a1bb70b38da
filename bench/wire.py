"""How many tokens a second the daemon can deliver when the model costs nothing."""

from __future__ import annotations

from collections.abc import Sequence

from bench.processes import daemon, trace_of
from bench.report import number, progress, table
from bench.trace import Measures, measures, medians

_TOKENS = 100_000
"""In all: divided among the clients."""

_NOTES = """\
Behind the real server is a stand-in for the engine: its ticks take no time and give every stream a token. Tokens/s are
those while all streams run, gaps in ms, all of it medians of the runs. Server and load generator share the machine.
"""


def report(clients: Sequence[int], repeats: int) -> str:
    """Run all, each repeat on a fresh daemon, and tell what was found."""
    runs: dict[int, list[Measures]] = {n: [] for n in clients}
    for repeat in range(repeats):
        for n in clients:
            progress(f"wire, run {repeat + 1} of {repeats}, {n} clients")
            runs[n].append(_run(n))
    header = ["clients", "tokens/s", "µs a token", "gap p50", "gap p95", "gap max", "cores of the generator"]
    rows = [_row(n, medians(found)) for n, found in runs.items()]
    return f"## The wire alone, runs: {repeats}\n\n{table(header, rows)}\n{_NOTES}"


def _run(clients: int) -> Measures:
    with daemon("bench.standin", UMA_MAX_TOKENS=str(_TOKENS)) as path:
        return measures(trace_of("bench.load", path, clients, _TOKENS // clients))


def _row(clients: int, found: Measures) -> list[str]:
    rate = found.steady_rate
    gaps = (found.gap_p50, found.gap_p95, found.gap_max)
    gap_texts = [f"{gap:.2f}" for gap in gaps]
    return [str(clients), number(rate), number(1e6 / rate), *gap_texts, f"{found.observer_cores:.2f}"]
