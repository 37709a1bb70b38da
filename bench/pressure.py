"""Is every request answered when all together need more KV cells than there are, and what does it cost?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.processes import Served, trace_of, with_children
from bench.report import number, spread, table
from bench.scenarios import PRESSURE_CLIENTS, PRESSURE_REQUESTS
from bench.sides import OURS, both, missing_note, ours, rounds
from bench.workload import mixed

_SHORTAGE = 4
"""How many times as many cells as there are would hold all that run."""
_CELLS_STEP = 256
"""llama.cpp rounds the number of cells up to this."""

_NOTES = f"""\
{PRESSURE_REQUESTS} requests, {PRESSURE_CLIENTS} at a time: prompts of 10 to 400 words, 8 to 128 tokens to generate,
the same for all servers. A request has failed if it did not get all its tokens. With classes, every other request goes
to /generate as background work, the others to /v1/completions. Wall time and tokens/s (of complete answers): from the
first request to the last token. Peak: the most resident memory that the process ever had (VmHWM), before the first
request and after the last. The median of the runs, with the smallest and the largest in brackets; each run is a new
process, and every other round is in reverse order. No reuse of prefixes.
"""


@dataclass(frozen=True, slots=True)
class Found:
    """Of one run."""

    whole: int
    """Requests that got all that they asked for."""
    wall_s: float
    rate: float
    before_mib: float
    after_mib: float


def cells() -> int:
    """Of the KV cache, for both servers."""
    needed = statistics.fmean(len(text.split()) + n_tokens for text, n_tokens in mixed(PRESSURE_REQUESTS))
    return math.ceil(needed * PRESSURE_CLIENTS / _SHORTAGE / _CELLS_STEP) * _CELLS_STEP


def report(repeats: int) -> str:
    """Run all rounds and tell what was found."""
    settings = {"UMA_N_CTX": str(cells()), "UMA_PARALLEL": str(PRESSURE_CLIENTS)}
    one_class, two_classes = partial(_measure, 1), partial(_measure, 2)
    runs = {**both(one_class, **settings), f"{OURS}, with classes": ours(two_classes, **settings)}
    found = rounds("pressure", runs, repeats)
    header = ["", "whole", "failed", "wall, s", "tokens/s", "peak before, MiB", "after, MiB"]
    return f"""\
## Pressure: {cells():,} KV cells, a quarter of what {PRESSURE_CLIENTS} clients need; runs: {repeats}

{table(header, [[name, *_row(of)] for name, of in found.items()])}
{_NOTES}{missing_note()}"""


def _measure(classes: int, at: Served) -> Found:
    before = peak_mib(at.pid)
    streams = trace_of("bench.scenarios", "pressure", at.http, classes).streams
    if not streams:
        return Found(0, math.nan, math.nan, before, peak_mib(at.pid))
    wall_s = max(stream.tokens[-1] for stream in streams) - min(stream.asked for stream in streams)
    rate = sum(len(stream.tokens) for stream in streams) / wall_s
    return Found(len(streams), wall_s, rate, before, peak_mib(at.pid))


def _row(of: Sequence[Found]) -> list[str]:
    whole = [run.whole for run in of]
    return [
        _counts(whole),
        _counts([PRESSURE_REQUESTS - n for n in whole]),
        spread([run.wall_s for run in of]),
        spread([run.rate for run in of]),
        number(statistics.median(run.before_mib for run in of)),
        number(statistics.median(run.after_mib for run in of)),
    ]


def _counts(values: Sequence[int]) -> str:
    return f"{statistics.median(values):g} ({min(values)} to {max(values)})"


def peak_mib(pid: int) -> float:
    """Of resident memory, until now (proc(5), status): of the process and the engine that it has started."""
    return sum(map(_peak_mib, with_children(pid)))


def _peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kib) / 1024
