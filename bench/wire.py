"""How many tokens a second the daemon can deliver in each dialect when the model costs nothing."""

from __future__ import annotations

from collections.abc import Sequence

from bench.conversations import CONVERSATIONS, WEBSOCKET
from bench.processes import trace_over
from bench.report import number, progress, table
from bench.trace import Measures, measures, medians

_TOKENS = 1000
"""Tokens of each stream. Not more: a message of WebSocket's grows with what came before it."""

_NOTES = f"""\
The real server runs with a stand-in for the engine: its ticks take no time and give every stream a token; each stream
has {_TOKENS:,} tokens. Tokens/s: while all streams run. Gaps in ms. All numbers are medians of the runs. Server and
load generator share the machine. By default, every {WEBSOCKET} message repeats the text so far: 3 KiB on average.
"""


def report(clients: Sequence[int], repeats: int) -> str:
    """Run all, each repeat on a fresh daemon, and tell what was found."""
    runs: dict[tuple[int, str], list[Measures]] = {(n, dialect): [] for n in clients for dialect in CONVERSATIONS}
    for repeat in range(repeats):
        for (n, dialect), found in runs.items():
            progress(f"wire, run {repeat + 1} of {repeats}, {n} clients, {dialect}")
            found.append(measures(trace_over(dialect, "bench.standin", n, _TOKENS)))
    header = ["clients", "", "tokens/s", "µs a token", "gap p50", "gap p95", "gap max", "cores of the generator"]
    rows = [[str(n), dialect, *_row(medians(found))] for (n, dialect), found in runs.items()]
    return f"## The wire alone, runs: {repeats}\n\n{table(header, rows)}\n{_NOTES}"


def _row(found: Measures) -> list[str]:
    rate = found.steady_rate
    gaps = (found.gap_p50, found.gap_p95, found.gap_max)
    return [number(rate), number(1e6 / rate), *(f"{gap:.2f}" for gap in gaps), f"{found.observer_cores:.2f}"]
