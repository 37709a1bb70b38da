"""``python -m bench.models``: two models of one daemon, beside two daemons and two llama-servers on the same cores."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench import llama_server
from bench.report import load_average, machine, ratio, spread, table
from bench.sides import missing_note, rounds
from bench.storm import Gaps
from bench.trace import Measures, Trace, measures
from bench.two_models import ONE, Files, both_loaded, files_of, loading, started
from bench.two_models_load import BEFORE, CALM_S, STORM_TOKENS
from umaserve.core.errors import ConfigError, ModelError
from umaserve.engine.llama.model import find
from umaserve.settings.daemon import SETTINGS

T = TypeVar("T")
Columns = Mapping[str, Callable[[T], float]]
"""How each value of a run is found, by its title."""

MEASUREMENTS = ("storm", "streams", "switch", "beside")

_RATIOS = """\
The median of the runs, with the smallest and the largest in brackets. Ratios: of what one daemon has to what the side
has in the same round. Each run has new processes, warmed up; every other round is in reverse order."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the loads."""

    prompts: int = 8
    words: int = 1500
    """Length of each prompt; as many tokens of the default model."""
    stream_tokens: int = 128
    streams: int = 8
    """Streams of each model."""
    tokens: int = 64
    """Tokens of each of these."""


QUICK = Sizes(prompts=2, words=60, streams=2, tokens=8)


@dataclass(frozen=True, slots=True)
class Storm:
    """What one run shows: the first model's stream while the other model's prompts are computed."""

    gaps: Gaps
    seconds: float
    """Until the last of the prompts has its answer."""
    rate: float
    """Tokens a second, of prompts and answers, until all is answered, the stream too."""


@dataclass(frozen=True, slots=True)
class Switch:
    """What one run shows, in ms: how long the first answer of a model that was not loaded takes to begin."""

    first_token: float
    loaded: float
    """Until the model is loaded."""
    next_answer: float
    """The time to first token of the next answer."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What one run shows: a stream of the first model, alone and while the other one is loaded."""

    alone: Gaps
    loading: Gaps
    first_token: float
    """Time to the other model's, in ms."""


def storm(trace: Trace) -> Storm:
    """From the trace of the scenario."""
    stream, *prompts = trace.streams
    begin = min(prompt.asked for prompt in prompts)
    end = max(one.tokens[-1] for one in trace.streams)
    tokens = sum(len(one.tokens) + one.prompt_tokens for one in trace.streams)
    return Storm(
        gaps=Gaps.between(_from(stream.tokens, begin)),
        seconds=max(prompt.tokens[-1] for prompt in prompts) - begin,
        rate=tokens / (end - begin),
    )


def switch(trace: Trace) -> Switch:
    """From the trace of the scenario."""
    loads, waited, after = trace.streams
    return Switch(*((one.tokens[0] - one.asked) * 1000 for one in (waited, loads, after)))


def beside(trace: Trace) -> Beside:
    """From the trace of the scenario."""
    stream, answered = trace.streams
    begin, end = answered.asked, answered.tokens[0]
    since = _from(stream.tokens, begin)
    # With the token that ends the last gap: the loading held it up.
    during = since[: 1 + next((at for at, token in enumerate(since) if token >= end), len(since))]
    return Beside(
        alone=Gaps.between([token for token in stream.tokens if token < begin]),
        loading=Gaps.between(during),
        first_token=(end - begin) * 1000,
    )


def _from(tokens: Sequence[float], begin: float) -> Sequence[float]:
    """Tokens since ``begin``, with the one before: the gap that it falls into is the first."""
    before = sum(token < begin for token in tokens)
    return tokens[max(before - 1, 0) :]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    wanted = {options.only} if options.only else {*MEASUREMENTS}
    sizes, repeats = (QUICK, 1) if options.quick else (Sizes(), options.repeats)
    before = load_average()
    try:
        loaded = SETTINGS.load({}, os.environ).config
        llama_server.binary()
        with files_of(loaded) as files:
            if "storm" in wanted:
                print(_storm_report(files, sizes, repeats, loaded.slo_tbt_ms), flush=True)
            if "streams" in wanted:
                print(_streams_report(files, sizes, repeats), flush=True)
            if "switch" in wanted:
                print(_switch_report(files, repeats), flush=True)
            if "beside" in wanted:
                print(_beside_report(files, repeats, loaded.slo_tbt_ms), flush=True)
    except (ConfigError, ModelError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except (subprocess.CalledProcessError, RuntimeError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        return 130
    print(f"{missing_note()}{machine()}; {Path(find(loaded.model)).name} and a copy of it, as they are.")
    print(f"Load average before: {before}; after: {load_average()}.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench.models",
        description="Measure two models of one daemon: a stream of one beside prompts for the other (storm), streams "
        "of both, the time to first token of one that is not loaded (switch), and a stream while the other is loaded "
        "(beside). Each round also has two daemons, or a new one, and where LLAMA_SERVER names its binary two "
        "llama-servers, or one as router.",
        epilog="The models are UMA_MODEL (default: the default model) and a copy of it, with their weights as they "
        "are, without draft tokens. All other settings come from the UMA_* variables, for all sides. On two cores the "
        "default takes some 20 minutes, half as long without llama-server.",
        allow_abbrev=False,
    )
    parser.add_argument("--only", choices=MEASUREMENTS, help="one of the measurements (default: all)")
    parser.add_argument("--repeats", type=_at_least_one, default=3, metavar="N", help="rounds (default: %(default)s)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one round of small loads, in half a minute: shows that all works; its figures say nothing",
    )
    return parser


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {value}")
    return value


# -- the measurements --------------------------------------------------------------------------------------------


def _storm_report(files: Files, sizes: Sizes, repeats: int, target_ms: float) -> str:
    sides = both_loaded(files, "storm", sizes.prompts, sizes.words, sizes.stream_tokens)
    traces = rounds("storm", sides, repeats)
    found = {name: [storm(trace) for trace in of] for name, of in traces.items()}
    columns: Columns[Storm] = {
        "gap p50": lambda run: run.gaps.p50,
        "gap p95": lambda run: run.gaps.p95,
        "gap max": lambda run: run.gaps.max,
        "answered, s": lambda run: run.seconds,
        "tokens/s": lambda run: run.rate,
    }
    prompt_tokens = traces[ONE][0].streams[1].prompt_tokens
    notes = f"""\
One model has a stream of {sizes.stream_tokens} tokens. Once it has {BEFORE}, {sizes.prompts} prompts of
{prompt_tokens:,} tokens each come for the other model at once, each for {STORM_TOKENS} tokens. Gaps: the stream's from
then on, in ms; {_of_target([run.gaps for run in found[ONE]], target_ms)}. Answered: the last of the prompts. Tokens/s:
of all prompts and answers, until the last one ends. The last row is a limit: all the same on one model."""
    title = f"a stream of one beside a storm of prompts for the other, runs: {repeats}"
    return _section(title, _table(found, columns, ["gap p95", "answered, s", "tokens/s"]), notes)


def _streams_report(files: Files, sizes: Sizes, repeats: int) -> str:
    traces = rounds("streams", both_loaded(files, "streams", sizes.streams, sizes.tokens), repeats)
    found = {name: [measures(trace) for trace in of] for name, of in traces.items()}
    columns: Columns[Measures] = {
        "tokens/s": lambda run: run.whole_rate,
        "TTFT p95": lambda run: run.ttft_p95,
        "gap p50": lambda run: run.gap_p50,
        "gap p95": lambda run: run.gap_p95,
        "gap max": lambda run: run.gap_max,
    }
    notes = f"""\
Answers of {sizes.tokens} tokens, all asked for at once. Times in ms. Tokens/s: of the answers, from the first request
to the last token. The last row is a limit: all {2 * sizes.streams} on one model, where a decode has the tokens of
all."""
    title = f"{sizes.streams} streams of each, runs: {repeats}"
    return _section(title, _table(found, columns, ["tokens/s", "gap p95"]), notes)


def _switch_report(files: Files, repeats: int) -> str:
    traces = rounds("switch", {**loading(files, "switch"), **started(files)}, repeats)
    found = {name: [switch(trace) for trace in of] for name, of in traces.items()}
    columns: Columns[Switch] = {
        "first token": lambda run: run.first_token,
        "of it until loaded": lambda run: run.loaded,
        "the next answer's": lambda run: run.next_answer,
    }
    notes = """\
In ms, from a request for a model that is not loaded, whose file is in the page cache; the other model is loaded and has
no work. Loaded: as /models says, asked every 20 ms. The next answer finds the model loaded: what a switch costs is the
difference. New: the server starts with that model as its only one, instead of a switch."""
    title = f"the time to switch to one that is not loaded, runs: {repeats}"
    return _section(title, _table(found, columns, ["first token"]), notes)


def _beside_report(files: Files, repeats: int, target_ms: float) -> str:
    traces = rounds("beside", loading(files, "beside"), repeats)
    found = {name: [beside(trace) for trace in of] for name, of in traces.items()}
    columns: Columns[Beside] = {
        "alone: p50": lambda run: run.alone.p50,
        "p95": lambda run: run.alone.p95,
        "max": lambda run: run.alone.max,
        "beside: p50": lambda run: run.loading.p50,
        "p95 ": lambda run: run.loading.p95,
        "max ": lambda run: run.loading.max,
        "first token": lambda run: run.first_token,
    }
    notes = f"""\
Gaps of the stream in ms: alone for {CALM_S:g} s, then from the request for a model that is not loaded until its first
token; {_of_target([run.loading for run in found[ONE]], target_ms)}."""
    title = f"a stream while another one is loaded, runs: {repeats}"
    return _section(title, _table(found, columns, ["max ", "first token"]), notes)


def _section(title: str, tables: str, notes: str) -> str:
    filled = textwrap.fill(f"{notes} {_RATIOS}".replace("\n", " "), 120)
    return f"## Several models: {title}\n\n{tables}\n{filled}\n"


def _table(found: Mapping[str, Sequence[T]], columns: Columns[T], compared: Sequence[str]) -> str:
    """A row for each side; behind the columns that are compared stands the ratio of our value to the side's."""
    rows = []
    for name, runs in found.items():
        row = [name]
        for title, value in columns.items():
            row.append(spread([value(run) for run in runs]))
            if title in compared:
                pairs = [(value(its), value(ours)) for its, ours in zip(runs, found[ONE], strict=True)]
                row.append("" if name == ONE else ratio(pairs))
        rows.append(row)
    titles = [part.strip() for title in columns for part in ([title, "ratio"] if title in compared else [title])]
    return table(["", *titles], rows)


def _of_target(gaps: Sequence[Gaps], target_ms: float) -> str:
    p95, longest = (statistics.median(getattr(gap, key) for gap in gaps) / target_ms for key in ("p95", "max"))
    return f"of the target of {target_ms:g} ms, one daemon's p95 is {p95:.0%} and its longest {longest:.0%}"


if __name__ == "__main__":
    sys.exit(main())
