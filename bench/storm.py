"""What a storm of prompts does to a stream that decodes, and what of the storm is served meanwhile."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.frontier import Point, draw
from bench.processes import Served, trace_of
from bench.report import number, spread, table
from bench.scenarios import CALM_S, STORM_CLIENTS, STORM_S, STORM_TOKENS, STORM_WORDS, STREAM_TOKENS
from bench.sides import OURS, THEIRS, Run, missing_note, ours, rounds, theirs
from bench.trace import Stream, Trace

TARGETS_MS = (20, 30, 50, 80, 120, 200, 400)
BATCHES = (16, 32, 64, 128, 512)
COMPARED = {f"{OURS}, target 80 ms", f"{OURS}, target 30 ms", f"{THEIRS}, batch 512"}

_SETTINGS = {"UMA_PARALLEL": "16", "UMA_MAX_TOKENS": str(STREAM_TOKENS)}
"""Not the environment's number of sequences: a batch has to have room for a token of each."""

_NOTES = f"""\
Gaps and TTFT in ms. One stream decodes. After {CALM_S:g} s, {STORM_CLIENTS} clients send a prompt of {STORM_WORDS}
words each for {STORM_TOKENS} tokens, and another one as soon as it is answered, for {STORM_S:g} s. Gaps are the
stream's, TTFT is of the {STORM_CLIENTS} clients. umaserve runs with different targets for the time between tokens
(UMA_SLO_TBT_MS), llama-server with different batch sizes (-b and -ub, both the same; 512 is its default -ub). A prompt
that is still being answered at the end counts with the part of its time. The median of the runs, with the smallest and
the largest in brackets. Each run is a new process, warmed up; every other round is in reverse order. No reuse of
prefixes, no draft tokens.
"""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Between two tokens of the stream, in ms; NaN where there were none."""

    p50: float
    p95: float
    max: float

    @classmethod
    def between(cls, tokens: Sequence[float]) -> Gaps:
        """``tokens``: their arrivals, in seconds."""
        if len(tokens) < 2:
            return cls(math.nan, math.nan, math.nan)
        gaps = np.diff(tokens) * 1000
        return cls(float(np.percentile(gaps, 50)), float(np.percentile(gaps, 95)), float(gaps.max()))


@dataclass(frozen=True, slots=True)
class Found:
    """What one run shows. Rates are those of the storm, each second."""

    alone: Gaps
    storm: Gaps
    prompts: float
    prompt_tokens: float
    ttft_p50: float
    """In ms."""


def found(trace: Trace) -> Found:
    """From the trace of a storm: the stream, then each prompt."""
    stream, *asked = trace.streams
    begin = min(prompt.asked for prompt in asked)
    end = begin + STORM_S
    served = [_part(prompt, end) for prompt in asked]
    # The gap that the storm's begin falls into is the storm's.
    before = sum(token < begin for token in stream.tokens)
    after = sum(token <= end for token in stream.tokens)
    return Found(
        alone=Gaps.between(stream.tokens[:before]),
        # With the token that ends the last gap, however long after the storm that is: the storm held it up.
        storm=Gaps.between(stream.tokens[max(before - 1, 0) : after + 1]),
        prompts=sum(served) / STORM_S,
        prompt_tokens=sum(part * prompt.prompt_tokens for part, prompt in zip(served, asked, strict=True)) / STORM_S,
        ttft_p50=statistics.median(prompt.tokens[0] - prompt.asked for prompt in asked) * 1000,
    )


def report(repeats: int, picture: Path) -> str:
    """Run the whole frontier of both sides, draw it, and tell what was found."""
    runs = rounds("storm", _runs(), repeats)
    compared = {name: of for name, of in runs.items() if name in COMPARED}
    return f"""\
## Storm: gaps of a stream while prompts come in, runs: {repeats}

{_comparison(compared)}
{_frontier(runs)}
{_NOTES}{missing_note()}{draw(_lines(runs), picture)}"""


def _runs() -> dict[str, Run[Found] | None]:
    targets = {f"{OURS}, target {ms} ms": with_target(ms) for ms in TARGETS_MS}
    batches = {f"{THEIRS}, batch {n}": with_batch(n) for n in BATCHES}
    return {**targets, **batches}


def with_target(ms: int) -> Run[Found]:
    """A storm over umaserve, with this target for the time between tokens."""
    # Without guesses: a stream that guesses its own repetitions has gaps of nothing, which would flatter the rest.
    return ours(_measure, UMA_SLO_TBT_MS=str(ms), UMA_SPECULATION="false", **_SETTINGS)


def with_batch(n: int) -> Run[Found] | None:
    """A storm over llama-server, with batches of ``n``; None where it is not there."""
    return theirs(_measure, UMA_N_BATCH=str(n), UMA_N_UBATCH=str(n), **_SETTINGS)


def _measure(at: Served) -> Found:
    return found(trace_of("bench.scenarios", "storm", at.http))


def _part(prompt: Stream, end: float) -> float:
    """What part of the answer's time was over by ``end``."""
    return min(1.0, (end - prompt.asked) / (prompt.tokens[-1] - prompt.asked))


def _comparison(runs: Mapping[str, Sequence[Found]]) -> str:
    header = ["gaps", "alone: p50", "p95", "max", "in the storm: p50", "p95", "max"]
    rows = []
    for name, of in runs.items():
        gaps = [[run.alone for run in of], [run.storm for run in of]]
        medians = [statistics.median(getattr(gap, key) for gap in phase) for phase in gaps for key in Gaps.__slots__]
        rows.append([name, *map(number, medians)])
    return table(header, rows)


def _frontier(runs: Mapping[str, Sequence[Found]]) -> str:
    header = ["storm", "gap p95", "gap max", "prompts/s", "prompt tokens/s", "TTFT p50"]
    rows = []
    for name, of in runs.items():
        gaps = [spread([run.storm.p95 for run in of]), spread([run.storm.max for run in of])]
        rates = [
            number(statistics.median(run.prompts for run in of)),
            spread([run.prompt_tokens for run in of]),
            spread([run.ttft_p50 for run in of]),
        ]
        rows.append([name, *gaps, *rates])
    return table(header, rows)


def _lines(runs: Mapping[str, Sequence[Found]]) -> dict[str, list[Point]]:
    """A line for each side, from the label of its runs before the comma."""
    lines: dict[str, list[Point]] = {}
    for name, of in runs.items():
        side, _, label = name.partition(", ")
        point = Point(
            label,
            rate=statistics.median(run.prompt_tokens for run in of),
            gap=statistics.median(run.storm.p95 for run in of),
            worst=max(run.storm.max for run in of),
        )
        lines.setdefault(side, []).append(point)
    return lines
