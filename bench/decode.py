"""The main question: what of a bare llama.cpp loop's speed reaches the clients of the daemon?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.conversations import UNIX_SOCKET
from bench.processes import trace_of, trace_over
from bench.report import LATENCIES, latencies, number, progress, ratio, table
from bench.trace import Measures, measures, medians

_NOTES = """\
Tokens/s, steady: of all streams, from the last stream's first token until the first stream ends, the same phase on
both sides (a dash: the first stream had ended by then; use more --tokens). Tokens/s, whole: from the first request to
the last token, prompts included. Ratios: the median of the pairs' ratios, with the smallest and the largest in
brackets. All other numbers are medians of the runs. Each run is a new process, warmed up; the two runs of a pair
follow each other, in alternating order.
"""

_LATENCY_NOTES = """\
In ms. TTFT (time to first token): of the bare loop from the start of the first decode, with the prompts tokenized
before; of the daemon from before the client connects. Gaps: between two tokens of one stream, over its whole life. The
bare loop has no target for them, and the daemon is given none.
"""


@dataclass(frozen=True, slots=True)
class Pair:
    """One run of each, one right after the other."""

    bare: Measures
    served: Measures


def run_bare(clients: int, tokens: int) -> Measures:
    return measures(trace_of("bench.bare", clients, tokens))


def run_served(clients: int, tokens: int) -> Measures:
    return measures(trace_over(UNIX_SOCKET, "umaserve", clients, tokens))


def report(clients: Sequence[int], tokens: int, repeats: int) -> str:
    """Run all pairs and tell what was found."""
    pairs: dict[int, list[Pair]] = {n: [] for n in clients}
    for repeat in range(repeats):
        for n in clients:
            progress(f"decode, pair {repeat + 1} of {repeats}, {n} clients")
            pairs[n].append(_pair(n, tokens, bare_first=repeat % 2 == 0))
    return f"""\
## Decode: {tokens} tokens for each client, pairs of runs: {repeats}

{_speed_table(pairs)}
{_NOTES}
{_latency_table(pairs)}
{_LATENCY_NOTES}"""


def _pair(clients: int, tokens: int, *, bare_first: bool) -> Pair:
    if bare_first:
        bare = run_bare(clients, tokens)
        served = run_served(clients, tokens)
    else:
        served = run_served(clients, tokens)
        bare = run_bare(clients, tokens)
    return Pair(bare, served)


def _speed_table(pairs: dict[int, list[Pair]]) -> str:
    header = ["clients", "steady: bare", "umaserve", "ratio", "whole: bare", "umaserve", "ratio"]
    rows = [
        [
            str(clients),
            *_compared([(pair.bare.steady_rate, pair.served.steady_rate) for pair in runs]),
            *_compared([(pair.bare.whole_rate, pair.served.whole_rate) for pair in runs]),
        ]
        for clients, runs in pairs.items()
    ]
    return table(header, rows)


def _compared(rates: Sequence[tuple[float, float]]) -> list[str]:
    bare, served = zip(*rates, strict=True)
    return [number(statistics.median(bare)), number(statistics.median(served)), ratio(rates)]


def _latency_table(pairs: dict[int, list[Pair]]) -> str:
    header = ["clients", "", *LATENCIES, "cores of the generator"]
    rows = []
    for clients, runs in pairs.items():
        for name, found in (
            ("bare", medians([pair.bare for pair in runs])),
            ("umaserve", medians([pair.served for pair in runs])),
        ):
            cores = f"{found.observer_cores:.2f}" if name == "umaserve" else ""
            rows.append([str(clients), name, *latencies(found), cores])
    return table(header, rows)
