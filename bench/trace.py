"""When each token of each stream came, and what follows from that. The same for all that is measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import orjson


@dataclass(frozen=True, slots=True)
class Stream:
    """Seconds on the monotonic clock."""

    asked: float
    tokens: list[float]
    """The arrival of each token."""
    prompt_tokens: int = 0
    """Count by the server; 0 where nobody asked it."""
    turn: int = 0
    """How many turns of the same conversation were before."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One run of several streams at once."""

    streams: list[Stream]
    cpu_s: float
    """CPU time that the observing process took for itself meanwhile."""

    def dump(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def load(cls, dumped: bytes) -> Trace:
        values = orjson.loads(dumped)
        return cls([Stream(**stream) for stream in values["streams"]], values["cpu_s"])


@dataclass(frozen=True, slots=True)
class Measures:
    """Rates in tokens a second over all streams, times in ms."""

    steady_rate: float
    """While all streams decode: after the last of the first tokens, until the first stream ends. NaN if never."""
    whole_rate: float
    """From the first request to the last token."""
    ttft_p50: float
    ttft_p95: float
    ttft_max: float
    gap_p50: float
    """Gaps are those between two tokens of one stream, also while other prompts are still computed."""
    gap_p95: float
    gap_max: float
    observer_cores: float
    tick_ms: float = math.nan
    """What umaserve's last ticks took, by its own metrics: decode and sampling."""
    ttft_second: float = math.nan
    """Median time to the first token of second turns; NaN where there are none."""


def measures(trace: Trace, *, later: bool = False) -> Measures:
    """The measures of one run; ``later``: the times to first token are those of the later turns only."""
    streams = trace.streams
    asked = min(stream.asked for stream in streams)
    ended = max(stream.tokens[-1] for stream in streams)
    ttft = np.array([stream.tokens[0] - stream.asked for stream in streams if stream.turn or not later]) * 1000
    second = [stream.tokens[0] - stream.asked for stream in streams if stream.turn == 1]
    gaps = np.concatenate([np.diff(stream.tokens) for stream in streams]) * 1000
    return Measures(
        steady_rate=_steady_rate(streams),
        whole_rate=sum(len(stream.tokens) for stream in streams) / (ended - asked),
        ttft_p50=float(np.percentile(ttft, 50)),
        ttft_p95=float(np.percentile(ttft, 95)),
        ttft_max=float(ttft.max()),
        gap_p50=float(np.percentile(gaps, 50)),
        gap_p95=float(np.percentile(gaps, 95)),
        gap_max=float(gaps.max()),
        observer_cores=trace.cpu_s / (ended - asked),
        ttft_second=statistics.median(second) * 1000 if second else math.nan,
    )


def medians(runs: Sequence[Measures]) -> Measures:
    """Each measure's median over several runs."""
    return Measures(*(statistics.median(getattr(run, field.name) for run in runs) for field in fields(Measures)))


def _steady_rate(streams: Sequence[Stream]) -> float:
    begin = max(stream.tokens[0] for stream in streams)
    end = min(stream.tokens[-1] for stream in streams)
    if begin >= end:
        return math.nan
    return sum(begin < token <= end for stream in streams for token in stream.tokens) / (end - begin)
