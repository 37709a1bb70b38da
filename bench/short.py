"""How soon does a chat's answer begin when nothing else runs?"""

from __future__ import annotations

import numpy as np

from bench.processes import Served, trace_of
from bench.report import ratio, spread, table
from bench.scenarios import CHAT_QUESTIONS, CHAT_TOKENS
from bench.sides import OURS, THEIRS, both, missing_note, rounds

_NOTES = f"""\
TTFT in ms. {CHAT_QUESTIONS} different questions of one line to /v1/chat/completions, one after another on one
connection, each answered with {CHAT_TOKENS} tokens. Both servers may reuse what they have computed: the text before
the question is always the same. The median of the runs, with the smallest and the largest in brackets; ratios: to
llama-server's in the same round. Each run is a new process, warmed up; every other round is in reverse order.
"""


def report(repeats: int) -> str:
    """Run all rounds and tell what was found."""
    runs = rounds("short", both(_measure), repeats)
    rows = []
    for name, of in runs.items():
        row = [name]
        for key, values in enumerate(zip(*of, strict=True)):
            theirs = [run[key] for run in runs.get(THEIRS, [])]
            beside = ratio(list(zip(theirs, values, strict=True))) if theirs and name == OURS else ""
            row += [spread(values), beside]
        rows.append(row)
    header = ["", "TTFT p50", "ratio", "TTFT p95", "ratio"]
    return f"## Short chats, runs: {repeats}\n\n{table(header, rows)}\n{_NOTES}{missing_note()}"


def _measure(at: Served) -> tuple[float, float]:
    """p50 and p95."""
    streams = trace_of("bench.scenarios", "short", at.http).streams
    p50, p95 = np.percentile([(stream.tokens[0] - stream.asked) * 1000 for stream in streams], [50, 95])
    return float(p50), float(p95)
